"""What do the weights alone say of heads? Copying, composition, induction, positions."""

from typing import TYPE_CHECKING

from glassformer.analysis.from_weights._composition import (
    Composition as Composition,
    composition as composition,
)
from glassformer.analysis.from_weights._copying import (
    Copying as Copying,
    CopyingRates as CopyingRates,
    copying as copying,
    copying_rates as copying_rates,
)
from glassformer.analysis.from_weights._induction import (
    InductionCircuits as InductionCircuits,
    MatchingTrace as MatchingTrace,
    induction_circuits as induction_circuits,
    matching_trace as matching_trace,
)
from glassformer.analysis.from_weights._positional import (
    Offsets as Offsets,
    PositionalHeads as PositionalHeads,
    offset_profile as offset_profile,
    offset_scores as offset_scores,
    position_bias as position_bias,
    position_scores as position_scores,
    positional_heads as positional_heads,
)
from glassformer.analysis.from_weights._virtual_weights import (
    VirtualWeights as VirtualWeights,
    virtual as virtual,
    virtual_weights as virtual_weights,
)
from glassformer.lazy import renames

if not TYPE_CHECKING:
    __getattr__ = renames(__name__)
