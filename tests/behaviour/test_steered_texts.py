"""Steering and recording while a shipped model generates: texts in, texts and labelled values out."""

import json
import os
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch
from safetensors.torch import save as serialise, save_file

import glassformer as gf
from glassformer.analysis import dictionaries
from glassformer.cli import main
from glassformer.errors import UnknownAxis, UnknownSite
from glassformer.models import GREEDY, generate, stream
from waiting import in_seconds

TEXTS = ["def transform_matrix(matrix, vector):\n    return transform_", "import os\n"]


@pytest.fixture(scope="module")
def model() -> gf.Decoder:
    found = gf.load("attn-only-2l")
    assert isinstance(found, gf.Decoder)
    return found


def test_texts_come_back_as_texts_with_their_ids(model: gf.Decoder) -> None:
    found = generate(model, TEXTS, GREEDY, max_new_tokens=6)
    for text, row, ids, new in zip(TEXTS, found.texts, found.ids, found.tokens, strict=True):
        assert model.require_tokenizer().decode(new) == row
        begin, _ = model.require_tokenizer().around("opening")
        assert ids == (*begin, *model.require_tokenizer().encode(text), *new)


def test_a_model_without_its_induction_head_is_less_sure_of_what_followed(model: gf.Decoder) -> None:
    plain = generate(model, TEXTS[0], GREEDY, max_new_tokens=1)
    without = generate(model, TEXTS[0], GREEDY, max_new_tokens=1, edit=gf.Scale("L1H6.z", 0.0))
    assert plain.texts == ("mat",)
    assert without.log_probs[0][0] < -0.5 < -0.01 < plain.log_probs[0][0]


def test_a_steering_vector_raises_the_token_that_it_points_to(model: gf.Decoder) -> None:
    token = model.require_tokenizer().encode("vector")[-1]
    push = gf.Add("blocks.1.resid_post", 60 * model.unembed.weight[token] / model.unembed.weight[token].norm())
    assert set(generate(model, TEXTS, GREEDY, max_new_tokens=4, edit=push).tokens) == {(token,) * 4}
    # from the second new token on
    first = len(generate(model, TEXTS[1], GREEDY, max_new_tokens=1).ids[0]) - 1
    later = gf.Add(push.site, push.value, at=gf.At(pos=slice(first, None)))
    steered = generate(model, TEXTS[1], GREEDY, max_new_tokens=4, edit=later).tokens[0]
    assert steered[0] == generate(model, TEXTS[1], GREEDY, max_new_tokens=1).tokens[0][0]
    assert steered[1:] == (token,) * 3


def test_what_is_recorded_bears_the_names_that_a_run_gives_it(model: gf.Decoder) -> None:
    read = ["L1H6.pattern", "blocks.*.resid_post"]
    found = generate(model, TEXTS, GREEDY, max_new_tokens=5, read=read)
    run = gf.run(model, [list(ids[:-1]) for ids in found.ids], read=read)
    for name, value in found.sites.items():
        assert value.rows == run[name].rows and value.coords == run[name].coords and value.of == run[name].of
        one, other = value.select(batch=1), run[name].select(batch=1)
        assert one.coords == other.coords
        torch.testing.assert_close(one.values, other.values, rtol=1e-4, atol=1e-4)
    assert list(found.sites) == list(run)
    last = found.sites["L1H6.pattern"].select(batch=1, query=-1).labels("key")
    assert str(last[-1]).endswith(model.require_tokenizer().token(found.ids[1][-2]))


def test_values_are_on_the_cpu_and_of_each_step_alone(model: gf.Decoder) -> None:
    steps = list(stream(model, TEXTS, GREEDY, max_new_tokens=3, read="blocks.1.resid_post"))
    assert [step.sites["blocks.1.resid_post"].size("pos") for step in steps[1:]] == [1, 1]
    assert all(value.values.device.type == "cpu" for step in steps for value in step.sites.values())


