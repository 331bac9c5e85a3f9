"""Analyses: functions of a run (or of weights) that return labelled results."""

from glassformer.analysis.attribution import Attribution, attribution, sources
from glassformer.analysis.run import Run, run

__all__ = ["Attribution", "Run", "attribution", "run", "sources"]
