"""Patching and tracing as they are shown: shares of a whole, on a scale of its own, with what is noise set back."""

import dataclasses
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from rich.text import Text

import glassformer as gf
from glassformer.analysis.causal import CausalTrace, Patched, average_traces, causal_trace
from glassformer.analysis.uncertainty import mean
from glassformer.cli import main
from glassformer.labelled import Labelled
from glassformer.render.terminal import lines
from glassformer.render.terminal.matrix import NUMBERS, SHADES, matrix
from glassformer.render.terminal.tables import BAR, bar, tables
from glassformer.testing import close

NOT_LOWERED = "The noise does not lower the"


@pytest.fixture(scope="module")
def trace() -> CausalTrace:
    return causal_trace(
        gf.load("attn-only-2l"), "import numpy as np\nimport numpy", "numpy", samples=6, kinds=["state"]
    )


def shifted(trace: CausalTrace, by: float) -> CausalTrace:
    """Return the trace of an answer that the noise changes by some amount instead of what it did."""
    spread = trace.corrupt.values - trace.corrupt.values.mean(-1, keepdim=True)
    corrupt = trace.clean.values[:, None] + by + spread
    values = trace.values.values + (corrupt - trace.corrupt.values)[:, None, None, None]
    return trace.replace(
        corrupt=dataclasses.replace(trace.corrupt, values=corrupt),
        values=dataclasses.replace(trace.values, values=values),
    )


def printed(parts: list[Any]) -> str:
    """Return parts as a terminal gets them, with their styles."""
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, color_system="standard", width=80)
    for part in parts:
        console.print(part)
    return written.getvalue()


def test_a_share_is_the_indirect_effect_beside_the_total_one(trace: CausalTrace) -> None:
    close(mean(trace.share).values[0], trace.indirect_effect.values[0] / trace.total_effect.values[0])


def test_the_total_effect_is_told_as_exactly_as_the_runs_it_is_between_with_its_error(trace: CausalTrace) -> None:
    told = next(line for line in lines(trace) if line.startswith("logit difference"))
    effect, error = trace.total_effect.values[1], trace.total_error.values[1]
    assert told.split()[-3:] == [f"{float(effect):+.3f}", "±", f"{float(error):.3f}"]


@pytest.mark.parametrize("by", [0.0, 0.2])
def test_an_answer_that_the_noise_does_not_lower_has_no_shares_and_is_said_to_have_none(
    trace: CausalTrace, by: float
) -> None:
    found = shifted(trace, by)
    assert found.share.values.isnan().all()
    shown = " ".join(lines(found, width=400))
    assert f"{NOT_LOWERED} probability" in shown and "brought back" not in shown
    # in Python and in JSON as on the terminal
    (note,) = [note for note in found.notes if note.seen.startswith(NOT_LOWERED)]
    assert note.meaning and note.advice and str(note) in shown
    assert note.to_dict() in json.loads(found.to_json())["notes"]
    # what is said follows from the numbers: other numbers, nothing said
    assert note not in found.replace(corrupt=trace.corrupt, values=trace.values).notes


def test_one_draw_of_noise_is_said_to_have_no_standard_error(trace: CausalTrace) -> None:
    one = trace.replace(values=trace.values.select(sample=[0]), corrupt=trace.corrupt.select(sample=[0]))
    assert "one draw of noise, and so no standard error" in " ".join(lines(one, width=400))
    assert "one prompt, and so no standard error" in " ".join(lines(average_traces([trace]), width=400))
    assert not any("no standard error" in note.seen for note in (*trace.notes, *average_traces([trace] * 2).notes))


def test_the_command_says_that_the_noise_lowers_nothing_everywhere_in_the_same_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, page = tmp_path / "found.json", tmp_path / "page.html"
    arguments = ["trace", "attn-only-2l", "hello world foo bar hello", "--positions", "1", "--samples", "3"]
    assert main([*arguments, "--json", str(out), "--html", str(page)]) == 0
    told = [note for note in json.loads(out.read_text(encoding="utf-8"))["notes"] if NOT_LOWERED in note["seen"]]
    (words,) = [" ".join((note["seen"], note["meaning"], note["advice"])) for note in told]
    assert words in " ".join(capsys.readouterr().out.split())
    assert told[0]["seen"] in page.read_text(encoding="utf-8")


def test_an_answer_that_the_noise_lowers_has_shares(trace: CausalTrace) -> None:
    found = shifted(trace, -9.0)
    assert found.share.values.isfinite().all()
    shown = " ".join(lines(found))
    assert NOT_LOWERED not in shown and "share of probability brought back" in shown


def test_what_is_within_two_standard_errors_is_set_back_and_what_is_beyond_is_not() -> None:
    share = Labelled(torch.tensor([[0.9, 0.8]]), ("row", "column"))
    error = Labelled(torch.tensor([[0.5, 0.1]]), ("row", "column"))
    shown = printed(matrix(share, scale=1.0, error=error))
    assert "\x1b[2m.90" in shown and "\x1b[1;33m.80" in shown


