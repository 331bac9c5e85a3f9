"""Commands that ask one question of a model, from `glassformer patch` to `behaviour`, as a user calls them."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.cells import cell_len

import glassformer as gf
import tiny_runs as tiny
from glassformer import analysis
from glassformer.analysis import attribution, behaviour
from glassformer.attention import Softmax
from glassformer.attention.mechanisms import Lightning
from glassformer.checkpoints import save
from glassformer.cli import VERBS, main
from glassformer.data import Planted, TextConfig, bytes_tokenizer, word_tokenizer
from glassformer.models import DecoderConfig, EncoderDecoderConfig, Mlp, block, repeat
from glassformer.training import train

NEW = ("patch", "paths", "edges", "prune", "trace", "attribute", "lens", "route", "behaviour")
WORDS = "one two three four five six seven eight nine ten red green blue white black dog cat cow hen fox"
SIZE = 30
ONE_PAIR = ["--clean", "one two", "--corrupt", "one three", "--answer", "four", "--wrong", "two"]


@pytest.fixture(autouse=True)
def a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    torch.manual_seed(0)


def decoder(mixer: Any = None) -> Any:
    layer = block(mixer or Softmax(), n_heads=2, mlp=Mlp(12))
    return DecoderConfig(SIZE, 16, repeat(layer, 2), max_len=48).build()


@pytest.fixture
def words() -> str:
    model = decoder()
    model.tokenizer = word_tokenizer([WORDS])
    return str(save(model, "words"))


@pytest.fixture
def ids() -> str:
    return str(save(decoder(), "ids"))


@pytest.fixture
def translator() -> str:
    tokenizer = word_tokenizer([WORDS])
    stacks = [repeat(block(n_heads=2, cross=cross, mlp=Mlp(12)), 2) for cross in (False, True)]
    model = EncoderDecoderConfig(tokenizer.vocab_size, 16, *stacks, max_len=32).build()
    model.tokenizer = tokenizer
    return str(save(model, "translator"))


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, dict[str, Any]]]:
    """Return a function that runs a command that must succeed, and gives what it showed and its JSON."""

    def called(*arguments: str) -> tuple[str, dict[str, Any]]:
        assert main([*arguments, "--json", "found.json"]) == 0, capsys.readouterr().err
        out, err = capsys.readouterr()
        shown = [line for line in out.splitlines() if not line.startswith(("JSON: ", "page: ", "tuned lens: "))]
        # a bar is for terminals
        assert err == "" and max(map(cell_len, shown)) <= 80
        text = Path("found.json").read_text(encoding="utf-8")
        document = json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is not JSON"))
        assert document["format"] == "glassformer.results" and document["command"] == arguments[0]
        return out, document

    return called


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the message of a command that must refuse, and leave nothing behind."""
    before = sorted(os.listdir())
    assert main([*arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and sorted(os.listdir()) == before
    return err


def after(model: Any, text: str) -> torch.Tensor:
    """Return the logits of the token after a text."""
    logits = gf.run(model, text).logits
    assert logits is not None
    return logits[0, -1]


def test_patching_finds_the_head_that_carries_the_answer(call: Any) -> None:
    out, document = call("patch", "attn-only-2l", "--n", "6", "--sites", "z", "value")
    (found,) = document["results"]
    share = analysis.causal.Patched(**_table(found["tables"]["z"])).carried
    assert share.top(1)[0][0][-2:] == (1, 6) and share.top(1)[0][1] > 0.5
    assert "6 pairs of prompts: induction" in out and "L1H6" in out


def _table(entry: dict[str, Any]) -> dict[str, Any]:
    tensors = {name: gf.Labelled.from_dict(entry[name]) for name in ("values", "clean", "corrupt")}
    return tensors | {name: entry[name] for name in ("direction", "least_gap")}


def test_patching_goes_both_ways_and_measures_what_it_is_told(call: Any, words: str) -> None:
    measures = ["--metric", "logit-difference", "kl", "rank"]
    out, document = call("patch", words, "--n", "3", "--direction", "both", "--sites", "resid_pre", *measures)
    assert [found["direction"] for found in document["results"]] == ["denoising", "noising"]
    named = document["results"][0]["tables"]["resid_pre"]["values"]["coords"]["metric"]
    assert named == document["given"]["metric"] and len(named) == 3
    # weights at random, which do no task
    assert out.startswith("Nothing found: ") and document["denied"] and document["notes"][0]["denies"]
    assert all(f"change of {name}" in out for name in named) and "carried" not in out


def test_sites_are_cut_along_the_axes_that_are_named(call: Any, words: str) -> None:
    arguments = ["--n", "2", "--sites", "z", "neurons", "--by", "layer", "pos"]
    tables = call("patch", words, *arguments)[1]["results"][0]["tables"]
    assert {name: table["values"]["axes"][1:-1] for name, table in tables.items()} == {
        "z": ["layer", "pos"],
        "neurons": ["layer", "pos"],
    }


def test_paths_into_a_head_are_patched(call: Any) -> None:
    out, document = call("paths", "attn-only-2l", "L1H6.v", "--n", "4", "--top", "3")
    assert [found["result"] for found in document["results"]] == ["PathPatching"]
    assert document["given"]["receivers"] == ["L1H6.v"] and "along the paths into L1H6.v" in out


def test_paths_lead_into_the_logits_unless_said_otherwise(call: Any, words: str) -> None:
    assert call("paths", words, "--n", "2")[1]["given"]["receivers"] == ["logits"]


@pytest.mark.full
def test_estimates_of_edges_are_checked_by_exact_patching(call: Any) -> None:
    out, document = call("edges", "attn-only-2l", "--n", "4", "--verify", "3", "--top", "3")
    assert [found["result"] for found in document["results"]] == ["EdgeAttribution", "Verified"]
    assert document["results"][1]["largest"] == 3 and "beside exact patching" in out


@pytest.mark.full
def test_pruning_leaves_the_edges_that_carry_the_answer(call: Any) -> None:
    out, document = call("prune", "attn-only-2l", "--threshold", "2", "--n", "4", "--top", "3")
    assert [found["result"] for found in document["results"]] == ["Acdc"]
    assert ["L1H6", "logits"] in document["results"][0]["edges"] and "edges are left" in out


def test_a_pair_that_is_typed_is_read_with_its_tokens(call: Any, words: str) -> None:
    out, document = call("patch", words, *ONE_PAIR, "--sites", "resid_pre")
    assert "2:two/three" in out.replace("\u00b7", " ")
    assert document["given"]["n"] == 1


def test_answers_that_are_not_named_are_the_models_own(call: Any, words: str) -> None:
    model = gf.load(words)
    own = [int(after(model, text).argmax()) for text in ("one two", "four three")]
    assert own[0] != own[1]
    arguments = ["--clean", "one two", "--corrupt", "four three", "--sites", "z"]
    found = call("patch", words, *arguments)[1]["results"][0]["tables"]["z"]
    logits = after(model, "one two")
    assert found["clean"]["values"][0][0] == pytest.approx(float(logits[own[0]] - logits[own[1]]), abs=1e-4)


def test_pairs_of_different_lengths_are_read_from_a_file(call: Any, words: str) -> None:
    rows = [("one two", "one three"), ("four one two", "four one three")]
    lines = ["clean,corrupt,answer,wrong", *(f"{a},{b}, four, two" for a, b in rows)]
    Path("pairs.csv").write_text("\n".join(lines))
    out, document = call("patch", words, "--pairs", "pairs.csv", "--sites", "z")
    assert "2 pairs of prompts: pairs" in out and document["given"]["prompts"] == "pairs"


def test_pairs_that_do_not_fit_are_left_out_only_if_that_is_asked_for(
    call: Any, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("pairs.csv").write_text("clean,corrupt,answer,wrong\none two,one three, four, two\none,one two, four, two\n")
    message = refused(capsys, "patch", words, "--pairs", "pairs.csv")
    assert "1 of 2 pairs do not fit this model; pair 1: clean has 2 tokens and corrupt 3" in message
    assert "--fitting" in message
    assert call("patch", words, "--pairs", "pairs.csv", "--fitting", "--sites", "z")[1]["given"]["n"] == 1


def test_a_sweep_that_was_kept_is_not_run_again(
    call: Any, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["patch", words, "--n", "3", "--save-to", "rows.safetensors", "--sites", "z"]
    first = call(*arguments)[1]["results"][0]["tables"]
    assert Path("rows.safetensors").exists()
    again = call(*arguments)[1]["results"][0]
    assert again["tables"] == first
    assert "another sweep" in refused(capsys, *arguments[:-1], "resid_pre")


def test_tracing_restores_what_the_noise_on_the_subject_took(call: Any) -> None:
    # the encoder's state of the noun is where the answer is: nothing else was corrupted
    text = ["我吃了一个苹果", "--target", "I ate an", "--subject", "苹果", "--answer", "apple", "--samples", "6"]
    out, document = call("trace", "zh-en", *text, "--kinds", "state")
    (found,) = document["results"]
    effect = gf.Labelled.from_dict(found["values"]).values.mean(-1) - torch.tensor(found["corrupt"]["values"]).mean(
        -1
    ).reshape(-1, 1, 1, 1)
    assert found["answer"] == "apple" and found["clean"]["values"][0] > 0.9
    assert effect[0, 0, found["subject"]].max() > 0.5 > 0.1 > effect[0, 0, :5].abs().max()
    assert "*6:果" in out and "Restoring the stream after a layer" in out


def test_tracing_averages_pairs_by_role(call: Any, words: str) -> None:
    record = {"clean": "one two three", "corrupt": "four two three", "answer": " four", "wrong": " two"}
    line = json.dumps(record | {"roles": {"subject": [0, 3]}})
    Path("pairs.jsonl").write_text(f"{line}\n{line.replace('one', 'two')}\n")
    out, document = call("trace", words, "--pairs", "pairs.jsonl", "--samples", "2")
    assert document["results"][0]["result"] == "TracesByRole"
    assert out.startswith("Nothing found: The model prefers the right answer to the wrong one on 0 of 2")


def test_a_window_is_less_than_a_shallow_model(call: Any, words: str) -> None:
    assert call("trace", words, "one two", "--subject", "one", "--samples", "2")[1]["results"][0]["window"] == 1


METHODS = ("direct", "sources", "neurons", "saliency", "gradient", "integrated", "rollout", "alti", "norms")


def test_every_method_of_attribution_answers_for_the_same_token(call: Any, words: str) -> None:
    out, document = call("attribute", words, "one two three", "--answer", "four", "--method", *METHODS)
    assert len(document["results"]) == len(METHODS)
    split, gradients = document["results"][0], document["results"][5]
    logit = float(after(gf.load(words), "one two three")[split["answer"]])
    assert split["total"] == pytest.approx(logit, abs=1e-4)
    assert sum(split["contributions"]["values"]) == pytest.approx(logit, abs=1e-4)
    assert gradients["answers"] == [split["answer"]] and gradients["method"] == "integrated"
    assert "Rollout (attention weights alone)" in out and "ALTI (norms frozen)" in out


PAIRS = "clean,corrupt,answer,wrong\none two,one three, four, two\nfour one two,four one three, five, two\n"


def test_pairs_are_attributed_together_at_their_last_tokens(call: Any, words: str) -> None:
    Path("pairs.csv").write_text(PAIRS)
    out, document = call("attribute", words, "--pairs", "pairs.csv")
    model = gf.load(words)
    ids = [model.require_tokenizer().encode(word)[0] for word in ("four", "five", "two")]
    logits = [after(model, text) for text in ("one two", "four one two")]
    expected = [float(logits[i][ids[i]] - logits[i][ids[2]]) for i in range(2)]
    found = document["results"][0]
    assert [row[0] for row in found["total"]["values"]] == pytest.approx(expected, abs=1e-4)
    assert [row[0] for row in found["sum"]["values"]] == pytest.approx(expected, abs=1e-4)
    assert document["given"]["n"] == 2 and document["denied"]
    assert out.startswith("Nothing found: The model prefers the right answer to the wrong one on 0 of 2")
    Path("pairs.csv").write_text(PAIRS.replace(" four, two", " two, four").replace(" five, two", " two, five"))
    out, document = call("attribute", words, "--pairs", "pairs.csv")
    assert "over 2 places" in out and "denied" not in document


def test_a_lens_averages_the_answers_of_pairs(call: Any, words: str) -> None:
    Path("pairs.csv").write_text(PAIRS)
    out, document = call("lens", words, "--pairs", "pairs.csv")
    model = gf.load(words)
    found = document["results"][0]["probability"]["values"][-1]
    chances = [after(model, text).softmax(-1) for text in ("one two", "four one two")]
    ids = [model.require_tokenizer().encode(word)[0] for word in ("four", "five")]
    assert [row[0] for row in found] == pytest.approx([float(p[i]) for p, i in zip(chances, ids)], abs=1e-5)
    assert "the answers of 2 prompts by depth" in out


def test_routes_of_pairs_are_averaged(call: Any, words: str) -> None:
    Path("pairs.csv").write_text(PAIRS)
    found = call("route", words, "--pairs", "pairs.csv", "--threshold", "0")[1]["results"][0]
    texts = ("one two", "four one two")
    each = [call("route", words, text, "--threshold", "0")[1]["results"][0]["heads"] for text in texts]
    assert found["prompts"] == 2 and len(found["heads"]["values"]) == 4
    passed = [dict(zip(one["coords"]["head"], one["values"])) for one in each]
    for label, mean in zip(found["heads"]["coords"]["head"], found["heads"]["values"]):
        assert mean == pytest.approx(sum(one.get(label, 0.0) for one in passed) / 2, abs=1e-6)


def test_habits_of_a_text_are_those_that_python_finds(call: Any, words: str) -> None:
    text = "one two three four five one two"
    habits = ("suppression", "long-context", "stream-rank", "sinks")
    out, document = call("behaviour", words, text, "--habits", *habits, "--sink", "1", "--recent", "2", "--last", "2")
    model = gf.load(words)
    expected = [
        behaviour.suppression(model, text, last=2),
        behaviour.long_context(model, text, sink=1, recent=2),
        behaviour.rank_of_stream(model, text),
        behaviour.attention_sinks(model, text),
    ]
    for found, other in zip(document["results"], expected, strict=True):
        assert found.items() >= {k: v for k, v in other.to_dict().items() if k not in ("notes", "provenance")}.items()
    assert all(title in out for title in ("Suppression", "Long context", "Stream rank", "Attention sinks"))


def test_what_makes_scores_is_measured_up_to_the_length_that_is_given(call: Any, words: str) -> None:
    text = "one two three four five one two"
    out, document = call("behaviour", words, text, "--habits", "score-geometry", "--length", "4")
    expected = behaviour.score_geometry(gf.load(words), text, length=4).to_dict()
    found = document["results"][0]
    assert found["shares"] == expected["shares"] and found["outside"] == expected["outside"] and found["length"] == 4
    assert "Score geometry" in out and "angle" in out


def test_a_word_is_followed_through_two_texts(call: Any, words: str) -> None:
    out, document = call(
        "behaviour", words, "one two", "--other", "three two", "--word", "two", "--habits", "meaning-shift"
    )
    shift = attribution.meaning_shift(gf.load(words), "one two", "three two", "two")
    assert document["results"][0]["distance"] == shift.to_dict()["distance"]
    assert document["reading"]["tokens"]["other"] and "other" in out


@pytest.mark.full
def test_reciting_is_measured_on_what_the_run_planted(call: Any, capsys: pytest.CaptureFixture[str]) -> None:
    Path("texts").mkdir()
    for i in range(6):
        Path(f"texts/{i}.txt").write_text(f"words of mine, number {i}, and a few more of them. " * 12)
    text = TextConfig(sources=("texts",), vocab_size=257, heldout=0.4)
    data = Planted(batch_size=2, length=12, text=text, counts=(0, 2), per_count=2, prefix=3, suffix=3, over=4)
    model = tiny.MODEL.replace(vocab_size=300)
    train(tiny.recipe(model=model, data=data, steps=4, save_every=4, keep=()), Path("run"))
    out, document = call("behaviour", "run", "--habits", "short-circuit")
    assert document["results"][0]["exact_match"]["axes"] == ["layers", "count"] and "Short circuit" in out
    train(tiny.recipe(steps=2), Path("plain"))
    capsys.readouterr()
    assert "planted nothing" in refused(capsys, "behaviour", "plain", "--habits", "short-circuit")


@pytest.mark.parametrize(
    "line",
    [
        *("patch", "paths", "edges --verify 1", "prune --threshold 9", "trace one --subject one", "lens one"),
        *("route one", "attribute one --method direct integrated alti"),
    ],
)
def test_a_model_left_in_its_files_gives_the_same(line: str, call: Any, words: str) -> None:
    verb, *rest = line.split()
    few = ["--n", "2"] if verb in ("patch", "paths", "edges", "prune") else []
    (shown, _), (streamed, _) = (call(verb, words, *rest, *few, *more) for more in ((), ("--stream",)))
    assert shown == streamed


@pytest.mark.parametrize("verb", ["patch --sites z", "attribute", "lens", "route"])
def test_a_file_may_call_its_fields_otherwise(
    verb: str, call: Any, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("theirs.csv").write_text(PAIRS.replace("clean", "prompt", 1))
    name, *options = verb.split()
    arguments = [name, words, *options, "--pairs", "theirs.csv"]
    assert "--columns clean=…" in refused(capsys, *arguments)
    assert "takes FIELD=NAME" in refused(capsys, *arguments, "--columns", "prompt")
    assert 'no field "klean" of a pair. Nearest: "clean"' in refused(capsys, *arguments, "--columns", "klean=prompt")
    assert call(*arguments, "--columns", "clean=prompt")[1]["results"]


@pytest.mark.parametrize("verb", ["attribute", "lens", "route"])
def test_a_text_and_pairs_are_not_given_together(verb: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("pairs.csv").write_text(PAIRS)
    assert "one of them" in refused(capsys, verb, words, "one two", "--pairs", "pairs.csv")
    belongs = refused(capsys, verb, words, "--pairs", "pairs.csv", "--target", "one")
    assert "--target belongs to a text" in belongs


def test_attribution_looks_at_the_position_it_is_told(call: Any, words: str) -> None:
    arguments = ["one two three", "--position", "2", "--method", "direct", "alti", "gradient"]
    out, document = call("attribute", words, *arguments)
    assert document["results"][0]["position"] == document["given"]["position"] == 2
    flow = gf.Labelled.from_dict(document["results"][1]["rolled"]).values[-1, 2]
    # nothing comes from later tokens
    assert flow[3:].abs().max() == 0.0
    assert "shares of position 2:two" in out and "after 2:two" in out


def test_a_live_norm_and_layers_are_asked_for(call: Any, words: str) -> None:
    document = call("attribute", words, "one two", "--norm", "live", "--layers", "--steps", "4")[1]
    direct, gradients = document["results"]
    assert direct["norm"] == "live" and gradients["values"]["axes"] == ["layer", "query", "key"]
    assert gradients["steps"] == 4


def test_a_lens_follows_a_token_through_depth(call: Any, words: str) -> None:
    out, document = call("lens", words, "one two three", "--answer", "four")
    (found,) = document["results"]
    logits = after(gf.load(words), "one two three").softmax(-1)
    answer = gf.load(words).require_tokenizer().encode("four")[0]
    assert found["probability"]["values"][-1][0][-1] == pytest.approx(float(logits[answer]), abs=1e-5)
    assert "following four" in out and "1 post" in out


@pytest.mark.full
def test_a_tuned_lens_is_trained_saved_and_used(call: Any, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = bytes_tokenizer()
    torch.manual_seed(1)
    model = DecoderConfig(tokenizer.vocab_size, 16, repeat(block(n_heads=2, mlp=Mlp(12)), 2), max_len=32).build()
    model.tokenizer = tokenizer
    for parameter in model.parameters():
        # as it is drawn, what the layers write is too small to be missed
        parameter.data *= 5
    name = str(save(model, "bytes"))
    Path("text.txt").write_text("for i in range(12):\n    print(i)\n" * 400)
    arguments = ["--train", "lens.safetensors", "--data", "text.txt", "--steps", "30"]
    out, document = call("lens", name, "for", *arguments)
    trained, grid = document["results"]
    logit, tuned = (sum(row) for row in trained["kl_bits"]["values"])
    assert tuned < logit and grid["tuned"] and "Tuned lens" in out
    used = call("lens", name, "for", "--tuned", "lens.safetensors")[1]
    # what differs between the results of a document is said of each, what does not above them
    assert grid.pop("provenance")["analysis"] == used["provenance"]["analysis"]
    assert used["results"] == [grid]
    plain = call("lens", name, "for")[1]["results"][0]
    assert not plain["tuned"]
    other = DecoderConfig(tokenizer.vocab_size, 16, repeat(block(n_heads=2, mlp=Mlp(12)), 2), max_len=32).build()
    other.tokenizer = tokenizer
    assert "with other weights" in refused(
        capsys, "lens", str(save(other, "other")), "for", "--tuned", "lens.safetensors"
    )


def test_routes_carry_the_whole_prediction(call: Any, words: str) -> None:
    out, document = call("route", words, "one two three", "--threshold", "0.0")
    (found,) = document["results"]
    arrived = sum(found["inputs"]["values"]) + found["constants"] + found["dropped"]
    assert arrived == pytest.approx(1.0, abs=1e-5)
    assert "The most important edges" in out and "3:three" in out
    rows = [line.split() for line in out.partition("The most important edges")[2].splitlines()[2:14]]
    importance = [float(row[-1]) for row in rows if row and row[-1].startswith((".", "1."))]
    assert len(importance) > 3 and importance == sorted(importance, reverse=True)


@pytest.mark.parametrize(
    "arguments",
    [
        ["patch", "--n", "2"],
        ["patch", "--clean", "1 2 3", "--corrupt", "1,2,4", "--answer", "5", "--wrong", "6", "--sites", "z"],
        ["trace", "1 2 3", "--positions", "1", "--samples", "2"],
        ["attribute", "1 2 3", "--answer", "4"],
        ["lens", "1 2 3", "--answer", "4"],
        ["route", "1 2 3"],
    ],
    ids=" ".join,
)
def test_a_model_without_a_tokenizer_takes_ids(arguments: list[str], ids: str, call: Any) -> None:
    verb, *rest = arguments
    assert call(verb, ids, *rest)[1]["model"]["vocab_size"] == SIZE


@pytest.mark.parametrize(
    "arguments",
    [
        ["paths", *ONE_PAIR, "--target", "two one"],
        ["patch", *ONE_PAIR, "--target", "two one"],
        ["trace", "one two", "--subject", "two", "--target", "two", "--samples", "2"],
        ["trace", "one two", "--subject", "two", "--target", "two", "--samples", "2", "--stack", "decoder"],
        ["attribute", "one two", "--method", "direct", "sources", "integrated", "alti", "--target", "two one"],
        ["lens", "one two", "--target", "two one"],
        ["lens", "one two"],
        ["route", "one two", "--target", "two one"],
        ["route", "one two", "--stack", "encoder", "--target", "two"],
    ],
    ids=" ".join,
)
def test_an_encoder_decoder_reads_a_source_and_a_target(arguments: list[str], translator: str, call: Any) -> None:
    verb, *rest = arguments
    assert call(verb, translator, *rest)[1]["model"]["kind"] == "encoder_decoder"


def test_a_property_the_mechanism_lacks_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    name = str(save(decoder(Lightning()), "linear"))
    message = refused(capsys, "attribute", name, "1 2 3", "--method", "rollout")
    assert "rollout" in message and "lightning" in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["patch", "words", "--by", "layer"], "--by says how --sites are cut"),
        (["patch", "words", "--task", "inducton"], 'no task "inducton". Nearest: "induction"'),
        (["patch", "words", "--task", "induction", "--pairs", "x.csv"], "--pairs and --task both say"),
        (["patch", "words", "--clean", "one"], "--clean and --corrupt go together"),
        (["patch", "words", "--answer", "one"], "--answer and --wrong belong to --clean and --corrupt"),
        (["patch", "words", "--n", "0"], "--n must be at least 1, found 0"),
        (["patch", "words", "--clean", "one two", "--corrupt", "one"], "these prompts do not fit: clean has 3 tokens"),
        (["patch", "words", "--pairs", "none.csv"], 'cannot read "none.csv"'),
        (["patch", "words", "--sites", "zz"], 'no site or family "zz". Nearest: "z"'),
        (["paths", "words", "L9H0.k"], 'no receiver "L9H0.k"'),
        (["edges", "words", "--verify", "0"], "--verify must be at least 1, found 0"),
        (["prune", "words", "--threshold", "1", "--top", "0"], "--top must be at least 1, found 0"),
        (["patch", "words", "--direction", "both", "--save-to", "x"], "--save-to holds one sweep"),
        (["patch", "words", *ONE_PAIR, "--target", "one"], "this model has no encoder"),
        (["patch", "words", "--columns", "clean=a"], "--columns belongs to --pairs"),
        (["route", "words", "one", "--columns", "clean=a"], "--columns belongs to --pairs"),
        (["patch", "words", "--target", "one"], "--target belongs to --clean and --corrupt"),
        (["patch", "words", "--task", "greater_than", "--n", "1"], "greater_than: 1 pairs were asked for"),
        (["patch", "ids", "--task", "greater_than"], "this model has no tokenizer"),
        (["patch", "translator"], "reads a source and a target"),
        (["patch", "translator", *ONE_PAIR], "say with --target"),
        (["trace", "words"], "give a text, or --pairs FILE"),
        (["trace", "words", "one two"], "say what gets noise"),
        (["trace", "words", "one two", "--subject", "three"], "'three' is not in the text"),
        (["trace", "words", "one two", "--positions", "7"], "position 7 is not in the prompt"),
        (["trace", "translator", "one two", "--subject", "one"], "say with --target"),
        (["attribute", "words", "one", "--position", "4"], "position 4: the text has 2 tokens"),
        (["attribute", "words", "one", "--answer", "one two"], "is 2 tokens"),
        (["attribute", "ids", "one"], "this model has no tokenizer, so it takes token ids"),
        (["attribute", "ids", "1 2", "--answer", "one"], "a token is an id; found 'one'"),
        (["attribute", "ids", "1 2", "--answer", "30"], "token id 30 is outside the vocabulary"),
        (["lens", "words"], "give a text, --pairs FILE or --train FILE"),
        (["lens", "words", "one", "--tuned", "none"], 'cannot read a tuned lens from "none"'),
        (["lens", "words", "one", "--tuned", "a", "--train", "b"], "give one of them"),
        (["lens", "words", "one", "--data", "x.txt"], "--data is what --train learns from"),
        (["behaviour", "words"], "give a text; short-circuit alone reads none"),
        (
            ["behaviour", "words", "one", "--habits", "short-circuit"],
            "short-circuit reads what its run planted: leave the text out",
        ),
        (
            ["behaviour", "words", "one", "--habits", "meaning-shift", "--word", "one"],
            "--other: meaning-shift takes both",
        ),
        (["behaviour", "words", "one", "--word", "one"], "--word: meaning-shift takes both, and is what they are for"),
        (
            ["behaviour", "words", "one two", "--habits", "long-context"],
            "leave no query with 4 sink",
        ),
        (["behaviour", "translator", "one", "--target", "two"], "--target is not for sinks, suppression"),
        (["route", "words", "one", "--threshold", "1.5"], "a share lies between 0 and 1"),
        (["route", "words", "one", "--positions", "4"], "position 4: the text has 2 tokens"),
        (["route", "words", "one", "--json", "x", "--html", "x"], 'would both write "x"'),
        (["route", "words", "one", "--json", "."], "it is a folder"),
        (["route", "gpt2-small", "one"], "is a preset"),
        (["route", "wurds", "one"], 'no model "wurds"'),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_input_is_named_before_anything_is_written(
    arguments: list[str],
    message: str,
    words: str,
    ids: str,
    translator: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    outputs = [] if "--json" in arguments else ["--json", "out/found.json", "--html", "out/page.html"]
    assert message in refused(capsys, *arguments, *outputs)


def test_an_interrupted_command_leaves_nothing(
    words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, report: Callable[[int, int], None], **__: object) -> None:
        report(1, 2)
        raise KeyboardInterrupt

    monkeypatch.setattr(analysis.causal, "patch", interrupted)
    before = sorted(os.listdir())
    assert main(["patch", words, "--json", "found.json"]) == 130
    assert sorted(os.listdir()) == before and "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize("verb", NEW)
def test_the_page_is_drawn_from_the_document(verb: str, words: str, call: Any) -> None:
    arguments = {
        "patch": ["--n", "2"],
        "paths": ["--n", "2"],
        "edges": ["--n", "2", "--verify", "2"],
        "prune": ["--n", "2", "--threshold", "1"],
        "trace": ["one two", "--subject", "one", "--samples", "2"],
        "attribute": ["one two"],
        "lens": ["one two"],
        "route": ["one two"],
        "behaviour": ["one two three"],
    }[verb]
    out, _ = call(verb, words, *arguments, "--html", "new/page.html")
    assert Path("new/page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert f"page: {Path('new/page.html').absolute()}" in out


@pytest.mark.parametrize("verb", NEW)
def test_help_shows_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert verb in VERBS and main([verb, "--help"]) == 0
    assert f"    glassformer {verb} " in capsys.readouterr().out
