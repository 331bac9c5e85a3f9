"""Blockwise attention: softmax attention tile by tile, exact, in memory that grows with the text and not its square.

    z_t = sum_s softmax_s(q_t . k_s * scale) v_s                  with a cap c, c tanh(score / c) stands for a score

computed a block of queries and a block of keys at a time (`kernels.tiles`): what a tile gives is merged into what
came before it by maximum, sum and mixed values, and the backward makes every tile anew. Tiles that mask or window hide
whole are left out. What comes out is softmax attention whatever the blocks.

It is the route to read, and the one that holds no pattern on any device, whatever a fused kernel knows: with a cap,
`Softmax` makes the pattern. Where there is a fused kernel for what is asked, `Softmax` goes by it and is quicker.

Pattern: exact, non-negative, rows sum to one; an all-zero row where nothing may be attended to.
State: keys and values of earlier positions, the last window - 1 of them if there is a window.
Cost: O(pos^2) time, with a window O(pos window); O(pos block) memory. Positions that add to scores or make them, and
queries that continue a state, take the pattern.
Source: Liu and Abbeel 2023, "Blockwise Parallel Transformer for Large Context Models", section 3, without its MLP,
which goes position by position here as anywhere; Rabe and Staats 2021; Dao et al. 2022.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.arguments import Count
from glassformer.attention.context import Causal, Context, Window
from glassformer.attention.kernels.blocked import window_of
from glassformer.attention.kernels.tiles import Tiles, tiled_softmax
from glassformer.attention.mechanisms.softmax import SoftmaxMixer
from glassformer.attention.mixer import Dims, Traits, per_query_head
from glassformer.attention.softmax_weights import SoftmaxWeights


@dataclass(frozen=True)
class Blockwise(SoftmaxWeights, kind="blockwise"):
    """Softmax attention in tiles.

    Args:
        window: Each query sees keys less than this many positions away; None for all.
        scale: Factor on the scores; 1 / sqrt(d_head) by default.
        cap: Largest size of q . k * scale, approached smoothly.
        sinks: One learned logit per head that takes part in the normaliser and has no value; its rows take the pattern.
        temperature: What else multiplies q . k * scale.
        query_block: Queries of a tile.
        key_block: Keys of a tile.
    """

    query_block: Count = 128
    key_block: Count = 128

    traits: ClassVar[Traits] = Traits(rows_sum_to_one=True, has_scores=True, bilinear_scores=True, by_products=True)
    variants = ({"query_block": 2, "key_block": 3}, {"query_block": 3, "key_block": 1, "window": 3, "cap": 0.5})

    def flops(self, n_queries: int, n_keys: int, dims: Dims, causal: bool = True) -> int:
        """Both products over all pairs, in a closed form: a text of many tiles is too long to walk.

        Tiles that are left out, as nothing in them is allowed, are counted all the same.
        """
        return self.all_pairs_flops(n_queries, n_keys, dims)


class BlockwiseMixer(SoftmaxMixer, config=Blockwise):
    config: Blockwise  # type: ignore[assignment]
    mixes_biased = mixes_continued = mixes_compiled = False

    @property
    def takes_parts(self) -> bool:
        return False

    @property
    def needs_scores(self) -> bool:
        return self.sinks is not None or (self.temperature is not None and self.temperature.reads_scores)

    def mixed(self, context: Context, q: Tensor, k: Tensor, v: Tensor) -> Float[Tensor, "batch head query d_value"]:
        return tiled_softmax(q, per_query_head(k, q), per_query_head(v, q), self._tiles(context))

    def _tiles(self, context: Context) -> Tiles:
        config, size = self.config, window_of(context, self.config.window)

        def allows(queries: slice, keys: slice) -> Tensor | bool | None:
            return _met(context, queries, keys, size)

        return Tiles(config.query_block, config.key_block, self.scale, config.cap, allows)


def _met(context: Context, queries: slice, keys: slice, size: int | None) -> Tensor | bool | None:
    """Return which pairs of a tile meet; None for all, False for none."""
    back = context.looks_back
    if back and keys.start >= queries.stop:
        return False
    if size is not None and (queries.start - keys.stop + 1 >= size or keys.start - queries.stop + 1 >= size):
        return False
    near = size is None or max(queries.stop - 1 - keys.start, keys.stop - 1 - queries.start) < size
    if (
        near
        and all(isinstance(term, (Causal, Window)) for term in context.mask.terms)
        and (not back or keys.stop - 1 <= queries.start)
    ):
        return None
    device = context.positions.device
    q, k = (torch.arange(places.start, places.stop, device=device) for places in (queries, keys))
    rows = torch.arange(context.mask.batch, device=device)[:, None, None]
    allowed = context.mask.allows(rows, q[:, None], k)
    return (allowed if size is None else allowed & ((q[:, None] - k).abs() < size))[:, None]
