"""Analyses: functions of a run (or of weights) that return labelled results."""

from glassformer.analysis.ablation import Ablation, BeforeAfter, ablate, ablate_each, before_after
from glassformer.analysis.arguments import Argument, SixArguments, six_arguments
from glassformer.analysis.attribution import Attribution, Sources, attribution, sources
from glassformer.analysis.composition import Composition, composition
from glassformer.analysis.copying import Copying, CopyingRates, copying, copying_rates
from glassformer.analysis.evaluators import HeadEvaluation, detect, evaluate_heads
from glassformer.analysis.explain import explain
from glassformer.analysis.explanation import Explanation
from glassformer.analysis.heads import HeadScores, head_roles, head_scores
from glassformer.analysis.history import History, read_history
from glassformer.analysis.icl import InContextLearning, in_context_learning
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

__all__ = [
    "Ablation",
    "Argument",
    "Attribution",
    "BeforeAfter",
    "Composition",
    "Copying",
    "CopyingRates",
    "CrossedCost",
    "CrossedTrigrams",
    "Explanation",
    "HeadEvaluation",
    "HeadScores",
    "History",
    "InContextLearning",
    "Lens",
    "LossTrajectories",
    "Offsets",
    "PhaseChange",
    "PositionalHeads",
    "Run",
    "SixArguments",
    "SkipTrigrams",
    "Sources",
    "TokenCircuits",
    "TokenPairs",
    "Trajectory",
    "UnseenWordsStudy",
    "ablate",
    "ablate_each",
    "attribution",
    "before_after",
    "composition",
    "copying",
    "copying_rates",
    "crossed_cost",
    "crossed_trigrams",
    "detect",
    "evaluate_heads",
    "explain",
    "frequent_tokens",
    "head_roles",
    "head_scores",
    "icl_score",
    "in_context_learning",
    "lens",
    "loss_by_position",
    "loss_trajectories",
    "offset_needs",
    "offset_profile",
    "offset_scores",
    "phase_change",
    "position_bias",
    "position_scores",
    "positional_heads",
    "read_history",
    "run",
    "six_arguments",
    "skip_trigrams",
    "sources",
    "token_circuits",
    "token_pairs",
    "trajectory",
    "unseen_words",
]
