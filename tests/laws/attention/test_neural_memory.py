"""Identities of neural long-term memories, of their chunks, and of the linear one's pattern."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, strategies as st
from torch import Tensor

from glassformer.attention import (
    Attention,
    Context,
    Convolved,
    Delta,
    LinearMemory,
    Merge,
    MixerConfig,
    NeuralMemory,
)
from glassformer.attention.kernels import neural_memory as kernel
from glassformer.attention.kernels.memory_grid import memory_grid
from glassformer.attention.kernels.neural_memory import (
    Activation,
    Gates,
    MemoryState,
    errors,
    linear_memory_reading,
    neural_memory,
    neural_memory_flops,
)
from glassformer.errors import AnalysisUnavailable, ConfigError
from glassformer.models.schedules import published_block
from glassformer.models.stack import make_context, tensors
from glassformer.testing import close
from glassformer.testing.largest import Largest
from glassformer.testing.layers import D_MODEL, Layer, causal_context, randomise, seeds, stream
from one_pass import in_one_pass

MEMORIES = [LinearMemory(chunk=3), LinearMemory(chunk=4, learned_start=True), NeuralMemory(chunk=3)]
SHUT = -1e4  # logarithm of what is as good as nothing
widths = st.sampled_from([(4, 3), (4, 5, 3), (4, 2, 3, 3)])
activations = st.sampled_from(["silu", "gelu"])
chunk_sizes, lengths = st.integers(1, 6), st.integers(1, 11)


def layer(mixer: MixerConfig, seed: int = 0, **kwargs: Any) -> Layer:
    config = Attention(2, d_head=4, mixer=mixer, **kwargs)
    return Layer(randomise(config.build(D_MODEL, 64, 0, "").double().eval(), seed))


def drawn(seed: int, n: int, sizes: Sequence[int] = (4, 3), batch: int = 2) -> list[Tensor]:
    """Return queries, unit keys, values, the three gates, weights that texts begin with, and a state's; with gradients."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    q, k, v = (normal(batch, 2, n, width) for width in (sizes[0], sizes[0], sizes[-1]))
    rate, momentum, forget = normal(3, batch, 2, n)
    gates = [rate.sigmoid() / 2, F.logsigmoid(momentum), F.logsigmoid(-forget)]
    pairs = list(zip(sizes, sizes[1:], strict=False))
    start = [normal(2, *pair) for pair in pairs]
    state = [normal(batch, 2, *pair) for _ in range(3) for pair in pairs]
    return [x.requires_grad_() for x in (q, F.normalize(k, dim=-1), v, *gates, *start, *state)]


def parted(inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor, Gates, list[Tensor], MemoryState]:
    q, k, v, *rest = inputs
    depth = (len(rest) - 3) // 4
    start, state = rest[3 : 3 + depth], rest[3 + depth :]
    return q, k, v, Gates(*rest[:3]), start, MemoryState(*(tuple(state[i * depth : (i + 1) * depth]) for i in range(3)))


def in_chunks(
    *inputs: Tensor, context: Context, size: int, how: Activation = "silu", real: Tensor | None = None
) -> list[Tensor]:
    q, k, v, gates, start, state = parted(inputs)
    if real is not None:
        gates = Gates(*(x * real[:, None] for x in gates))
    grid = memory_grid(context, q.shape[-2], len(q), size, real)
    z, surprise, state = neural_memory(q, k, v, gates, state, start, grid, how)
    z = z if real is None else z * real[:, None, :, None]
    return [z, surprise, *tensors(state)]


def read(x: Tensor, weights: Sequence[Tensor], how: Activation) -> Tensor:
    """Return M(x)."""
    for matrix in weights[:-1]:
        x = getattr(F, how)(x @ matrix)
    return x @ weights[-1]


