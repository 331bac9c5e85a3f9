"""Interventions: what happens to the output when a part of the forward pass is changed."""

from glassformer.analysis.causal.answered import Answered, answered
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
from glassformer.analysis.causal.short_circuit import ShortCircuit, regenerate, short_circuit, short_circuit_edits
from glassformer.analysis.causal.sweep import Sweep, one_by_one, sweep

__all__ = [
    "Answered",
    "Donor",
    "Metric",
    "Plan",
    "ShortCircuit",
    "Sweep",
    "answer_rank",
    "answered",
    "grid",
    "kl_divergence",
    "log_probability",
    "logit",
    "logit_difference",
    "next_token_loss",
    "one_by_one",
    "probability",
    "regenerate",
    "short_circuit",
    "short_circuit_edits",
    "sweep",
]
