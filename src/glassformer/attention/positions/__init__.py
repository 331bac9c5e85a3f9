"""One file per kind of position: equation, config, module. Importing this package registers them all."""

from glassformer.attention.positions.alibi import Alibi, AlibiPositions, alibi_slopes
from glassformer.attention.positions.dual_chunk import DualChunk, DualChunkPositions
from glassformer.attention.positions.lrpe import Lrpe, LrpePositions
from glassformer.attention.positions.positions import NoPositions, Positions, PositionsConfig
from glassformer.attention.positions.query_key_only import QueryKeyOnly, QueryKeyOnlyPositions, sinusoids
from glassformer.attention.positions.relative import RelativeBias, RelativeBiasPositions
from glassformer.attention.positions.relative_sinusoids import RelativeSinusoids, RelativeSinusoidsPositions
from glassformer.attention.positions.rope_grid import RopeGrid, RopeGridPositions
from glassformer.attention.positions.rope_scaling import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    RopeScaling,
    YarnScaling,
    yarn_amplitude,
)
from glassformer.attention.positions.rotary import Rope, RopePositions

__all__ = [
    "Alibi", "AlibiPositions", "DualChunk", "DualChunkPositions", "DynamicScaling", "LinearScaling", "Llama3Scaling",
    "LongScaling", "Lrpe", "LrpePositions", "NoPositions", "Positions", "PositionsConfig", "QueryKeyOnly",
    "QueryKeyOnlyPositions", "RelativeBias", "RelativeBiasPositions", "RelativeSinusoids", "RelativeSinusoidsPositions",
    "Rope", "RopeGrid", "RopeGridPositions", "RopePositions", "RopeScaling", "YarnScaling", "alibi_slopes", "sinusoids",
    "yarn_amplitude",
]  # fmt: skip
