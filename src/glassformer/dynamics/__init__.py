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
}

__all__ = [
    "BinaryMemory",
    "ContinuousMemory",
    "NeuronAstrocyteNetwork",
    "Tripartite",
    "capacity",
    "expected_capacity",
    "expected_wrong_bits",
    "wrong_bits",
]

__getattr__, __dir__ = lazily(__name__, _HOMES)
