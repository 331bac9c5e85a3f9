"""What a sweep found: the metrics of every row of its plan, beside those of the base."""

import dataclasses
from collections.abc import Mapping

from torch import Tensor

from glassformer.analysis.sweep.metrics import Metric
from glassformer.analysis.sweep.plan import Plan
from glassformer.labelled import Labelled, Result


@dataclasses.dataclass(frozen=True, eq=False)
class Sweep(Result):
    """What every row of a plan does to the metrics.

    Args:
        values: `metric`, the plan's axes, `batch`, and the axes that the metrics keep.
        base: Without any row's edits: `metric batch`, and the same axes behind.
        work: Layers times tokens that were run, as a share of what the plain loop runs.
        passes: How many forward passes there were besides those of base and donors.
        how: `resumed`: rows share what comes before their first edit, and their batches; `side by side`: whole passes,
            several rows in a batch; `row by row`: the plain loop, and behind a colon why, if another way was tried.
    """

    HEADLINE = ("change",)
    SIGNED = ("values", "base", "mean", "change")

    values: Labelled
    base: Labelled
    work: float
    passes: int
    how: str = "row by row"

    @property
    def change(self) -> Labelled:
        """What each row adds to the base's number: axes as in `values`."""
        base = self.base.values
        # the axes of the plan stand between metrics and prompts
        base = base.reshape(len(base), *(1,) * (self.values.values.ndim - base.ndim), *base.shape[1:])
        return dataclasses.replace(self.values, values=self.values.values - base)

    @property
    def mean(self) -> Labelled:
        """`values` averaged over the batch."""
        return _over_batch(self.values, self.values.values.mean(self.values.dim("batch")))

    @property
    def spread(self) -> Labelled:
        """Standard error of `mean` over prompts; NaN for one prompt."""
        n = self.values.size("batch")
        return _over_batch(self.values, self.values.values.std(self.values.dim("batch")) / n**0.5)


def result(
    plan: Plan, metrics: Mapping[str, Metric], values: Tensor, base: Tensor, work: float, count: int, how: str
) -> Sweep:
    """Return values `metric row batch …` and those of the base, `metric batch …`, with their axes named."""
    sizes = [len(labels) for labels in plan.axes.values()]
    kept = next(iter(metrics.values())).axes
    names = {"metric": list(metrics)}
    axes, coords = ("metric", *plan.axes, "batch", *kept), {a: list(labels) for a, labels in plan.axes.items()}
    return Sweep(
        Labelled(values.unflatten(1, sizes), axes, names | coords),
        Labelled(base, ("metric", "batch", *kept), names),
        work,
        count,
        how,
    )


def _over_batch(values: Labelled, reduced: Tensor) -> Labelled:
    coords = {axis: labels for axis, labels in values.coords.items() if axis != "batch"}
    return Labelled(reduced, tuple(axis for axis in values.axes if axis != "batch"), coords)
