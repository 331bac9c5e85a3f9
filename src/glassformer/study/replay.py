"""Replays: one run of a report made again by the code of now, and compared measure by measure with what was recorded.

    found = replay("rank-collapse", report)         # trains afresh, whole, at the report's scale
    found.outcome                                   # "equal", "agrees" or "differs"

Any edit of a function that ran makes a report one "of earlier code", though hardly any edit changes a number. A replay
tells these apart. Which run is made again follows from the study's name alone: one of the cheapest third, by hash.

Two numbers are *equal* if they differ by less than a millionth of their size. They *agree* if the new one lies where
one more seed would: in the 95 % interval for a single further draw, by Student's t, of the seeds recorded at the same
point. So two seeds or more have to be recorded, and where all seeds gave one number only that number agrees. Times are
left out.

    {"format": "glassformer.replays", "version": 2,
     "replays": {study: {"outcome", "why", "point", "seed", "measures", "cpu_seconds", "wall_seconds", "machine",
                         "code", "also"}},
     "sha256": of all the rest}
"""

import hashlib
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, Self

from glassformer.errors import AnalysisUnavailable, CheckpointError
from glassformer.study.code import digest
from glassformer.study.definition import Study
from glassformer.study.engine import run_case
from glassformer.study.intervals import next_draw
from glassformer.study.records import CLOCK, Record, by_the_clock
from glassformer.study.sealed import NUMBER, read_sealed, seal
from glassformer.study.shelf import find

FORMAT, VERSION = "glassformer.replays", 2
RELATIVE, ABSOLUTE = 1e-6, 1e-12
Outcome = Literal["equal", "agrees", "differs"]
OUTCOMES: tuple[Outcome, ...] = ("equal", "agrees", "differs")
_COMPARED = {"name": str, "recorded": NUMBER, "replayed": NUMBER, "low": NUMBER, "high": NUMBER, "outcome": str}
_REPLAY = {
    "outcome": str, "why": str, "point": {}, "seed": int, "measures": [_COMPARED], "machine": {str: str}, "code": str,
    "also": [str],
}  # fmt: skip
_REPLAYS = {"format": str, "version": int}
SHAPE = _REPLAYS | {"replays": {str: _REPLAY | {"cpu_seconds": NUMBER, "wall_seconds": NUMBER}}}


@dataclass(frozen=True)
class Compared:
    """One measure of a replayed run beside what was recorded of it.

    Args:
        name: Of the measure.
        recorded: What the report has; None where it was not defined.
        replayed: What came now; None likewise.
        low: Lower end of where one more seed would lie; None without two seeds.
        high: Upper end.
        outcome: One of `OUTCOMES`.
    """

    name: str
    recorded: float | None
    replayed: float | None
    low: float | None
    high: float | None
    outcome: Outcome


