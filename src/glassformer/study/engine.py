"""The engine: runs what is missing of a study, several runs at a time, and decides its claims.

Each run has a process of its own share: one thread, the generators set to its seed. What ends a run is recorded and
never decides a claim; the next call runs it again.
"""

import contextlib
import fcntl
import json
import multiprocessing
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from glassformer.errors import AnalysisUnavailable
from glassformer.study import records
from glassformer.study.claims import Decision, decide
from glassformer.study.code import Recorder, changed
from glassformer.study.definition import Case, Setting, Study
from glassformer.study.kept import kept_at, read_kept, write_kept
from glassformer.study.records import Record, State
from glassformer.study.sealed import NUMBER, is_there, read_sealed, seal
from glassformer.study.shelf import find
from glassformer.training import TrainConfig, train

RUNS = Path("runs") / "studies"
TRAINED, CODE = "trained", "code.json"


@dataclass(frozen=True)
class Progress:
    """What is told while a study runs.

    Args:
        done: Runs that are there.
        total: Runs in all.
        running: What each run under way has done, of how much, by case.
    """

    done: int
    total: int
    running: Mapping[str, tuple[int, int]]


Report = Callable[[Progress], None]


@dataclass(frozen=True)
class Found:
    """A study's runs at one scale, and its claims decided.

    Args:
        study: The study.
        scale: Which scale.
        runs: The records, in the order of cases.
        decisions: One per claim.
    """

    study: Study
    scale: str
    runs: Sequence[Record]
    decisions: Sequence[Decision]

    @property
    def grid(self) -> dict[str, Sequence[Setting]]:
        """Values of each axis at this scale."""
        return {**self.study.grid, **self.study.scale(self.scale).grid}

    def measures(self) -> list[str]:
        """Return the names of measures: those that the study describes, then others that runs gave."""
        return list(dict.fromkeys([*self.study.measures, *(name for run in self.runs for name in run.measures)]))


def run_study(
    study: Study | str,
    scale: str = "small",
    *,
    folder: str | Path = RUNS,
    jobs: int = 1,
    report: Report | None = None,
    anew: bool = False,
) -> Found:
    """Run what is missing of a study, and decide its claims.

    A run that is there is taken as it is, if the code that ran for it is still the same: from the folder, or from what
    is kept beside the study's code.

    Args:
        study: The study, its name, or a Python file that holds one. Several jobs take a name or a file.
        scale: `smoke`, `small` or `full`.
        folder: Where runs are kept, and models that are trained on the way.
        jobs: Runs at a time, each in a process of its own with one thread.
        report: Told what is done.
        anew: Run everything, whatever is there.

    Raises:
        AnalysisUnavailable: There is no such study, or it has no such scale.
        CheckpointError: The record of a run was changed or damaged, or something else is in its place.
        KeyboardInterrupt: Ctrl-C. What was finished is kept, and training goes on where it was.
    """
    found = study if isinstance(study, Study) else find(study)
    cases, home = found.cases(scale), Path(folder)
    if anew:
        for case in cases:
            is_there(records.place(home, found.name, case))
        todo = cases
    else:
        todo = [case for case, state in zip(cases, survey(found, scale, folder), strict=True) if state != "current"]
    tell = _Telling(report, len(cases), len(cases) - len(todo))
    tell()
    if jobs > 1 and isinstance(study, str) and len(todo) > 1:
        _run_beside(study, todo, home, min(jobs, len(todo)), tell)
    else:
        for case in todo:
            with tell.running(_spoken(case)) as said:
                _run(found, case, home, said)
    return verify(found, scale, folder=folder)


def survey(study: Study, scale: str, folder: str | Path = RUNS) -> list[State]:
    """The state of each case: whether its run is there and current; raises `CheckpointError` as `verify` does."""
    return ["missing" if record is None else record.state() for record in _known(study, scale, Path(folder))]


