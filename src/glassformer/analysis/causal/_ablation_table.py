"""What is lost without each part: zero, mean and resample ablation side by side.

    zero        the value is set to 0; norms downstream see a smaller stream than they ever did
    mean        to its mean over reference prompts, at the same position or over all of them
    resample    to its value in another of the prompts

    change = m(ablated) - m(whole), prompt by prompt

Norms and everything else downstream are live: other heads may step in for the missing one, so that single ablations
understate redundant parts; ablate sets. `head_ablation` looks at losses and can hold patterns and norms.

Source: Michel et al. 2019, "Are Sixteen Heads Really Better than One?" (zero); Wang et al. 2022, "Interpretability in
the Wild" (mean); Chan et al. 2022, "Causal Scrubbing" (resample).
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from glassformer.analysis._run import run
from glassformer.analysis.causal._part_names import POSITIONS, AblatedPart, Parts, named_parts
from glassformer.analysis.contrasts import Prompts, prompts
from glassformer.analysis.question import question
from glassformer.analysis.sweep import sweep
from glassformer.analysis.sweep.metrics import MetricsLike, named_metrics, require_numbers
from glassformer.analysis.sweep.plan import Donor, EditLike, Plan
from glassformer.analysis.uncertainty import interval, mean, standard_error
from glassformer.arguments import Count
from glassformer.data import Batch
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.labelled import Coordinate, Labelled, Result
from glassformer.models import ModuleLike
from glassformer.numerics.indices import entries
from glassformer.trace import At, Read, Set, Site

Kind = Literal["zero", "mean", "resample"]
KINDS: tuple[Kind, ...] = ("zero", "mean", "resample")


@dataclasses.dataclass(frozen=True, eq=False)
class AblationTable(Result):
    """The metrics without each part, by kind of ablation.

    Args:
        values: `metric kind part batch`; resampled values are means over the draws. NaN where a prompt is too short to
            have the position.
        whole: Of the whole model, `metric batch`.
        reference: Prompts that means were taken over, at their real positions: padding does not count.
        mean_over: `position` or `all`.
        draws: How often each value was resampled.
        seed: Source of the draws.
    """

    HEADLINE = ("mean",)
    SIGNED = ("values", "whole", "change", "mean", "agreement")

    values: Labelled
    whole: Labelled
    reference: int
    mean_over: Literal["position", "all"]
    draws: int
    seed: int

    @property
    def change(self) -> Labelled:
        """Ablated less whole, prompt by prompt, `metric kind part batch`."""
        return dataclasses.replace(self.values, values=self.values.values - self.whole.values[:, None, None])

    @property
    def mean(self) -> Labelled:
        """Mean change over prompts, `metric kind part`."""
        return mean(self.change)

    @property
    def error(self) -> Labelled:
        """Standard error of the mean change; NaN for one prompt."""
        return standard_error(self.change)

    def interval(self, *, level: float = 0.95, seed: int = 0) -> Labelled:
        """The confidence interval of the mean change, `bound metric kind part` (bootstrap over prompts)."""
        return interval(self.change, level=level, seed=seed)

    @property
    def agreement(self) -> Labelled:
        """How far two kinds rank parts alike: Spearman's correlation of mean changes, `metric kind other`, -1 to 1."""
        ranks = torch.stack([torch.stack([_ranks(kind) for kind in metric]) for metric in self.mean.values])
        ranks = ranks - ranks.mean(-1, keepdim=True)
        unit = ranks / ranks.norm(dim=-1, keepdim=True)
        kinds = self.values.labels("kind")
        coords = {"metric": self.values.labels("metric"), "kind": kinds, "other": kinds}
        return Labelled(unit @ unit.mT, ("metric", "kind", "other"), coords)

    def _title(self) -> str:
        return "Mean change by ablation"

    def to_frame(self) -> Any:
        """Table of changes: a row for each metric and part, mean and standard error of each kind side by side."""
        tables = []
        for name, labelled in (("", self.mean), ("_error", self.error)):
            wide = labelled.to_frame().pivot_table(
                "value", ["metric", "part"], "kind", sort=False, dropna=False, observed=True
            )
            tables.append(wide.add_suffix(name))
        return tables[0].join(tables[1]).reset_index()


