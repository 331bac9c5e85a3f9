"""Reports: what a study found, as JSON for programs, as Markdown and as a page with figures for people.

    {"format": "glassformer.study", "version": 2, "study": …, "paper": …, "question": …, "scale": …, "differs": […],
     "claims": [{"text", "quantity", "expected", "verdict", "mean", "low", "high", "values", "why", "earlier"}],
     "measures": [{"name", "about", "unit", "question", "source"}],
     "runs": [{"point", "seed", "measures", "undefined", "error", "cpu_seconds", "wall_seconds", "trained", "found",
               "key"}],
     "cpu_seconds": …, "wall_seconds": …, "trained": {model: seconds}, "found": {model: seconds},
     "machines": [{…}], "code": {"module:name": digest}, "sha256": of all the rest}

A report that is written where an older one lies remembers what that one expected: a claim whose expectation was changed
lists the earlier ones under `earlier`, first things first.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glassformer.analysis.cards import card_of
from glassformer.files import write
from glassformer.render.page import study_page
from glassformer.study import records
from glassformer.study.claims import VERDICTS, Decision
from glassformer.study.code import changed
from glassformer.study.engine import Found
from glassformer.study.records import Record
from glassformer.study.sealed import seal
from glassformer.study.shelf import FORMAT, REPORT, VERSION, read_report
from glassformer.words import duration, spoken, spoken_each

MARKDOWN, PAGE = "report.md", "report.html"


def document(found: Found, before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a report as JSON data.

    Args:
        found: Runs and decisions.
        before: The report that stood here, which knows what was expected earlier.
    """
    study = found.study
    code: dict[str, str] = {}
    for run in found.runs:
        code |= run.code
    return {
        "format": FORMAT,
        "version": VERSION,
        "study": study.name,
        "paper": study.paper,
        "question": study.question,
        "scale": found.scale,
        "settings": dict(study.scale(found.scale).settings),
        "grid": {name: list(values) for name, values in found.grid.items()},
        "seeds": study.scale(found.scale).seeds,
        "differs": list(study.differs),
        "claims": [_claim(decision, before) for decision in found.decisions],
        "measures": [_measure(found, name) for name in found.measures()],
        "runs": [_run(run) for run in found.runs],
        **_time(found.runs),
        "machines": _distinct([run.machine for run in found.runs]),
        "code": code,
    }


def write_report(found: Found, folder: Path) -> Path:
    """Write report.json, report.md and report.html into a folder, and return the first.

    Raises:
        CheckpointError: The report that stands there was changed or damaged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / REPORT
    made = document(found, read_report(path, found.study.name, found.scale))
    seal(path, made)
    write(folder / MARKDOWN, markdown(made).encode())
    write(folder / PAGE, study_page(made).encode())
    return path


def outdated(report: Mapping[str, Any]) -> list[str]:
    """Return the functions a report speaks of that are other code by now."""
    return changed(report["code"])


def tallied(report: Mapping[str, Any] | None) -> str:
    """Return how many claims ended how, `3 hold, 2 fail`; empty without a report."""
    if report is None:
        return ""
    ended = [claim["verdict"] for claim in report["claims"]]
    said = {
        "holds": spoken("{n} hold", n=ended.count("holds")),
        "fails": spoken("{n} fail", n=ended.count("fails")),
        "undecided": spoken("{n} undecided", n=ended.count("undecided")),
        "not defined": spoken("{n} not defined", n=ended.count("not defined")),
    }
    return spoken(", ").join(said[one] for one in VERDICTS if one in ended)


def markdown(report: Mapping[str, Any]) -> str:
    """Return a report for people."""
    claims = [
        (
            claim["text"], claim["quantity"], claim["expected"], found_in_words(claim),
            f"**{spoken(claim['verdict'])}**",
        )
        for claim in report["claims"]
    ]  # fmt: skip
    notes = [f"- {claim['text']}: {claim['why']}." for claim in report["claims"] if claim["why"]]
    notes += [
        "- "
        + spoken(
            "{claim}: expected was first {earlier}, and after results {expected}.",
            claim=claim["text"],
            earlier=spoken(", then ").join(e["expected"] for e in claim["earlier"]),
            expected=claim["expected"],
        )
        for claim in report["claims"]
        if claim["earlier"]
    ]
    machine = "; ".join(", ".join(one.values()) for one in report["machines"])
    parts = [
        f"# {report['study']}\n\n{report['question']}\n\n{spoken('Paper: {paper}', paper=report['paper'])}",
        spoken("Scale {scale}: {size}, {time} ({machine}).", scale=report["scale"], size=size_of(report),
               time=time_of(report), machine=machine),
        f"## {spoken('Claims')}\n\n"
        + _table(spoken_each("claim", "measured", "expected", "mean and 95 % interval", "verdict"), claims),
        *(["\n".join(notes)] if notes else []),
        *([f"## {spoken('What differs from the paper')}\n\n" + "\n".join(f"- {one}" for one in report["differs"])]
          if report["differs"] else []),
        f"## {spoken('Measures')}\n\n" + "\n".join(map(_said_of_measure, report["measures"])),
        f"## {spoken('Runs')}\n\n" + _runs(report),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _claim(decision: Decision, before: Mapping[str, Any] | None) -> dict[str, Any]:
    claim = decision.claim
    said = {
        "text": claim.text, "quantity": claim.quantity.name, "expected": str(claim.expected),
        "range": claim.expected.to_dict(), "verdict": decision.verdict, "mean": _number(decision.mean),
        "low": _number(decision.low), "high": _number(decision.high),
        "values": {str(seed): value for seed, value in decision.values.items()}, "why": decision.why,
    }  # fmt: skip
    return said | {"earlier": _earlier(said, before)}


def _earlier(claim: Mapping[str, Any], before: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return what was expected of a claim in earlier reports, the first one first."""
    for old in (before or {}).get("claims", []):
        if old["text"] == claim["text"]:
            known = old["earlier"]
            if old["range"] != claim["range"]:
                known = [*known, {name: old[name] for name in ("expected", "range", "verdict", "mean", "low", "high")}]
            return known
    return []


