"""Reports on what models do: sinks, rank through depth, suppression of the answer."""

from glassformer.analysis.behaviour.sinks import AttentionSinks, attention_sinks
from glassformer.analysis.behaviour.stream_rank import StreamRank, rank_of_stream, residual_ratio

__all__ = ["AttentionSinks", "StreamRank", "attention_sinks", "rank_of_stream", "residual_ratio"]
