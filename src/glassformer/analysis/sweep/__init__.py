"""The engine of interventions: many edits of one run side by side, and what is measured of each."""

from glassformer.analysis.sweep._engine import sweep as sweep
from glassformer.analysis.sweep._plain_loop import one_by_one as one_by_one
from glassformer.analysis.sweep._result import Sweep as Sweep
from glassformer.analysis.sweep.cached_pass import CachedPass as CachedPass
from glassformer.analysis.sweep.metrics import (
    NAMES as NAMES,
    Metric as Metric,
    accuracy as accuracy,
    answer_rank as answer_rank,
    class_loss as class_loss,
    kl_divergence as kl_divergence,
    log_probability as log_probability,
    logit as logit,
    logit_difference as logit_difference,
    metric_named as metric_named,
    next_token_loss as next_token_loss,
    probability as probability,
    token_loss as token_loss,
    velocity_loss as velocity_loss,
)
from glassformer.analysis.sweep.plan import (
    Donor as Donor,
    Plan as Plan,
    grid as grid,
)
