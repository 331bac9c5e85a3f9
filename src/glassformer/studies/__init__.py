"""Studies: what papers say, checked in miniature."""

# modules that hold a `STUDY` for the engine
STUDIES = ("scaled_scores",)