@dataclass(frozen=True)
class Replay:
    """What came of running one case of a report again.

    Args:
        outcome: The worst of its measures; `differs` makes the study stale.
        why: What ended the run, or why there was none; empty if it gave measures.
        point: Value of each axis in the case.
        seed: Of the case.
        measures: One for each measure of either run.
        cpu_seconds: CPU time that it took, training included; None if there was no run, or it is from before CPU time
            was measured.
        wall_seconds: Time that it took by the clock; only of one from before.
        machine: Processor, and versions.
        code: One digest of all functions that ran, here or for the report.
        also: Names of the functions that ran here and not for the report.
    """

    outcome: Outcome
    why: str
    point: Mapping[str, Any]
    seed: int
    measures: Sequence[Compared]
    cpu_seconds: float | None
    wall_seconds: float | None
    machine: Mapping[str, str]
    code: str
    also: Sequence[str]

    def is_current(self, report: Mapping[str, Any]) -> bool:
        """Return whether the functions that ran are still what they were."""
        return self.code == _digest_of({*report["code"], *self.also})

    def said(self) -> str:
        """Return it in a sentence, which names the code it is of by its digest."""
        where = ", ".join([*(f"{name}={value}" for name, value in self.point.items()), f"seed {self.seed}"])
        made = f"one run made again ({where}; code {self.code[:8]})"
        if self.outcome != "differs":
            return f"{made.capitalize()}: {self.outcome}."
        odd = [one for one in self.measures if one.outcome == "differs"]
        return f"Stale: {made} differs: {self.why or '; '.join(_said(one) for one in odd[:3])}."

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return a replay of JSON data of the shape that a replay has."""
        measures = [Compared(**{field.name: one[field.name] for field in fields(Compared)}) for one in data["measures"]]
        return cls(**{**{field.name: data[field.name] for field in fields(cls)}, "measures": measures})


def drawn(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the run of a report that is made again: one of the cheapest third of those that ended, by hash.

    Raises:
        AnalysisUnavailable: No run of it ended.
    """
    ended = [run for run in report["runs"] if not run["error"]]
    if not ended:
        raise AnalysisUnavailable(f"{report['study']}: no run of the report ended, so there is nothing to make again.")
    cheapest = sorted(ended, key=lambda run: (_taken(run), run["key"]))[: math.ceil(len(ended) / 3)]
    return cheapest[int(hashlib.sha256(report["study"].encode()).hexdigest(), 16) % len(cheapest)]


def _taken(run: Mapping[str, Any]) -> float:
    """Return the seconds of CPU time that a run took, or those by the clock if that is all that is known."""
    return run["wall_seconds"] if run["cpu_seconds"] is None else run["cpu_seconds"]


def replay(
    study: Study, report: Mapping[str, Any], folder: Path, say: Callable[[int, int], None] = lambda done, total: None
) -> Replay:
    """Return what comes of one run of a report if it is made again, whole, with nothing trained before.

    Args:
        study: The study that the report is of.
        report: The report, as JSON data.
        folder: Where models are trained on the way; they do not stay.
        say: Told (done, in all) of what takes long.

    Raises:
        AnalysisUnavailable: No run of the report ended.
    """
    run = drawn(report)
    asked = {"point": run["point"], "settings": report["settings"], "seed": run["seed"]}
    cases = [case for case in study.cases(report["scale"]) if case.to_dict() == asked]
    if not cases:
        return _replayed(study, report, run, None, "the study has no such case any more")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="replay-", dir=folder) as empty:
        record = run_case(study, cases[0], Path(empty), say)
    return _replayed(study, report, run, record, record.error.strip().rpartition("\n")[2])


