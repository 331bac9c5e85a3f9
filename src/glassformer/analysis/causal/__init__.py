"""Causal analyses: change something inside, see what it does to the output."""

from glassformer.analysis.causal.short_circuit import ShortCircuit, regenerate, short_circuit, short_circuit_edits

__all__ = ["ShortCircuit", "regenerate", "short_circuit", "short_circuit_edits"]