def test_shades_of_what_is_within_two_standard_errors_are_empty() -> None:
    columns = NUMBERS // 2 + 1  # of each kind: too many for numbers
    share, error = (
        Labelled(torch.tensor([pair]).repeat_interleave(columns, 1), ("row", "column"))
        for pair in ((1.0, 0.75), (0.6, 0.1))
    )
    shown = "".join(Text.from_ansi(printed(matrix(share, scale=1.0, error=error))).plain)
    assert SHADES[3] * columns in shown and SHADES[4] * 2 not in shown


def test_colours_of_shares_do_not_depend_on_the_largest_of_the_table() -> None:
    small = Labelled(torch.tensor([[0.04, 0.02]]), ("row", "column"))
    assert "\x1b[1;33m.040" in printed(matrix(small))
    assert "\x1b[2;33m.04" in printed(matrix(small, scale=1.0))


def with_shares(trace: CausalTrace, share: float, spread: float = 0.0) -> CausalTrace:
    """Return a trace whose noise takes 2 of everything, and whose every cell brings back this share of it."""
    samples = trace.corrupt.size("sample")
    corrupt = (trace.clean.values[:, None] - 2.0).expand(-1, samples)
    values = corrupt[:, None, None, None] + 2 * (share + torch.linspace(-spread, spread, samples))
    return trace.replace(
        corrupt=dataclasses.replace(trace.corrupt, values=corrupt),
        values=dataclasses.replace(trace.values, values=values.expand_as(trace.values.values)),
    )


def patched(share: float, spread: float = 0.0) -> Patched:
    """Return a patching in which every cell carries this share of the difference."""
    clean, corrupt = (
        Labelled(torch.full((1, 4), value), ("metric", "batch"), {"metric": ["logit"]}) for value in (2.0, 0.0)
    )
    values = (2 * (share + torch.linspace(-spread, spread, 4))).expand(1, 2, 3, 4)
    found = Labelled(
        values, ("metric", "layer", "pos", "batch"), {"metric": ["logit"], "layer": [0, 1], "pos": ["a", "b", "c"]}
    )
    return Patched(found, clean, corrupt, "denoising", 1e-3)


STRONG, WEAK, FAINT = "\x1b[1;33m", "\x1b[2;33m.04", "\x1b[2m.80"


def shown_traces(trace: CausalTrace) -> dict[str, tuple[Any, Any]]:
    """Return views of traces that bring back little, and that bring back much of which nothing is sure."""
    doubtful = average_traces([with_shares(trace, share) for share in (-0.2, 1.8)])
    return {
        "one": (with_shares(trace, 0.04), with_shares(trace, 0.8, 4.0)),
        "patched": (patched(0.04), patched(0.8, 4.0)),
        "by role": (average_traces([with_shares(trace, 0.04)] * 2), doubtful),
    }


@pytest.mark.parametrize("name", ["one", "by role", "patched"])
def test_little_of_a_whole_is_pale(trace: CausalTrace, name: str) -> None:
    shown = printed([tables(shown_traces(trace)[name][0])])
    assert WEAK in shown and STRONG not in shown and "█" * 4 not in shown


@pytest.mark.parametrize("name", ["one", "by role", "patched"])
def test_much_of_which_nothing_is_sure_is_set_back(trace: CausalTrace, name: str) -> None:
    shown = printed([tables(shown_traces(trace)[name][1])])
    assert FAINT in shown and STRONG not in shown


def test_cells_that_are_not_sure_are_listed_faintly(trace: CausalTrace) -> None:
    (row, *_) = [
        line for line in printed([tables(with_shares(trace, 0.8, 4.0))]).splitlines() if " ± " in line and "L0 " in line
    ]
    assert row.count("\x1b[2m") >= 2
    (row, *_) = [
        line for line in printed([tables(with_shares(trace, 0.8))]).splitlines() if " ± " in line and "L0 " in line
    ]
    assert "\x1b[2m" not in row


def test_prompts_whose_noise_lowers_nothing_are_said_to_have_no_shares(trace: CausalTrace) -> None:
    shown = " ".join(lines(average_traces([shifted(trace, 0.2)] * 2)))
    assert f"{NOT_LOWERED} probability" in shown and "brought back" not in shown


def test_a_bar_is_empty_at_nothing_and_never_longer_than_full() -> None:
    assert [len(bar(value, 1.0).plain) for value in (0.0, 1.0, 7.0)] == [0, BAR, BAR]


def test_paths_that_carry_nothing_have_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paths", "attn-only-2l", "L1H6.k", "--n", "4"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if " 0 %" in line]
    assert rows and not any("█" in line for line in rows)


def test_a_number_and_its_error_have_the_same_decimals(trace: CausalTrace) -> None:
    pairs = re.findall(r"(-?[\d.]+) ± ([\d.]+) ", "\n".join(lines(shifted(trace, -2.0))))
    assert pairs and all(len(share.partition(".")[2]) == len(off.partition(".")[2]) >= 2 for share, off in pairs)
