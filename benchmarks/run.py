"""Measure figures and print them as a table.

python benchmarks/run.py                          every figure, one thread and two
python benchmarks/run.py sites reading --threads 1 --seconds 60
python benchmarks/run.py --json benchmarks/results/NAME.json     also writes NAME.md beside it
python benchmarks/run.py training --json …                       renews one figure, keeps the others

All figures are gone through several times, so that the rounds of each are spread over all the time that it takes.
"""

import argparse
import dataclasses
import json
import os
import platform
import statistics
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch

import glassformer
from figures import FIGURES, Row
from glassformer.bench.machine import processor
from glassformer.bench.paired import aim_met, interval_said, rounds_said, together

# what a ratio is of, as it is said behind what is compared
UNITS = {"times": "", "speeds": " (speed)", "bytes": " (bytes)"}
WIDE = 0.1  # an A/A interval wider than this says that the machine was too busy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"figures: {', '.join(FIGURES)}; all by default")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], help="numbers of threads")
    parser.add_argument("--seconds", type=float, default=30.0, help="longest time per comparison, in all sittings")
    parser.add_argument("--sittings", type=int, default=3, help="how many times each comparison is taken up")
    parser.add_argument(
        "--json", type=Path, help="where the numbers go, beside those of other figures; a table goes beside it"
    )
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(FIGURES):
        parser.error(f"no figure {', '.join(sorted(unknown))}; there are {', '.join(FIGURES)}")
    taken: dict[tuple[str, int, str, str, str], list[Row]] = {}
    for sitting in range(asked.sittings):
        for name in asked.names or FIGURES:
            for threads in asked.threads:
                torch.set_num_threads(threads)
                with torch.no_grad():
                    for row in FIGURES[name](asked.seconds / asked.sittings):
                        taken.setdefault((name, threads, row.case, row.subject, row.baseline), []).append(row)
                        print(sitting + 1, *table([record(name, threads, [row])])[-1:], flush=True)
    rows = [record(name, threads, sittings) for (name, threads, *_), sittings in taken.items()]
    result = {"machine": machine(), "rows": rows}
    if asked.json is not None:
        result["rows"] = [*kept(asked.json, result["machine"], set(asked.names or FIGURES)), *rows]
        result["rows"].sort(key=lambda row: list(FIGURES).index(row["figure"]))
        asked.json.parent.mkdir(parents=True, exist_ok=True)
        asked.json.write_text(json.dumps(result, indent=1) + "\n")
        asked.json.with_suffix(".md").write_text(report(result))
    print("\n" + report(result))


def kept(path: Path, here: dict[str, Any], measured: set[str]) -> list[dict[str, Any]]:
    """Return the rows that a file has of figures not measured now; none if it was made on another machine."""
    if not path.exists():
        return []
    known = json.loads(path.read_text())
    same = all(known["machine"][fact] == here[fact] for fact in here if fact != "date")
    return [row for row in known["rows"] if same and row["figure"] not in measured]


def record(name: str, threads: int, sittings: Sequence[Row]) -> dict[str, Any]:
    """Return the sittings of a comparison as JSON; ratios are of times or bytes, or of speeds where the aim is one."""
    row, c = sittings[0], together([sitting.comparison for sitting in sittings])
    ratios = {"cpu": c.cpu, "wall": c.wall, "cpu_same": c.cpu_same, "wall_same": c.wall_same}
    if row.speed:
        ratios = {clock: spread.inverse() for clock, spread in ratios.items()}
    facts = {"figure": name, "threads": threads, "case": row.case, "subject": row.subject, "baseline": row.baseline}
    ratio_of = "speeds" if row.speed else "bytes" if row.bytes else "times"
    facts |= {"ratio_of": ratio_of, "rounds": c.rounds, "aim": row.aim}
    facts |= {clock: dataclasses.asdict(spread) for clock, spread in ratios.items()}
    medians = [sitting.comparison.cpu.median for sitting in sittings]
    facts |= {"sittings": [1 / ratio for ratio in medians] if row.speed else medians}
    notes = {note: statistics.median(sitting.notes[note] for sitting in sittings) for note in row.notes}
    if row.bytes:
        facts |= {"subject_bytes": c.subject.cpu, "baseline_bytes": c.baseline.cpu}
    else:
        facts |= {"subject_seconds": c.subject._asdict(), "baseline_seconds": c.baseline._asdict()}
    facts |= {"notes": notes}
    facts |= {"date": date.today().isoformat()}
    return facts | {"met": met(facts)}


def met(facts: dict[str, Any]) -> str | None:
    """Return `yes`, `within A/A`, `no` or `unclear`, judged by CPU time; None where nothing is aimed at.

    An aim is met by the whole interval. Within A/A is what misses it by no more than two equal things differ here.
    Unclear is what reaches it with a part of the interval, or on a noisy machine, whose A/A is known to 10 % at best,
    misses it with a part.
    """
    if "aim_extra_seconds" in facts["notes"]:
        return "yes" if facts["notes"]["extra_cpu_seconds"] <= facts["notes"]["aim_extra_seconds"] else "no"
    if "aim_seconds" in facts["notes"]:
        return "yes" if facts["subject_seconds"]["cpu"] <= facts["notes"]["aim_seconds"] else "no"
    if facts["aim"] is None:
        return None
    ratio, same = facts["cpu"]["median"], facts["cpu_same"]
    if same["high"] - same["low"] > WIDE and facts["cpu"]["low"] < facts["aim"] < facts["cpu"]["high"]:
        return "unclear"
    spread, at_least = facts["cpu"], facts["ratio_of"] == "speeds"
    found = aim_met(ratio, spread["low"], spread["high"], facts["aim"], at_least=at_least)
    if found != "no":
        return found
    return "within A/A" if same["low"] <= ratio / facts["aim"] <= same["high"] else "no"


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a Markdown table."""
    head = "figure | case | threads | subject / baseline | CPU time | all rounds | A/A | wall time | aim | met | also"
    lines = [f"| {head} |", "|" + "---|" * len(head.split("|"))]
    for row in rows:
        compared = f"{row['subject']} / {row['baseline']}{UNITS[row['ratio_of']]}"
        sign = "≥" if row["ratio_of"] == "speeds" else "≤"
        notes = ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in row["notes"].items())
        cells = (
            row["figure"], row["case"], row["threads"], compared, interval(row["cpu"]),
            rounds_said(row["rounds"], row.get("sittings", []), row["cpu"]),
            interval(row["cpu_same"]), interval(row["wall"]),
            "" if row["aim"] is None else f"{sign} {row['aim']}", row["met"] or "", notes,
        )  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def interval(spread: dict[str, float]) -> str:
    return interval_said(spread["median"], spread["low"], spread["high"])


def report(result: dict[str, Any]) -> str:
    facts = ", ".join(f"{name} {value}" for name, value in result["machine"].items())
    head = f"{facts}. Medians of paired ratios with 95 % intervals; A/A is the baseline against itself.\n"
    return head + "\n" + "\n".join(table(result["rows"])) + "\n"


def machine() -> dict[str, Any]:
    """Return what the numbers depend on."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "glassformer": glassformer.__version__,
        "date": date.today().isoformat(),
    }


if __name__ == "__main__":
    main()
