"""Known habits: sinks, suppression, rank through depth, long contexts, short-circuits, scores, experts."""

from typing import TYPE_CHECKING

from glassformer.analysis.behaviour._expert_load import (
    ExpertLoad as ExpertLoad,
    expert_load as expert_load,
)
from glassformer.analysis.behaviour._long_context import (
    EffectiveMemory as EffectiveMemory,
    LongContext as LongContext,
    effective_memory as effective_memory,
    long_context as long_context,
)
from glassformer.analysis.behaviour._outcomes import calibration_error as calibration_error
from glassformer.analysis.behaviour._query_key_plane import (
    QueryKeyPlane as QueryKeyPlane,
    query_key_plane as query_key_plane,
)
from glassformer.analysis.behaviour._score_geometry import (
    ScoreGeometry as ScoreGeometry,
    score_geometry as score_geometry,
)
from glassformer.analysis.behaviour._short_circuit import (
    ShortCircuit as ShortCircuit,
    regenerate as regenerate,
    short_circuit as short_circuit,
    short_circuit_edits as short_circuit_edits,
)
from glassformer.analysis.behaviour._sinks import (
    AttentionSinks as AttentionSinks,
    attention_sinks as attention_sinks,
)
from glassformer.analysis.behaviour._stream_rank import (
    StreamRank as StreamRank,
    rank_of_stream as rank_of_stream,
    residual_ratio as residual_ratio,
)
from glassformer.analysis.behaviour._suppression import (
    Suppression as Suppression,
    suppression as suppression,
)
from glassformer.lazy import renames

if not TYPE_CHECKING:
    __getattr__ = renames(__name__)
