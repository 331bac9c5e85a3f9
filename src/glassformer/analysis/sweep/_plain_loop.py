"""One whole forward pass per row: slow, obvious, and what `sweep` is judged by."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis._run import run
from glassformer.analysis.sweep._resolve import asked, lend, resolved
from glassformer.analysis.sweep._result import Sweep, result
from glassformer.analysis.sweep._worlds import circle
from glassformer.analysis.sweep.metrics import (
    Metric,
    MetricsLike,
    apply_metric,
    logits_of,
    positions_of,
    stacked,
)
from glassformer.analysis.sweep.plan import EditLike, Plan
from glassformer.analysis.sweep.shared_rows import SharedRows, agreed, sharing
from glassformer.arguments import checked
from glassformer.models import ModuleLike, require_module
from glassformer.trace import Edit, Foreign, Set, Site, SiteTable, Take


@checked
def one_by_one(
    model: ModuleLike,
    base: Any,
    plan: Plan | Sequence[Sequence[EditLike]],
    metric: MetricsLike,
    *,
    target: Any = None,
    base_edit: Sequence[EditLike] = (),
    grad: bool = False,
    report: Callable[[int, int], None] | None = None,
) -> Sweep:
    """Sweep by one whole forward pass per row: slow, and what `sweep` is judged by.

    Args:
        model: Any module.
        base: What every row reads, as in `run`.
        plan: Rows of edits, as in `sweep`.
        metric: One metric or several, which keep the same axes.
        target: Text or ids of the decoder, for an encoder-decoder.
        base_edit: Edits of the base run and of every row, before the row's own.
        grad: Keep the graph, so that gradients flow to parameters and to what edits hold.
    """
    require_module(model, "one_by_one")
    plan, metrics = asked(plan, metric, model)
    loop = Loop(model=model, inputs=base, target=target, base_edit=base_edit, plan=plan, metrics=metrics, grad=grad)
    ranks, rows = sharing(model, grad), range(len(plan.rows))
    base = agreed(ranks, loop.rows, metrics, loop.base())
    shares = SharedRows(ranks, [[row] for row in rows], [1] * len(rows))
    found: list[Tensor] = []
    for row in shares.own:
        found.append(loop.row(row))
        if report is not None and ranks.rank == 0:
            report(shares.reached(len(found)), len(rows))
    own = torch.stack(found, 1) if found else base[:, None][:, :0]
    return result(plan, metrics, shares.gathered(own), base, 1.0, len(rows), "row by row")


class Loop:
    """One base and the rows of a plan, each a pass of its own; donors have been run."""

    def __init__(
        self,
        model: ModuleLike,
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

    def base(self) -> Float[Tensor, "metric batch *axes"]:
        """Return the metrics without any row's edits."""
        return self._measured([edit for _, edit in self.common])

    def row(self, row: int) -> Float[Tensor, "metric batch *axes"]:
        """Return the metrics of one row."""
        return self._measured(self._edits(row))

    def _edits(self, row: int, until: Site | None = None, above: tuple[int, ...] = ()) -> list[Edit]:
        """Return a row's edits as far as a site, with what it takes from other rows put in."""
        found: list[Edit] = []
        for site, edit in (*self.common, *self.rows[row]):
            if until is not None and self.order[site.name] > self.order[until.name]:
                continue
            if isinstance(edit, Take):
                if edit.row in above and site == until:
                    raise circle(site)
                lender = self._edits(edit.row, site, (*above, row))
                lent = run(self.model, self.inputs, self.target, read=[site.name], edit=lender, grad=self.grad)
                edit = Set(site.name, lent, at=edit.at)
            found.append(edit)
        return found

    def _measured(self, changes: list[Edit]) -> Float[Tensor, "metric batch *axes"]:
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
        return stacked(self.metrics, values)[:, 0]
