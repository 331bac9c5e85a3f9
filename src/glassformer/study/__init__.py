"""Studies: what papers claim, checked in miniature by runs that anyone can redo."""

from glassformer.study.claims import (
    Claim,
    Decision,
    Expectation,
    Quantity,
    above,
    below,
    decide,
    growth,
    interval,
    least_step,
    slope,
    value,
    within,
)
from glassformer.study.definition import Case, Measure, Measures, Scale, Study
from glassformer.study.engine import Found, Progress, keep, run_study, survey, verify
from glassformer.study.shelf import find, names, shipped

__all__ = [
    "Case", "Claim", "Decision", "Expectation", "Found", "Measure", "Measures", "Progress", "Quantity", "Scale",
    "Study", "above", "below", "decide", "find", "growth", "interval", "keep", "least_step", "names", "run_study",
    "shipped", "slope", "survey", "value", "verify", "within",
]  # fmt: skip
