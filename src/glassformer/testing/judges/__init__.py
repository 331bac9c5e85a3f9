"""Judges of analyses: another way to the same numbers, by which they are compared on every mechanism they apply to.

    call = right_call(logit_lens, subject("llama"))
    JUDGES["logit_lens"].compare(Asked(subject("llama"), call, call()))     raises `AssertionError` where they differ

A judge goes by plain PyTorch: hooks on modules, derivatives, loops and whole products, and not by tapes and sweeps.
What it takes from the package are the modules of the model and, of weights, their matrices.
"""

from glassformer.testing.judges import (
    _ablation,
    _attribution,
    _edges,
    _from_weights,
    _lens,
    _patching,
    _patterns,
    _reports,
)
from glassformer.testing.judges.judge import Asked, Judge, Pair

JUDGES: dict[str, Judge] = {
    **_attribution.JUDGES,
    **_lens.JUDGES,
    **_patterns.JUDGES,
    **_from_weights.JUDGES,
    **_ablation.JUDGES,
    **_patching.JUDGES,
    **_edges.JUDGES,
    **_reports.JUDGES,
}

__all__ = ["JUDGES", "Asked", "Judge", "Pair"]
