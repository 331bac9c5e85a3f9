"""What adds to this logit? Direct logit attribution by component, token and neuron; gradients of inputs."""

from typing import TYPE_CHECKING

from glassformer.analysis.attribution._direct_logit_attribution import (
    DirectLogitAttribution as DirectLogitAttribution,
    direct_logit_attribution as direct_logit_attribution,
)
from glassformer.analysis.attribution._input_gradients import (
    InputGradients as InputGradients,
    input_gradients as input_gradients,
)
from glassformer.analysis.attribution._meaning_shift import (
    MeaningShift as MeaningShift,
    meaning_shift as meaning_shift,
)
from glassformer.analysis.attribution._memory_influence import (
    MemoryInfluence as MemoryInfluence,
    memory_influence as memory_influence,
)
from glassformer.analysis.attribution.parts_of_effects import (
    NeuronEffects as NeuronEffects,
    SourceEffects as SourceEffects,
    neuron_effects as neuron_effects,
    source_effects as source_effects,
)
from glassformer.lazy import renames

if not TYPE_CHECKING:
    __getattr__ = renames(__name__)
