"""What the tests draw from: `glassformer.testing`, under the name that test files import."""

from glassformer.testing.layers import (
    D_MODEL,
    POSITIONS,
    QUERY_KEY_NORMS,
    Layer,
    causal_context,
    layers,
    layouts,
    randomise,
    seeds,
    stream,
)
from glassformer.testing.models import ARCHITECTURES, ENCODERS, Subject, attention_decoders, drawn, subject

__all__ = [
    "ARCHITECTURES",
    "D_MODEL",
    "ENCODERS",
    "POSITIONS",
    "QUERY_KEY_NORMS",
    "Layer",
    "Subject",
    "attention_decoders",
    "causal_context",
    "drawn",
    "layers",
    "layouts",
    "randomise",
    "seeds",
    "stream",
    "subject",
]
