"""Reports on what models do: sinks, rank through depth, suppression of the answer."""

from glassformer.analysis.behaviour.outcomes import calibration_error
from glassformer.analysis.behaviour.sinks import AttentionSinks, attention_sinks
from glassformer.analysis.behaviour.stream_rank import StreamRank, rank_of_stream, residual_ratio
from glassformer.analysis.behaviour.suppression import Suppression, suppression

__all__ = [
    "AttentionSinks",
    "StreamRank",
    "Suppression",
    "attention_sinks",
    "calibration_error",
    "rank_of_stream",
    "residual_ratio",
    "suppression",
]
