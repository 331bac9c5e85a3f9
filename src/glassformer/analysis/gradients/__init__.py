"""What would a gradient step write? Gradients as outer products, in the vocabulary, and edits of single facts."""

from glassformer.analysis.gradients._backward_lens import (
    BackwardLens as BackwardLens,
    backward_lens as backward_lens,
)
from glassformer.analysis.gradients._edit_fact import (
    FactEdit as FactEdit,
    edit_fact as edit_fact,
)
from glassformer.analysis.gradients._linear_gradients import (
    LinearGradients as LinearGradients,
    linear_gradients as linear_gradients,
)
from glassformer.analysis.gradients.weight_edit import WeightEdit as WeightEdit
