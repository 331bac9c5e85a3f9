"""Blockwise attention is softmax attention, whatever the blocks, and holds no pattern."""

from typing import Any

import pytest
import torch

from glassformer.attention import Attention, Blockwise, Context, LogN, Mask, Softmax, causal, padding, window
from glassformer.testing import close
from glassformer.testing.largest import Largest
from glassformer.testing.layers import Layer, causal_context, randomise, stream

MASKS = {
    "causal": causal(),
    "everything": Mask(),
    "causal window": causal() & window(4),
    "window": window(3),
    "padding": causal() & padding(torch.tensor([5, 11])),
    "padding on the left": causal() & padding(torch.tensor([5, 11]), total=11, left=True),
    "either": causal() | window(2),
}


def layer(mixer: Blockwise | Softmax) -> Layer:
    return Layer(randomise(Attention(4, 2, 3, 2, mixer=mixer).build(12, 64, 0, "").double().eval()))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("blocks", [(1, 1), (2, 3), (5, 2), (4, 4), (16, 16)])
def test_blocks_of_any_size_give_softmax_attention_and_its_gradients(blocks: tuple[int, int], mask: str):
    several: list[dict[str, Any]] = [{}, {"cap": 0.5}, {"window": 3, "temperature": LogN(4)}]
    for settings in several:
        ours = layer(Blockwise(query_block=blocks[0], key_block=blocks[1], **settings))
        plain = layer(Softmax(**settings))
        plain.module.load_state_dict(ours.module.state_dict())
        x, places = stream(2, 11).requires_grad_(), torch.arange(11)[None]
        found = []
        for one in (ours, plain):
            out = one(x, Context(MASKS[mask], places, places))
            found.append((out, torch.autograd.grad((out * stream(2, 11, 3)).sum(), [x, *one.module.parameters()])))
        close(found[0][0], found[1][0])
        for own, other in zip(found[0][1], found[1][1], strict=True):
            close(own, other)


def test_tiles_that_a_window_hides_are_left_out():
    ours, met = layer(Blockwise(window=4, query_block=4, key_block=4)), []
    x = stream(1, 32)
    tiles = ours.mixer._tiles(ours.module.positions.within(causal_context(x)))
    for _, keys in tiles.of(32, 32):
        met.append(len(keys))
    assert met == [1] + [2] * 7


@pytest.mark.parametrize("settings", [{}, {"cap": 30.0}], ids=["plain", "capped"])
def test_no_tensor_is_as_large_as_all_pairs(settings: dict[str, Any]):
    n = 2048
    ours = layer(Blockwise(**settings))
    x = torch.randn(1, n, 12, dtype=torch.float64, requires_grad=True)
    with Largest() as seen:
        ours(x).sum().backward()
    assert seen.numbers <= 4 * n * 24
