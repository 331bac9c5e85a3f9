"""Analyses: functions of a run (or of weights) that return labelled results."""

from glassformer.analysis.ablation import Ablation, ablate, ablate_each
from glassformer.analysis.attribution import Attribution, Sources, attribution, sources
from glassformer.analysis.evaluators import HeadEvaluation, detect, evaluate_heads
from glassformer.analysis.explain import explain
from glassformer.analysis.explanation import Explanation
from glassformer.analysis.heads import HeadScores, head_roles, head_scores
from glassformer.analysis.lens import Lens, lens
from glassformer.analysis.losses import icl_score, loss_by_position
from glassformer.analysis.run import Run, run

__all__ = [
    "Ablation",
    "Attribution",
    "Explanation",
    "HeadEvaluation",
    "HeadScores",
    "Lens",
    "Run",
    "Sources",
    "ablate",
    "ablate_each",
    "attribution",
    "detect",
    "evaluate_heads",
    "explain",
    "head_roles",
    "head_scores",
    "icl_score",
    "lens",
    "loss_by_position",
    "run",
    "sources",
]
