"""Sweeps: many interventions on one base run, measured together.

    clean = Donor("When Mary and John went out, John gave a drink to")
    plan = grid(lambda layer, pos: [Set(f"blocks.{layer}.resid_pre", clean, at=At(pos=pos))], layer=range(4), pos=range(9))
    sweep(model, corrupt, plan, logit_difference(" Mary", " John")).values       # metric layer pos batch

What rows share is computed once. Layers before a row's first edit are those of the base run; with causal attention so
are the positions before it, whose keys and values (or matrix states) are carried. Rows that start at the same place are
worlds side by side in one batch, and the unembedding runs where a metric looks. The numbers are those of
`one_by_one`, the plain loop.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer.analysis.causal.metrics import Metric
from glassformer.analysis.causal.plan import EditLike, Plan
from glassformer.labelled import Labelled, Result

MetricLike = Metric | Callable[[Tensor], Tensor]


@dataclasses.dataclass(frozen=True, eq=False)
class Sweep(Result):
    """What every row of a plan does to the metrics.

    Args:
        values: `metric`, the plan's axes, `batch`.
        base: Without any row's edits, `metric batch`.
        work: Layers times tokens that were run, as a share of what the plain loop runs.
        passes: How many forward passes there were besides those of base and donors.
    """

    values: Labelled
    base: Labelled
    work: float
    passes: int

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


def sweep(
    model: Any,
    base: Any,
    plan: Plan | Sequence[Sequence[EditLike]],
    metric: MetricLike | Sequence[MetricLike] | Mapping[str, MetricLike],
    *,
    target: Any = None,
    base_edit: Sequence[EditLike] = (),
    rows: int | None = None,
    memory: int | None = None,
    grad: bool = False,
    report: Callable[[int, int], None] | None = None,
    save_to: str | Path | None = None,
) -> Sweep:
    """Run every row of a plan on the base, and measure.

    Args:
        model: A decoder or an encoder-decoder; any other module runs row by row.
        base: What every row reads, as in `run`: a text, ids, a `Batch`. A row's edits apply to the whole batch.
        plan: Rows of edits. Values may come from a `Donor`, a run, a tensor or a number; `Take(…, row=i)` copies from
            row `i` of the plan.
        metric: One metric or several. A plain function gets logits `world batch pos vocab`.
        target: Text or ids of the decoder, for an encoder-decoder.
        base_edit: Edits of the base run and of every row, before the row's own.
        rows: Rows per forward pass at most; by default what fits `memory`, and what is worth batching.
        memory: Bytes for what is held at once besides the model and the base run.
        grad: Keep the graph, so that gradients flow to parameters and to what edits hold.
        report: Called with (rows done, rows in all).
        save_to: File for finished rows. A sweep that was interrupted goes on from it; the file of another sweep is
            refused.

    Raises:
        UnknownSite: An edit or a metric names a site the model does not have.
        ShapeMismatch: A value does not fit its site, or rows take from each other in a circle at one site.
        CheckpointError: `save_to` holds another sweep, or is damaged.
    """
    raise NotImplementedError