def _measure(found: Found, name: str) -> dict[str, str]:
    told = found.study.measures.get(name)
    said = {"name": name, "about": "" if told is None else told.about, "unit": "" if told is None else told.unit}
    if told is None or told.analysis is None:
        return said
    card = card_of(told.analysis)
    return said | {"analysis": card.name, "question": card.question, "source": card.source}


def _run(run: Record) -> dict[str, Any]:
    return {
        "point": dict(run.point), "seed": run.seed, "undefined": dict(run.undefined),
        "measures": {name: _number(measured) for name, measured in run.measures.items()},
        "error": run.error.strip().rsplit("\n", 1)[-1],
        "cpu_seconds": run.cpu_seconds, "wall_seconds": run.wall_seconds,
        "trained": dict(run.trained), "found": dict(run.found),
        "key": records.key(run.study, {"point": run.point, "settings": run.settings, "seed": run.seed}),
    }  # fmt: skip


def _said_of_measure(measure: Mapping[str, str]) -> str:
    unit = spoken(", in {unit}", unit=measure["unit"]) if measure["unit"] else ""
    about = measure["about"] or spoken("no description")
    by = f" By `{measure['analysis']}`: {measure['question']} {measure['source']}" if "analysis" in measure else ""
    return f"- `{measure['name']}`: {about}{unit}.{by}"


def _runs(report: Mapping[str, Any]) -> str:
    """Return a table with a row for each point: means over seeds, and their standard deviations."""
    names = [measure["name"] for measure in report["measures"]]
    axes = list(report["grid"])
    rows = []
    for point in _distinct([run["point"] for run in report["runs"]]):
        runs = [run for run in report["runs"] if run["point"] == point]
        found = [[run["measures"].get(name) for run in runs] for name in names]
        said = [_mean(values) for values in found]
        rows.append((*(str(point[axis]) for axis in axes), *said, str(sum(bool(run["error"]) for run in runs) or "")))
    return _table((*axes, *names, spoken("errors")), rows)


def _mean(values: Sequence[float | None]) -> str:
    numbers = [value for value in values if value is not None]
    if not numbers:
        return ""
    mean = math.fsum(numbers) / len(numbers)
    if len(numbers) == 1:
        return f"{mean:.4g}"
    spread = math.sqrt(math.fsum((x - mean) ** 2 for x in numbers) / (len(numbers) - 1))
    return f"{mean:.4g} ± {spread:.2g}"


def found_in_words(claim: Mapping[str, Any]) -> str:
    """Return what was measured for a claim of a report, to two digits of its interval: `0.992 [0.971, 1.013]`.

    It is empty if nothing was measured, and has no interval where there is none or it has no width.
    """
    mean, low, high = (claim[name] for name in ("mean", "low", "high"))
    if mean is None:
        return ""
    if low is None or low == high:
        return f"{mean:.4g}"
    decimals = max(1 - math.floor(math.log10((high - low) / 2)), 0)
    form = f".{decimals}f" if decimals < 6 else ".2g"
    return f"{mean:{form}} [{low:{form}}, {high:{form}}]"


def size_of(report: Mapping[str, Any]) -> str:
    """Return how much ran, `12 runs, 3 seeds`."""
    runs, seeds = len(report["runs"]), report["seeds"]
    said = (
        spoken("1 run" if runs == 1 else "{n} runs", n=runs),
        spoken("1 seed" if seeds == 1 else "{n} seeds", n=seeds),
    )
    return spoken(", ").join(said)


def time_of(told: Mapping[str, Any]) -> str:
    """Return what a report, a run of one or a replay took, and the training it found done: `12 min of CPU time`."""
    cpu, wall, trained = told["cpu_seconds"], told["wall_seconds"], told.get("found", {}).values()
    said = [] if cpu is None else [spoken("{time} of CPU time", time=duration(cpu))]
    said += [] if wall is None else [spoken("{time} by the clock on one thread", time=duration(wall))]
    known = [seconds for seconds in trained if seconds is not None]
    if known:
        said.append(spoken("{time} of CPU time to train models that were there", time=duration(sum(known))))
    if len(known) < len(trained):
        said.append(spoken("and an unknown time to train models that were there"))
    return spoken(", ").join(said)


def _time(runs: Sequence[Record]) -> dict[str, Any]:
    """Return what runs took together; what one of them trained is not counted again where others found it."""
    trained = {model: seconds for run in runs for model, seconds in run.trained.items()}
    found: dict[str, float | None] = {}
    for run in runs:
        for model, seconds in run.found.items():
            if model not in trained and found.get(model) is None:
                found[model] = seconds
    cpu = [run.cpu_seconds for run in runs if run.cpu_seconds is not None]
    wall = [run.wall_seconds for run in runs if run.wall_seconds is not None]
    return {
        "cpu_seconds": round(sum(cpu), 1) if cpu else None, "wall_seconds": round(sum(wall), 1) if wall else None,
        "trained": trained, "found": found,
    }  # fmt: skip


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _distinct(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    seen: list[dict[str, Any]] = []
    for one in found:
        if dict(one) not in seen:
            seen.append(dict(one))
    return seen


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [" | ".join(heads), " | ".join("---" for _ in heads), *(" | ".join(row) for row in rows)]
    return "\n".join(f"| {line} |" for line in lines)
