"""One file per kind of projection: equation, config, module. Importing this package registers them all."""

from glassformer.attention.projections.activated import Activated, ActivatedProjection
from glassformer.attention.projections.convolved import Convolved, ConvolvedProjection, ConvolvedState, ShortConvolution
from glassformer.attention.projections.gaussian import Gaussian, GaussianProjection
from glassformer.attention.projections.latent import Latent, LatentProjection, LatentState
from glassformer.attention.projections.projection import (
    Departure,
    Of,
    Own,
    Projected,
    Projection,
    ProjectionConfig,
    ProjectionInputs,
    Reader,
    Which,
)
from glassformer.attention.projections.query_key_norm import HeadNorm, NoHeadNorm, QueryKeyNorm
from glassformer.attention.projections.separate import Separate, SeparateProjection, SourceProjection, SourceState
from glassformer.attention.projections.shifted import Shifted, ShiftedProjection, ShiftedState
from glassformer.attention.projections.smear import Smear, Smeared, SmearedProjection, SmearedState
from glassformer.attention.projections.tied import Tied

__all__ = [
    "Activated", "ActivatedProjection", "Convolved", "ConvolvedProjection",
    "ConvolvedState", "Departure", "Gaussian", "GaussianProjection", "HeadNorm",
    "Latent", "LatentProjection", "LatentState", "NoHeadNorm", "Of", "Own", "Projected", "Projection",
    "ProjectionConfig", "ProjectionInputs", "QueryKeyNorm", "Reader", "Separate",
    "SeparateProjection", "Shifted", "ShiftedProjection", "ShiftedState",
    "ShortConvolution", "Smear", "Smeared", "SmearedProjection", "SmearedState",
    "SourceProjection", "SourceState", "Tied", "Which",
]  # fmt: skip
