"""Results on the terminal, in tables that fit 80 columns; importing the room registers the views of all results."""

from glassformer.render.terminal import (
    adaptation,
    attention,
    causal,
    circuits,
    costs,
    dictionaries,
    edges,
    explanation,
    gradients,
    heads,
    lens,
    plan,
    probes,
    token_flow,
    vocabulary,
)
from glassformer.render.terminal.tables import largest, lines, show

__all__ = [
    "adaptation", "attention", "causal", "circuits", "costs", "dictionaries", "edges", "explanation", "gradients",
    "heads", "largest", "lens", "lines", "plan", "probes", "show", "token_flow", "vocabulary",
]  # fmt: skip
