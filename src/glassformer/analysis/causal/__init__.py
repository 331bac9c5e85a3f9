"""Interventions: what happens to the output when a part of the forward pass is changed."""

from glassformer.analysis.causal.metrics import (
    Metric,
    answer_rank,
    kl_divergence,
    log_probability,
    logit,
    logit_difference,
    next_token_loss,
    probability,
)
from glassformer.analysis.causal.plan import Donor, Plan, grid
from glassformer.analysis.causal.sweep import Sweep, one_by_one, sweep

__all__ = [
    "Donor",
    "Metric",
    "Plan",
    "Sweep",
    "answer_rank",
    "grid",
    "kl_divergence",
    "log_probability",
    "logit",
    "logit_difference",
    "next_token_loss",
    "one_by_one",
    "probability",
    "sweep",
]
