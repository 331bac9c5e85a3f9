"""The clean and the corrupt run of a pair of prompts, ready to run circuits between them."""

from glassformer.analysis.circuits._circuit_runs import CircuitRuns, MetricLike, Off
from glassformer.analysis.contrasts import PromptPairs, aligned, contrast, measured
from glassformer.models import ModelLike


def two_runs(
    model: ModelLike,
    pairs: PromptPairs,
    metric: MetricLike | None,
    analysis: str,
    *,
    off: Off = "corrupt",
    split_embedding: bool = False,
) -> CircuitRuns:
    """Return both runs of some pairs, with what is measured: by default what their answers are for.

    Raises:
        AnalysisUnavailable: There is neither a metric nor an answer, or circuits cannot be run in the model.
        DataError: There are no pairs, or some do not fit the model.
        ShapeMismatch: The prompts differ in shape.
    """
    asked = contrast(model, pairs, analysis)
    clean, corrupt = aligned(model, asked, analysis)
    (found,) = measured(model, asked, metric, analysis).values()
    chosen = found if metric is None or isinstance(metric, str) else metric
    return CircuitRuns(
        model, clean.inputs, corrupt.inputs, chosen, target=clean.target,
        corrupt_target=corrupt.target, off=off, split_embedding=split_embedding,
    )  # fmt: skip
