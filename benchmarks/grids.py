"""Attention layers over a grid, as they are published, beside the same width and heads with softmax."""

from collections.abc import Callable

import torch
from torch import Tensor

from glassformer.attention import Attention, AttentionLayer, Pola
from glassformer.models import BlockConfig, block, published_block, sana
from glassformer.models.stack import make_context

GRID, GRID_WIDTH, GRID_HEADS = (64, 64), 256, 8

# beside how many times faster than softmax each is meant to be, forward
OVER_GRIDS: dict[str, tuple[BlockConfig, float]] = {
    "SANA's attention": (sana(1, n_heads=GRID_HEADS, grid=GRID)[0], 5.0),
    "PolaFormer's attention": (published_block(Pola(), n_heads=GRID_HEADS, grid=GRID), 3.0),
}
SOFTMAX = block(n_heads=GRID_HEADS)


def over_grid(config: BlockConfig) -> Callable[[], Tensor]:
    """Return a forward pass of the attention layer of a block, over one grid of random numbers."""
    attention, places = config.parts[0], GRID[0] * GRID[1]
    assert isinstance(attention, Attention), "the first part of these blocks"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer: AttentionLayer = attention.build(GRID_WIDTH, places, 0, "").eval()
        x = torch.randn(1, places, GRID_WIDTH)
    return lambda: layer(x, make_context(1, places, x.device, is_causal=False))[0]
