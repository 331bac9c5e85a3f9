"""Activation patching: which values carry the difference between two prompts?

    denoising    run the corrupt prompt, put one clean value in: is the value enough?
    noising      run the clean prompt, put one corrupt value in: is the value needed?

    fraction = (m - m_corrupt) / (m_clean - m_corrupt)          0: as corrupt, 1: as clean, in both directions

Where either of two values will do (OR), noising finds none of them; where both are needed (AND), denoising finds none.
Do both. Norms are live: whatever comes after a replaced value reacts.

Source: Vig et al. 2020, "Investigating Gender Bias in Language Models Using Causal Mediation Analysis"; practice as in
Zhang & Nanda 2023, "Towards Best Practices of Activation Patching in Language Models".
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from glassformer import figures
from glassformer.analysis.causal._site_grid import ResolvedGrid, SiteGrid, resolved_grids
from glassformer.analysis.contrasts import PromptPairs, Prompts, aligned, contrast, measured, places_by_role
from glassformer.analysis.question import question
from glassformer.analysis.sweep import sweep
from glassformer.analysis.sweep.metrics import MetricsLike
from glassformer.analysis.sweep.plan import Donor, Plan
from glassformer.analysis.uncertainty import interval, mean, standard_error
from glassformer.arguments import Count
from glassformer.errors import ShapeMismatch, UnknownSite, nearest
from glassformer.labelled import Coordinate, Labelled, Result, RowLabels
from glassformer.models import ModuleLike
from glassformer.trace import Set

Direction = Literal["denoising", "noising"]


@dataclasses.dataclass(frozen=True, eq=False)
class Patched(Result):
    """What replacing each entry of one grid does to each metric, prompt by prompt.

    Args:
        values: Metric after replacing one entry, `metric … batch`. NaN where there is none: a layer with fewer
            heads, a prompt without a word of the role, a key that its query does not see.
        clean: Metric of the clean run, `metric batch`.
        corrupt: Metric of the corrupt run, `metric batch`.
        direction: `denoising` or `noising`.
        least_gap: Prompts whose clean and corrupt metrics differ by less than this share of the RMS difference have no
            fraction.
    """

    HEADLINE = ("carried",)
    SIGNED = ("values", "clean", "corrupt", "change", "fraction", "recovered", "carried")

    values: Labelled
    clean: Labelled
    corrupt: Labelled
    direction: Direction
    least_gap: float

    @property
    def change(self) -> Labelled:
        """What replacing the entry adds to the metric of the run it is put into."""
        base = self.corrupt if self.direction == "denoising" else self.clean
        return self._like(self.values.values - self._beside(base.values))

    @property
    def fraction(self) -> Labelled:
        """Where each value puts the metric between corrupt (0) and clean (1); NaN where these two are about equal."""
        gap = (self.clean.values - self.corrupt.values).masked_fill(self.undefined.values, torch.nan)
        return self._like((self.values.values - self._beside(self.corrupt.values)) / self._beside(gap))

    @property
    def undefined(self) -> Labelled:
        """The prompts that have no fraction, `metric batch`: true where clean and corrupt are about equal."""
        clean, corrupt = self.clean.values, self.corrupt.values
        gap = (clean - corrupt).abs()
        rounding = 64 * torch.finfo(gap.dtype).eps * torch.maximum(clean.abs(), corrupt.abs())
        least = self.least_gap * gap.square().mean(-1, keepdim=True).sqrt()
        return dataclasses.replace(self.clean, values=gap <= torch.maximum(least, rounding))

    @property
    def n(self) -> Labelled:
        """How many prompts each mean is of, `metric …`."""
        return _without_batch(self.values, self.values.values.isfinite().sum(-1))

    @property
    def recovered(self) -> Labelled:
        """The fraction by means over prompts, `metric …`: steady where some prompts have next to no gap.

        NaN where gaps of different sign leave next to no gap in the mean.
        """
        gap = (self.clean.values - self.corrupt.values)[:, None].expand_as(self._flat)
        gap = gap.masked_fill(self._flat.isnan(), torch.nan)
        moved = self._flat - self.corrupt.values[:, None]
        mean_gap, size = gap.nanmean(-1), gap.square().nanmean(-1).sqrt()
        share = moved.nanmean(-1) / mean_gap.masked_fill(mean_gap.abs() <= self.least_gap * size, torch.nan)
        return _without_batch(self.values, share.unflatten(1, self.values.values.shape[1:-1]))

    @property
    def carried(self) -> Labelled:
        """The share of the difference that each value carries, `metric …`: what it brings, or what is lost with it.

        `recovered` in denoising, and 1 less that in noising.
        """
        found = self.recovered
        return found if self.direction == "denoising" else dataclasses.replace(found, values=1 - found.values)

    @property
    def carried_error(self) -> Labelled:
        """Standard error of `carried`: that of the fraction over prompts, `metric …`; NaN for one prompt."""
        return self.error("fraction")

    def mean(self, of: Literal["values", "change", "fraction"] = "fraction") -> Labelled:
        """The mean over the prompts that have a value, `metric …`."""
        return mean(getattr(self, of))

    def error(self, of: Literal["values", "change", "fraction"] = "fraction") -> Labelled:
        """The standard error of the mean, `metric …`; NaN for one prompt."""
        return standard_error(getattr(self, of))

    def interval(
        self, of: Literal["values", "change", "fraction"] = "fraction", *, level: float = 0.95, seed: int = 0
    ) -> Labelled:
        """The confidence interval of the mean, `bound metric …`, by drawing prompts again (bootstrap)."""
        return interval(getattr(self, of), level=level, seed=seed)

    def _title(self) -> str:
        return f"Activation patching, {self.direction}"

    @property
    def _flat(self) -> Tensor:
        return self.values.values.flatten(1, -2)

    def _beside(self, numbers: Tensor) -> Tensor:
        return numbers.reshape(len(numbers), *(1,) * (self.values.values.ndim - 2), -1)

    def _like(self, values: Tensor) -> Labelled:
        return dataclasses.replace(self.values, values=values)


@dataclasses.dataclass(frozen=True, eq=False)
class Patching(Result, Mapping[str, Patched]):
    """The tables of one sweep, by name: `found["z"]`.

    Args:
        tables: One for each family that was asked for, and for each stack and kind of attention in it.
        direction: `denoising` or `noising`.
        rows: How many entries were replaced in all.
        work: Layers times tokens that were run, as a share of what one run per entry takes.
    """

    tables: Mapping[str, Patched]
    direction: Direction
    rows: int
    work: float

    def __getitem__(self, name: str) -> Patched:
        if name not in self.tables:
            raise UnknownSite(f'no table "{name}".{nearest(name, self.tables)} Tables: {", ".join(self.tables)}.')
        return self.tables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tables)

    def __len__(self) -> int:
        return len(self.tables)

    def panels(self, *names: str) -> list[figures.Panel]:
        """Panels of the tables that are named, what each entry carries; of all tables, if none is."""
        return [panel._replace(name=name) for name in names or self.tables for panel in self[name].panels()]

    def _title(self) -> str:
        return f"Activation patching, {self.direction}: share of the difference carried"

    def to_frame(self) -> Any:
        """All tables' values as one long-form DataFrame, with the table's name in the column `sites`."""
        import pandas as pd

        frames = [table.values.to_frame().assign(sites=name) for name, table in self.items()]
        return pd.concat(frames, ignore_index=True)


@question(
    "Where does a value from another run change the answer?",
    of="pairs of prompts",
    judge="a plain pass for each entry, the value put in where a module makes it",
)
def patch(
    model: ModuleLike,
    pairs: PromptPairs,
    metric: MetricsLike | None = None,
    sites: str | SiteGrid | Sequence[str | SiteGrid] = "stream",
    *,
    direction: Direction = "denoising",
    least_gap: float = 0.01,
    rows: Count | None = None,
    memory: int | None = None,
    report: Callable[[int, int], None] | None = None,
    save_to: str | Path | None = None,
) -> Patching:
    """Replace values of one run by those of another, one entry of a grid at a time.

    All families are one sweep, so that they share its batches: `sites="everything"` is the usual bundle.

    Args:
        model: A decoder, an encoder-decoder, or any module (then `sites` are globs).
        pairs: `(clean, corrupt)`, a `Contrast`, or `Pairs`; a side is a text, texts, ids or a `Batch`, and both have
            the same numbers of tokens. Positions are called as the contrast labels them (an encoder-decoder's source
            positions), by default after the tokens of a single pair, and by number for several. Where one number is of
            different roles in several pairs, positions are cut by role: all of a role at once.
        metric: One or several; by default the logit difference of the answers that `pairs` have.
        sites: Families (`resid_pre`, `attn_out`, `mlp_out`, `z`, `query`, `key`, `value`, `pattern`,
            `pattern_entries`, `neurons`, …), the bundles `stream` and `everything`, globs, or a `SiteGrid` to cut
            them otherwise.
        direction: Which run the values are put into.
        least_gap: See `Patched`.

    Raises:
        DataError: There are no pairs, or some do not fit the model.
        ShapeMismatch: The prompts do not align; the message says where. Or positions are asked about, and prompts of
            several lengths have no roles.
        UnknownSite: There is no such family or site.
        NoPattern: Patterns are asked for, and a layer has none.
        AnalysisUnavailable: The model has nothing of a family.

    Example:
        >>> clean, corrupt = "Mary and John went out; John spoke to", "Mary and John went out; Mary spoke to"
        >>> found = patch(model, Contrast(clean, corrupt, answer=" Mary", wrong=" John"), sites=["z", "value"])
        >>> found["z"].fraction.axes
        ('metric', 'layer', 'head', 'batch')

    Source: Zhang & Nanda 2023, section 2.
    """
    if direction not in ("denoising", "noising"):
        raise ShapeMismatch(f'patch: direction is "denoising" or "noising", found {direction!r}.')
    asked = contrast(model, pairs, "patch")
    metrics = measured(model, asked, metric, "patch")
    first, second = aligned(model, asked, "patch")
    into, out_of = (second, first) if direction == "denoising" else (first, second)
    named = None if asked.labels is None else _checked(asked.labels, first)
    found = resolved_grids(model, sites, first.lengths(), "patch", lambda: places_by_role(asked, first))
    donor = Donor(out_of.inputs, out_of.target)
    edits = [[Set(site.name, donor, at=at) for site, at in entry.parts] for grid in found for entry in grid.entries]
    if not edits:
        raise ShapeMismatch("patch: `only` leaves nothing to replace.")
    swept = sweep(
        model, into.inputs, Plan(edits, {"row": range(len(edits))}), metrics, target=into.target, rows=rows,
        memory=memory, report=report, save_to=save_to,
    )  # fmt: skip
    # a row that changes nothing: the other run's own numbers
    other = sweep(model, out_of.inputs, [[]], metrics, target=out_of.target).base
    clean_m, corrupt_m = (other, swept.base) if direction == "denoising" else (swept.base, other)
    tables: dict[str, Patched] = {}
    done = 0
    for grid in found:
        values = laid_out(grid, swept.values.values[:, done : done + len(grid.entries)], first, second)
        done += len(grid.entries)
        axes = {"metric": swept.values.labels("metric")} | _labels(grid, first, second, named)
        by_row = {} if named is not None or first.rows == 1 or not grid.stacks else _labels_by_row(grid, first, second)
        labelled = Labelled(values, ("metric", *grid.axes, "batch"), axes, rows=by_row)
        tables[grid.name] = Patched(labelled, clean_m, corrupt_m, direction, least_gap)
    return Patching(tables, direction, len(edits), swept.work)


def laid_out(grid: ResolvedGrid, values: Tensor, first: Prompts, second: Prompts) -> Tensor:
    """Return `metric entry batch` along a grid's axes, with NaN where a prompt has no such entry."""
    n_metrics, _, batch = values.shape
    whole = values.new_full((n_metrics, *grid.shape, batch), torch.nan)
    index = torch.tensor([entry.index for entry in grid.entries], device=values.device).reshape(len(grid.entries), -1)
    whole[(slice(None), *index.T)] = values
    for entry in grid.entries:
        if entry.without:
            whole[(slice(None), *entry.index, list(entry.without))] = torch.nan
    for dim, axis in enumerate(grid.axes):
        if axis in grid.stacks:
            real = first.real(grid.stacks[axis])[:, [int(i) for i in grid.axes[axis]]].T.to(values.device)
            shape = [1] * (len(grid.axes) + 2)
            shape[dim + 1], shape[-1] = real.shape
            whole = whole.masked_fill(~real.view(shape), torch.nan)
    return whole


