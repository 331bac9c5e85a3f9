"""Analyses: functions of a run (or of weights) that return labelled results."""

from glassformer.analysis.arguments import Argument, SixArguments, six_arguments
from glassformer.analysis.attribution import Attribution, Sources, attribution, sources
from glassformer.analysis.basis import Kurtosis, RotationTest, kurtosis, kurtosis_needs, rotate, rotation, rotation_test
from glassformer.analysis.bigrams import Bigrams, bigrams
from glassformer.analysis.causal import Answered, ShortCircuit, answered, regenerate, short_circuit, short_circuit_edits
from glassformer.analysis.causal.ablation_table import AblationTable, ablation_table
from glassformer.analysis.causal.cells import Cells
from glassformer.analysis.causal.head_ablation import Ablation, BeforeAfter, ablate, ablate_each, before_after
from glassformer.analysis.causal.patching import Patched, Patching, patch
from glassformer.analysis.causal.traces_by_role import TracesByRole, average_traces
from glassformer.analysis.causal.tracing import CausalTrace, causal_trace, subject_deviation
from glassformer.analysis.circuits import circuits
from glassformer.analysis.circuits_report import Circuits, Unavailable
from glassformer.analysis.composition import Composition, composition
from glassformer.analysis.copying import Copying, CopyingRates, copying, copying_rates
from glassformer.analysis.direct_effects import DirectEffects, direct_effects, direct_sites
from glassformer.analysis.direct_parts import (
    NeuronEffects,
    SourceEffects,
    direct_source_sites,
    neuron_effects,
    neuron_sites,
    source_effects,
)
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
from glassformer.analysis.lens_grid import LensGrid, lens_grid, lens_sites
from glassformer.analysis.losses import icl_score, loss_by_position
from glassformer.analysis.meaning import MeaningShift, meaning_shift
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
from glassformer.analysis.tuned_lens import TunedLens
from glassformer.analysis.tuned_lens_fit import LensDivergence, fit_tuned_lens, lens_divergence
from glassformer.analysis.unseen import UnseenWordsStudy, unseen_words
from glassformer.analysis.virtual import VirtualWeights, virtual, virtual_weights
from glassformer.analysis.virtual_heads import (
    VirtualCopying,
    VirtualHeads,
    composed_pattern,
    virtual_copying,
    virtual_heads,
)

__all__ = [
    "Ablation",
    "AblationTable",
    "Answered",
    "Argument",
    "Attribution",
    "Bandwidth",
    "BeforeAfter",
    "Bigrams",
    "CausalTrace",
    "Cells",
    "Circuits",
    "Composition",
    "Copying",
    "CopyingRates",
    "CrossedCost",
    "CrossedTrigrams",
    "DirectEffects",
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
    "LensDivergence",
    "LensGrid",
    "Linearity",
    "LossTrajectories",
    "MatchingTrace",
    "MeaningShift",
    "NeuronEffects",
    "Offsets",
    "Overlaps",
    "Patched",
    "Patching",
    "Path",
    "PathExpansion",
    "PhaseChange",
    "PositionalHeads",
    "RotationTest",
    "Run",
    "ScorePaths",
    "ShortCircuit",
    "SixArguments",
    "SkipTrigrams",
    "SourceEffects",
    "Sources",
    "StreamDimensions",
    "TokenCircuits",
    "TokenPairs",
    "TracesByRole",
    "Trajectory",
    "TunedLens",
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
    "ablation_table",
    "answered",
    "attribution",
    "average_traces",
    "bandwidth",
    "before_after",
    "bigrams",
    "causal_trace",
    "circuits",
    "composed_pattern",
    "composition",
    "copying",
    "copying_rates",
    "crossed_cost",
    "crossed_trigrams",
    "detect",
    "direct_effects",
    "direct_sites",
    "direct_source_sites",
    "erasers",
    "erasure",
    "erasure_needs",
    "evaluate_heads",
    "expand_paths",
    "explain",
    "fit_tuned_lens",
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
    "lens_divergence",
    "lens_grid",
    "lens_sites",
    "linearity",
    "loss_by_position",
    "loss_trajectories",
    "matching_trace",
    "meaning_shift",
    "neuron_effects",
    "neuron_sites",
    "offset_needs",
    "offset_profile",
    "offset_scores",
    "overlaps",
    "patch",
    "path_sources",
    "paths",
    "phase_change",
    "position_bias",
    "position_scores",
    "positional_heads",
    "read_history",
    "regenerate",
    "residual_sites",
    "rotate",
    "rotation",
    "rotation_test",
    "run",
    "score_paths",
    "score_sites",
    "short_circuit",
    "short_circuit_edits",
    "six_arguments",
    "skip_trigrams",
    "source_effects",
    "source_map",
    "sources",
    "step_sites",
    "stream_dimensions",
    "subject_deviation",
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
