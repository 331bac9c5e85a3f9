"""Performer: positive random features whose products are, on average, the exponential of softmax attention.

    phi(x) = exp(W x' - x' . x' / 2) / sqrt(M),   x' = x / d_head^(1/4),   W of M rows
    E[phi(q) . phi(k)] = exp(q' . k')
    z_t = sum_{s<=t} (phi(q_t) . phi(k_s)) v_s  /  sum_{s<=t} phi(q_t) . phi(k_s)

Rows of W are orthogonal in blocks of d_head, with directions that are uniform and lengths of their own (chi), or drawn
one by one. The error against softmax falls with M^(-1/2) where queries and keys are short; where they are long, far
more slowly. `lengths="equal"` sets all rows to sqrt(d_head), a kernel of its own, which is not the exponential's mean.

W is kept with the weights: drawn from `seed` and the layer, shared by heads and, with `redraw`, drawn anew in training
every so many passes over whole texts. In evaluation, and on a state, it is fixed.

So that nothing overflows, the largest exponent of each query is taken off, and a constant of W from those of keys,
w . w / 2 being the most they reach: both cancel, and no later key has a part in them.
Pattern: exact, non-negative, rows sum to one.  State: sums of phi(k) v' and phi(k), float32, M numbers for each of a
value's.
Cost: O(pos M d_value).  Forms: left product (dense), chunks (fast), recurrence (scan).
Differs from the reference code: nothing is added to features, which would not cancel; the
keys' constant is no maximum over keys, which later ones would change; draws do not depend on the batch; and directions
are uniform, signs of the QR factors being put right.
Source: Choromanski et al. 2020, "Rethinking Attention with Performers" (2009.14794), sections 2.2 to 2.4.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.arguments import Count
from glassformer.attention.context import Context
from glassformer.attention.mechanisms.linear import LARGEST_EXPONENT, FeatureMixer, FeatureWeights
from glassformer.attention.mixer import Dims, Traits
from glassformer.numerics.decompositions import qr
from glassformer.trace import Tape


@dataclass(frozen=True)
class Performer(FeatureWeights, kind="performer"):
    """Softmax attention estimated by positive random features (FAVOR+).

    Args:
        n_features: Rows of W, the M of the equation; d_head ln(d_head) by default.
        orthogonal: Whether rows are orthogonal in blocks of d_head; else they are drawn one by one.
        lengths: Of rows that are orthogonal: `drawn`, as those of normal vectors, or `equal`, sqrt(d_head).
        redraw: In training, W is drawn anew every so many passes; None for never.
        seed: Of W.
    """

    n_features: Count | None = None
    orthogonal: bool = True
    lengths: Literal["drawn", "equal"] = "drawn"
    redraw: Count | None = None
    seed: int = 0

    traits: ClassVar[Traits] = Traits(rows_sum_to_one=True)
    variants = (
        {"n_features": 3},
        {"n_features": 9, "seed": 1, "redraw": 2},
        {"orthogonal": False},
        {"lengths": "equal"},
    )

    def n_features_of(self, dims: Dims) -> int:
        return self.n_features or max(int(dims.d_head * math.log(dims.d_head)), 1)


class PerformerMixer(FeatureMixer, config=Performer):
    config: Performer  # type: ignore[assignment]
    directions: Tensor
    passes: Tensor

    def __init__(self, config: Performer, dims: Dims, path: str) -> None:
        super().__init__(config, dims, path)
        self.register_buffer("directions", torch.empty(config.n_features_of(dims), dims.d_head))
        if config.redraw is not None:
            self.register_buffer("passes", torch.zeros((), dtype=torch.long))
        self._draw(0)

    def _draw(self, turn: int) -> None:
        """Draw W: a function of seed, layer and how often it was drawn before."""
        config = self.config
        generator = torch.Generator().manual_seed((config.seed * 1009 + self.dims.layer) * 1_000_003 + turn)
        n_features, d_head = self.directions.shape
        drawn = random_directions(n_features, d_head, generator, config.orthogonal, config.lengths == "equal")
        # not in place: the backward of an earlier pass may still want the old ones
        self.directions = drawn.to(self.directions)

    def _count(self, redraw: int) -> None:
        """Count a pass of training, and draw W anew where that is due."""
        passes = int(self.passes)
        if passes > 0 and passes % redraw == 0:
            self._draw(passes // redraw)
        self.passes += 1

    def parallel(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        if self.training and self.config.redraw is not None:
            self._count(self.config.redraw)
        return super().parallel(q, k, v, x, context, tape)

    def exponents(self, u: Tensor) -> Float[Tensor, "*lead pos feature"]:
        """Return W x' - x' . x' / 2 of queries or keys, in float32 at least."""
        u = u.to(torch.promote_types(u.dtype, torch.float32)) * self.dims.d_head**-0.25
        return u @ self.directions.to(u.dtype).mT - u.square().sum(-1, keepdim=True) / 2

    def phi(self, u: Tensor) -> Tensor:
        exponents = self.exponents(u)
        # the most that an exponent is, at x' = w
        most = self.directions.to(exponents.dtype).square().sum(-1).amax() / 2
        return (exponents + (LARGEST_EXPONENT - most)).exp()

    def of_queries(self, q: Tensor) -> Tensor:
        exponents = self.exponents(q)
        return (exponents - exponents.amax(-1, keepdim=True)).exp()


def random_directions(
    n_features: int, d_head: int, generator: torch.Generator, orthogonal: bool = True, equal: bool = False
) -> Float[Tensor, "feature d_head"]:
    """Return rows W whose features make the exponential's kernel, in float64 on the CPU.

    Args:
        n_features: How many rows.
        d_head: Their width.
        generator: Source of the draws.
        orthogonal: Whether rows are orthogonal in blocks of `d_head`; each by itself is normal all the same.
        equal: Whether orthogonal rows are all sqrt(d_head) long, not as long as normal ones.
    """

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu")

    if not orthogonal:
        return normal(n_features, d_head)
    blocks = []
    for _ in range(-(-n_features // d_head)):
        rotation, upper = qr(normal(d_head, d_head))
        # the factor's signs are a convention: without them, directions are not uniform
        blocks.append((rotation * upper.diagonal().sign()).mT)
    rows = torch.cat(blocks)[:n_features]
    return rows * (d_head**0.5 if equal else normal(n_features, d_head).norm(dim=-1, keepdim=True))
