"""Every verb, given what nobody should give it: an answer, or exit code 2 and one plain message."""

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from glassformer.cli import VERBS, main

if TYPE_CHECKING:
    from trials import Trials

MODEL = "attn-only-1l"
TEXTS = (
    "", " ", "-", "--", "\0", "a\0b", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\x9b31m", "\b\b\b", "\r over",
    "\ud800", "a\udcffb", "\u202eabc\u202c", "\u2066x", "e" + "\u0301" * 300, "\U0001f468\u200d\U0001f469",
    "[red]x[/red]", "[/]", "[bold", ":smile:", "</script><script>alert(1)</script>", "{{x}}", "%s%n", "$(id)", "'\"`",
    "x" * 100_000, "word " * 20_000, "\n" * 5_000, "ＡＢＣ", "שלום", "\ufeffa", "NaN", "None", "\x7f", "\x85", "\u2028",
)  # fmt: skip
NAMES = (
    "n" * 300, "n" * 5_000, "a/" * 200, "../..", "/dev/null", "/proc/self/mem", "a\0b", "\x1b[31mred", "[red]x[/]",
    "\ud800", "", ".", "owner\n/model", "</script>",
)  # fmt: skip
NUMBERS = (
    "99999999999999999999", "-99999999999999999999", "1" + "0" * 400, "9" * 5_000, "-1", "0", "nan", "inf", "-inf",
    "1e999", "1000000", "9223372036854775807", "٣", "0x10", "1_0", "", " 1", "\x1b[31m1",
)  # fmt: skip
# verb -> what goes in front, the options that take numbers, and those that take texts and names
OPTIONS: dict[str, tuple[list[str], list[str], list[str]]] = {
    "explain": ([MODEL, "a"], ["--position", "--temperature", "--top-k", "--top-p", "--seed"], ["--answer"]),
    "attention": ([MODEL, "a", "--head", "L0H0"], ["--query", "--key", "--top"], ["--target", "--head"]),
    "patch": ([MODEL, "--n", "2"], ["--n", "--top", "--seed"], ["--task", "--sites", "--by", "--metric", "--pairs"]),
    "paths": ([MODEL, "--n", "2"], ["--n", "--top", "--seed"], ["--task", "--metric", "--pairs"]),
    "edges": ([MODEL, "--n", "2"], ["--n", "--top", "--seed"], ["--task", "--pairs"]),
    "prune": ([MODEL, "--n", "2", "--threshold", "100"], ["--threshold", "--top", "--seed"], ["--task", "--pairs"]),
    "trace": ([MODEL, "a b", "--subject", "a"], ["--window", "--noise", "--top", "--seed"], ["--answer", "--subject"]),
    "attribute": ([MODEL, "a b"], ["--position", "--top"], ["--answer", "--against", "--method", "--pairs"]),
    "lens": ([MODEL, "a b"], ["--position", "--top", "--seed"], ["--answer", "--tuned", "--pairs", "--data"]),
    "backward": (
        [MODEL, "a b"],
        ["--position", "--least", "--edit", "--size", "--top"],
        ["--answer", "--target", "--maps"],
    ),
    "route": ([MODEL, "a b"], ["--positions", "--threshold", "--top"], ["--stack", "--pairs"]),
    "behaviour": ([MODEL, "a b c"], ["--last", "--sink", "--recent", "--top"], ["--habits", "--word", "--other"]),
    "probe": (
        [MODEL, "--label", "copies.seen", "--n", "5"],
        ["--n", "--length", "--folds"],
        ["--label", "--sites", "--data"],
    ),
    "features": (
        ["list", MODEL, "nowhere"],
        ["--top", "--seed", "--width", "--sparsity", "--lr"],
        ["--site", "--data", "--kind"],
    ),
    "adapt": (
        ["run", MODEL, "a", "--experts", "nowhere"],
        ["--seed", "--shots", "--iterations", "--max-new-tokens"],
        ["--task", "--strategy", "--experts"],
    ),
    "serve": (["nowhere", "--no-browser"], ["--port", "--memory"], ["--host", "--token"]),
    "circuits": (["nowhere"], ["--top", "--seed", "--rows"], ["--heads", "--run", "--data"]),
    "train": (["nowhere.json"], ["--steps", "--seed", "--threads"], ["--set", "--folder"]),
    "models": ([], [], []),
    "bench": (["attention", "softmax", "--lengths", "8", "--seconds", "0.02"], ["--lengths", "--seed"], ["--dtype"]),
    "study": (["list"], ["--jobs"], ["--scale", "--folder"]),
    "plot": (["nowhere"], [], ["--out"]),
    "generate": ([MODEL, "a", "--max-new-tokens", "2"], ["--max-new-tokens", "--top-k", "--seed"], []),
    "convert": (["nowhere", "out"], [], ["--to", "--shard-size", "--dtype"]),
    "params": ([MODEL], ["--length"], ["--dtype", "--json"]),
    "plan": ([MODEL, "--length", "8"], ["--gpus", "--length", "--batch", "--accumulate"], ["--mesh", "--memory"]),
    "parity": (["nowhere"], ["--length", "--steps"], ["--text", "--json"]),
    "sites": ([MODEL], ["--length"], ["--glob"]),
}
TEXT_VERBS = ("explain", "trace", "attribute", "lens", "backward", "route", "behaviour")
DOCUMENTED = (*TEXT_VERBS, "patch", "paths", "edges", "prune", "circuits")


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def command_line(seed: int) -> list[str]:
    """Return a verb with one hostile thing in it: a text, a name, or the value of an option."""
    draw = random.Random(seed)
    verb = draw.choice(list(VERBS))
    given, numbers, words = OPTIONS[verb]
    kind = draw.choice(["text", "name", "number", "word", "output"])
    if kind == "text" and verb in TEXT_VERBS:
        return [verb, *given[:1], *given[2:], "--", draw.choice(TEXTS)]
    if kind == "name":
        return [verb, draw.choice(NAMES), *given[1:]]
    if kind == "number" and numbers:
        return [verb, *given, draw.choice(numbers), draw.choice(NUMBERS)]
    if (
        kind == "output"
        and "--json" not in words
        and verb not in ("models", "plot", "generate", "convert", "train", "sites", "study")
    ):
        return [verb, *given, "--json", draw.choice([name for name in NAMES if name != "/dev/null"])]
    return [verb, *given, draw.choice(words or ["--specials"]), draw.choice((*TEXTS, *NAMES))]


