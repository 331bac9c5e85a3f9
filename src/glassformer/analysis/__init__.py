"""Analyses: functions of a run (or of weights) that return labelled results."""

from glassformer.analysis.ablation import Ablation, BeforeAfter, ablate, ablate_each, before_after
from glassformer.analysis.arguments import Argument, SixArguments, six_arguments
from glassformer.analysis.attribution import Attribution, Sources, attribution, sources
from glassformer.analysis.basis import Kurtosis, RotationTest, kurtosis, kurtosis_needs, rotate, rotation, rotation_test
from glassformer.analysis.bigrams import Bigrams, bigrams
from glassformer.analysis.circuits import circuits
from glassformer.analysis.circuits_report import Circuits, Unavailable
from glassformer.analysis.composition import Composition, composition
from glassformer.analysis.copying import Copying, CopyingRates, copying, copying_rates
from glassformer.analysis.evaluators import HeadEvaluation, detect, evaluate_heads
from glassformer.analysis.explain import explain
from glassformer.analysis.explanation import Explanation
from glassformer.analysis.frozen import Linearity, frozen_edits, frozen_sites, linearity
from glassformer.analysis.heads import HeadScores, head_roles, head_scores
from glassformer.analysis.history import History, read_history
from glassformer.analysis.icl import InContextLearning, in_context_learning
from glassformer.analysis.importance import Importance, importance
from glassformer.analysis.induction import InductionCircuits, MatchingTrace, induction_circuits, matching_trace
from glassformer.analysis.lens import Lens, lens
from glassformer.analysis.losses import icl_score, loss_by_position
from glassformer.analysis.paths import Path, PathExpansion, expand_paths, path_sources, paths, source_map
from glassformer.analysis.phase_change import (
    LossTrajectories,
    PhaseChange,
    Trajectory,
    loss_trajectories,
    phase_change,
    trajectory,
)
from glassformer.analysis.positional import (
    Offsets,
    PositionalHeads,
    offset_needs,
    offset_profile,
    offset_scores,
    position_bias,
    position_scores,
    positional_heads,
)
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
from glassformer.analysis.subspaces import (
    Bandwidth,
    Erasers,
    Erasure,
    JointPca,
    Overlaps,
    StreamDimensions,
    bandwidth,
    erasers,
    erasure,
    erasure_needs,
    joint_pca,
    overlaps,
    stream_dimensions,
)
from glassformer.analysis.tables import TokenCircuits, TokenPairs, frequent_tokens, token_circuits, token_pairs
from glassformer.analysis.trigrams import (
    CrossedCost,
    CrossedTrigrams,
    SkipTrigrams,
    crossed_cost,
    crossed_trigrams,
    skip_trigrams,
)
from glassformer.analysis.unseen import UnseenWordsStudy, unseen_words
from glassformer.analysis.virtual_heads import (
    VirtualCopying,
    VirtualHeads,
    composed_pattern,
    virtual_copying,
    virtual_heads,
)
from glassformer.analysis.virtual_weights import VirtualWeights, virtual, virtual_weights

__all__ = [
    "Ablation",
    "Argument",
    "Attribution",
    "Bandwidth",
    "BeforeAfter",
    "Bigrams",
    "Circuits",
    "Composition",
    "Copying",
    "CopyingRates",
    "CrossedCost",
    "CrossedTrigrams",
    "Erasers",
    "Erasure",
    "Explanation",
    "HeadEvaluation",
    "HeadScores",
    "History",
    "Importance",
    "InContextLearning",
    "InductionCircuits",
    "JointPca",
    "Kurtosis",
    "Lens",
    "Linearity",
    "LossTrajectories",
    "MatchingTrace",
    "Offsets",
    "Overlaps",
    "Path",
    "PathExpansion",
    "PhaseChange",
    "PositionalHeads",
    "RotationTest",
    "Run",
    "ScorePaths",
    "SixArguments",
    "SkipTrigrams",
    "Sources",
    "StreamDimensions",
    "TokenCircuits",
    "TokenPairs",
    "Trajectory",
    "Unavailable",
    "UnseenWordsStudy",
    "VirtualCopying",
    "VirtualHeads",
    "VirtualWeights",
    "WriteProjections",
    "WriteShares",
    "Writes",
    "ablate",
    "ablate_each",
    "attribution",
    "bandwidth",
    "before_after",
    "bigrams",
    "circuits",
    "composed_pattern",
    "composition",
    "copying",
    "copying_rates",
    "crossed_cost",
    "crossed_trigrams",
    "detect",
    "erasers",
    "erasure",
    "erasure_needs",
    "evaluate_heads",
    "expand_paths",
    "explain",
    "frequent_tokens",
    "frozen_edits",
    "frozen_sites",
    "head_roles",
    "head_scores",
    "icl_score",
    "importance",
    "in_context_learning",
    "induction_circuits",
    "joint_pca",
    "kurtosis",
    "kurtosis_needs",
    "lens",
    "linearity",
    "loss_by_position",
    "loss_trajectories",
    "matching_trace",
    "offset_needs",
    "offset_profile",
    "offset_scores",
    "overlaps",
    "path_sources",
    "paths",
    "phase_change",
    "position_bias",
    "position_scores",
    "positional_heads",
    "read_history",
    "residual_sites",
    "rotate",
    "rotation",
    "rotation_test",
    "run",
    "score_paths",
    "score_sites",
    "six_arguments",
    "skip_trigrams",
    "source_map",
    "sources",
    "step_sites",
    "stream_dimensions",
    "token_circuits",
    "token_pairs",
    "trajectory",
    "unseen_words",
    "virtual",
    "virtual_copying",
    "virtual_heads",
    "virtual_weights",
    "write_projections",
    "write_shares",
    "write_sources",
    "writes",
]
