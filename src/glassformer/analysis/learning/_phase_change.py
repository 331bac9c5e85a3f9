"""The phase change: the moment in a training run when in-context learning appears, and what appears with it.

    trajectory        loss by position, in-context-learning score and head scores over the checkpoints of a run
    phase_change      where a curve is steepest in ln(tokens), over what window, and whether the loss has a bump there
    loss_trajectories runs as paths through the space of per-token losses, on their first two principal axes

Source: Olsson et al. 2022, sections "The phase change" and on per-token loss.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis.heads.roles import head_scores
from glassformer.analysis.learning._in_context import summarise
from glassformer.analysis.learning._run_folder import History, history_of
from glassformer.analysis.losses import token_losses
from glassformer.analysis.question import question
from glassformer.arguments import Count, Several
from glassformer.data import Batch
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.labelled import Labelled, Result
from glassformer.models import ModelLike
from glassformer.numerics import decompositions

MEASURES = ("loss", "icl_score", "prefix_matching", "previous_token")
LOGGED = {"loss": "heldout_loss"}  # the measures that metrics.jsonl has by another name


@dataclasses.dataclass(frozen=True, eq=False)
class Trajectory(Result):
    """A run, measured at its checkpoints on one fixed sample of text.

    Args:
        losses: Mean loss by position in nats, `step pos`.
        measures: `step measure`: `loss` in nats, `icl_score` in nats (negative is good), and of the best head
            `prefix_matching` and `previous_token`, as shares of attention; NaN where a model has no patterns.
        interval: Bootstrap interval of the score (95 %), `step end`.
        best_heads: Name of the best head for `prefix_matching` at each step.
        tokens: Tokens trained on, `step`.
        name: Of the run.
        rows: Size of the sample.
    """

    HEADLINE = ("measures", "losses")
    SIGNED = ("interval",)

    losses: Labelled
    measures: Labelled
    interval: Labelled
    best_heads: tuple[str, ...]
    tokens: Labelled
    name: str
    rows: int

    @classmethod
    def logged(cls, metrics: Sequence[Mapping[str, Any]], name: str = "run") -> "Trajectory":
        """Take a run from what it logged where it logged its in-context-learning score; losses by position are NaN.

        Args:
            metrics: The lines of `metrics.jsonl`.
            name: Of the run.
        """
        lines = [line for line in metrics if line.get("icl_score") is not None]
        steps, unknown = [int(line["step"]) for line in lines], torch.full((len(lines), 1), math.nan)
        measures = [[float(line.get(LOGGED.get(m, m), math.nan)) for m in MEASURES] for line in lines]
        table = torch.tensor(measures, dtype=torch.float64).reshape(len(lines), len(MEASURES))
        return cls(
            losses=Labelled(unknown, ("step", "pos"), {"step": steps}),
            measures=Labelled(table, ("step", "measure"), {"step": steps, "measure": MEASURES}),
            interval=Labelled(unknown.expand(-1, 2), ("step", "end"), {"step": steps, "end": ("low", "high")}),
            best_heads=("",) * len(lines),
            tokens=Labelled(torch.tensor([int(line["tokens"]) for line in lines]), ("step",), {"step": steps}),
            name=name,
            rows=0,
        )


@dataclasses.dataclass(frozen=True, eq=False)
class PhaseChange(Result):
    """Where a run turns.

    Args:
        steepest: For each measure the steps around its steepest part, `measure end`: between two checkpoints.
        change: How much each measure changes per unit of ln(tokens) there, `measure`.
        together: Correlation of each measure's changes from checkpoint to checkpoint with those of the
            in-context-learning score, `measure`; NaN where one of them never changes.
        step: Where the score falls fastest: the later of the two steps.
        window: First and last step of the stretch around it in which the score falls at half of that speed or more.
        bump: First and last step of the widest gap between the loss curve and its convex hull (over tokens): the
            stretch where the loss falls slower, then faster again. Equal steps if there is none.
        bump_height: Depth of that gap in nats.
    """

    HEADLINE = ("change", "together")
    SIGNED = ("change", "together")

    steepest: Labelled
    change: Labelled
    together: Labelled
    step: int
    window: tuple[int, int]
    bump: tuple[int, int]
    bump_height: float


@dataclasses.dataclass(frozen=True, eq=False)
class LossTrajectories(Result):
    """Runs as paths through the space of per-token losses.

    Args:
        positions: Coordinates of every snapshot, `snapshot component`, in nats times the root of the sample size.
        explained: Share of the variance along each component.
        control: The same shares for random walks of as many steps, `component`: mean over draws.
        control_spread: Their standard deviation.
        runs: Which run each snapshot belongs to.
        steps: Its step.
        sample: Number of tokens compared.
    """

    HEADLINE = ("explained", "control", "positions")
    SIGNED = ("positions",)

    positions: Labelled
    explained: Labelled
    control: Labelled
    control_spread: Labelled
    runs: tuple[str, ...]
    steps: tuple[int, ...]
    sample: int


@question("What did a run learn, checkpoint by checkpoint?", of="training runs")
def trajectory(
    folder: str | Path | History, *batches: Batch, n_batches: Count = 16, steps: Several[int] | None = None
) -> Trajectory:
    """Measure the checkpoints of a run folder on the same rows.

    Args:
        folder: What training wrote.
        batches: Rows to measure on; the run's own held-out text by default.
        n_batches: How many of those.
        steps: Checkpoints to measure; all by default.

    Raises:
        RunFolderError: The folder is no run's, or a step was not kept.
        AnalysisUnavailable: Its rows are too short for an in-context-learning score.
    """
    history = history_of(folder)
    rows = list(batches) or history.batches(n_batches)
    chosen = history.steps if steps is None else tuple(steps)
    losses, measures, intervals, best = [], [], [], []
    for step in chosen:
        model = history.model(step)
        found = summarise(*token_losses(model, *rows), resamples=200)
        prefix, previous, head = _roles(model)
        losses.append(found.loss.values)
        mean = (found.loss.values * _counted(rows)).nansum() / _counted(rows).sum()
        measures.append([float(mean), found.score, prefix, previous])
        intervals.append([found.low, found.high])
        best.append(head)
    coords: dict[str, Any] = {"step": chosen}
    table = torch.tensor(measures, dtype=torch.float64)
    return Trajectory(
        losses=Labelled(torch.stack(losses), ("step", "pos"), coords | {"pos": range(1, len(losses[0]) + 1)}),
        measures=Labelled(table, ("step", "measure"), coords | {"measure": MEASURES}),
        interval=Labelled(
            torch.tensor(intervals, dtype=torch.float64), ("step", "end"), coords | {"end": ("low", "high")}
        ),
        best_heads=tuple(best),
        tokens=Labelled(torch.tensor([history.tokens(s) for s in chosen]), ("step",), coords),
        name=history.name,
        rows=sum(len(batch.tokens) for batch in rows),
    )


@question("When did induction form, and what changed with it?", of="training runs")
def phase_change(found: Trajectory) -> PhaseChange:
    """Locate the phase change of a run, and say what changes together with it.

    Speeds are differences between neighbouring checkpoints, per unit of ln(tokens); step 0 is left out.

    Args:
        found: The run, measured at its checkpoints or as it was logged.

    Raises:
        AnalysisUnavailable: There are fewer than three checkpoints beside step 0.
    """
    if not isinstance(found, Trajectory):
        raise AnalysisUnavailable(
            f"phase_change looks at what was measured along a run, and was given {type(found).__name__}.\n"
            "    Measure first: phase_change(trajectory(folder))."
        )
    steps = [int(step) for step in found.measures.labels("step")]
    kept = [i for i, step in enumerate(steps) if step > 0]
    if len(kept) < 3:
        raise AnalysisUnavailable(
            f"phase_change: {found.name} has {len(kept)} checkpoints beside step 0; three or more show a change.\n"
            "    Train with keep=[…] to keep the weights of more steps."
        )
    steps, tokens = [steps[i] for i in kept], found.tokens.values[kept].double()
    values = found.measures.values[kept]
    changes = values[1:] - values[:-1]
    speed = changes / (tokens[1:] / tokens[:-1]).log()[:, None]
    fastest = speed.abs().nan_to_num(-1).argmax(0)
    score = MEASURES.index("icl_score")
    at = int(speed[:, score].argmin())
    first = last = at
    # the stretch around the fastest fall that is at least half as fast
    while first > 0 and speed[first - 1, score] <= speed[at, score] / 2:
        first -= 1
    while last + 1 < len(speed) and speed[last + 1, score] <= speed[at, score] / 2:
        last += 1
    low, high, height = _bump(tokens, values[:, MEASURES.index("loss")])
    names = {"measure": MEASURES}
    ends = torch.tensor([[steps[int(i)], steps[int(i) + 1]] for i in fastest])
    together = torch.stack([_correlation(changes[:, i], changes[:, score]) for i in range(len(MEASURES))])
    return PhaseChange(
        steepest=Labelled(ends, ("measure", "end"), names | {"end": ("from", "to")}),
        change=Labelled(speed.gather(0, fastest[None])[0], ("measure",), names),
        together=Labelled(together, ("measure",), names),
        step=steps[at + 1],
        window=(steps[first], steps[last + 1]),
        bump=(steps[low], steps[high]),
        bump_height=height,
    )


@question("Which ways do runs take through the space of losses?", of="training runs")
def loss_trajectories(
    folders: Iterable[str | Path | History],
    *batches: Batch,
    n_batches: Count = 16,
    components: Count = 2,
    seed: int = 0,
    draws: Count = 50,
) -> LossTrajectories:
    """Place every checkpoint of some runs by its losses on one token of each row, on their principal axes.

    Smooth paths look curved on such axes whatever they are, random walks included: compare `explained` with `control`.

    Args:
        folders: Runs with one tokenizer.
        batches: Rows to measure on; the first run's held-out text by default.
        n_batches: How many of those.
        components: Axes kept.
        seed: Chooses the token of each row, and the walks.
        draws: Random walks per run.

    Raises:
        ShapeMismatch: The runs' tokenizers differ.
    """
    if isinstance(folders, str) or not isinstance(folders, Iterable):
        folders = [folders]  # type: ignore[list-item]  # refused by its kind, if it is none
    runs = [history_of(folder) for folder in folders]
    if not runs or any(run.tokenizer.to_json() != runs[0].tokenizer.to_json() for run in runs):
        raise ShapeMismatch("loss_trajectories: per-token losses compare between runs with one tokenizer only.")
    rows = list(batches) or runs[0].batches(n_batches)
    generator = torch.Generator().manual_seed(seed)
    weight = torch.cat([batch.weight for batch in rows]).cpu()
    places = torch.multinomial(weight.double(), 1, generator=generator)
    names, steps, vectors = [], [], []
    for run in runs:
        for step, model in run.models():
            vectors.append(token_losses(model, *rows)[0].cpu().gather(1, places)[:, 0].double())
            names.append(run.name)
            steps.append(step)
    found = torch.stack(vectors)
    positions, explained = principal(found, components)
    walks = []
    for _ in range(draws):
        lengths = [len(run.steps) for run in runs]
        walk = [torch.randn(n, len(places), generator=generator, dtype=torch.float64).cumsum(0) for n in lengths]
        walks.append(principal(torch.cat(walk), components)[1])
    control = torch.stack(walks)
    axis: dict[str, Any] = {"component": [f"PC{i + 1}" for i in range(components)]}
    labels = [f"{name} {step}" for name, step in zip(names, steps, strict=True)]
    return LossTrajectories(
        positions=Labelled(positions, ("snapshot", "component"), axis | {"snapshot": labels}),
        explained=Labelled(explained, ("component",), axis),
        control=Labelled(control.mean(0), ("component",), axis),
        control_spread=Labelled(control.std(0), ("component",), axis),
        runs=tuple(names),
        steps=tuple(steps),
        sample=len(places),
    )


def principal(
    vectors: Float[Tensor, "snapshot token"], components: int
) -> tuple[Float[Tensor, "snapshot component"], Float[Tensor, " component"]]:
    """Return centred coordinates on the first principal axes, and the share of variance along each."""
    if components > min(vectors.shape):
        n, tokens = vectors.shape
        raise ShapeMismatch(f"loss_trajectories: {components} components of {n} snapshots, each of {tokens} tokens.")
    centre, axes, explained = decompositions.principal_axes(vectors, components)
    return (vectors - centre) @ axes.mT, explained


def _roles(model: ModelLike) -> tuple[float, float, str]:
    try:
        scores = head_scores(model)
    except AnalysisUnavailable:
        return float("nan"), float("nan"), ""
    label, prefix = scores.best("induction")
    return prefix, scores.best("previous_token")[1], label


def _counted(batches: Sequence[Batch]) -> Float[Tensor, " pos"]:
    return torch.cat([batch.weight for batch in batches]).sum(0).double().cpu()


def _correlation(a: Tensor, b: Tensor) -> Tensor:
    return torch.corrcoef(torch.stack((a, b)))[0, 1]


def _bump(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> tuple[int, int, float]:
    """Return the ends of the hull's segment with the deepest gap below the curve, and the gap."""
    hull: list[int] = []
    for i in range(len(x)):
        # a point above the line between its neighbours is not on the lower hull
        while len(hull) > 1 and _above(x, y, hull[-2], hull[-1], i):
            hull.pop()
        hull.append(i)
    best = (hull[0], hull[0], 0.0)
    for low, high in pairwise(hull):
        line = y[low] + (y[high] - y[low]) * (x[low : high + 1] - x[low]) / (x[high] - x[low])
        gap = float((y[low : high + 1] - line).max())
        if gap > best[2] + 1e-12:
            best = (low, high, gap)
    return best


def _above(x: Tensor, y: Tensor, low: int, mid: int, high: int) -> bool:
    return bool((y[mid] - y[low]) * (x[high] - x[low]) >= (y[high] - y[low]) * (x[mid] - x[low]))
