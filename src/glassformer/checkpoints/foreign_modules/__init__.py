"""Modules we did not write, under our names: where their sites are, and what they are made of."""

from glassformer.checkpoints.foreign_modules.spec import Spec, disagreement, foreign

__all__ = ["Spec", "disagreement", "foreign"]
