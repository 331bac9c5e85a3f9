"""What nobody should give a command, case by case: numbers, names and texts that are refused in one plain sentence."""

import fcntl
import importlib
import inspect
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import glassformer as gf
from glassformer import cli
from glassformer.cli import arguments, main
from glassformer.cli.arguments import text_of
from glassformer.cli.console import Console, say
from glassformer.cli.parsing import call_of
from glassformer.data import read_source
from glassformer.errors import (
    DataError,
    GlassformerError,
    TextError,
    UnknownModel,
    nearest,
    printable,
    shortened,
)

# what clears, rings, moves back, writes over, colours by one character, turns the writing
STEERING = ["\x1b[31m", "\x07", "\b", "\r", "\x9b31m", "\u202e", "\u2066", "\x00", "\x7f", "\x85"]
HARMLESS = ["\n", "\t", "é", "苹果", "\u3000", "\U0001f468"]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def verb(*, seed: int = 0, rate: float = 1.0, pair: tuple[float, ...] = (), answer: str | None = None) -> None:
    """Take what verbs take.

    Args:
        seed: A number.
        rate: A number that need not be whole.
        pair: Several of them.
        answer: A text.
    """
    TAKEN.append({"seed": seed, "rate": rate, "pair": pair, "answer": answer})


TAKEN: list[dict[str, Any]] = []


def taken(*words: str) -> dict[str, Any]:
    """Return what a verb is called with for these words."""
    call_of("verb", verb, words)()
    return TAKEN.pop()


# --- numbers


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**20, 10**400])
def test_a_number_beyond_64_bits_is_refused(number: int) -> None:
    with pytest.raises(GlassformerError, match="--seed"):
        taken("--seed", str(number))


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63)])
def test_a_number_of_64_bits_is_taken(number: int) -> None:
    assert taken("--seed", str(number))["seed"] == number


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e999"])
@pytest.mark.parametrize("option", ["--rate", "--pair"])
def test_a_number_that_is_not_finite_is_refused(option: str, number: str) -> None:
    with pytest.raises(GlassformerError, match=f"{option} must be a finite number"):
        taken(option, number)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("generate gpt-4l a --temperature nan", "--temperature must be a finite number, found nan"),
        ("generate gpt-4l a --seed 99999999999999999999", "--seed must fit in 64 bits"),
        ("generate gpt-4l a --max-new-tokens 0", "--max-new-tokens must be at least 1, found 0"),
        ("sites attn-only-1l --length 99999999999999999999", "--length must be at most 10,000,000"),
        ("circuits attn-only-1l --top 1000000", "--top must be at most 1,000, found 1,000,000"),
    ],
)
def test_numbers_that_no_verb_can_do_anything_with_are_refused(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    assert said in capsys.readouterr().err


# --- names


@pytest.mark.parametrize("name", ["n" * 300, "n" * 5_000, "a\0b"])
@pytest.mark.parametrize("words", [("sites",), ("explain",), ("circuits",)])
def test_a_name_that_no_file_can_have_is_no_model(
    words: tuple[str, ...], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, name]) == 2
    told = capsys.readouterr().err
    assert "no model" in told and len(told) < 1_500
    with pytest.raises(UnknownModel, match="no model"):
        gf.load(name)


def test_a_command_names_the_folder_that_is_nearly_meant(capsys: pytest.CaptureFixture[str]) -> None:
    Path("of-mine").mkdir()
    assert main(["sites", "./of-mne"]) == 2
    assert 'no folder "./of-mne". Nearest: "./of-mine"' in capsys.readouterr().err


def test_a_command_of_great_length_is_shown_by_its_ends(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["n" * 10_000]) == 2
    assert len(capsys.readouterr().err) < 1_500


def test_a_name_of_great_length_is_compared_with_no_other() -> None:
    assert nearest("n" * 301, ["n" * 300]) == "" and nearest("n" * 299, ["n" * 300]) != ""


