"""Fitting: the one gradient loop, whatever is fitted by it, Ctrl-C between its steps; a search without gradients."""

from glassformer.fitting.cross_entropy_method import Search, SearchStep, cross_entropy_method
from glassformer.fitting.descent import Descent, Gradient, Update
from glassformer.fitting.interrupts import Interrupts

__all__ = ["Descent", "Gradient", "Interrupts", "Search", "SearchStep", "Update", "cross_entropy_method"]
