"""Studies: what papers claim, checked in miniature by runs that anyone can redo."""

from glassformer.study.claims import Claim, Condition, Decision, decide, held_by_chance
from glassformer.study.definition import Case, Measure, Measures, Scale, Study, kinds_of
from glassformer.study.engine import Found, Progress, keep, run_study, survey, verify
from glassformer.study.intervals import count_interval, interval
from glassformer.study.quantities import (
    MAJORITY,
    Expectation,
    Quantity,
    above,
    below,
    counted,
    growth,
    least_step,
    slope,
    value,
    within,
)
from glassformer.study.shelf import find, names, shipped

__all__ = [
    "MAJORITY", "Case", "Claim", "Condition", "Decision", "Expectation", "Found", "Measure", "Measures", "Progress",
    "Quantity", "Scale", "Study", "above", "below", "count_interval", "counted", "decide", "find", "growth",
    "held_by_chance", "interval", "keep", "kinds_of", "least_step", "names", "run_study", "shipped", "slope", "survey",
    "value", "verify", "within",
]  # fmt: skip