def _checked(labels: Sequence[str], prompts: Prompts) -> Sequence[str]:
    length = next(iter(prompts.lengths().values()), 0)
    if len(labels) != length or len(set(labels)) < length:
        raise ShapeMismatch(
            f"patch: labels name {len(set(labels))} different positions, and the prompts have {length}; one name each."
        )
    return labels


def _labels(
    grid: ResolvedGrid, first: Prompts, second: Prompts, named: Sequence[str] | None
) -> dict[str, Sequence[Coordinate]]:
    found = dict(grid.axes)
    for axis, stack in grid.stacks.items():
        places = grid.axes[axis]
        if named is not None and stack != "decoder":
            found[axis] = [named[int(i)] for i in places]
        else:
            found[axis] = _position_labels(first, second, stack, places)
    return found


def _labels_by_row(grid: ResolvedGrid, first: Prompts, second: Prompts) -> dict[str, RowLabels]:
    sides = {axis: (first.tokens(stack), second.tokens(stack)) for axis, stack in grid.stacks.items()}
    return {axis: [_named(*row, grid.axes[axis]) for row in zip(*both)] for axis, both in sides.items()}


def _position_labels(first: Prompts, second: Prompts, stack: str, places: Sequence[Coordinate]) -> Sequence[Coordinate]:
    """Return the names of positions of a single pair; indices if there are several pairs."""
    ours, theirs = first.tokens(stack), second.tokens(stack)
    named = _named(ours[0], theirs[0], places) if len(ours) == 1 else []
    whole = [label for label in named if label is not None]
    return whole if len(whole) == len(places) else list(places)


def _named(ours: Sequence[str], theirs: Sequence[str], places: Sequence[Coordinate]) -> list[Coordinate | None]:
    """Return `3:cat`, or `3:cat/dog` where two prompts differ; None beyond their end."""
    there = ((i, ours[i], theirs[i]) if i < len(ours) else None for i in map(int, places))
    return [None if one is None else f"{one[0]}:{'/'.join(dict.fromkeys(one[1:]))}" for one in there]


def _without_batch(like: Labelled, values: Tensor) -> Labelled:
    return Labelled(values, like.axes[:-1], {axis: c for axis, c in like.coords.items() if axis != "batch"})
