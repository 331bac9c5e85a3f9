"""Studies: what papers say, checked in miniature."""

# modules that hold a `STUDY` for the engine
STUDIES = (
    "additive_and_dot",
    "attention_on_attention",
    "concat_scores",
    "differential_distractors",
    "differential_needles",
    "dispersion",
    "entropy_by_length",
    "gpt3_accounting",
    "induction_by_mechanism",
    "induction_heads",
    "key_norms_beyond_length",
    "memorisation",
    "noam_and_cosine",
    "one_copying_head",
    "output_layers",
    "path_collapse",
    "phase_change",
    "rank_collapse",
    "scaled_scores",
    "synthesizer",
    "two_layers_for_induction",
    "why_projections",
    "why_softmax",
)
