"""Relative position bias: a learned number per head for each range of distances, added to the scores.

    score[i, j] = q_i . k_j * scale + b[bucket(j - i), head]

The first half of the buckets holds one distance each; the others widen geometrically up to `max_distance`, and the last
holds everything beyond. Read both ways, the buckets are shared out between keys before and keys after the query.

Source: Raffel et al. 2020, "Exploring the Limits of Transfer Learning" (T5), section 2.1.
"""

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.attention.context import Context
from glassformer.attention.positions.positions import Positions, PositionsConfig
from glassformer.attention.shared import Shared
from glassformer.config import require


@dataclass(frozen=True)
class RelativeBias(PositionsConfig, kind="relative_bias"):
    """A learned bias per head and range of distances.

    Args:
        buckets: Ranges told apart, both directions together.
        max_distance: From here on all distances share the last bucket.
        bidirectional: Tell keys after the query from keys before it; without, keys after it count as at its place.
        shared: One table for all layers of a stack that have this config, stored with the first of them.

    Source: Raffel et al. 2020, section 2.1.
    """

    buckets: int = 32
    max_distance: int = 128
    bidirectional: bool = False
    shared: bool = True

    def __post_init__(self) -> None:
        least = 4 if self.bidirectional else 2
        require(
            self.buckets >= least and self.buckets % least == 0,
            f"relative_bias: buckets must be a multiple of {least}, found {self.buckets}.",
        )
        require(
            self.max_distance > self.one_way // 2,
            f"relative_bias: max_distance must be above {self.one_way // 2}, the distances with a bucket of their own; "
            f"found {self.max_distance}.",
        )

    @property
    def one_way(self) -> int:
        """Buckets of one direction."""
        return self.buckets // 2 if self.bidirectional else self.buckets

    def build(self, dims: Any) -> "RelativeBiasPositions":
        return RelativeBiasPositions(self, dims.n_heads)

    def starts(self) -> tuple[int, ...]:
        """Return the least distance of each bucket of one direction but the first, whose least is 0."""
        single = self.one_way // 2
        # in single precision: checkpoints were trained with the edges as it rounds them
        distance = torch.arange(single, self.max_distance + 1, device="cpu")
        ratio = (distance.float() / single).log() / math.log(self.max_distance / single)
        bucket = (single + (ratio * (self.one_way - single)).long()).clamp_max(self.one_way - 1)
        wide = torch.searchsorted(bucket, torch.arange(single, self.one_way, device="cpu"))
        return (*range(1, single), *(single + int(n) for n in wide))


class RelativeBiasPositions(Shared, Positions):
    has_bias = True
    bias_by_offset = True

    def __init__(self, config: RelativeBias, n_heads: int) -> None:
        super().__init__(config)
        self.n_heads = n_heads
        self.starts = config.starts()
        self.table: nn.Parameter | None = nn.Parameter(torch.zeros(config.buckets, n_heads))

    @property
    def shared_as(self) -> Hashable | None:
        return (self.key, self.n_heads) if self.config.shared else None

    def share(self, owner: Any) -> None:
        self.table = None
        super().share(owner)

    @property
    def weight(self) -> Float[Tensor, "bucket head"]:
        """The table, wherever it is stored."""
        return self.table if self.table is not None else self.owner.weight

    def bias(self, context: Context) -> Float[Tensor, "b head query key"]:
        key = f"buckets {self.key}"
        if key not in context.memo:
            offset = context.key_positions[:, None, :] - context.positions[:, :, None]
            context.memo[key] = self.bucket(offset)
        return F.embedding(context.memo[key], self.weight).movedim(-1, 1)

    def bucket(self, offset: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
        """Return the bucket of each offset: the key's position less the query's."""
        starts = torch.tensor(self.starts, device=offset.device)
        if not self.config.bidirectional:
            return torch.bucketize(-offset.clamp_max(0), starts, right=True)
        return torch.bucketize(offset.abs(), starts, right=True) + (offset > 0) * self.config.one_way
