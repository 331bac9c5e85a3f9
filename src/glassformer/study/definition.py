"""A study: a paper, a grid of cases, what is measured in each, and claims about it.

def run(case: Case) -> Measures:
    model = gf.load(case.train(recipe(case["mechanism"])))
    return {"loss": heldout_loss(model), "copying": lambda: copying(model)}

STUDY = Study("induction", paper="Olsson et al. 2022", question="…", run=run,
              grid={"mechanism": ("softmax", "linear")}, scales={"small": Scale(seeds=3, steps=500)}, claims=(…))
"""

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from glassformer.config import require
from glassformer.errors import AnalysisUnavailable, nearest
from glassformer.study.claims import Claim
from glassformer.training import TrainConfig

Setting = int | float | str | bool | None
# a function is called by the engine: where it is not defined for a case, that is what the report says
Measures = Mapping[str, float | Callable[[], float]]
SCALES = ("smoke", "small", "full")


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
    """

    about: str
    unit: str = ""
    analysis: Callable[..., Any] | None = None
    timed: bool = False


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

    def __post_init__(self) -> None:
        require(bool(self.claims), f'study "{self.name}" claims nothing.')
        for name in self.scales:
            require(name in SCALES, f'study "{self.name}": no scale "{name}". Scales: {", ".join(SCALES)}.')
        require("small" in self.scales, f'study "{self.name}" has no small scale.')
        for claim in self.claims:
            for where in claim.quantity.where:
                for axis in where:
                    require(
                        axis in self.grid,
                        f'study "{self.name}": "{claim.text}" is about {axis}, which is no axis of the grid.'
                        f"{nearest(axis, self.grid)}",
                    )
            for measure in claim.quantity.measures:
                require(
                    not self.measures or measure in self.measures,
                    f'study "{self.name}": "{claim.text}" takes {measure}, which is not among its measures.'
                    f"{nearest(measure, self.measures)}",
                )

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
