"""What do heads look at? Roles by the pattern, how well a head fits each, and what holds of it over a corpus."""

from glassformer.analysis.heads._claims import HeadClaim as HeadClaim
from glassformer.analysis.heads._evaluate import (
    HeadEvaluation as HeadEvaluation,
    evaluate_heads as evaluate_heads,
    find_pattern as find_pattern,
)
from glassformer.analysis.heads._over_corpus import (
    HeadsOverCorpus as HeadsOverCorpus,
    LookedAt as LookedAt,
    TopPassage as TopPassage,
    heads_over_corpus as heads_over_corpus,
)
from glassformer.analysis.heads.roles import (
    HeadScores as HeadScores,
    head_roles as head_roles,
    head_scores as head_scores,
)