def test_an_unknown_site_is_refused_at_the_call_with_the_nearest_name(model: gf.Decoder) -> None:
    with pytest.raises(UnknownSite, match=r"blocks\.1\.resid_post"):
        stream(model, TEXTS, edit=gf.Scale("blocks.1.resid_pos", 0.0))
    with pytest.raises(UnknownSite, match=r"blocks\.1\.attn\.pattern"):
        stream(model, TEXTS, read="blocks.1.attn.patern")
    with pytest.raises(UnknownAxis, match="Axes: batch pos d_model"):
        stream(model, TEXTS, edit=gf.Scale("blocks.1.resid_post", 0.0, at=gf.At(head=1)))


def test_edits_of_an_encoder_are_made_once_and_reach_every_word() -> None:
    model = gf.load("zh-en")
    source, start = ["我吃了一个苹果"], [[model.require_tokenizer().require("bos")]]
    edit, site = gf.Scale("encoder.blocks.*.attn.out", 0.0), "encoder.blocks.1.resid_post"
    found = generate(model, start, GREEDY, source=source, max_new_tokens=6, edit=edit, read=[site, "decoder.*.cross.z"])
    plain = generate(model, start, GREEDY, source=source, max_new_tokens=6)
    assert found.log_probs != plain.log_probs
    run = gf.run(model, source[0], torch.tensor([found.ids[0][:-1]]), edit=edit, read=[site, "decoder.*.cross.z"])
    for name, value in found.sites.items():
        torch.testing.assert_close(value.values, run[name].values, rtol=1e-4, atol=1e-4)
        assert value.coords == run[name].coords


# the command line -----------------------------------------------------------------------------------------------------

COMMAND = ["generate", "attn-only-2l", TEXTS[0], "--temperature", "0", "--max-new-tokens", "4"]


