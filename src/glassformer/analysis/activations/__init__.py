"""What a model holds over a corpus: recorded once, in a folder that probes, dictionaries and lenses read from."""

from glassformer.analysis.activations._corpus import ActivationSize as ActivationSize
from glassformer.analysis.activations._moments import Moments as Moments
from glassformer.analysis.activations._record import (
    activation_size as activation_size,
    record_activations as record_activations,
)
from glassformer.analysis.activations._shuffled import (
    ActivationBatch as ActivationBatch,
    ShuffledRows as ShuffledRows,
)
from glassformer.analysis.activations._store import (
    ActivationStore as ActivationStore,
    StoredPass as StoredPass,
    StoredPasses as StoredPasses,
    StoredSite as StoredSite,
)
from glassformer.analysis.activations._temporary import stored as stored
