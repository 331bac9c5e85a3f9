"""Analyses: functions of a run (or of weights) that return labelled results."""

from glassformer.analysis.attribution import Attribution, Sources, attribution, sources
from glassformer.analysis.copying import Copying, CopyingRates, copying, copying_rates
from glassformer.analysis.explain import explain
from glassformer.analysis.explanation import Explanation
from glassformer.analysis.heads import HeadScores, head_roles, head_scores
from glassformer.analysis.lens import Lens, lens
from glassformer.analysis.losses import icl_score, loss_by_position
from glassformer.analysis.positional import (
    Offsets,
    PositionalHeads,
    offset_needs,
    offset_profile,
    offset_scores,
    position_bias,
    position_scores,
    positional_heads,
)
from glassformer.analysis.run import Run, run
from glassformer.analysis.tables import TokenCircuits, TokenPairs, frequent_tokens, token_circuits, token_pairs

__all__ = [
    "Attribution",
    "Copying",
    "CopyingRates",
    "Explanation",
    "HeadScores",
    "Lens",
    "Offsets",
    "PositionalHeads",
    "Run",
    "Sources",
    "TokenCircuits",
    "TokenPairs",
    "attribution",
    "copying",
    "copying_rates",
    "explain",
    "frequent_tokens",
    "head_roles",
    "head_scores",
    "icl_score",
    "lens",
    "loss_by_position",
    "offset_needs",
    "offset_profile",
    "offset_scores",
    "position_bias",
    "position_scores",
    "positional_heads",
    "run",
    "sources",
    "token_circuits",
    "token_pairs",
]