def replay_reports(
    reports: Mapping[str, Mapping[str, Any]],
    path: Path,
    folder: Path,
    *,
    anew: bool = False,
    say: Callable[[str, int, int], None] = lambda study, done, total: None,
) -> dict[str, Replay]:
    """Replay one run of each report, write what came of it after each, and return all.

    What the file holds is not made again, if it is of the report and no function that ran has changed since.

    Args:
        reports: Reports as JSON data, by study.
        path: File of the replays.
        folder: Where models are trained on the way.
        anew: Make them again, whatever is there.
        say: Told a study and (done, in all), in hundredths of studies.

    Raises:
        CheckpointError: The file holds something else.
        KeyboardInterrupt: Ctrl-C. What was finished is in the file.
    """
    before = read_replays(path)  # first of all: a file that cannot be gone on with costs no run
    found: dict[str, Replay] = {}
    for done, (name, report) in enumerate(reports.items()):
        known = None if anew else before.get(name)
        run = drawn(report)
        if known is None or (known.point, known.seed) != (run["point"], run["seed"]) or not known.is_current(report):

            def within(at: int, of: int, name: str = name, done: int = done) -> None:
                say(name, 100 * done + 100 * at // max(of, 1), 100 * len(reports))

            within(0, 1)
            known = replay(find(name), report, folder, within)
            keep_replay(path, name, known)
        found[name] = known
    return found


def _replayed(
    study: Study, report: Mapping[str, Any], run: Mapping[str, Any], record: Record | None, why: str
) -> Replay:
    timed = {name for name, measure in study.measures.items() if measure.timed}
    measures = [] if record is None or why else _compared(report, run, record, timed)
    worst = max((OUTCOMES.index(one.outcome) for one in measures), default=0)
    also = () if record is None else sorted(record.code.keys() - report["code"].keys())
    return Replay(
        outcome="differs" if why else OUTCOMES[worst],
        why=why,
        point=run["point"],
        seed=run["seed"],
        measures=measures,
        cpu_seconds=None if record is None else record.cpu_seconds,
        wall_seconds=None,
        machine={} if record is None else record.machine,
        code=_digest_of({*report["code"], *also}),
        also=also,
    )


def _compared(report: Mapping[str, Any], run: Mapping[str, Any], record: Record, timed: set[str]) -> list[Compared]:
    """Return every measure that either run has or says is not defined, but for times."""
    names = dict.fromkeys([*run["measures"], *run["undefined"], *record.measures, *record.undefined])
    seeds = [other["measures"] for other in report["runs"] if other["point"] == run["point"]]
    return [
        _one(name, run["measures"].get(name), record.measures.get(name), [of[name] for of in seeds if name in of])
        for name in names
        if name not in timed
    ]


def _one(name: str, recorded: float | None, replayed: float | None, seeds: Sequence[float | None]) -> Compared:
    numbers = [value for value in seeds if value is not None]
    low, high = next_draw(numbers) if len(numbers) > 1 else (None, None)
    # JSON has no infinity or NaN: what is none of the numbers was recorded as null
    replayed = replayed if replayed is not None and math.isfinite(replayed) else None
    outcome: Outcome = "differs"
    if recorded is None or replayed is None:
        outcome = "equal" if recorded is replayed else "differs"
    elif math.isclose(recorded, replayed, rel_tol=RELATIVE, abs_tol=ABSOLUTE):
        outcome = "equal"
    elif low is not None and high is not None and low <= replayed <= high:
        outcome = "agrees"
    return Compared(name, recorded, replayed, low, high, outcome)


def _said(one: Compared) -> str:
    spread = "" if one.low is None else f", one more seed would lie in [{one.low:.6g}, {one.high:.6g}]"
    recorded, replayed = ("not defined" if x is None else f"{x:.6g}" for x in (one.recorded, one.replayed))
    return f"{one.name} is {replayed}, recorded was {recorded}{spread}"


def _digest_of(names: set[str]) -> str:
    told = "\n".join(f"{name} {digest(name)}" for name in sorted(names))
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def read_replays(path: Path) -> dict[str, Replay]:
    """Return the replays in a file by study; none if there is no file.

    Raises:
        CheckpointError: The file was changed or damaged, holds something else, or is no regular file.
    """
    way_on = "Remove it, and the same command makes it anew."
    clocked = _REPLAYS | {"replays": {str: _REPLAY | CLOCK}}
    data = read_sealed(path, "replays", SHAPE, way_on, older=(clocked, _renewed))
    if data is None:
        return {}
    if (data["format"], data["version"]) != (FORMAT, VERSION):
        raise CheckpointError(
            f'"{path}" holds no replays (expected format="{FORMAT}", version={VERSION}).\n    {way_on}'
        )
    return {name: Replay.from_dict(one) for name, one in data["replays"].items()}


def _renewed(data: dict[str, Any]) -> dict[str, Any]:
    """Return replays from before CPU time was measured as they are written now."""
    replays = {name: by_the_clock(one) for name, one in data["replays"].items()}
    return data | {"replays": replays} | ({"version": VERSION} if data["version"] == 1 else {})


def keep_replay(path: Path, study: str, found: Replay) -> None:
    """Write a replay beside those of other studies, whole or not at all."""
    replays = read_replays(path) | {study: found}
    told = {name: asdict(replays[name]) for name in sorted(replays)}
    path.parent.mkdir(parents=True, exist_ok=True)
    seal(path, {"format": FORMAT, "version": VERSION, "replays": told})
