"""What do heads look at? Roles by the pattern, and how well a head fits each."""

from glassformer.analysis.heads._evaluate import (
    HeadEvaluation as HeadEvaluation,
    evaluate_heads as evaluate_heads,
    find_pattern as find_pattern,
)
from glassformer.analysis.heads.roles import (
    HeadScores as HeadScores,
    head_roles as head_roles,
    head_scores as head_scores,
)
