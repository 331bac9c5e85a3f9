"""The plain loop: a whole forward pass for every row of a plan. Slow, obvious, and what `sweep` is judged by."""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis._run import evaluating, run
from glassformer.analysis.prepare import prepare
from glassformer.analysis.sweep._metrics import Metric
from glassformer.analysis.sweep._plan import Donor, EditLike, Plan
from glassformer.analysis.sweep._worlds import circle
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.labelled import Labelled, Result
from glassformer.models import Model, require_module
from glassformer.trace import Apply, At, Edit, Foreign, Set, Site, SiteTable, Take, Tape

MetricLike = Metric | Callable[[Tensor], Tensor]


@dataclasses.dataclass(frozen=True, eq=False)
class Sweep(Result):
    """What every row of a plan does to the metrics.

    Args:
        values: `metric`, the plan's axes, `batch`.
        base: Without any row's edits, `metric batch`.
        work: Layers times tokens that were run, as a share of what the plain loop runs.
        passes: How many forward passes there were besides those of base and donors.
        how: `resumed`: rows share what comes before their first edit, and their batches; `side by side`: whole passes,
            several rows in a batch; `row by row`: the plain loop, and behind a colon why, if another way was tried.
    """

    values: Labelled
    base: Labelled
    work: float
    passes: int
    how: str = "row by row"

    @property
    def change(self) -> Labelled:
        """What each row adds to the base's number: axes as in `values`."""
        between = (1,) * (self.values.values.ndim - 2)
        base = self.base.values.reshape(len(self.base.values), *between, -1)
        return dataclasses.replace(self.values, values=self.values.values - base)

    @property
    def mean(self) -> Labelled:
        """`values` averaged over the batch."""
        return _over_batch(self.values, self.values.values.mean(-1))

    @property
    def spread(self) -> Labelled:
        """Standard error of `mean` over prompts; NaN for one prompt."""
        n = self.values.size("batch")
        return _over_batch(self.values, self.values.values.std(-1) / n**0.5)


def one_by_one(
    model: Any,
    base: Any,
    plan: Plan | Sequence[Sequence[EditLike]],
    metric: MetricLike | Sequence[MetricLike] | Mapping[str, MetricLike],
    *,
    target: Any = None,
    base_edit: Sequence[EditLike] = (),
    grad: bool = False,
    report: Callable[[int, int], None] | None = None,
) -> Sweep:
    """Return what `sweep` returns, by one whole forward pass per row: slow, and what `sweep` is judged by."""
    plan, metrics = Plan.of(plan), named_metrics(metric)
    require_module(model, "one_by_one")
    loop = Loop(model, base, target, base_edit, plan, metrics, grad)
    found: list[Tensor] = []
    for row in range(len(plan.rows)):
        found.append(loop.row(row))
        if report is not None:
            report(row + 1, len(plan.rows))
    return result(plan, metrics, torch.stack(found, 1), loop.base(), 1.0, len(found), "row by row")


class Loop:
    """One base and the rows of a plan, each a pass of its own; donors have been run."""

    def __init__(
        self,
        model: Any,
        inputs: Any,
        target: Any,
        base_edit: Sequence[EditLike],
        plan: Plan,
        metrics: Mapping[str, Metric],
        grad: bool,
    ) -> None:
        view: Any = model if hasattr(model, "sites") else Foreign(model)
        self.model, self.inputs, self.target, self.metrics, self.grad = model, inputs, target, metrics, grad
        self.table: SiteTable = view.sites()
        self.order = {name: i for i, name in enumerate(self.table)}
        self.common = resolved(base_edit, self.table)
        self.rows = [resolved(row, self.table) for row in plan.rows]
        lend(model, [*self.common, *(pair for row in self.rows for pair in row)], grad)

    def base(self) -> Float[Tensor, "metric batch"]:
        """Return the metrics without any row's edits."""
        return self._measured([dataclasses.replace(edit, site=site.name) for site, edit in self.common])

    def row(self, row: int) -> Float[Tensor, "metric batch"]:
        """Return the metrics of one row."""
        return self._measured(self._edits(row))

    def _edits(self, row: int, until: Site | None = None, above: tuple[int, ...] = ()) -> list[Edit]:
        """Return a row's edits as far as a site, with what it takes from other rows put in."""
        found: list[Edit] = []
        for site, edit in (*self.common, *self.rows[row]):
            if until is not None and self.order[site.name] > self.order[until.name]:
                continue
            edit = dataclasses.replace(edit, site=site.name)
            if isinstance(edit, Take):
                if edit.row in above and site == until:
                    raise circle(site)
                lender = self._edits(edit.row, site, (*above, row))
                lent = run(self.model, self.inputs, self.target, read=[site.name], edit=lender, grad=self.grad)
                edit = Set(site.name, lent, at=edit.at)
            found.append(edit)
        return found

    def _measured(self, changes: list[Edit]) -> Float[Tensor, "metric batch"]:
        read = sorted({metric.site for metric in self.metrics.values()} - {"logits"})
        done = run(self.model, self.inputs, self.target, read=read, edit=changes, grad=self.grad)
        values: list[Tensor] = []
        for metric in self.metrics.values():
            if metric.site == "logits":
                value = logits_of(done.logits)
                if metric.pos is not None:
                    at = positions_of(done.token_rows, value.shape[:2], metric.pos)
                    value = value[torch.arange(len(value)), at]
            else:
                value = metric.at.take(done[metric.site].values, self.table[metric.site])
            values.append(apply_metric(metric, value[None], metric.ids(self.model, len(value), value.device)))
        return torch.stack(values)[:, 0]


