"""Fitting: the one gradient loop, Ctrl-C between its steps, the loss of rewarded texts, a search without gradients."""

from glassformer.fitting.cross_entropy_method import Search, SearchStep, cross_entropy_method
from glassformer.fitting.descent import Descent, Gradient, Update
from glassformer.fitting.interrupts import Interrupts
from glassformer.fitting.reinforce import (
    Completions,
    batch_logits,
    complete,
    completion_batch,
    completion_log_probs,
    kl_divergence,
    leave_one_out,
    reinforce_loss,
)

__all__ = [
    "Completions",
    "Descent",
    "Gradient",
    "Interrupts",
    "Search",
    "SearchStep",
    "Update",
    "batch_logits",
    "complete",
    "completion_batch",
    "completion_log_probs",
    "cross_entropy_method",
    "kl_divergence",
    "leave_one_out",
    "reinforce_loss",
]
