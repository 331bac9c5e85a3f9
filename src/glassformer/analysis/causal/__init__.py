"""Causal analyses: change something inside, see what it does to the output."""

from glassformer.analysis.causal.answered import Answered, answered
from glassformer.analysis.causal.short_circuit import ShortCircuit, regenerate, short_circuit, short_circuit_edits

__all__ = ["Answered", "ShortCircuit", "answered", "regenerate", "short_circuit", "short_circuit_edits"]
