"""All at once: what a model does with a text, and which circuits it is made of."""

from glassformer.analysis.reports._circuits import circuits as circuits
from glassformer.analysis.reports._explain import explain as explain
from glassformer.analysis.reports._memory_use import memory_sites as memory_sites, memory_use as memory_use
from glassformer.analysis.reports.circuits_document import (
    Circuits as Circuits,
    Unavailable as Unavailable,
)
from glassformer.analysis.reports.explanation import Explanation as Explanation, MemoryUse as MemoryUse
