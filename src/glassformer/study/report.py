"""Reports: what a study found, as JSON for programs, as Markdown and as a page with figures for people.

    {"format": "glassformer.study", "version": 2, "study": …, "paper": …, "question": …, "scale": …, "differs": […],
     "claims": [{"name", "text", "quantity", "expected", "range", "counts", "exact", "given", "verdict", "mean", "low",
                 "high", "near", "values", "why", "earlier"}],
     "chance": {"by_interval", "false_holds"},
     "measures": [{"name", "about", "unit", "question", "source"}],
     "runs": [{"point", "seed", "measures", "undefined", "error", "cpu_seconds", "wall_seconds", "trained", "found",
               "key"}],
     "cpu_seconds": …, "wall_seconds": …, "trained": {model: seconds}, "found": {model: seconds},
     "machines": [{…}], "code": {"module:name": digest}, "sha256": of all the rest}

A report that is written where an older one lies remembers what that one said: a claim of which something else was
measured, expected or asked first, or that was decided of other seeds, settings, cases or recipes, lists how it was
decided then under `earlier`, first things first. It is the same claim as long as its name is.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glassformer.analysis.cards import card_of
from glassformer.files import write
from glassformer.render.page import study_page
from glassformer.study import records
from glassformer.study.claims import VERDICTS, Decision, Met, decide, held_by_chance
from glassformer.study.code import changed
from glassformer.study.definition import Study
from glassformer.study.engine import Found
from glassformer.study.quantities import Measured
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
    made = {
        "format": FORMAT,
        "version": VERSION,
        "study": study.name,
        "scale": found.scale,
        "settings": dict(study.scale(found.scale).settings),
        "grid": {name: list(values) for name, values in found.grid.items()},
        "seeds": study.scale(found.scale).seeds,
        "measures": [_measure(study, name) for name in found.measures()],
        "runs": [_run(run) for run in found.runs],
        **_time(found.runs),
        "machines": _distinct([run.machine for run in found.runs]),
        "code": code,
    }
    return _claimed(study, made, found.decisions, before)


def decided_anew(study: Study, report: Mapping[str, Any]) -> dict[str, Any]:
    """Return a report with the claims that its study makes now, decided of the runs that it holds.

    Args:
        study: The study that the report is of.
        report: The report, as JSON data.
    """
    runs = [_measured(run) for run in report["runs"]]
    decisions = [decide(claim, runs, range(report["seeds"])) for claim in study.claims]
    measures = [_measure(study, measure["name"]) for measure in report["measures"]]
    return _claimed(study, {**report, "version": VERSION, "measures": measures}, decisions, report)


def _claimed(
    study: Study, made: Mapping[str, Any], decisions: Sequence[Decision], before: Mapping[str, Any] | None
) -> dict[str, Any]:  # fmt: skip
    """Return a report of runs with what a study claims of them."""
    decided = sum(decision.by_interval for decision in decisions)
    then = None if before is None else _made_of(study, before)
    return {
        **made,
        "paper": study.paper,
        "question": study.question,
        "differs": list(study.differs),
        "claims": [_claim(decision, before, then, _made_of(study, made)) for decision in decisions],
        "chance": {"by_interval": decided, "false_holds": round(held_by_chance(decided), 4)},
    }


def _made_of(study: Study, report: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the claims of a report were decided of: its scale, and a digest of the study's own functions."""
    module = study.run.__module__
    room = module.rpartition(".")[0] or module
    own = {
        name: code for name, code in report["code"].items() if name.partition(":")[0].startswith((module, f"{room}."))
    }
    return {**{name: report[name] for name in ("seeds", "settings", "grid")}, "recipe": records.key(own)}


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
        "not testable here": spoken("{n} not testable here", n=ended.count("not testable here")),
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
    notes = remarks(report) + [f"- {line}" for claim in report["claims"] for line in _history(claim)]
    machine = "; ".join(", ".join(one.values()) for one in report["machines"])
    parts = [
        f"# {report['study']}\n\n{spoken(report['question'])}\n\n{spoken('Paper: {paper}', paper=report['paper'])}",
        spoken("Scale {scale}: {size}, {time} ({machine}).", scale=report["scale"], size=size_of(report),
               time=time_of(report), machine=machine),
        f"## {spoken('Claims')}\n\n"
        + _table(spoken_each("claim", "measured", "expected", "mean and 95 % interval", "verdict"), claims),
        *(["\n".join(notes)] if notes else []),
        chance_in_words(report),
        *([f"## {spoken('What differs from the paper')}\n\n" + "\n".join(f"- {one}" for one in report["differs"])]
          if report["differs"] else []),
        f"## {spoken('Measures')}\n\n" + "\n".join(map(_said_of_measure, report["measures"])),
        f"## {spoken('Runs')}\n\n" + _runs(report),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def remarks(report: Mapping[str, Any]) -> list[str]:
    """Return a line for each claim that says why it is not decided, why it has no interval, or that it is near."""
    lines = []
    for claim in report["claims"]:
        said = [claim["why"]] if claim["why"] else []
        said += [spoken("no sample: {why}", why=claim["exact"])] if claim["exact"] else []
        if claim["near"]:
            said.append(spoken("near the border, within a quarter of half the interval's width of what is expected"))
        if said:
            lines.append("- " + spoken("{claim}: {words}.", claim=claim["text"], words="; ".join(said)))
    return lines


def _history(claim: Mapping[str, Any]) -> list[str]:
    """Return how a claim was decided by earlier reports."""
    return [
        spoken(
            "{claim}: before this, {quantity} was expected {expected} ({of}), and the verdict was: {verdict}.",
            claim=claim["text"],
            quantity=old.get("quantity", claim["quantity"]),
            expected=old["expected"],
            of=spoken(", ").join([*_said_of_scale(old), *_said_of_given(old, claim)]),
            verdict=spoken(old["verdict"]),
        )
        for old in claim["earlier"]
    ]


def _said_of_scale(old: Mapping[str, Any]) -> list[str]:
    """Return the scale that an earlier verdict was of, in words; reports of the first version did not keep it."""
    if "seeds" not in old:
        return [spoken("scale not recorded")]
    seeds = spoken("1 seed" if old["seeds"] == 1 else "{n} seeds", n=old["seeds"])
    return [seeds, *(f"{name}={value}" for name, value in old["settings"].items())]


def _said_of_given(old: Mapping[str, Any], claim: Mapping[str, Any]) -> list[str]:
    """Return what an earlier verdict was given, in words; nothing if the claim is given nothing either."""
    if old.get("given"):
        return [spoken("given: {conditions}", conditions="; ".join(one["text"] for one in old["given"]))]
    return [spoken("nothing given")] if claim["given"] else []


def chance_in_words(report: Mapping[str, Any]) -> str:
    """Return how many claims an interval decides, and how many of them would hold if none were true."""
    n, expected = report["chance"]["by_interval"], report["chance"]["false_holds"]
    if not n:
        return spoken("{claims} claims, none of which an interval over seeds decides.", claims=len(report["claims"]))
    return spoken(
        "{claims} claims, {n} of which a 95 % interval over seeds decides. A claim that is not true holds by chance in "
        "one study of forty at most: were none of these {n} true, {expected} would be expected to hold.",
        claims=len(report["claims"]), n=n, expected=f"{expected:.2g}",
    )  # fmt: skip


def _claim(
    decision: Decision,
    before: Mapping[str, Any] | None,
    then: Mapping[str, Any] | None,
    now: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    claim = decision.claim
    counts = claim.quantity.counts
    said = {
        "name": claim.name,
        "text": claim.text,
        "quantity": claim.quantity.name,
        "expected": claim.expects,
        "range": claim.expected.to_dict(),
        "counts": None if counts is None else {"range": counts.to_dict(), "count": decision.count},
        "exact": claim.exact,
        "given": [_given(met) for met in decision.given],
        "verdict": decision.verdict,
        "mean": _number(decision.mean),
        "low": _number(decision.low),
        "high": _number(decision.high),
        "near": decision.near,
        "values": {str(seed): value for seed, value in decision.values.items()},
        "why": decision.why,
    }
    old = None if before is None else earlier_self(said, before)
    if old is None or then is None:
        return said | {"earlier": []}
    changed = then != now or any(
        _asked(old, name) != _asked(said, name) for name in ("quantity", "range", "counts", "given")
    )
    kept = {name: old[name] for name in ("quantity", "expected", "range", "given", "verdict", "mean", "low", "high")}
    return said | {"earlier": [*old["earlier"], {**kept, **then}] if changed else old["earlier"]}


def _given(met: Met) -> dict[str, Any]:
    asked = met.condition
    return {
        "text": asked.text, "quantity": asked.quantity.name, "expected": str(asked.expected),
        "range": asked.expected.to_dict(), "values": {str(seed): value for seed, value in met.values.items()},
        "met": met.holds,
    }  # fmt: skip


def _asked(claim: Mapping[str, Any], name: str) -> Any:
    """Return what was asked of a claim, without what was found."""
    told = claim[name]
    if name == "given":
        return [(one["quantity"], one["range"]) for one in told]
    return told["range"] if name == "counts" and told is not None else told


def earlier_self(claim: Mapping[str, Any], before: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return a claim as another report has it: under its name, or its sentence where claims had no names yet."""
    for old in before["claims"]:
        if (old["name"] or old["text"]) == (claim["name"] if old["name"] else claim["text"]):
            return old
    return None


def _measure(study: Study, name: str) -> dict[str, str]:
    told = study.measures.get(name)
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

    Seeds that are counted are told with the interval of their share: `3 of 8 seeds [0.09, 0.76]`. It is empty if
    nothing was measured, and has no interval where there is none or it has no width.
    """
    mean, low, high = (claim[name] for name in ("mean", "low", "high"))
    if mean is None:
        return ""
    if claim["counts"] is not None:
        told = spoken("{n} of {all} seeds", n=claim["counts"]["count"], all=len(claim["values"]))
        return f"{told} [{low:.2f}, {high:.2f}]"
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


def _measured(run: Mapping[str, Any]) -> Measured:
    # JSON has no word for a number that is none
    measures = {name: math.nan if measured is None else measured for name, measured in run["measures"].items()}
    return Measured(run["point"], run["seed"], measures, run["undefined"], run["error"])


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
