"""What would the model say if it stopped here? The logit lens at every place, and translators for early layers."""

from typing import TYPE_CHECKING

from glassformer.analysis.lens._fit import (
    LensDivergence as LensDivergence,
    fit_tuned_lens as fit_tuned_lens,
    lens_divergence as lens_divergence,
)
from glassformer.analysis.lens._grid import (
    LensGrid as LensGrid,
    lens_grid as lens_grid,
)
from glassformer.analysis.lens._logit_lens import (
    Lens as Lens,
    logit_lens as logit_lens,
)
from glassformer.analysis.lens._tuned import TunedLens as TunedLens
from glassformer.lazy import renames

if not TYPE_CHECKING:
    __getattr__ = renames(__name__)