def logits_of(logits: Tensor | None) -> Float[Tensor, "batch pos vocab"]:
    """Return the logits, checked to be there, with an axis for positions."""
    if logits is None or logits.ndim != 3:
        found = "returns no tensor" if logits is None else f"returns {tuple(logits.shape)}"
        raise AnalysisUnavailable(
            f"sweep: metrics of logits need `batch pos vocab`, and the module {found}.\n"
            '    Measure a site: Metric(name, function, site="…").'
        )
    return logits


def in_worlds(at: At, value: Tensor, site: Site) -> Tensor:
    """Return a part of a site's value in each of several worlds, `world …`."""
    return at.take(value, dataclasses.replace(site, axes=("world", *site.axes)))


def positions_of(token_rows: Sequence[Sequence[str]], sizes: Sequence[int], pos: int) -> list[int]:
    """Return a position of each row as an index from 0; negative ones count from the end of its real tokens."""
    batch, length = sizes
    ends = [len(row) for row in token_rows] or [length] * batch
    if any(not -end <= pos < end for end in ends):
        raise ShapeMismatch(f"sweep: a metric looks at position {pos}; the shortest row has {min(ends)}.")
    return [pos % end for end in ends]


def apply_metric(metric: Metric, value: Tensor, ids: Sequence[Tensor]) -> Float[Tensor, "world batch"]:
    found = metric.function(value, *ids)
    if found.shape != value.shape[:2]:
        raise ShapeMismatch(
            f'metric "{metric.name}" returned {tuple(found.shape)} for a value of {tuple(value.shape)}; '
            f"it returns one number per world and prompt: {tuple(value.shape[:2])}."
        )
    return found


def named_metrics(metric: MetricLike | Sequence[MetricLike] | Mapping[str, MetricLike]) -> dict[str, Metric]:
    if isinstance(metric, Mapping):
        pairs = list(metric.items())
    else:
        several = list(metric) if isinstance(metric, Sequence) else [metric]
        pairs = [(m.name if isinstance(m, Metric) else getattr(m, "__name__", "metric"), m) for m in several]
    if len({name for name, _ in pairs}) < len(pairs) or not pairs:
        raise ShapeMismatch("sweep: give at least one metric, and metrics of different names: {name: metric, …}.")
    return {n: m if isinstance(m, Metric) else Metric(n, m, (), None) for n, m in pairs}


def _as_edit(edit: EditLike) -> Edit:
    return edit if isinstance(edit, Edit) else Apply(str(edit[0]), edit[1])


def resolved(edits: Sequence[EditLike], table: Any) -> list[tuple[Site, Edit]]:
    found: list[tuple[Site, Edit]] = []
    for edit in map(_as_edit, edits):
        for name in table.match(edit.site):
            if not isinstance(edit, Take):
                edit.check(table[name])
            found.append((table[name], edit))
    return found


def lend(model: Any, pairs: Sequence[tuple[Site, Edit]], grad: bool) -> None:
    """Run every donor once, reading the sites that are copied from it."""
    wanted: dict[int, tuple[Donor, set[str]]] = {}
    for site, edit in pairs:
        if isinstance(donor := getattr(edit, "value", None), Donor):
            wanted.setdefault(id(donor), (donor, set()))[1].add(site.name)
    for donor, sites in wanted.values():
        if missing := sites - set(donor.found):
            if not isinstance(model, Model):
                found = run(model, donor.inputs, donor.target, read=sorted(missing), edit=donor.edit, grad=grad)
                donor.found |= {name: value.values for name, value in found.items()}
                continue
            tape = Tape(model, sorted(missing), donor.edit, grad=grad)
            # no one looks at a donor's logits, unless they are what is copied
            tape.logits = any("vocab" in tape.table[name].axes for name in (*tape.reads, *tape.edits))
            with evaluating(model), torch.set_grad_enabled(grad):
                given = prepare(model, donor.inputs, donor.target)
                model(*given.args, **given.kwargs, tape=tape)
            tape.check_visited()
            donor.found |= tape.values


def joined(links: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Return rows in groups that nothing links to another group."""
    group = list(range(len(links)))

    def root(row: int) -> int:
        while group[row] != row:
            group[row] = row = group[group[row]]
        return row

    for row, others in enumerate(links):
        for other in others:
            if not 0 <= other < len(links):
                raise ShapeMismatch(
                    f"sweep: row {row} takes from row {other}; the plan has rows 0 to {len(links) - 1}."
                )
            group[root(other)] = root(row)
    members: dict[int, list[int]] = defaultdict(list)
    for row in range(len(links)):
        members[root(row)].append(row)
    return [tuple(rows) for rows in members.values()]


def result(
    plan: Plan, metrics: Mapping[str, Metric], values: Tensor, base: Tensor, work: float, count: int, how: str
) -> Sweep:
    sizes = [len(labels) for labels in plan.axes.values()]
    values = values.unflatten(1, sizes)
    names = {"metric": list(metrics)}
    return Sweep(
        Labelled(values, ("metric", *plan.axes, "batch"), names | {a: list(labels) for a, labels in plan.axes.items()}),
        Labelled(base.reshape(len(metrics), -1), ("metric", "batch"), names),
        work,
        count,
        how,
    )


def _over_batch(values: Labelled, reduced: Tensor) -> Labelled:
    coords = {axis: labels for axis, labels in values.coords.items() if axis != "batch"}
    return Labelled(reduced, values.axes[:-1], coords)
