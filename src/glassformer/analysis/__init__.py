"""Analyses: functions of a run (or of weights) that return labelled results."""

from glassformer.analysis.ablation import Ablation, BeforeAfter, ablate, ablate_each, before_after
from glassformer.analysis.arguments import Argument, SixArguments, six_arguments
from glassformer.analysis.attribution import Attribution, Sources, attribution, sources
from glassformer.analysis.circuits import circuits
from glassformer.analysis.circuits_report import Circuits, Unavailable
from glassformer.analysis.basis import Kurtosis, RotationTest, kurtosis, kurtosis_needs, rotate, rotation, rotation_test
from glassformer.analysis.bigrams import Bigrams, bigrams
from glassformer.analysis.composition import Composition, composition
from glassformer.analysis.copying import Copying, CopyingRates, copying, copying_rates
from glassformer.analysis.evaluators import HeadEvaluation, detect, evaluate_heads
from glassformer.analysis.explain import explain
from glassformer.analysis.explanation import Explanation
from glassformer.analysis.heads import HeadScores, head_roles, head_scores
from glassformer.analysis.history import History, read_history
from glassformer.analysis.icl import InContextLearning, in_context_learning
from glassformer.analysis.induction import InductionCircuits, MatchingTrace, induction_circuits, matching_trace
from glassformer.analysis.lens import Lens, lens
from glassformer.analysis.losses import icl_score, loss_by_position
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
from glassformer.analysis.run import Run, run
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
from glassformer.analysis.virtual import VirtualWeights, virtual, virtual_weights

__all__ = [
    "Ablation",
    "Argument",
    "Attribution",
    "Circuits",
    "Bandwidth",
    "BeforeAfter",
    "Bigrams",
    "Composition",
    "Copying",
    "CopyingRates",
    "CrossedCost",
    "CrossedTrigrams",
    "Composition",
    "Copying",
    "CopyingRates",
    "Erasers",
    "Erasure",
    "Explanation",
    "HeadEvaluation",
    "HeadScores",
    "History",
    "InContextLearning",
    "InductionCircuits",
    "JointPca",
    "Kurtosis",
    "Lens",
    "LossTrajectories",
    "MatchingTrace",
    "Offsets",
    "Overlaps",
    "PhaseChange",
    "PositionalHeads",
    "RotationTest",
    "Run",
    "SixArguments",
    "SkipTrigrams",
    "Sources",
    "StreamDimensions",
    "TokenCircuits",
    "TokenPairs",
    "Trajectory",
    "Unavailable",
    "UnseenWordsStudy",
    "VirtualWeights",
    "ablate",
    "ablate_each",
    "attribution",
    "circuits",
    "bandwidth",
    "before_after",
    "bigrams",
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
    "explain",
    "frequent_tokens",
    "head_roles",
    "head_scores",
    "icl_score",
    "in_context_learning",
    "induction_circuits",
    "joint_pca",
    "kurtosis",
    "kurtosis_needs",
    "lens",
    "loss_by_position",
    "loss_trajectories",
    "matching_trace",
    "offset_needs",
    "offset_profile",
    "offset_scores",
    "overlaps",
    "phase_change",
    "position_bias",
    "position_scores",
    "positional_heads",
    "read_history",
    "rotate",
    "rotation",
    "rotation_test",
    "run",
    "six_arguments",
    "skip_trigrams",
    "sources",
    "stream_dimensions",
    "token_circuits",
    "token_pairs",
    "trajectory",
    "unseen_words",
    "virtual",
    "virtual_weights",
]