def verify(study: Study | str, scale: str = "small", *, folder: str | Path = RUNS) -> Found:
    """Decide a study's claims from the runs that are there; what is missing leaves a claim undecided.

    Raises:
        AnalysisUnavailable: There is no such study, or it has no such scale.
        CheckpointError: The record of a run was changed or damaged, or something else is in its place.
    """
    found = study if isinstance(study, Study) else find(study)
    runs = [record for record in _known(found, scale, Path(folder)) if record is not None]
    seeds = range(found.scale(scale).seeds)
    measured = [record.measured() for record in runs]
    return Found(found, scale, runs, [decide(claim, measured, seeds) for claim in found.claims])


def keep(study: Study | str, scale: str = "small", *, folder: str | Path = RUNS) -> tuple[Path, int]:
    """Write what is finished of a study into one file beside its code, to be committed, and return file and runs in it.

    Runs that are in the file already stay, if their code is still the same.

    Raises:
        AnalysisUnavailable: There is no such study, or it has no such scale, or nothing is finished, or the study is in
            no file.
        CheckpointError: The record of a run or the file was changed or damaged, or something else is in its place.
        SaveError: There is no room, or no right to write.
    """
    found = study if isinstance(study, Study) else find(study)
    path = kept_at(found, scale)
    if path is None:
        raise AnalysisUnavailable(f"{found.name} is in no file beside which its runs could be kept. Write it into one.")
    records = [one for one in _known(found, scale, Path(folder)) if one is not None and one.state() == "current"]
    if not records:
        raise AnalysisUnavailable(
            f'no run of {found.name} at scale {scale} is finished in "{folder}". '
            f"Run: glassformer study run {found.name} --scale {scale}"
        )
    write_kept(found, scale, path, records)
    return path, len(records)


def _known(study: Study, scale: str, folder: Path) -> list[Record | None]:
    """Return the record of each case: that of the folder, or the kept one if that is current or all there is."""
    cases, kept = study.cases(scale), read_kept(study, scale)
    own = [records.read(folder, study.name, case) for case in cases]
    return [_better(one, kept.get(records.key(study.name, case.to_dict()))) for one, case in zip(own, cases)]


def _better(own: Record | None, kept: Record | None) -> Record | None:
    if own is None or kept is None:
        return own or kept
    return own if own.state() == "current" or kept.state() != "current" else kept


def run_case(study: Study, case: Case, folder: Path, said: Callable[[int, int], None]) -> Record:
    """Return the record of one case, run here on one thread; what ends the run is in it.

    Args:
        study: The study.
        case: One of its cases.
        folder: Where models that are trained on the way lie, those of other cases too.
        said: Told (done, in all) of what takes long.
    """
    started = time.process_time()
    models = _Models(folder, ran := Recorder([study.run.__module__.partition(".")[0]]), said)
    measures: dict[str, float] = {}
    undefined: dict[str, str] = {}
    error = ""
    with _one_thread(), ran:
        own = replace(case, trains=models.of, report=said)
        own.begin()
        try:
            for name, given in study.run(own).items():
                try:
                    measures[name] = float(given() if callable(given) else given)
                except AnalysisUnavailable as why:
                    undefined[name] = str(why)
        except AnalysisUnavailable as why:
            undefined["*"] = str(why)
        except Exception:
            error = traceback.format_exc()
    return Record(
        study=study.name,
        point=dict(case.point),
        settings=dict(case.settings),
        seed=case.seed,
        measures=measures,
        undefined=undefined,
        error=error,
        cpu_seconds=round(time.process_time() - started, 2),
        wall_seconds=None,
        trained=models.trained,
        found=models.found,
        machine=records.machine(),
        code=ran.digests(),
    )


def _run(study: Study, case: Case, folder: Path, said: Callable[[int, int], None]) -> None:
    """Run one case and write its record."""
    records.save(records.place(folder, study.name, case), run_case(study, case, folder, said))


