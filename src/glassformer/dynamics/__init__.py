"""Dynamics: the physical, continuous and computational views of a transformer, as code that runs.

Each module is one view: its equation and source, the thing itself, and what of it can be checked.
"""

from typing import TYPE_CHECKING

from glassformer.lazy import lazily

if TYPE_CHECKING:
    from glassformer.dynamics import prompting
    from glassformer.dynamics.circuits import (
        GATES,
        Circuit,
        Gate,
        circuit_decoder,
        circuit_widths,
        gate_values,
        gates_by_chain,
        random_circuit,
        wrong_gates,
    )
    from glassformer.dynamics.continuous import BlockField, OdeSolution, kept_numbers, residual_gaps, solve
    from glassformer.dynamics.splitting import SCHEMES, ParticleTerms, particle_terms, split, splitting_gaps
    from glassformer.dynamics.steps import STEPS, fitted_orders, integrate

_HOMES = {
    "circuits": [
        "GATES", "Circuit", "Gate", "circuit_decoder", "circuit_widths", "gate_values", "gates_by_chain",
        "random_circuit", "wrong_gates",
    ],
    "continuous": ["BlockField", "OdeSolution", "kept_numbers", "residual_gaps", "solve"],
    "splitting": ["SCHEMES", "ParticleTerms", "particle_terms", "split", "splitting_gaps"],
    "steps": ["STEPS", "fitted_orders", "integrate"],
}  # fmt: skip

__all__ = [
    "GATES",
    "SCHEMES",
    "STEPS",
    "BlockField",
    "Circuit",
    "Gate",
    "OdeSolution",
    "ParticleTerms",
    "circuit_decoder",
    "circuit_widths",
    "fitted_orders",
    "gate_values",
    "gates_by_chain",
    "integrate",
    "kept_numbers",
    "particle_terms",
    "prompting",
    "random_circuit",
    "residual_gaps",
    "solve",
    "split",
    "splitting_gaps",
    "wrong_gates",
]

__getattr__, __dir__ = lazily(__name__, _HOMES, ["prompting"])
