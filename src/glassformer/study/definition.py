"""A study: a paper, a grid of cases, what is measured in each, and claims about it.

def run(case: Case) -> Measures:
    model = gf.load(case.train(recipe(case["mechanism"])))
    return {"loss": heldout_loss(model), "copying": lambda: copying(model)}

STUDY = Study("induction", paper="Olsson et al. 2022", question="…", run=run,
              grid={"mechanism": ("softmax", "linear")}, scales={"small": Scale(seeds=3, steps=500)}, claims=(…))
"""

import itertools
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from glassformer.attention import MixerConfig
from glassformer.config import require
from glassformer.errors import AnalysisUnavailable, nearest
from glassformer.study.claims import Claim, Condition
from glassformer.training import TrainConfig

Setting = int | float | str | bool | None
# a function is called by the engine: where it is not defined for a case, that is what the report says
Measures = Mapping[str, float | Callable[[], float]]
SCALES = ("smoke", "small", "full")
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")  # of a claim


@dataclass(frozen=True)
class Scale:
    """How much is run.

    Args:
        seeds: How many; they are 0, 1, …
        settings: What cases may look up besides the grid: steps, lengths, sizes.
        grid: Axes that take other values at this scale.
    """

    seeds: int = 1
    settings: Mapping[str, Setting] = field(default_factory=dict)
    grid: Mapping[str, tuple[Setting, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(self.seeds >= 1, f"seeds={self.seeds} is not at least 1.")


@dataclass(frozen=True)
class Case:
    """One point of the grid, with one seed.

    Args:
        point: Value of each axis, by name.
        settings: Of the scale.
        seed: Of everything that is drawn. PyTorch's and Python's generators are set to it before a case is run.
        trains: Trains a recipe, or finds it trained, and returns the run folder.
        report: Told (done, in all) of what takes long.
    """

    point: Mapping[str, Setting]
    settings: Mapping[str, Setting]
    seed: int
    trains: Callable[[TrainConfig], Path] | None = field(default=None, compare=False)
    report: Callable[[int, int], None] = field(default=lambda done, total: None, compare=False)

    def __getitem__(self, name: str) -> Any:
        """Return the value of an axis, or of a setting of the scale."""
        known = {**self.settings, **self.point}
        if name not in known:
            raise KeyError(f'no axis or setting "{name}".{nearest(name, known)} There are: {", ".join(known)}.')
        return known[name]

    def train(self, config: TrainConfig) -> Path:
        """Return the run folder of a recipe, trained with this seed here, in another case or in an earlier run."""
        assert self.trains is not None, "cases train where they are run by the engine"
        return self.trains(config.replace(seed=self.seed))

    def generator(self) -> torch.Generator:
        """Return a generator of this seed."""
        return torch.Generator().manual_seed(self.seed)

    def begin(self) -> None:
        """Set PyTorch's and Python's generators to the seed."""
        torch.manual_seed(self.seed)
        random.seed(self.seed)

    def to_dict(self) -> dict[str, Any]:
        """Return what the run is of, as JSON data."""
        return {"point": dict(self.point), "settings": dict(self.settings), "seed": self.seed}


@dataclass(frozen=True)
class Measure:
    """What a measure is, for reports.

    Args:
        about: In a sentence.
        unit: Of the number; empty if it has none.
        analysis: The analysis it is taken from: the report says its question and source.
        timed: It is a time or follows from times, so that another hour gives another number; replays leave it out.
        learned: A run learns what this measures or does not, and is on one of two heaps: seeds are counted, for a mean
            of both is that of no run, and three seeds of what is learned in four of five agree in half of all cases.
    """

    about: str
    unit: str = ""
    analysis: Callable[..., Any] | None = None
    timed: bool = False
    learned: bool = False


@dataclass(frozen=True)
class Study:
    """A paper's claims, checked in miniature.

    Args:
        name: In lower case, with hyphens.
        paper: Authors, year, title, section.
        question: In a sentence.
        run: From a case to its measures. A measure may be given as a function, which is called at once: where it
            raises `AnalysisUnavailable`, the measure is not defined for the case. Any other error ends the run, and no
            claim is decided by that.
        claims: What the paper says.
        grid: Axes and their values; cases are all combinations.
        scales: What is run, by `SCALES`: smoke takes seconds and shows that it works, small takes minutes.
        measures: What the measures are.
        differs: What is done otherwise than in the paper.
        mechanisms: Kinds of attention that the claims are about: tables of mechanisms show what was found.
        skip: Points of the grid that are left out.
        references: What conditions of claims may be about, the reference, a yardstick or the data, never what is
            claimed about: the values that they may name of each axis. A condition names one of each of these axes, and
            no other axis.
        kinds: Which of the mechanisms cases with a value of an axis have, where the value is not the name of one; none
            if they have no attention. A claim is about those of the cases that it takes.
    """

    name: str
    paper: str
    question: str
    run: Callable[[Case], Measures]
    claims: tuple[Claim, ...]
    scales: Mapping[str, Scale]
    grid: Mapping[str, tuple[Setting, ...]] = field(default_factory=dict)
    measures: Mapping[str, Measure] = field(default_factory=dict)
    differs: tuple[str, ...] = ()
    mechanisms: tuple[str, ...] = ()
    skip: Callable[[Mapping[str, Setting]], bool] = lambda point: False
    references: Mapping[str, tuple[Setting, ...]] = field(default_factory=dict)
    kinds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(bool(self.claims), f'study "{self.name}" claims nothing.')
        for name in self.scales:
            require(name in SCALES, f'study "{self.name}": no scale "{name}". Scales: {", ".join(SCALES)}.')
        require("small" in self.scales, f'study "{self.name}" has no small scale.')
        for axis, values in self.references.items():
            for value in values:
                self._require(value in self.grid.get(axis, ()), f"no case has {axis}={value}, which is a reference.")
        for claim in self.claims:
            self._check(claim)
        values = {one for values in self.grid.values() for one in values if isinstance(one, str)}
        for value, kinds in self.kinds.items():
            self._require(value in values, f'no case has "{value}", which has kinds.{nearest(value, values)}')
            for kind in kinds:
                self._require(
                    kind in self.mechanisms,
                    f'"{value}" is of "{kind}", which is not among its mechanisms.{nearest(kind, self.mechanisms)}',
                )

    def _check(self, claim: Claim) -> None:
        """Refuse a claim that cannot be told from another, takes what there is not, or whose conditions beg it."""
        name, alike = claim.name, [other for other in self.claims if other.name == claim.name]
        self._require(NAME.fullmatch(name) is not None, f'the name "{name}" is not in lower case with hyphens.')
        self._require(len(alike) == 1, f'two claims have the name "{name}".')
        for part in (claim, *claim.given):
            self._check_quantity(part)
        for measure in claim.quantity.measures:
            told = self.measures.get(measure)
            self._require(
                told is None or not told.learned or claim.quantity.counts is not None,
                f'"{name}" takes the mean of {measure}, which a run has learned or has not. Count the seeds: '
                "counted(quantity, range).",
            )
        for condition in claim.given:
            asked = condition.quantity
            self._require(asked.name != claim.quantity.name, f'"{name}" is given itself.')
            self._require(asked.counts is None, f'"{condition.text}" counts seeds, as conditions do anyhow.')
            self._require(
                all(map(self._is_reference, asked.where)),
                f'"{name}" is given "{condition.text}", which is of {", ".join(map(str, asked.where))}. A condition is '
                f"of a reference, and these are: {dict(self.references) or 'none'}.",
            )

    def _is_reference(self, where: Mapping[str, Setting]) -> bool:
        """Return whether conditions may be about cases: those of references, or the one case there is."""
        named = where.keys() == self.references.keys() and all(where[axis] in self.references[axis] for axis in where)
        return named and (bool(where) or not self.grid)

    def _check_quantity(self, part: Claim | Condition) -> None:
        """Refuse a quantity of an axis or a measure that there is not."""
        text = part.text
        for axis in (axis for where in part.quantity.where for axis in where):
            near = nearest(axis, self.grid)
            self._require(axis in self.grid, f'"{text}" is about {axis}, which is no axis of the grid.{near}')
        for measure in part.quantity.measures:
            self._require(
                not self.measures or measure in self.measures,
                f'"{text}" takes {measure}, which is not among its measures.{nearest(measure, self.measures)}',
            )

    def _require(self, is_so: bool, otherwise: str) -> None:
        require(is_so, f'study "{self.name}": {otherwise}')

    def about(self, claim: Claim) -> tuple[str, ...]:
        """Return the mechanisms that a claim is about: those of the cases that it takes, all where these tell none."""
        of = {kind: (kind,) for kind in self.mechanisms} | dict(self.kinds)
        told = [of[value] for where in claim.quantity.where for value in where.values() if value in of]
        return tuple(kind for kind in self.mechanisms if not told or any(kind in kinds for kinds in told))

    def scale(self, name: str) -> Scale:
        """Return a scale; raises `AnalysisUnavailable` if the study has none of that name."""
        if name not in self.scales:
            raise AnalysisUnavailable(f'study "{self.name}" has no scale "{name}". Scales: {", ".join(self.scales)}.')
        return self.scales[name]

    def cases(self, scale: str) -> list[Case]:
        """Return the cases of a scale, seed by seed."""
        found = self.scale(scale)
        points = list(self._points(found))
        return [Case(point, found.settings, seed) for seed in range(found.seeds) for point in points]

    def _points(self, scale: Scale) -> Iterator[Mapping[str, Setting]]:
        grid: dict[str, Sequence[Setting]] = {**self.grid, **scale.grid}
        for values in itertools.product(*grid.values()):
            point = dict(zip(grid, values, strict=True))
            if not self.skip(point):
                yield point


def kinds_of(mixers: Mapping[str, MixerConfig]) -> dict[str, tuple[str, ...]]:
    """Return the kinds of mechanisms by the names that a study has for them, as `Study.kinds` takes them."""
    return {name: (str(mixer.kind),) for name, mixer in mixers.items()}
