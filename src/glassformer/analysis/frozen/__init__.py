"""The linear view: a stack with its norms' scales and patterns frozen, and the stream as a sum of writes."""

from typing import TYPE_CHECKING

from glassformer.analysis.frozen._output_gates import (
    OutputGates as OutputGates,
    output_gates as output_gates,
    with_gates as with_gates,
)
from glassformer.analysis.frozen._query_key_scales import (
    QueryKeyScales as QueryKeyScales,
    query_key_scales as query_key_scales,
    with_scales as with_scales,
)
from glassformer.analysis.frozen._run import (
    Linearity as Linearity,
    frozen_edits as frozen_edits,
    linearity as linearity,
)
from glassformer.analysis.frozen._writes import (
    WriteProjections as WriteProjections,
    Writes as Writes,
    WriteShares as WriteShares,
    write_projections as write_projections,
    write_shares as write_shares,
    write_sources as write_sources,
    writes as writes,
)
from glassformer.lazy import renames

if not TYPE_CHECKING:
    __getattr__ = renames(__name__)
