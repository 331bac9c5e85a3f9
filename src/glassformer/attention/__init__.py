"""From residual vectors to attention output: one layer, many mixers."""

from glassformer.attention.context import Context, Mask, causal, documents, padding, window
from glassformer.attention.layer import Attention, AttentionLayer, CrossState, SubLayerConfig
from glassformer.attention.linear_map import LinearMap, linear
from glassformer.attention.mechanisms import Differential, Lightning, Linear, Softmax, lambda_init_at
from glassformer.attention.mixer import Dims, Mixer, MixerConfig, Traits, per_query_head
from glassformer.attention.positions import (
    Alibi,
    Llama3Scaling,
    NoPositions,
    Positions,
    PositionsConfig,
    QueryKeyOnly,
    Rope,
    alibi_slopes,
    sinusoids,
)
from glassformer.attention.projections import Merge, ProjectionConfig, Separate, Smeared
from glassformer.attention.relative import RelativeBias, RelativeBiasPositions
from glassformer.attention.smear import Smear, SmearedState

__all__ = [
    "Alibi",
    "Attention",
    "AttentionLayer",
    "Context",
    "CrossState",
    "Differential",
    "Dims",
    "Lightning",
    "Linear",
    "LinearMap",
    "Llama3Scaling",
    "Mask",
    "Merge",
    "Mixer",
    "MixerConfig",
    "NoPositions",
    "Positions",
    "PositionsConfig",
    "ProjectionConfig",
    "QueryKeyOnly",
    "RelativeBias",
    "RelativeBiasPositions",
    "Rope",
    "Separate",
    "Smear",
    "Smeared",
    "SmearedState",
    "Softmax",
    "SubLayerConfig",
    "Traits",
    "alibi_slopes",
    "causal",
    "documents",
    "lambda_init_at",
    "linear",
    "padding",
    "per_query_head",
    "sinusoids",
    "window",
]