@pytest.mark.full
def test_a_hostile_command_line_is_answered_or_refused_in_one_plain_message(
    trials: "Trials", capfd: pytest.CaptureFixture[str]
) -> None:
    for seed in trials(quick=5, sweep=40):
        arguments = command_line(seed)
        if "-" in arguments:
            continue  # standard input is the test's own
        code = main(arguments)
        out, err = capfd.readouterr()
        assert code in (0, 2), (arguments[0], code)
        assert "Traceback" not in out + err
        # nothing that a text or a name holds may steer a terminal; generated text goes into a pipe as it is
        assert not any(c in err + out * (arguments[0] != "generate") for c in "\x1b\x07\x9b\x08\x00\u202e"), arguments[
            0
        ]
        if code:
            told = err[err.rindex(f"glassformer {arguments[0]}: ") :]
            assert len(told) < 7_000, (arguments[0], len(told))
        trials.count("answered" if code == 0 else "refused")


@pytest.mark.parametrize("text", ["\x1b[31mred", "\u202eabc", "a\x07"])
def test_generated_text_does_not_steer_a_terminal(
    text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert main(["generate", MODEL, text, "--max-new-tokens", "1", "--allow-unknown"]) == 0
    out = capsys.readouterr().out
    assert not any(c in out for c in "\x1b\u202e\x07") and "\\" in out


def shell(tmp_path: Path, line: str) -> tuple[int, str]:
    """Return the exit code and standard error of a line in which GF stands for the command."""
    import subprocess
    import sys

    code = "import sys; from glassformer.cli import main; sys.exit(main())"
    command = tmp_path / "gf"
    command.write_text(f"#!/bin/sh\nexec '{sys.executable}' -c '{code}' \"$@\"\n")
    command.chmod(0o755)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "GF": str(command)}
    done = subprocess.run(["sh", "-c", line], env=environment, capture_output=True, text=True)
    return done.returncode, done.stderr


@pytest.mark.full
def test_a_reader_that_has_seen_enough_ends_a_command_quietly(tmp_path: Path) -> None:
    # far more than a pipe holds, and its reader is gone before the first line
    code, err = shell(tmp_path, '{ sleep 1; "$GF" sites gpt3-175b; echo $? >code; } | true')
    assert err == "" and code == 0
    while not (tmp_path / "code").exists():
        pass
    assert (tmp_path / "code").read_text() == "141\n"


@pytest.mark.full
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('"$GF" sites attn-only-1l >/dev/full', "No space left on device"),
        ('PYTHONIOENCODING=ascii "$GF" explain attn-only-1l a', "Set PYTHONIOENCODING=utf-8"),
    ],
)
def test_output_that_cannot_be_written_is_one_plain_message(tmp_path: Path, line: str, reason: str) -> None:
    code, err = shell(tmp_path, line)
    assert code == 2 and reason in err and len(err.splitlines()) == 1
