"""From residual vectors to attention output: one layer, many mixers."""

from glassformer.attention.context import Context, Mask, causal, documents, padding, window
from glassformer.attention.head_inputs import HeadInputs
from glassformer.attention.layer import Attention, AttentionLayer, CrossState, SubLayerConfig
from glassformer.attention.linear_map import LinearMap, LinearMaps, linear
from glassformer.attention.mechanisms import Differential, Lightning, Linear, Softmax, lambda_init_at
from glassformer.attention.mixer import Dims, Mixer, MixerConfig, Traits, per_query_head
from glassformer.attention.positions import (
    Alibi,
    NoPositions,
    Positions,
    PositionsConfig,
    QueryKeyOnly,
    alibi_slopes,
    sinusoids,
)
from glassformer.attention.projections import Merge, Projection, ProjectionConfig, Separate, Smeared
from glassformer.attention.query_key_norm import HeadNorm, QueryKeyNorm
from glassformer.attention.relative import RelativeBias, RelativeBiasPositions
from glassformer.attention.rope_scaling import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    RopeScaling,
    YarnScaling,
    yarn_amplitude,
)
from glassformer.attention.rotary import Rope
from glassformer.attention.smear import Smear, SmearedState

__all__ = [
    "Alibi",
    "Attention",
    "AttentionLayer",
    "Context",
    "CrossState",
    "Differential",
    "Dims",
    "DynamicScaling",
    "HeadInputs",
    "HeadNorm",
    "Lightning",
    "Linear",
    "LinearMap",
    "LinearMaps",
    "LinearScaling",
    "Llama3Scaling",
    "LongScaling",
    "Mask",
    "Merge",
    "Mixer",
    "MixerConfig",
    "NoPositions",
    "Positions",
    "PositionsConfig",
    "Projection",
    "ProjectionConfig",
    "QueryKeyNorm",
    "QueryKeyOnly",
    "RelativeBias",
    "RelativeBiasPositions",
    "Rope",
    "RopeScaling",
    "Separate",
    "Smear",
    "Smeared",
    "SmearedState",
    "Softmax",
    "SubLayerConfig",
    "Traits",
    "YarnScaling",
    "alibi_slopes",
    "causal",
    "documents",
    "lambda_init_at",
    "linear",
    "padding",
    "per_query_head",
    "sinusoids",
    "window",
    "yarn_amplitude",
]
