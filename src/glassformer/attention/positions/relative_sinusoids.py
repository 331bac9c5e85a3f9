"""Relative sinusoids: what a score gains by distance is asked of the distance's own vector, by query and by head.

    score[i, j] = (q_i + u) . k_j + (q_i + v) . r[i - j],      r[n] = sinusoids(n) W_R

u and v belong to a head; the four products say what a key holds, how far away it is, which keys and which distances a
head prefers whoever asks. Queries come scaled, so u and v are those of the paper divided by sqrt(d_head). Sinusoids are
all sines before all cosines. For causal texts: no key comes after its query.

Source: Dai et al. 2019, "Transformer-XL: Attentive Language Models Beyond a Fixed-Length Context" (1901.02860),
section 3.3, with the layout of the released code.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.arguments import Count
from glassformer.attention.context import Context
from glassformer.attention.linear_map import LinearMap, linear
from glassformer.attention.positions.positions import Positions, PositionsConfig
from glassformer.attention.positions.query_key_only import sinusoids
from glassformer.attention.shared import Shared
from glassformer.errors import AnalysisUnavailable


@dataclass(frozen=True)
class RelativeSinusoids(PositionsConfig, kind="relative_sinusoids"):
    """Distances as vectors that queries meet, for causal self-attention.

    Args:
        furthest: Distances beyond count as this far; None for no limit.
        shared: One u and v for all layers of a stack that have this config, stored with the first of them; W_R is each
            layer's own.
    """

    furthest: Count | None = None
    shared: bool = True

    crosses: ClassVar[bool] = False

    def build(self, dims: Any) -> "RelativeSinusoidsPositions":
        return RelativeSinusoidsPositions(self, dims)


class RelativeSinusoidsPositions(Shared, Positions):
    has_scores = True

    def __init__(self, config: RelativeSinusoids, dims: Any) -> None:
        super().__init__(config)
        self.d_model, self.sizes = dims.d_model, (dims.n_heads, dims.d_head)
        self.distance = LinearMap(dims.d_model, dims.n_heads * dims.d_head, bias=False)
        # of keys, u, and of distances, v
        self.preferred: nn.Parameter | None = nn.Parameter(torch.randn(2, *self.sizes) * 0.02 * dims.d_head**-0.5)

    @property
    def shared_as(self) -> Hashable | None:
        return (self.key, self.sizes) if self.config.shared else None

    def share(self, owner: Any) -> None:
        self.preferred = None
        super().share(owner)

    @property
    def weight(self) -> Float[Tensor, "two head d_head"]:
        """u and v, wherever they are stored."""
        return self.preferred if self.preferred is not None else self.owner.weight

    def scores(
        self,
        score: Callable[[Tensor, Tensor], Tensor],
        q: Float[Tensor, "batch *stream head query d_head"],
        k: Float[Tensor, "batch *stream head key d_head"],
        context: Context,
    ) -> Float[Tensor, "batch *stream head query key"]:
        if not context.looks_back:
            raise AnalysisUnavailable(
                '"relative_sinusoids" positions are for causal self-attention; use "rope", "alibi" or "relative_bias" '
                "here."
            )
        of_keys, of_distances = self.weight[:, :, None]
        content = score(q + of_keys, k)
        # keys that come after are hidden by the mask
        apart = (context.positions[:, :, None] - context.key_positions[:, None, -k.shape[-2] :]).clamp_min(0)
        last = self._last(context)
        by_distance = (q + of_distances) @ self.vectors(last + 1, q, context).mT
        for _ in range(q.ndim - 3):
            apart = apart.unsqueeze(1)
        return content + by_distance.gather(-1, apart.clamp_max(last).expand(content.shape))

    def vectors(self, n: int, like: Tensor, context: Context) -> Float[Tensor, "head distance d_head"]:
        """Return r of the first so many distances."""
        key = (self.d_model, n, like.dtype, "distances")
        if key not in context.memo:
            context.memo[key] = sinusoids(torch.arange(n, device=like.device), self.d_model, "halves").to(like.dtype)
        # in the type of queries, which mechanisms may have widened
        made = linear(context.memo[key], self.distance.weight.to(like.dtype))
        return made.unflatten(-1, self.sizes).transpose(0, 1)

    def _last(self, context: Context) -> int:
        """Return the largest distance that is told from those beyond."""
        if context.first is not None:
            # counted without a look at the tensor, which may lie on another device
            last = context.first + context.positions.shape[-1] - 1
        else:
            last = int(context.positions.max())
        return last if self.config.furthest is None else min(last, self.config.furthest)

    def extra_flops(self, n_queries: int, n_keys: int, dims: Any, in_parts: bool) -> int:
        n = n_keys if self.config.furthest is None else min(n_keys, self.config.furthest + 1)
        return 2 * n * dims.n_heads * dims.d_head * (n_queries + dims.d_model)
