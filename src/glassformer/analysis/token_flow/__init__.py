"""Which tokens does it come from? Rollout, flow, ALTI, value norms and information-flow routes."""

from typing import TYPE_CHECKING

from glassformer.analysis.token_flow._alti import alti as alti
from glassformer.analysis.token_flow._attention_flow import (
    AttentionFlow as AttentionFlow,
    attention_flow as attention_flow,
)
from glassformer.analysis.token_flow._neurons import (
    NeuronShares as NeuronShares,
    neuron_shares as neuron_shares,
)
from glassformer.analysis.token_flow._rolling import TokenFlow as TokenFlow
from glassformer.analysis.token_flow._rollout import rollout as rollout
from glassformer.analysis.token_flow._routes import (
    AverageRoutes as AverageRoutes,
    FlowEdge as FlowEdge,
    FlowNode as FlowNode,
    FlowRoutes as FlowRoutes,
    average_routes as average_routes,
    information_flow_routes as information_flow_routes,
)
from glassformer.analysis.token_flow._value_norms import (
    ValueNorms as ValueNorms,
    value_norms as value_norms,
)
from glassformer.lazy import renames

if not TYPE_CHECKING:
    __getattr__ = renames(__name__)
