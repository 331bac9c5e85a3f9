"""Mean and covariance of what layers read of tokens drawn at random, and so of their queries and keys.

    mean of x Q = (mean of x) Q        covariance of x Q = Q' C Q,  C the covariance of x

Layers whose norms differ in nothing but the gain share one pass over the vocabulary. Behind a norm of their own queries
and keys are no matrix product: they are made token by token.
"""

from collections.abc import Hashable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.weights import AttentionWeights, HeadWeights
from glassformer.weights.heads import Side
from glassformer.weights.stream import CHUNK


class Moments(NamedTuple):
    """Mean and covariance over tokens."""

    mean: Float[Tensor, "*n one d"]
    spread: Float[Tensor, "*n d d"]


class TokenMoments:
    """Moments of the queries and keys that tokens contribute, by query head.

    Args:
        w: The weights.
    """

    def __init__(self, w: HeadWeights) -> None:
        self.w = w
        self.known: dict[Hashable, Moments] = {}

    def __call__(self, layer: AttentionWeights, side: Side) -> Moments:
        """Return the moments of one side of a layer; raises as `HeadWeights.projected`."""
        if layer.norm(side) is not None:
            return _moments(self.w.projected(layer, side))
        mean, spread = self.read(layer)
        matrix = layer.Q if side == "query" else layer.K
        found = (mean @ matrix, matrix.mT @ spread @ matrix)
        return Moments(*(layer.expanded(side, part) for part in found))

    def read(self, layer: AttentionWeights) -> Moments:
        """Return the moments of what a layer reads."""
        key, bare, gain = self.w.but_for_gain(layer)
        if key not in self.known:
            self.known[key] = _of_rows(bare, layer)
        mean, spread = self.known[key]
        return Moments(mean, spread) if gain is None else Moments(mean * gain, gain[:, None] * spread * gain)


def _moments(rows: Float[Tensor, "*n token d"]) -> Moments:
    mean = rows.mean(-2, keepdim=True)
    deviation = rows - mean
    return Moments(mean, deviation.mT @ deviation / rows.shape[-2])


def _of_rows(w: HeadWeights, layer: AttentionWeights) -> Moments:
    """Return the moments of a layer's rows, of which some are held at a time."""
    scale = w.source_scale(layer)
    n = len(w.embeddings[layer.stack])
    parts = torch.arange(n, device=layer.Q.device).split(CHUNK)

    def rows(ids: Tensor) -> Tensor:
        return w.source_rows(layer, "query", "token", ids, scale)

    mean = torch.stack([rows(ids).sum(0) for ids in parts]).sum(0, keepdim=True) / n
    spread = mean.new_zeros(mean.shape[-1], mean.shape[-1])
    for ids in parts:
        deviation = rows(ids) - mean
        spread += deviation.mT @ deviation
    return Moments(mean, spread / n)
