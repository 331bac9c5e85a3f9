"""Which tokens a position's content, or a prediction, comes from."""

from glassformer.analysis.token_flow.alti import alti
from glassformer.analysis.token_flow.rolling import TokenFlow
from glassformer.analysis.token_flow.rollout import rollout
from glassformer.analysis.token_flow.units import flow_sites

__all__ = ["TokenFlow", "alti", "flow_sites", "rollout"]
