"""What changes if a value is replaced? Patching, tracing, ablation, interchange, steering."""

from typing import TYPE_CHECKING

from glassformer.analysis.causal._ablation_table import (
    AblationTable as AblationTable,
    ablation_table as ablation_table,
)
from glassformer.analysis.causal._alignment_search import (
    AlignmentSearch as AlignmentSearch,
    alignment_search as alignment_search,
)
from glassformer.analysis.causal._answered import (
    Answered as Answered,
    answered as answered,
)
from glassformer.analysis.causal._dose_curve import (
    DoseCurve as DoseCurve,
    dose_curve as dose_curve,
)
from glassformer.analysis.causal._head_ablation import (
    Ablation as Ablation,
    BeforeAfter as BeforeAfter,
    ablate as ablate,
    ablate_each as ablate_each,
    before_after as before_after,
)
from glassformer.analysis.causal._interchange import (
    Interchanged as Interchanged,
    interchange as interchange,
)
from glassformer.analysis.causal._patching import (
    Patched as Patched,
    Patching as Patching,
    patch as patch,
)
from glassformer.analysis.causal._site_grid import SiteGrid as SiteGrid
from glassformer.analysis.causal._tracing import (
    CausalTrace as CausalTrace,
    TracesByRole as TracesByRole,
    average_traces as average_traces,
    causal_trace as causal_trace,
    subject_deviation as subject_deviation,
)
from glassformer.lazy import renames

if not TYPE_CHECKING:
    __getattr__ = renames(__name__)
