"""Analyses: functions of a run (or of weights) that return labelled results."""

from glassformer.analysis.ablation import Ablation, ablate, ablate_each
from glassformer.analysis.arguments import Argument, SixArguments, six_arguments
from glassformer.analysis.attribution import Attribution, Sources, attribution, sources
from glassformer.analysis.composition import Composition, composition
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
from glassformer.analysis.run import Run, run
from glassformer.analysis.unseen import UnseenWordsStudy, unseen_words

__all__ = [
    "Ablation",
    "Argument",
    "Attribution",
    "Composition",
    "Explanation",
    "HeadEvaluation",
    "HeadScores",
    "History",
    "InContextLearning",
    "Lens",
    "LossTrajectories",
    "PhaseChange",
    "Run",
    "SixArguments",
    "Sources",
    "Trajectory",
    "UnseenWordsStudy",
    "ablate",
    "ablate_each",
    "attribution",
    "composition",
    "detect",
    "evaluate_heads",
    "explain",
    "head_roles",
    "head_scores",
    "icl_score",
    "in_context_learning",
    "lens",
    "loss_by_position",
    "loss_trajectories",
    "phase_change",
    "read_history",
    "run",
    "six_arguments",
    "sources",
    "trajectory",
    "unseen_words",
]