class _Models:
    """Trains models for a run, or finds them trained, and notes the CPU seconds of training by model.

    Args:
        folder: Where models lie.
        ran: Told which code ran to train one that is found.
        said: Told (steps, in all) while one is trained.
    """

    def __init__(self, folder: Path, ran: Recorder, said: Callable[[int, int], None]) -> None:
        self.folder, self.ran, self.said = folder, ran, said
        self.trained: dict[str, float | None] = {}
        self.found: dict[str, float | None] = {}

    def of(self, config: TrainConfig) -> Path:
        """Return the run folder of a recipe: as it is, if it was trained by the code that is here now."""
        name = records.key(json.loads(config.identity()))
        home = self.folder / TRAINED / name
        home.parent.mkdir(parents=True, exist_ok=True)
        is_there(home.with_suffix(".lock"))
        with home.with_suffix(".lock").open("a") as lock:
            # cases may share a model: whoever comes second waits for it
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = _told_of(home)
            if known and not changed(known["code"]):
                self.ran.add(known["code"])
                if name not in self.trained:
                    self.found[name] = known["cpu_seconds"]
                return home
            if known:
                shutil.rmtree(home)
            begun, started = home.exists(), time.process_time()
            with Recorder() as training:
                train(config, home, report=lambda at: self.said(at.step, at.steps))
            # what an earlier call took that was stopped is not known
            spent = None if begun else round(time.process_time() - started, 2)
            (self.found if begun else self.trained)[name] = spent
            seal(home / CODE, {"code": training.digests(), "cpu_seconds": spent})
        return home


def _told_of(home: Path) -> dict[str, Any] | None:
    """Return the code that trained a model and the CPU seconds it took; None for one that is not there whole."""
    code = {"code": {str: str}}
    way_on = f'Remove "{home}", and the model is trained again.'
    older = (code, lambda told: {"cpu_seconds": None} | told)
    return read_sealed(home / CODE, "digests of code", code | {"cpu_seconds": NUMBER}, way_on, older=older)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Telling:
    """Counts runs and what they say of themselves, and tells it."""

    def __init__(self, report: Report | None, total: int, done: int) -> None:
        self.report, self.total, self.done = report, total, done
        self.now: dict[str, tuple[int, int]] = {}

    def __call__(self) -> None:
        if self.report is not None:
            self.report(Progress(self.done, self.total, dict(self.now)))

    def at(self, name: str, done: int, total: int) -> None:
        """Take what a run under way has done."""
        self.now[name] = (done, total)
        self()

    def end(self, name: str) -> None:
        """Count a run that has ended."""
        self.now.pop(name, None)
        self.done += 1
        self()

    @contextlib.contextmanager
    def running(self, name: str) -> Iterator[Callable[[int, int], None]]:
        yield lambda done, total: self.at(name, done, total)
        self.end(name)


def _run_beside(study: str, todo: Sequence[Case], folder: Path, jobs: int, tell: _Telling) -> None:
    """Run cases in processes of their own."""
    context = multiprocessing.get_context("spawn")
    said = context.Manager().Queue()
    bare = [replace(case, trains=None, report=_silent) for case in todo]
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        waiting: dict[Future[None], str] = {
            pool.submit(_run_elsewhere, study, case, folder, said): _spoken(case) for case in bare
        }
        try:
            while waiting:
                ended, _ = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
                while not said.empty():
                    tell.at(*said.get())
                for run in ended:
                    tell.end(waiting.pop(run))
                    run.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _silent(done: int, total: int) -> None:
    """Say nothing."""


def _run_elsewhere(study: str, case: Case, folder: Path, said: Any) -> None:
    name, last = _spoken(case), [0.0]

    def tell(done: int, total: int) -> None:
        if time.monotonic() - last[0] > 1:
            last[0] = time.monotonic()
            said.put((name, done, total))

    _run(find(study), case, folder, tell)


def _spoken(case: Case) -> str:
    return ", ".join([*(f"{name}={value}" for name, value in case.point.items()), f"seed {case.seed}"])
