"""Models from one layout to another."""

from glassformer.checkpoints.conversion._convert import convert
from glassformer.checkpoints.conversion.layouts import LAYOUTS

__all__ = ["LAYOUTS", "convert"]
