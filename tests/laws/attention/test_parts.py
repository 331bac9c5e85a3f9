"""One softmax over keys that come in parts: the kernel's route against all scores at once, and dual chunks by it."""

from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from glassformer.attention import (
    Additive,
    Attention,
    Differential,
    DualChunk,
    MixerConfig,
    NoPositions,
    Softmax,
    SumNormalised,
)
from glassformer.attention.kernels.parts import Part, by_all_scores, in_parts
from glassformer.testing import close
from glassformer.testing.largest import Largest
from glassformer.testing.layers import D_MODEL, Layer, causal_context, randomise, stream
from one_pass import in_one_pass

SCALE = 0.7


def at_once(parts: list[Part], blocks: int) -> Tensor:
    """All scores side by side, hidden where a part has other blocks, and one softmax."""
    scores, values = [], []
    for part in parts:
        own = part.query @ part.key.mT * SCALE
        allowed = torch.ones_like(own, dtype=torch.bool) if part.allowed is None else part.allowed.expand_as(own)
        allowed = allowed.tril() if part.causal else allowed
        here = own.new_full((blocks, *own.shape[1:]), float("-inf"))
        here[part.blocks] = own.masked_fill(~allowed, float("-inf"))
        value = own.new_zeros(blocks, *part.value.shape[1:])
        value[part.blocks] = part.value
        scores.append(here)
        values.append(value)
    whole = torch.cat(scores, -1)
    empty = (whole == float("-inf")).all(-1, keepdim=True)
    weights = whole.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)
    return weights @ torch.cat(values, -2)


@pytest.mark.parametrize("route", [in_parts, by_all_scores])
@given(st.integers(0, 2**16))
def test_parts_are_one_softmax(route: Any, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    allowed = torch.rand(3, 1, 4, 6, generator=generator) < 0.5
    allowed[0, 0, 1] = False
    parts = [
        Part(0, drawn(3, 2, 4, 5), drawn(3, 2, 6, 5), drawn(3, 2, 6, 3), allowed),
        Part(1, drawn(2, 2, 4, 5), drawn(2, 2, 7, 5), drawn(2, 2, 7, 3)),
        Part(2, drawn(1, 2, 4, 5), drawn(1, 2, 4, 5), drawn(1, 2, 4, 3), causal=True),
    ]
    inputs = [tensor for part in parts for tensor in part[1:4]]
    found, expected = route(parts, SCALE), at_once(parts, 3)
    close(found, expected)
    weights = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    for one, other in zip(*(torch.autograd.grad((z * weights).sum(), inputs) for z in (found, expected)), strict=True):
        close(one, other)


@pytest.mark.parametrize(
    ("mixer", "positions"),
    [(Softmax(), DualChunk(chunk=3, length=5)), (SumNormalised("relu"), NoPositions()), (Additive(), NoPositions())],
)
def test_written_backwards_have_a_derivative_themselves(mixer: MixerConfig, positions: Any) -> None:
    attention = layer(mixer, 1, positions)
    x = stream(1, 7).requires_grad_()
    found = []
    for tape in (None, attention.tape("pattern")):
        (slope,) = torch.autograd.grad(attention(x, tape=tape).pow(3).sum(), x, create_graph=True)
        found.append(torch.autograd.grad(slope.square().sum(), x)[0])
    close(*found)


def layer(mixer: MixerConfig, n_kv_heads: int, positions: Any) -> Layer:
    config = Attention(2, n_kv_heads, 4, mixer=mixer, positions=positions)
    return Layer(randomise(config.build(D_MODEL, 64, 0, "").double()))


@in_one_pass
@pytest.mark.parametrize("mixer", [Softmax(), Differential()])
@pytest.mark.parametrize("n", [1, 9, 10, 37])
@pytest.mark.parametrize("n_kv_heads", [1, 2])
def test_dual_chunks_go_by_the_kernel(mixer: MixerConfig, n: int, n_kv_heads: int) -> None:
    attention = layer(mixer, n_kv_heads, DualChunk(chunk=9, length=13))
    x = stream(2, n).requires_grad_()
    found = []
    for tape in (None, attention.tape("pattern")):
        out = attention(x, tape=tape)
        found.append([out, *torch.autograd.grad(out.pow(3).sum(), [x, *attention.module.parameters()])])
    for one, other in zip(*found, strict=True):
        close(one, other)


def test_dual_chunks_of_a_long_text_make_nothing_for_each_pair_of_positions() -> None:
    n = 4096
    x, attention = stream(1, n).float(), layer(Softmax(), 2, DualChunk(chunk=640, length=1024))
    attention.module.float()
    with Largest() as seen, torch.no_grad():
        attention(x, causal_context(x))
    assert seen.numbers < n * 640
