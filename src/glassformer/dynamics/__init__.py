"""Dynamics: the physical, continuous and computational views of a transformer, as code that runs.

Each module is one view: its equation and source, the thing itself, and what of it can be checked.
"""

from typing import TYPE_CHECKING

from glassformer.lazy import lazily

if TYPE_CHECKING:
    from glassformer.dynamics.astrocytes import NeuronAstrocyteNetwork, Tripartite
    from glassformer.dynamics.hopfield import (
        BinaryMemory,
        ContinuousMemory,
        capacity,
        expected_capacity,
        expected_wrong_bits,
        wrong_bits,
    )
    from glassformer.dynamics.implicit import fixed_point
    from glassformer.dynamics.in_context import PairSpins, Prompts, draw_prompts, spins_of
    from glassformer.dynamics.spins import (
        VectorSpins,
        binary_magnetisations,
        mean_field,
        mean_field_step,
        spin_norm,
        spontaneous_order,
    )

_HOMES = {
    "astrocytes": ["NeuronAstrocyteNetwork", "Tripartite"],
    "hopfield": [
        "BinaryMemory",
        "ContinuousMemory",
        "capacity",
        "expected_capacity",
        "expected_wrong_bits",
        "wrong_bits",
    ],
    "implicit": ["fixed_point"],
    "in_context": ["PairSpins", "Prompts", "draw_prompts", "spins_of"],
    "spins": [
        "VectorSpins",
        "binary_magnetisations",
        "mean_field",
        "mean_field_step",
        "spin_norm",
        "spontaneous_order",
    ],
}

__all__ = [
    "BinaryMemory",
    "ContinuousMemory",
    "NeuronAstrocyteNetwork",
    "PairSpins",
    "Prompts",
    "Tripartite",
    "VectorSpins",
    "binary_magnetisations",
    "capacity",
    "draw_prompts",
    "expected_capacity",
    "expected_wrong_bits",
    "fixed_point",
    "mean_field",
    "mean_field_step",
    "spin_norm",
    "spins_of",
    "spontaneous_order",
    "wrong_bits",
]

__getattr__, __dir__ = lazily(__name__, _HOMES)
