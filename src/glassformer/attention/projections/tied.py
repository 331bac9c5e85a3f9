"""Queries and keys made with fewer than two matrices: one for both, or none, the stream itself cut into heads.

    key="query"                        k = x W_Q + b_Q        tied: q_i . k_j = x_i W_Q W_Q' x_j', the same for j and i
    query="identity", key="identity"   q = k = x              the raw stream: x_i . x_j in each head's share of it
    key="identity"                     q = x W_Q, k = x       x_i W_Q x_j', Luong's `general` score
    query="identity", key="own"        q = x, k = x W_K       the same from the other side
    value="identity"                   v = x                  what is mixed is the stream itself

Tied scores are symmetric until positions, a mask or gains that differ come in, and their form W_Q W_Q' has no negative
eigenvalue: no token is scored by itself below zero, and by Cauchy and Schwarz the larger of two self-scores is never
below the score between them. Tied to the identity, head h reads coordinates h d_head to (h + 1) d_head alone, so the
heads together are as wide as the stream; with one key head of the stream's width and key="identity", every query head
has a full matrix of its own. Values have their matrix in any case.

Shared query-key attention as in Reformer is key="query" with `QueryKeyNorm(gains="none", of="keys")`: keys are queries
of unit length. Left out is that a query may attend to itself only if it has nothing else, which is a matter of masks.

Source: Luong, Pham and Manning 2015, "Effective Approaches to Attention-based Neural Machine Translation", section 3.1,
for `general` and `dot`; Kitaev, Kaiser and Levskaya 2020, "Reformer", section 2, for shared query-key attention.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.attention.linear_map import IdentityMap, LinearMap, parameters_of
from glassformer.attention.mixer import Dims
from glassformer.attention.projections.separate import Separate, Widths
from glassformer.config import UNSAID, require


@dataclass(frozen=True)
class Tied(Separate, kind="tied"):
    """Queries and keys of one matrix, or of none; the fields of `Separate` mean what they mean there.

    A bias belongs to its matrix: tied keys have that of the queries, and what is read raw has none.

    Args:
        query: What makes queries: a matrix of their own, or none (`identity`).
        key: What makes keys: the matrix of the queries, whatever that is (`query`), one of their own, or none.
        value: What makes values: `identity` for no matrix; None for one of their own.
    """

    query: Literal["own", "identity"] = "own"
    key: Literal["query", "own", "identity"] = "query"
    value: Literal["identity"] | None = field(default=None, metadata={UNSAID: True})

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.query, self.key) == ("identity", "query"):
            # one config for one projection, however it was asked for
            object.__setattr__(self, "key", "identity")
        require(
            (self.query, self.key) != ("own", "own"),
            'tied: queries and keys with a matrix each are not tied; use "separate".',
        )
        require(
            not self.bias or {self.query, self.key, self.value} != {"identity"},
            "tied: a bias belongs to a matrix, and there is none; leave it out.",
        )

    @property
    def reads_coordinates(self) -> bool:
        return "identity" in (self.query, self.key, self.value)

    def free(self) -> Separate:
        return Separate(bias=True, qk_norm=self.qk_norm, clip=self.clip)

    def joined(self, dims: Dims, widths: Widths) -> "TiedMap":
        require(
            self.key != "query" or dims.n_heads == dims.n_kv_heads,
            f"tied: keys that are made as queries are come in as many heads; found n_heads={dims.n_heads}, "
            f"n_kv_heads={dims.n_kv_heads}. Leave n_kv_heads out.",
        )
        sides = (
            ("queries", self.query, "n_heads"), ("keys", self.key, "n_kv_heads"), ("values", self.value, "n_kv_heads"),
        )  # fmt: skip
        for (name, made, heads), width in zip(sides, widths):
            n = getattr(dims, heads)
            require(
                made != "identity" or width == dims.d_model,
                f"tied: {name} that are the stream cut into heads are together as wide as it is; found {heads}={n} of "
                f"{width // n} numbers each, d_model={dims.d_model}. Give d_head or {heads} such that it comes out "
                "even.",
            )
        return TiedMap(self, dims.d_model, widths)

    def multiplied(self, across: bool) -> tuple[bool, bool, bool]:
        # of one stream, tied keys are the queries, which have been made
        return self.query == "own", self.key == "own" or (self.key == "query" and across), self.value is None


class TiedMap(nn.Module):
    """W_Q, W_K and W_V as if they lay below each other, of which two may be one, and any the identity."""

    def __init__(self, config: Tied, d_model: int, widths: Widths) -> None:
        super().__init__()
        self.config, self.in_features, self.widths = config, d_model, widths
        self.query, self.key = (
            LinearMap(d_model, width, bias=config.bias) if made == "own" else None
            for made, width in zip((config.query, config.key), widths)
        )
        own = config.value is None
        self.value = LinearMap(d_model, widths[2], bias=config.bias) if own else IdentityMap(d_model)

    @property
    def maps(self) -> tuple[LinearMap | None, LinearMap | None, LinearMap | IdentityMap]:
        """The maps of queries, keys and values; None for the identity."""
        return self.query, self.query if self.config.key == "query" else self.key, self.value

    @property
    def reads(self) -> list[nn.Linear]:
        """The maps that read the stream, each once."""
        return [one for one in (self.query, self.key, self.value) if isinstance(one, LinearMap)]

    @property
    def weight(self) -> Float[Tensor, "rows d_model"]:
        """The three matrices, identities written out: for those who ask what heads read."""
        value = self.value.weight
        identity = torch.eye(self.in_features, dtype=value.dtype, device=value.device)
        return torch.cat([identity if one is None else one.weight for one in self.maps])

    @property
    def bias(self) -> Float[Tensor, " rows"] | None:
        """The three biases, zeros where there is no matrix; None if there are none at all."""
        if not self.config.bias:
            return None
        found = [None if one is None else one.bias for one in self.maps]
        return torch.cat([self.value.weight.new_zeros(self.in_features) if one is None else one for one in found])

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch rows"]:
        return self.part(x, 0, 3)

    def part(self, x: Float[Tensor, "*batch d_model"], first: int, last: int) -> Float[Tensor, "*batch d_out"]:
        """Return what the maps from the first up to before the last make of rows, side by side."""
        made: dict[LinearMap | IdentityMap | None, Tensor] = {}
        for one in self.maps[first:last]:
            if one not in made:
                made[one] = x if one is None else one(x)
        return torch.cat([made[one] for one in self.maps[first:last]], -1)

    def own_parameters(self) -> Iterator[tuple[str, int]]:
        """Yield (part, number), each parameter once."""
        for part, one in (("query", self.query), ("key", self.key), ("value", self.value)):
            yield from parameters_of(part, one)
