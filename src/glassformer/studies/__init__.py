"""Studies: what papers say, checked in miniature."""