@question("What is lost when each part is ablated?", of="texts")
def ablation_table(
    model: ModuleLike,
    inputs: Any,
    metric: MetricsLike,
    parts: Parts = "heads",
    *,
    kinds: Sequence[Kind] | None = None,
    reference: Any = None,
    mean_over: Literal["position", "all"] = "position",
    positions: Sequence[int] | None = None,
    draws: int = 1,
    seed: int = 0,
    target: Any = None,
    rows: Count | None = None,
    memory: int | None = None,
    report: Callable[[int, int], None] | None = None,
    save_to: str | Path | None = None,
) -> AblationTable:
    """Ablate each part in each way and measure.

    Args:
        model: A decoder, an encoder-decoder, or any module (then by a `SiteGrid` with a glob).
        inputs: Prompts: texts, ids, a `Batch`.
        metric: One or several.
        parts: `heads`, `attentions`, `mlps`, `neurons` or `positions` (what enters the stack there); labels of single
            parts (`L1H6`, `L0 attn`, `L0 mlp`, `L0N12`); a `SiteGrid`; several of these; or sets of labels by name,
            each set ablated together: `{"induction": ["L1H6", "L1H3"]}`.
        kinds: Of ablation; by default all that the prompts allow (resampling takes at least two).
        reference: Prompts that means are taken over, at their real positions alone; by default `inputs`.
        mean_over: Means at each position by itself, which takes references of the same length and ought to have the
            same kind of token there, or over all positions.
        positions: Where parts are replaced; everywhere by default.
        draws: Times each value is resampled, from different prompts.
        seed: Source of the order in which prompts lend each other values; none lends to itself.

    Raises:
        AnalysisUnavailable: There is no such part or kind, or a mean over all positions of a pattern is asked for.
        ShapeMismatch: Resampling takes more prompts, or prompts of one length; references differ in length.
    """
    metrics = named_metrics(metric)
    require_numbers(metrics, "ablation_table")
    asked = prompts(model, inputs, target, "ablation_table")
    chosen = _kinds(kinds, asked)
    found = named_parts(model, parts, positions, asked.lengths())
    others = asked if reference is None else prompts(model, reference, target, "ablation_table")
    means = _means(model, found, others, asked, mean_over) if "mean" in chosen else {}
    donors = [Donor(*_permuted(asked, order)) for order in _orders(asked, draws, seed)] if "resample" in chosen else []
    plan: list[list[EditLike]] = []
    kind_of: list[int] = []
    for part, (k, kind) in itertools.product(found, enumerate(chosen)):
        for value in {"zero": [0.0], "mean": [means], "resample": donors}[kind]:
            plan.append([_replacing(site, at, value) for site, at in part.places])
            kind_of.append(k)
    swept = sweep(
        model, asked.inputs, Plan(plan, {"row": range(len(plan))}), metrics, target=asked.target, rows=rows,
        memory=memory, report=report, save_to=save_to,
    )  # fmt: skip
    row_kinds, values = torch.tensor(kind_of), swept.values.values
    by_kind = [values[:, row_kinds == k].unflatten(1, (len(found), -1)).mean(2) for k in range(len(chosen))]
    missing = torch.stack([_missing(part, asked) for part in found]).to(values.device)
    table = torch.stack(by_kind, 1).masked_fill(missing, torch.nan)
    coords: dict[str, Sequence[Coordinate]] = {"metric": swept.base.labels("metric")}
    coords |= {"kind": list(chosen), "part": [part.label for part in found]}
    labelled = Labelled(table, ("metric", "kind", "part", "batch"), coords)
    return AblationTable(labelled, swept.base, others.rows, mean_over, draws, seed)


def _kinds(kinds: Sequence[Kind] | None, asked: Prompts) -> tuple[Kind, ...]:
    if kinds is None:
        equal = all(bool(asked.real(stack).all()) for stack in asked.lengths())
        return KINDS if asked.rows > 1 and equal and asked.given.token_rows else KINDS[:2]
    for kind in kinds:
        if kind not in KINDS:
            raise AnalysisUnavailable(f"ablation_table: no kind {kind!r}. Kinds: {', '.join(KINDS)}.")
    return tuple(kinds)


def _orders(asked: Prompts, draws: int, seed: int) -> Iterator[Int[Tensor, " batch"]]:
    """Yield orders of the prompts in which none stays in place, each a different one."""
    n = asked.rows
    if not asked.given.token_rows or n < 2:
        raise ShapeMismatch(
            f"ablation_table: a value is resampled from another prompt, and there is {n} of token ids.\n"
            '    Give more prompts, or kinds=("zero", "mean").'
        )
    if not all(bool(asked.real(stack).all()) for stack in asked.lengths()):
        raise ShapeMismatch(
            "ablation_table: values are resampled position by position, and the prompts differ in length.\n"
            '    Give prompts of one length, or kinds=("zero", "mean").'
        )
    if not 1 <= draws < n:
        raise ShapeMismatch(f"ablation_table: {n} prompts allow 1 to {n - 1} draws, found {draws}.")
    ring = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    for step in range(1, draws + 1):
        order = torch.empty_like(ring)
        order[ring] = ring.roll(step)
        yield order