def printed(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main([*COMMAND, *options]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main([*COMMAND, *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err


def test_the_command_ablates_and_steers_as_python_does(
    model: gf.Decoder, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    vectors = {"push": torch.randn(256, generator=torch.Generator().manual_seed(0)), "other": torch.zeros(256)}
    save_file(vectors, tmp_path / "vectors.safetensors")
    steer = f"blocks.0.resid_post={tmp_path / 'vectors.safetensors'}:push*-3.5"
    edits = [gf.Scale("L1H6.z", 0.0), gf.Scale("blocks.0.attn.out", 0.0)]
    edits += [gf.Add("blocks.0.resid_post", -3.5 * vectors["push"])]
    for options, edit in (
        (["--ablate", "L1H6", "blocks.0.attn.out", "--steer", steer], edits),
        (["--ablate", "L1H6.z"], edits[:1]),
        (["--steer", steer], edits[2:]),
    ):
        (text,) = generate(model, TEXTS[0], GREEDY, max_new_tokens=4, edit=edit).texts
        assert printed(capsys, *options) == f"{TEXTS[0]}{text}\n"
    plain = printed(capsys)
    assert plain != printed(capsys, "--steer", steer)
    beam = gf.models.beam_search(model, TEXTS[0], n_beams=1, max_new_tokens=4, edit=edits).best[0].tokens
    words = ["generate", "attn-only-2l", TEXTS[0], "--max-new-tokens", "4", "--beams", "1"]
    assert main([*words, "--ablate", "L1H6", "blocks.0.attn.out", "--steer", steer]) == 0
    assert capsys.readouterr().out == f"{TEXTS[0]}{model.require_tokenizer().decode(beam)}\n"


def test_a_file_of_one_tensor_needs_no_name_and_no_factor(
    model: gf.Decoder, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    token = model.require_tokenizer().encode("vector")[-1]
    direction = model.unembed.weight[token].detach()
    save_file({"any": 60 * direction / direction.norm()}, tmp_path / "one.safetensors")
    assert (
        printed(capsys, "--steer", f"blocks.1.resid_post={tmp_path / 'one.safetensors'}")
        == f"{TEXTS[0]}{model.require_tokenizer().decode([token] * 4)}\n"
    )


def test_vectors_and_features_hold_from_a_position_on(
    model: gf.Decoder, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    site, width = "blocks.0.resid_post", 256
    save_file({"push": torch.randn(width, generator=torch.Generator().manual_seed(0))}, tmp_path / "v.safetensors")
    made = dictionaries.TopK(width, 32, k=8).build(seed=1)
    made.facts = {"site": site, "digest": model.digest()}
    folder = dictionaries.save_dictionary(made, tmp_path / "dictionary")
    # the same dictionary as is read: its numbers are rounded when the scale is folded in
    split, place = dictionaries.attach(model, dictionaries.load_dictionary(folder)), f"{site}.features"
    push = safetensors.torch.load_file(tmp_path / "v.safetensors")["push"]
    later = gf.At(pos=slice(12, None))
    three, five = gf.At(feature=3), gf.At(feature=5)
    steer = f"{site}={tmp_path / 'v.safetensors'}*3"
    cases: list[tuple[list[str], list[gf.trace.Edit]]] = [
        (["--steer", steer, "--steer-from", "12"], [gf.Add(site, 3 * push, at=later)]),
        (["--features", "3=40", "5*0"], [gf.Set(place, 40.0, at=three), gf.Scale(place, 0.0, at=five)]),
        (["--features", "3=40", "--steer-from", "12"], [gf.Set(place, 40.0, at=gf.At(feature=3, pos=slice(12, None)))]),
    ]
    said = set[str]()
    for options, edit in cases:
        (text,) = generate(split, TEXTS[0], GREEDY, max_new_tokens=4, edit=edit).texts
        named = ["--dictionary", str(folder)] if "--features" in options else []
        assert printed(capsys, *options, *named) == f"{TEXTS[0]}{text}\n"
        said.add(text)
    assert said - {generate(model, TEXTS[0], GREEDY, max_new_tokens=4).texts[0]}


def test_features_of_a_dictionary_of_another_model_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    made = dictionaries.TopK(256, 32, k=8).build()
    made.facts = {"site": "blocks.0.resid_post", "digest": "sha256:of another", "model": "another"}
    folder = str(dictionaries.save_dictionary(made, tmp_path / "dictionary"))
    assert "this dictionary is of another model" in refused(capsys, "--dictionary", folder, "--features", "3=1")
    made.facts = {"site": "blocks.0.resid_post"}
    dictionaries.save_dictionary(made, folder)
    for word, told in (
        ("32=1", "features 0 to 31"),
        ("3", "FEATURE=ACTIVATION"),
        ("3*x", "a factor, a number"),
        ("3=nan", "finite"),
    ):
        assert told in refused(capsys, "--dictionary", folder, "--features", word)


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_a_vector_in_few_bits_is_multiplied_in_many(
    stored: torch.dtype, model: gf.Decoder, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    vector = torch.randn(256, generator=torch.Generator().manual_seed(0)).to(stored)
    save_file({"any": vector}, tmp_path / "one.safetensors")
    # beyond what float16 holds
    edit = gf.Add("blocks.0.resid_post", 1e6 * vector.float())
    (text,) = generate(model, TEXTS[0], GREEDY, max_new_tokens=4, edit=edit).texts
    printed_text = printed(capsys, "--steer", f"blocks.0.resid_post={tmp_path / 'one.safetensors'}*1e6")
    assert printed_text == f"{TEXTS[0]}{text}\n"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_in_place_of_vectors_is_not_waited_for(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with in_seconds():
        assert "no regular file" in refused(capsys, "--steer", f"blocks.0.resid_post={tmp_path / 'pipe'}")


def test_the_document_says_what_was_made_and_what_was_recorded(
    model: gf.Decoder, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path, edit = tmp_path / "found.json", gf.Scale("L1H6.z", 0.0)
    text = printed(capsys, "--ablate", "L1H6", "--read", "L1H5.pattern", "--json", str(path))
    document = json.loads(path.read_text(encoding="utf-8"))
    (result,) = document["results"]
    found = generate(model, TEXTS[0], GREEDY, max_new_tokens=4, edit=edit, read="L1H5.pattern")
    assert document["given"] | {"ablate": ["L1H6"], "read": ["L1H5.pattern"]} == document["given"]
    assert result["result"] == "Generation" and text == f"{TEXTS[0]}{result['texts'][0]}\n"
    assert [tuple(row) for row in result["ids"]] == list(found.ids)
    read = gf.Labelled.from_dict(result["sites"]["L1H5.pattern"])
    assert read.axes == ("batch", "query", "key") and read.coords == found.sites["L1H5.pattern"].coords
    torch.testing.assert_close(read.values, found.sites["L1H5.pattern"].values)


def test_the_document_of_beams_holds_every_hypothesis(
    model: gf.Decoder, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["generate", "attn-only-2l", TEXTS[0], "--max-new-tokens", "3", "--beams", "2"]
    assert main([*words, "--json", str(tmp_path / "beams.json")]) == 0
    (result,) = json.loads((tmp_path / "beams.json").read_text())["results"]
    found = gf.models.beam_search(model, TEXTS[0], n_beams=2, max_new_tokens=3)
    assert [one["tokens"] for one in result["hypotheses"][0]] == [list(one.tokens) for one in found.hypotheses[0]]


# safetensors before 0.7 does not write complex tensors, and before 0.6 it does not read them
COMPLEX = '"complex" of "complex.safetensors" holds complex numbers'
if tuple(map(int, safetensors.__version__.split(".")[:2])) < (0, 6):
    COMPLEX = 'cannot read a vector from "complex.safetensors"'


@pytest.mark.parametrize(
    "options, words",
    [
        ("--steer blocks.0.resid_post", "--steer takes SITE=FILE:NAME*FACTOR"),
        ("--steer blocks.0.resid_pos={file}:a", 'Nearest: "blocks.0.resid_post"'),
        ("--steer blocks.0.resid_post={file}", "holds 3 tensors: say which"),
        ("--steer blocks.0.resid_post={file}:ab", 'no tensor "ab". Nearest: "a"'),
        ("--steer blocks.0.resid_post={file}:a*much", "a factor, a number; found 'much'"),
        ("--steer blocks.0.resid_post={file}.not:a", "cannot read a vector from"),
        ("--steer blocks.0.resid_post={file}:table", 'fixed number of positions along "pos"'),
        ("--steer blocks.0.resid_post=none.safetensors", '"none.safetensors" holds no tensors'),
        ("--steer blocks.0.resid_post=.", "it is no regular file"),
        ("--steer blocks.0.resid_post=complex.safetensors:complex", COMPLEX),
        ("--steer blocks.0.resid_post={file}:nan", "holds NaN or infinite numbers"),
        ("--steer blocks.0.resid_post={file}:a*inf", "holds NaN or infinite numbers"),
        ("--features 3=1", "--features are of --dictionary FOLDER"),
        ("--dictionary nowhere", "give both"),
        ("--dictionary nowhere --features 3=1", 'cannot read a dictionary from "nowhere"'),
        ("--steer-from 3", "give one"),
        ("--steer blocks.0.resid_post={file}:a --steer-from -1", "counts from the begin of the text"),
        ("--ablate L1H9", 'no head "L1H9" in this model'),
        ("--read L1H5.pattern", "give --json FILE"),
        ("--read L1H5.patern --json found.json", 'Nearest: "L1H5.pattern"'),
    ],
)
def test_a_slip_on_the_command_line_is_refused_before_anything_is_printed(
    options: str, words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    vectors = {"a": torch.ones(256), "nan": torch.full((256,), torch.nan), "table": torch.ones(1, 7, 256)}
    save_file(vectors, "v.safetensors")
    numbers = {"complex": torch.zeros(256, dtype=torch.int64)}
    Path("complex.safetensors").write_bytes(serialise(numbers).replace(b'"I64"', b'"C64"'))
    save_file({}, "none.safetensors")
    assert words in refused(capsys, *options.format(file="v.safetensors").split())
    assert not Path("found.json").exists()
