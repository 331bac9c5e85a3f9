"""Which chains of heads does it take? Logits and scores as sums over paths, what orders are worth, virtual heads."""

from typing import TYPE_CHECKING

from glassformer.analysis.paths._importance import (
    Importance as Importance,
    importance as importance,
)
from glassformer.analysis.paths._logit_paths import (
    Path as Path,
    PathExpansion as PathExpansion,
    expand_paths as expand_paths,
    path_sources as path_sources,
    paths as paths,
    source_map as source_map,
)
from glassformer.analysis.paths._score_paths import (
    ScorePaths as ScorePaths,
    score_paths as score_paths,
)
from glassformer.analysis.paths._virtual_heads import (
    VirtualCopying as VirtualCopying,
    VirtualHeads as VirtualHeads,
    composed_pattern as composed_pattern,
    virtual_copying as virtual_copying,
    virtual_heads as virtual_heads,
)
from glassformer.lazy import renames

if not TYPE_CHECKING:
    __getattr__ = renames(__name__)
