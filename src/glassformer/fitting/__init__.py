"""Fitting: the one gradient loop, whatever is fitted by it, and Ctrl-C between two of its steps."""

from glassformer.fitting.descent import Descent, Gradient, Update
from glassformer.fitting.interrupts import Interrupts

__all__ = ["Descent", "Gradient", "Interrupts", "Update"]
