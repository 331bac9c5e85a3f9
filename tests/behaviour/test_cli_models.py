"""`glassformer params`, `sites` and `generate` as a user calls them."""

import io
import json
import sys
from pathlib import Path

import pytest

from glassformer.attention import Differential
from glassformer.checkpoints import save
from glassformer.cli import main
from glassformer.data import bytes_tokenizer, word_tokenizer
from glassformer.models import DecoderConfig, EncoderDecoderConfig, Mlp, block, repeat


@pytest.fixture
def decoder(tmp_path: Path) -> str:
    tokenizer = bytes_tokenizer()
    model = DecoderConfig(tokenizer.vocab_size, 16, repeat(block(n_heads=2, mlp=Mlp()), 2), max_len=64).build()
    model.tokenizer = tokenizer
    return str(save(model, tmp_path / "decoder"))


@pytest.fixture
def translator(tmp_path: Path) -> str:
    tokenizer = word_tokenizer(["one two three four"])
    stacks = [repeat(block(n_heads=2, cross=cross, mlp=Mlp()), 1) for cross in (False, True)]
    model = EncoderDecoderConfig(tokenizer.vocab_size, 16, *stacks, max_len=32).build()
    model.tokenizer = tokenizer
    return str(save(model, tmp_path / "translator"))


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


def test_params_prints_the_parts_of_a_preset(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["params", "gpt2-small"]) == 0
    shown = capsys.readouterr().out
    assert "gpt2-small: 124,439,808 parameters" in shown
    assert "unembedding (tied)" in shown


@pytest.mark.full
def test_params_writes_the_numbers_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "numbers.json"
    assert main(["params", "attention-only-2l", "--length", "64", "--complexity", "--json", str(file)]) == 0
    assert "measured here" in capsys.readouterr().out
    data = json.loads(file.read_text())
    assert data["parameters"]["total"] == 1_049_344
    assert data["length"] == 64
    measured = {row["name"]: row["layers"] for row in data["measured"]}
    assert measured == {
        "full attention": 1,
        "restricted attention": 8,
        "linear attention": 1,
        "recurrent": 32,
        "convolution": 16,
        "convolution, dilated": 4,
    }


def test_params_says_where_a_layer_is_not_that_of_its_paper(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = DecoderConfig(10, 16, (block(Differential(), n_heads=2),))
    save(bare.build(), tmp_path / "bare")
    assert main(["params", str(tmp_path / "bare"), "--json", str(tmp_path / "found.json")]) == 0
    words = bare.departures()["blocks.0.attn"]
    assert f"blocks.0.attn is not the layer of its paper: {'; '.join(words)}." in capsys.readouterr().out
    assert json.loads((tmp_path / "found.json").read_text())["departures"] == {"blocks.0.attn": words}
    assert main(["params", "attention-only-1l"]) == 0
    assert "is not the layer of its paper" not in capsys.readouterr().out


def test_params_refuses_before_any_work_when_the_file_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["params", "gpt2-small", "--json", str(tmp_path)]) == 2
    assert capsys.readouterr().out == ""


def test_sites_lists_names_axes_and_lengths(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sites", "gpt2-small", "--glob", "blocks.3.attn.*", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["sites"]}
    assert rows["blocks.3.attn.query"]["shape"] == ["batch", 12, "pos", 64]
    assert rows["blocks.3.attn.pattern"]["lazy"]


def test_sites_of_a_head_say_which_part_is_its_own_and_who_shares_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sites", "gpt-4l", "--glob", "L1H6.*", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["sites"]}
    assert (rows["blocks.1.attn.z"]["of"], rows["blocks.1.attn.z"]["at"]) == ("L1H6", {"head": 6})
    assert rows["blocks.1.attn.key"]["of"] == "L1H4, L1H5, L1H6, L1H7"
    assert main(["sites", "gpt-4l", "--glob", "L1H6.key"]) == 0
    assert "L1H4, L1H5" in capsys.readouterr().out


def test_sites_walks_the_shapes_of_a_forward_pass(decoder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sites", decoder, "--length", "9"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "blocks.1.attn.pattern" in line)
    assert "1 2 9 9" in line
    assert "lazy" in line


def test_generate_continues_a_text_the_same_way_for_the_same_seed(
    decoder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = []
    for seed in ("1", "1", "2"):
        assert main(["generate", decoder, "ab", "--max-new-tokens", "12", "--seed", seed]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] != shown[2]
    assert shown[0].startswith("ab")


def test_generate_shows_the_text_and_what_was_read_of_it_once(decoder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", decoder, "xyz", "--max-new-tokens", "1", "--temperature", "0"]) == 0
    out, err = capsys.readouterr()
    assert out.count("xyz") == 1 and err.count("reads") == 1


def test_generate_reads_standard_input(
    decoder: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--max-new-tokens", "6", "--temperature", "0"]
    assert main(["generate", decoder, "né", *arguments]) == 0
    expected = capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("né".encode())))
    assert main(["generate", decoder, "-", *arguments]) == 0
    assert capsys.readouterr().out == expected


def test_generate_refuses_standard_input_that_is_not_utf8(
    decoder: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\xff")))
    assert main(["generate", decoder, "-"]) == 2
    assert "standard input is not UTF-8 (byte 1" in capsys.readouterr().err


@pytest.mark.parametrize("extra", [["--temperature", "0"], ["--beams", "3"]], ids=["greedy", "beams"])
def test_generate_translates_with_an_encoder_decoder(
    translator: str, extra: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", translator, "one two", "--max-new-tokens", "5", *extra]) == 0
    assert capsys.readouterr().out.endswith("\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["params", "gpt2-smal"], 'no model "gpt2-smal". Nearest: "gpt2-small".'),
        (["sites", "gpt3-175b", "--length", "3000"], "max_len=2048"),
        (["sites", "gpt2-small", "--glob", "blocks.0.attn.patern"], 'Nearest: "blocks.0.attn.pattern"'),
        (["sites", "gpt2-small", "--glob", "L12H3.z"], 'Nearest: "L11H3.z"'),
        (["params", "gpt2-small", "--length", "0"], "length must be at least 1, found 0"),
        (["generate", "gpt2-small", "x"], '"gpt2-small" is a preset: a shape without trained weights'),
        (["generate", "gpt-4l", "x", "--top-p", "2"], "top_p= takes a number, above 0 to 1 or None; found 2.0"),
    ],
)
def test_bad_input_is_named_and_exits_with_two(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("params", "sites", "generate"):
        assert main([verb, "--help"]) == 0
        assert f"    glassformer {verb} " in capsys.readouterr().out
