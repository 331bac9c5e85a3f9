"""Interventions: what happens to the output when a part of the forward pass is changed."""

from glassformer.analysis.causal.ablation_table import AblationTable, ablation_table
from glassformer.analysis.causal.acdc import Acdc, AcdcCurve, Pruned, acdc, acdc_curve
from glassformer.analysis.causal.answered import Answered, answered
from glassformer.analysis.causal.attribution_patching import (
    EdgeAttribution,
    NodeAttribution,
    Verified,
    attribute_edges,
    attribute_nodes,
)
from glassformer.analysis.causal.cells import Cells
from glassformer.analysis.causal.faithfulness import Faithfulness, faithfulness
from glassformer.analysis.causal.graph import CircuitGraph, Edge, Receiver, Sender, circuit_graph
from glassformer.analysis.causal.head_ablation import Ablation, BeforeAfter, ablate, ablate_each, before_after
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
from glassformer.analysis.causal.patching import Patched, Patching, patch
from glassformer.analysis.causal.path_patching import (
    EdgeEffects,
    PathPatching,
    SenderEffects,
    edge_effects,
    path_patching,
    sender_effects,
)
from glassformer.analysis.causal.plan import Donor, Plan, grid
from glassformer.analysis.causal.short_circuit import ShortCircuit, regenerate, short_circuit, short_circuit_edits
from glassformer.analysis.causal.sweep import Sweep, one_by_one, sweep
from glassformer.analysis.causal.traces_by_role import TracesByRole, average_traces
from glassformer.analysis.causal.tracing import CausalTrace, causal_trace, subject_deviation

__all__ = [
    "Ablation",
    "AblationTable",
    "Acdc",
    "AcdcCurve",
    "Answered",
    "BeforeAfter",
    "CausalTrace",
    "Cells",
    "CircuitGraph",
    "Donor",
    "Edge",
    "EdgeAttribution",
    "EdgeEffects",
    "Faithfulness",
    "Metric",
    "NodeAttribution",
    "Patched",
    "Patching",
    "PathPatching",
    "Plan",
    "Pruned",
    "Receiver",
    "Sender",
    "SenderEffects",
    "ShortCircuit",
    "Sweep",
    "TracesByRole",
    "Verified",
    "ablate",
    "ablate_each",
    "ablation_table",
    "acdc",
    "acdc_curve",
    "answer_rank",
    "answered",
    "attribute_edges",
    "attribute_nodes",
    "average_traces",
    "before_after",
    "causal_trace",
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
    "patch",
    "path_patching",
    "probability",
    "regenerate",
    "sender_effects",
    "short_circuit",
    "short_circuit_edits",
    "subject_deviation",
    "sweep",
]
