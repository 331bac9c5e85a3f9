"""Fits of models that no recipe builds: one update after another, until the steps are made or the loss diverges."""

from collections.abc import Callable, Iterator

from torch import Tensor

from glassformer.errors import TrainingDiverged
from glassformer.fitting import Descent, Update
from glassformer.models import Model
from glassformer.study import Case
from glassformer.training import OptimConfig


def fit(model: Model, case: Case, optim: OptimConfig, loss: Callable[[int], Tensor]) -> Iterator[Update]:
    """Make as many updates of all parameters as the case has steps, and yield each.

    Where loss or gradient is not finite the updates end; the parameters are those of the step before.

    Args:
        model: What is fitted.
        case: Whose steps are made, and told of.
        optim: How parameters change.
        loss: The loss of a step, counted from 1, in nats.
    """
    steps = case["steps"]
    descent = Descent(
        list(model.parameters()), optim.build(model), lambda step: (loss(step),), steps=steps, clip=optim.clip,
        rate=lambda step: optim.rate(step, steps, model.config.d_model), name="a fit of a study",
        way_on=lambda: f"Fit it with a smaller rate (now {optim.lr:g}).",
    )  # fmt: skip
    try:
        for update in descent:
            case.report(update.step, steps)
            yield update
    except TrainingDiverged:
        return
