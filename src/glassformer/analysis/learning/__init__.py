"""How does it come about? In-context learning, phase changes, run folders."""

from glassformer.analysis.learning._in_context import (
    InContextLearning as InContextLearning,
    in_context_learning as in_context_learning,
)
from glassformer.analysis.learning._phase_change import (
    LossTrajectories as LossTrajectories,
    PhaseChange as PhaseChange,
    Trajectory as Trajectory,
    loss_trajectories as loss_trajectories,
    phase_change as phase_change,
    trajectory as trajectory,
)
from glassformer.analysis.learning._run_folder import (
    History as History,
    read_history as read_history,
)
