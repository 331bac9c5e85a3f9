"""What adds to this logit? Direct logit attribution by component, token and neuron; gradients of inputs."""

from glassformer.analysis.attribution._direct_effects import (
    DirectEffects as DirectEffects,
    direct_effects as direct_effects,
    direct_sites as direct_sites,
)
from glassformer.analysis.attribution._direct_logit_attribution import (
    Attribution as Attribution,
    Sources as Sources,
    direct_logit_attribution as direct_logit_attribution,
    sources as sources,
)
from glassformer.analysis.attribution._input_gradients import (
    InputGradients as InputGradients,
    input_gradients as input_gradients,
)
from glassformer.analysis.attribution._meaning_shift import (
    MeaningShift as MeaningShift,
    meaning_shift as meaning_shift,
)
from glassformer.analysis.attribution._parts_of_effects import (
    NeuronEffects as NeuronEffects,
    SourceEffects as SourceEffects,
    direct_source_sites as direct_source_sites,
    neuron_effects as neuron_effects,
    neuron_sites as neuron_sites,
    source_effects as source_effects,
)
