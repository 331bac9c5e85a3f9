"""The backward grid: what a step of descent on the loss of one position would write into each linear map, as tokens."""

from typing import Any

from glassformer.analysis.gradients import backward_lens
from glassformer.analysis.places import text_positions
from glassformer.errors import AnalysisUnavailable
from glassformer.serve import api
from glassformer.serve.answers import Answer, taken_apart
from glassformer.serve.runs import ServedRun


def backward(run: ServedRun, view: api.BackwardView) -> Answer:
    """Return the backward lens of a run without changes: the loss is that of the model as it is."""
    inputs = run.inputs
    (position,) = text_positions([view.position], inputs.output.counts[0])
    if run.spec.changes:
        raise AnalysisUnavailable(
            "the backward lens is of the model as it is, and this run has changes, of which no step would know.\n"
            "    Look at run A."
        )
    if inputs.output.ids is None:
        raise AnalysisUnavailable("the backward lens is of a loss on tokens, and what this model reads has none.")
    # ids, so that it is this text, whatever of it was read as special tokens
    given = [list(side.rows[0]) for side in (inputs.source or inputs.output, inputs.output)]
    options: dict[str, Any] = {"target": given[1]} if inputs.source is not None else {}
    options |= {"answer": view.answer} if view.answer is not None else {}
    options |= {"positions": [position], "k": view.k}
    found = backward_lens(run.model, given[0], **options)
    said = "".join(f", {name}={value!r}" for name, value in options.items())
    lines = [*run.code.lines("run", []), f"found = gf.analysis.gradients.backward_lens(model, {given[0]!r}{said})"]
    return Answer("backward", *taken_apart(found), "\n".join(lines))
