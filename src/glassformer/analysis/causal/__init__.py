"""Interventions: what happens to the output when a part of the forward pass is changed."""

from glassformer.analysis.causal.acdc import Acdc, AcdcCurve, Pruned, acdc, acdc_curve
from glassformer.analysis.causal.attribution_patching import (
    EdgeAttribution,
    NodeAttribution,
    Verified,
    attribute_edges,
    attribute_nodes,
)
from glassformer.analysis.causal.faithfulness import Faithfulness, faithfulness
from glassformer.analysis.causal.graph import CircuitGraph, Edge, Receiver, Sender, circuit_graph
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
from glassformer.analysis.causal.path_patching import (
    EdgeEffects,
    PathPatching,
    SenderEffects,
    edge_effects,
    path_patching,
    sender_effects,
)
from glassformer.analysis.causal.plan import Donor, Plan, grid
from glassformer.analysis.causal.sweep import Sweep, one_by_one, sweep

__all__ = [
    "Acdc",
    "AcdcCurve",
    "CircuitGraph",
    "Donor",
    "Edge",
    "EdgeAttribution",
    "EdgeEffects",
    "Faithfulness",
    "Metric",
    "NodeAttribution",
    "PathPatching",
    "Plan",
    "Pruned",
    "Receiver",
    "Sender",
    "SenderEffects",
    "Sweep",
    "Verified",
    "acdc",
    "acdc_curve",
    "answer_rank",
    "attribute_edges",
    "attribute_nodes",
    "circuit_graph",
    "edge_effects",
    "faithfulness",
    "grid",
    "kl_divergence",
    "log_probability",
    "logit",
    "logit_difference",
    "next_token_loss",
    "one_by_one",
    "path_patching",
    "probability",
    "sender_effects",
    "sweep",
]
