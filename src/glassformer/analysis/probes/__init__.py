"""What can be read linearly where, and what is left when it is taken out: probes, erasers, and whether it is used."""

from glassformer.analysis.probes._eraser import Eraser as Eraser, fit_eraser as fit_eraser
from glassformer.analysis.probes._linear import LinearProbe as LinearProbe
from glassformer.analysis.probes._phrases import (
    PhraseClusters as PhraseClusters,
    phrase_clusters as phrase_clusters,
)
from glassformer.analysis.probes._probe import Probes as Probes, probe as probe
from glassformer.analysis.probes._sparse import (
    SparseProbes as SparseProbes,
    sparse_probe as sparse_probe,
)
from glassformer.analysis.probes._structural import (
    StructuralProbes as StructuralProbes,
    structural_probe as structural_probe,
)
from glassformer.analysis.probes._use import (
    ErasureEffects as ErasureEffects,
    erasure_effects as erasure_effects,
)
