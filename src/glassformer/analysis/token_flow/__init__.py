"""Which tokens a position's content, or a prediction, comes from."""

from glassformer.analysis.token_flow.alti import alti
from glassformer.analysis.token_flow.attention_flow import AttentionFlow, attention_flow
from glassformer.analysis.token_flow.gradients import InputGradients, input_gradients
from glassformer.analysis.token_flow.long_context import EffectiveMemory, LongContext, effective_memory, long_context
from glassformer.analysis.token_flow.neurons import NeuronShares, neuron_shares
from glassformer.analysis.token_flow.rolling import TokenFlow
from glassformer.analysis.token_flow.rollout import rollout
from glassformer.analysis.token_flow.routes import (
    AverageRoutes,
    FlowEdge,
    FlowNode,
    FlowRoutes,
    average_routes,
    information_flow_routes,
)
from glassformer.analysis.token_flow.units import flow_sites
from glassformer.analysis.token_flow.value_norms import ValueNorms, value_norms

__all__ = [
    "AttentionFlow",
    "AverageRoutes",
    "EffectiveMemory",
    "FlowEdge",
    "FlowNode",
    "FlowRoutes",
    "InputGradients",
    "LongContext",
    "NeuronShares",
    "TokenFlow",
    "ValueNorms",
    "alti",
    "attention_flow",
    "average_routes",
    "effective_memory",
    "flow_sites",
    "information_flow_routes",
    "input_gradients",
    "long_context",
    "neuron_shares",
    "rollout",
    "value_norms",
]
