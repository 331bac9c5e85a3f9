"""Analyses: functions of a run (or of weights) that return labelled results."""

from glassformer.analysis.attribution import Attribution, Sources, attribution, sources
from glassformer.analysis.explain import explain
from glassformer.analysis.explanation import Explanation
from glassformer.analysis.frozen import Linearity, frozen_edits, frozen_sites, linearity
from glassformer.analysis.heads import HeadScores, head_roles, head_scores
from glassformer.analysis.importance import Importance, importance
from glassformer.analysis.lens import Lens, lens
from glassformer.analysis.losses import icl_score, loss_by_position
from glassformer.analysis.paths import Path, PathExpansion, expand_paths, path_sources, paths, source_map
from glassformer.analysis.residual import (
    WriteProjections,
    Writes,
    WriteShares,
    residual_sites,
    write_projections,
    write_shares,
    write_sources,
    writes,
)
from glassformer.analysis.run import Run, run
from glassformer.analysis.score_paths import ScorePaths, score_paths, score_sites
from glassformer.analysis.steps import step_sites
from glassformer.analysis.virtual_heads import (
    VirtualCopying,
    VirtualHeads,
    composed_pattern,
    virtual_copying,
    virtual_heads,
)

__all__ = [
    "Attribution",
    "Explanation",
    "HeadScores",
    "Importance",
    "Lens",
    "Linearity",
    "Path",
    "PathExpansion",
    "Run",
    "ScorePaths",
    "Sources",
    "VirtualCopying",
    "VirtualHeads",
    "WriteProjections",
    "WriteShares",
    "Writes",
    "attribution",
    "composed_pattern",
    "expand_paths",
    "explain",
    "frozen_edits",
    "frozen_sites",
    "head_roles",
    "head_scores",
    "icl_score",
    "importance",
    "lens",
    "linearity",
    "loss_by_position",
    "path_sources",
    "paths",
    "residual_sites",
    "run",
    "score_paths",
    "score_sites",
    "source_map",
    "sources",
    "step_sites",
    "virtual_copying",
    "virtual_heads",
    "write_projections",
    "write_shares",
    "write_sources",
    "writes",
]
