"""Models from one layout to another."""

from glassformer.checkpoints.conversion.layouts import LAYOUTS
from glassformer.checkpoints.conversion.rewriting import convert

__all__ = ["LAYOUTS", "convert"]