def _permuted(prompts: Prompts, order: Int[Tensor, " batch"]) -> tuple[Any, Any]:
    """Return (inputs, target) with the prompts in another order."""
    given, inputs = prompts.given, prompts.inputs
    if isinstance(inputs, Batch):
        return Batch(**{name: value[order] for name, value in inputs.tensors().items()}), None
    # other modules: whatever they take that has a row per prompt
    if isinstance(inputs, Mapping):
        return {name: _ordered(value, order) for name, value in inputs.items()}, None
    if isinstance(inputs, tuple):
        return tuple(_ordered(value, order) for value in inputs), None
    first, *target = (value[order] for value in given.args)
    return first, target[0] if target else None


def _ordered(value: Any, order: Int[Tensor, " batch"]) -> Any:
    return value[order] if isinstance(value, Tensor) and value.ndim and len(value) == len(order) else value


def _replacing(site: Site, at: At, value: Any) -> Set:
    if not isinstance(value, dict):
        return Set(site.name, value, at=at)
    mean = value[site.name]
    # a mean over all positions has one entry there, whichever is asked for
    one = {axis for axis, size in zip(site.axes, mean.shape) if axis in POSITIONS and size == 1}
    where = {axis: (0 if isinstance(w, int) else [0]) if axis in one else w for axis, w in at.where.items()}
    return Set(site.name, At(**where).take(mean, site), at=at)


def _means(
    model: ModuleLike, parts: Sequence[AblatedPart], others: Prompts, asked: Prompts, over: Literal["position", "all"]
) -> dict[str, Tensor]:
    """Return means over the real tokens of the references, with the axes of the site and one row."""
    if over not in ("position", "all"):
        raise AnalysisUnavailable(f'ablation_table: mean_over is "position" or "all", found {over!r}.')
    if over == "position" and others.lengths() != asked.lengths():
        raise ShapeMismatch(
            f"ablation_table: references have {others.lengths()} positions, prompts {asked.lengths()}; means by "
            'position take the same number.\n    Or take mean_over="all".'
        )
    sites = {site.name: (site, part.stacks) for part in parts for site, _ in part.places}
    reads = [Read(name, reduce=_reducer(site, stacks, others, over)) for name, (site, stacks) in sites.items()]
    found = run(model, others.inputs, others.target, read=reads)
    return {name: found[name].values for name in sites}


def _reducer(site: Site, stacks: Mapping[str, str], others: Prompts, over: str) -> Callable[[Tensor], Tensor]:
    along = [axis for axis in site.axes if axis in POSITIONS]
    if over == "all" and len(along) > 1:
        raise AnalysisUnavailable(
            f'ablation_table: "{site.name}" has entries for pairs of positions, and no mean over all of them.\n'
            '    Take mean_over="position".'
        )

    def reduce(value: Tensor) -> Tensor:
        weight = torch.ones_like(value[(slice(None), *[slice(0, 1)] * (value.ndim - 1))])
        for axis in along:
            dim, shape = site.axes.index(axis), [1] * value.ndim
            real = others.real(stacks[axis]).to(value)
            shape[0], shape[dim] = real.shape
            weight = weight * real.view(shape)
        dims = (0,) if over == "position" else (0, *(site.axes.index(axis) for axis in along))
        # a position that no reference has is one that no prompt has either, or padding: any finite number will do
        return (value * weight).sum(dims, keepdim=True) / weight.sum(dims, keepdim=True).clamp_min(1)

    return reduce


def _missing(part: AblatedPart, asked: Prompts) -> Bool[Tensor, " batch"]:
    """Return the prompts that end before the part's positions."""
    missing = torch.zeros(asked.rows, dtype=torch.bool)
    for _, at in part.places:
        for axis, where in at.where.items():
            if axis in POSITIONS:
                real = asked.real(part.stacks[axis])
                missing |= ~real[:, entries(where, real.shape[1], axis)].any(1)
    return missing


def _ranks(values: Tensor) -> Tensor:
    """Return ranks from 0; what is equal shares its mean rank."""
    _, place, count = values.unique(return_inverse=True, return_counts=True)
    first = count.cumsum(0) - count
    return (first + (count - 1) / 2)[place].to(values.dtype)