def test_what_was_given_at_great_length_is_shown_by_its_ends() -> None:
    for long in (f'no "{"a b " * 500}".', "x" * 100_000, "'" + "y z" * 1_000 + "'"):
        told = shortened(long)
        assert len(told) < 400 and "more characters" in told and told[:90] == long[:90]
    assert len(shortened("many short words " * 10_000)) < 6_000
    assert shortened("a short message") == "a short message"
    assert len(str(GlassformerError(f'no "{"n" * 10_000}"'))) < 400


@pytest.mark.parametrize("text", ["None", "none", "null", "True"])
def test_a_text_that_reads_like_a_value_is_a_text(text: str) -> None:
    assert taken("--answer", text)["answer"] == text
    assert taken()["answer"] is None


# --- terminals


@pytest.mark.parametrize("steering", STEERING)
def test_nothing_that_is_printed_steers_the_terminal(steering: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"a{steering}b"
    say(text)
    Console().print(text)
    Console(stderr=True).print(text)
    main([text])
    main(["sites", text])
    shown = "".join(capsys.readouterr())
    # rich drops some of them by itself
    assert shown.count("\\") >= 3 and steering[0] not in shown


@pytest.mark.parametrize("harmless", HARMLESS)
def test_what_steers_nothing_is_printed_as_it_is(harmless: str) -> None:
    assert printable(f"a{harmless}b") == f"a{harmless}b"


@pytest.mark.parametrize("text", ["[red]x[/red]", "[/]", "[bold", ":smile:"])
def test_texts_are_no_markup(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Console().print(text)
    assert capsys.readouterr().out == f"{text}\n"


# --- outputs that take nothing


class Output(io.TextIOWrapper):
    """Standard output that gives way when it is written to the end."""

    def __init__(self, fate: OSError | None = None, encoding: str = "utf-8") -> None:
        super().__init__(io.BytesIO(), encoding)
        self.fate, self.number = fate, os.open(os.devnull, os.O_RDONLY)

    def flush(self) -> None:
        if self.fate is not None:
            raise self.fate
        super().flush()

    def fileno(self) -> int:
        return self.number


@pytest.mark.parametrize(
    ("output", "code", "said"),
    [
        (Output(OSError(28, "No space left on device")), 2, "the output cannot be read or written: No space left"),
        (Output(BrokenPipeError(32, "Broken pipe")), 141, ""),
        (Output(encoding="ascii"), 2, "the output is ascii, which has no character '\\xe9'. Set PYTHONIOENCODING"),
    ],
    ids=["full", "closed", "ascii"],
)
def test_an_output_that_takes_nothing_ends_a_command(
    output: Output, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "_run", lambda verb, words: print("é") or 0)
    monkeypatch.setattr(sys, "stdout", output)
    found = main(["sites"])
    told = capsys.readouterr().err
    # Python tries to write the rest when it ends, and would complain a second time
    assert bool(output.fate) == (fcntl.fcntl(output.number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY)
    output.fate = None
    assert found == code and said in told and told.count("\n") == bool(said)


@pytest.mark.parametrize("words", [[], ["--help"], ["--version"], ["sites", "--help"]])
def test_help_and_the_version_end_like_a_command_on_an_output_that_takes_nothing(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = Output(OSError(28, "No space left on device"))
    monkeypatch.setattr(sys, "stdout", output)
    assert main(words) == 2
    assert capsys.readouterr().err.endswith(": the output cannot be read or written: No space left on device.\n")
    output.fate = None


@pytest.mark.parametrize("words", [["--version"], ["sites", "--help"], ["nosuch"]])
def test_a_closed_output_ends_a_command_like_one_that_takes_nothing(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert main(words) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and ("Bad file descriptor" in told) == (words != ["nosuch"])


def test_closed_complaints_go_nowhere_and_a_closed_input_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(DataError, match="standard input cannot be read: Bad file descriptor"):
        list(read_source("-"))
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["nosuch"]) == 2
    with pytest.raises(TextError, match=r"standard input cannot be read: Bad file descriptor\. Give the text itself"):
        text_of("-")


def test_a_command_whose_streams_are_all_closed_ends() -> None:
    command = f'"{sys.executable}" -m glassformer --version <&- >&- 2>&-'
    assert subprocess.run(["sh", "-c", command], check=False).returncode == 2


class Closed(io.StringIO):
    """An output whose reader has gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def test_a_console_leaves_it_to_the_command_how_a_closed_output_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Closed())
    with pytest.raises(BrokenPipeError):
        Console().print("a")


TEXT = "for i in range("
# a line of each verb that writes documents; what parity reads has to be made first
WRITING: dict[str, list[str]] = {
    "explain": [TEXT],
    "attention": [TEXT],
    "patch": ["--n", "2", "--sites", "z"],
    "paths": ["--n", "2"],
    "edges": ["--n", "2", "--verify", "2"],
    "prune": ["--n", "2", "--threshold", "0.5"],
    "trace": [TEXT, "--subject", "range", "--samples", "2"],
    "attribute": [TEXT, "--method", "direct"],
    "lens": [TEXT, "--train", "tuned.safetensors", "--steps", "0"],
    "route": [TEXT],
    "backward": [TEXT],
    "behaviour": [TEXT, "--habits", "sinks"],
    "circuits": ["--rows", "2"],
    "probe": ["--label", "copies.seen", "--n", "10", "--length", "16"],
    "adapt": ["--task", "closing-brackets", "--steps", "1", "--batch-size", "2", "--set", "evaluate_prompts=1"],
    "features": ["mine", "--rows", "2", "--steps", "1", "--width", "8", "--sparsity", "2", "--data", __file__],
    "heads": ["--tokens", "600", "--corpus", __file__],
    "params": [],
    "bench": ["--lengths", "8", "--heads", "1", "--d-head", "4", "--seconds", "0"],
    "plan": ["--length", "8"],
    "generate": [TEXT, "--max-new-tokens", "2"],
}
LONG, WITHOUT_PAGE = {"circuits", "lens", "features", "adapt"}, {"params", "generate"}


@pytest.mark.parametrize("verb", [pytest.param(one, marks=pytest.mark.full) if one in LONG else one for one in WRITING])
def test_files_are_written_although_nobody_reads_what_is_printed(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {f"--{name}": Path(f"found.{name}") for name in (["json"] if verb in WITHOUT_PAGE else ["json", "html"])}
    asked = [word for flag, path in files.items() for word in (flag, str(path))]
    monkeypatch.setattr(sys, "stdout", Closed())
    trained = ["train", "attn-only-1l"]
    worked_on = {"bench": ["attention", "softmax"], "features": trained, "adapt": trained}.get(verb, trained[1:])
    assert main([verb, *worked_on, *WRITING[verb], *asked]) == 141, capsys.readouterr().err
    json.loads(files["--json"].read_text(encoding="utf-8"))
    assert verb in WITHOUT_PAGE or "</html>" in files["--html"].read_text(encoding="utf-8")
    assert Path("tuned.safetensors").exists() == (verb == "lens")


def test_there_is_a_line_of_every_verb_that_writes_documents() -> None:
    def writes(verb: str) -> bool:
        taken = inspect.signature(getattr(importlib.import_module(f"glassformer.cli.{verb}"), verb)).parameters
        return "output" in taken or ("json" in taken and taken["json"].annotation is not bool)

    assert {verb for verb in cli.VERBS if writes(verb)} == {*WRITING, "parity"}


# --- standard input


class Endless(io.RawIOBase):
    """What never ends: it counts what is asked of it."""

    def __init__(self) -> None:
        self.asked = 0

    def read(self, size: int = -1) -> bytes:
        assert size >= 0, "all of it"
        self.asked += size
        return b"x" * size


def test_standard_input_is_read_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "MOST_READ", 1_000)
    endless = Endless()
    monkeypatch.setattr(sys, "stdin", type("Standard", (), {"buffer": endless}))
    with pytest.raises(GlassformerError, match="standard input holds more than 1,000 bytes"):
        arguments.text_of("-")
    assert endless.asked <= 2_000