def step_by_step(
    *inputs: Tensor, context: Context, size: int, how: Activation = "silu", real: Tensor | None = None
) -> list[Tensor]:
    """The definition: position by position, row by row, head by head, gradients by autograd."""
    q, k, v, gates, start, state = parted(inputs)
    n, rows, lengths, states = q.shape[-2], [], [], []
    positions = context.positions[:, -n:].expand(len(q), -1)
    for b, h in ((b, h) for b in range(len(q)) for h in range(2)):
        opened, weights, momentum = (tuple(x[b, h] for x in part) for part in state)
        for t in range(n):
            if real is not None and not real[b, t]:
                rows.append(torch.zeros_like(v[b, h, t]))
                lengths.append(torch.zeros((), dtype=v.dtype))
                continue
            if context.first is None and positions[b, t] == 0:
                weights, momentum = tuple(x[h] for x in start), tuple(torch.zeros_like(x[h]) for x in start)
            if positions[b, t] % size == 0:
                opened = weights
            # a sum of two terms that cancel: a leaf of its own for what may be a leaf already
            at = tuple(x + 0 for x in opened)
            loss = (read(k[b, h, t], at, how) - v[b, h, t]).square().sum()
            gradients = torch.autograd.grad(loss, at, create_graph=True)
            rate, fade, keep = gates.rate[b, h, t], gates.log_momentum[b, h, t].exp(), gates.log_keep[b, h, t].exp()
            momentum = tuple(fade * s - rate * g for s, g in zip(momentum, gradients, strict=True))
            weights = tuple(keep * w + s for w, s in zip(weights, momentum, strict=True))
            rows.append(read(q[b, h, t], weights, how))
            lengths.append(sum(g.detach().square().sum() for g in gradients).sqrt())  # type: ignore[union-attr]
        states.append((opened, weights, momentum))
    z, surprise = (torch.stack(x).unflatten(0, (len(q), 2, n)) for x in (rows, lengths))
    ends = [torch.stack(x).unflatten(0, (len(q), 2)) for part in zip(*states, strict=True) for x in zip(*part, strict=True)]
    return [z, surprise, *ends]


def with_gradients(function: Callable[..., list[Tensor]], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return what is read, surprise, the state, and gradients of all inputs: a state that goes on sends one back."""
    found = function(*inputs)
    weighted = sum((x * torch.sin(torch.arange(x.numel())).view_as(x)).sum() for x in found[:1] + found[2:])
    assert isinstance(weighted, Tensor)
    gradients = torch.autograd.grad(weighted, inputs, allow_unused=True)
    return [*found, *(torch.zeros_like(x) if g is None else g for g, x in zip(gradients, inputs, strict=True))]


def agree(inputs: Sequence[Tensor], off: float = 1e-9, **kwargs: Any) -> None:
    ours, slow = (with_gradients(partial(form, **kwargs), inputs) for form in (in_chunks, step_by_step))
    for found, expected in zip(ours, slow, strict=True):
        close(found, expected, off)


@given(seeds, widths, activations, lengths, chunk_sizes, st.integers(0, 7))
def test_chunks_equal_the_definition_and_have_its_gradients(
    seed: int, sizes: Sequence[int], how: Activation, n: int, size: int, past: int
) -> None:
    context = make_context(2, n, torch.device("cpu"), is_causal=True, past=past)
    agree(drawn(seed, n, sizes), context=context, size=size, how=how)


@given(seeds, widths, st.lists(st.lists(st.booleans(), min_size=9, max_size=9), min_size=2, max_size=2), chunk_sizes)
def test_a_document_begins_anew_and_has_chunks_of_its_own(
    seed: int, sizes: Sequence[int], begins: list[list[bool]], size: int
) -> None:
    ids = torch.tensor(begins).cumsum(-1)
    context = make_context(2, 9, torch.device("cpu"), is_causal=True, document_ids=ids)
    agree(drawn(seed, 9, sizes), context=context, size=size)


@given(seeds, widths, st.tuples(st.integers(0, 6), st.integers(0, 6)), st.integers(1, 6), chunk_sizes)
def test_rows_that_begin_in_different_places_have_chunks_of_their_own(
    seed: int, sizes: Sequence[int], padded: tuple[int, int], past: int, size: int
) -> None:
    """Padding on the left, some of it read before, some of it now."""
    n, start = 5, torch.tensor(padded)
    context = make_context(2, n, torch.device("cpu"), is_causal=True, past=past, start=start)
    real = context.real_keys(n, "")
    agree(drawn(seed, n, sizes), context=context, size=size, real=real)


@given(seeds, st.tuples(st.integers(0, 7), st.integers(0, 7)), st.integers(0, 4), chunk_sizes)
def test_padding_on_the_right_is_skipped(seed: int, real: tuple[int, int], past: int, size: int) -> None:
    context = make_context(
        2, 7, torch.device("cpu"), is_causal=True, past=past, lengths=past + torch.tensor(real)
    )
    inputs = drawn(seed, 7)
    ours, slow = (
        form(*inputs, context=context, size=size, real=context.real_keys(7, "")) for form in (in_chunks, step_by_step)
    )
    # the chunk that is open behind padding is nobody's
    depth = 1
    for found, expected in zip([ours[0], *ours[2 + depth :]], [slow[0], *slow[2 + depth :]], strict=True):
        close(found, expected, 1e-9)
