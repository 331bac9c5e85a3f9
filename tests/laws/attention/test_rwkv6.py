"""Identities of RWKV-6's time mixing, and of the halves that its chunks are made of."""

from functools import partial
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, strategies as st
from torch import Tensor

from glassformer.attention import Attention, Lightning, Merge, NoPositions, Rwkv6, Shifted
from glassformer.attention.kernels import chunked
from glassformer.attention.kernels.channel_decay import (
    channel_decay_chunks,
    channel_decay_flops,
    channel_decay_pattern,
    power_of_two,
)
from glassformer.errors import ConfigError
from glassformer.models.schedules import published_block
from glassformer.testing import close
from glassformer.testing.largest import Largest
from glassformer.testing.layers import D_MODEL, Layer, causal_context, randomise, seeds, stream
from one_pass import in_one_pass

sizes, lengths = st.sampled_from([1, 2, 4, 8]), st.integers(1, 11)


def layer(mixer: Rwkv6 | None = None, seed: int = 0, **kwargs: Any) -> Layer:
    config = Attention(2, d_head=4, mixer=mixer or Rwkv6(rank=3), **kwargs)
    return Layer(randomise(config.build(D_MODEL, 64, 0, "").double().eval(), seed))


def drawn(seed: int, n: int) -> list[Tensor]:
    """Return what reads, keys, values, logarithms of what is kept, a bonus and a memory, with gradients."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((2, 2, n, 4), (2, 2, n, 4), (2, 2, n, 3), (2, 2, n, 4), (2, 4), (2, 2, 4, 3))
    found = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    found[3] = -found[3].exp()
    return [x.requires_grad_() for x in found]


def naive(
    r: Tensor, k: Tensor, v: Tensor, log_keep: Tensor, bonus: Tensor, memory: Tensor, documents: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The recurrence as it stands, position by position; none across documents."""
    rows = []
    for t in range(r.shape[-2]):
        if documents is not None:
            memory = memory * (documents[:, t] == documents[:, t + 1])[:, None, None, None]
        write = k[..., t, :, None] * v[..., t, None, :]
        rows.append((r[..., t, :, None] * (memory + bonus[..., None] * write)).sum(-2))
        memory = log_keep[..., t, :, None].exp() * memory + write
    return torch.stack(rows, -2), memory


def with_gradients(function: Any, inputs: list[Tensor]) -> list[Tensor]:
    z, last = function(*inputs)
    weighted = (z * torch.sin(torch.arange(z.numel())).view_as(z)).sum() + (last * last.detach().cos()).sum()
    return [z, last, *torch.autograd.grad(weighted, inputs)]


def agree(ours: Any, theirs: Any, inputs: list[Tensor], off: float = 1e-10) -> None:
    for found, expected in zip(with_gradients(ours, inputs), with_gradients(theirs, inputs), strict=True):
        close(found, expected, off)


@given(seeds, lengths, sizes)
def test_chunks_of_any_size_equal_the_recurrence_and_have_its_gradients(seed: int, n: int, size: int) -> None:
    agree(partial(channel_decay_chunks, size=size), naive, drawn(seed, n))


@given(seeds, st.lists(st.lists(st.booleans(), min_size=8, max_size=8), min_size=2, max_size=2), sizes)
def test_a_document_knows_nothing_of_the_one_before(seed: int, begins: list[list[bool]], size: int) -> None:
    """Wherever documents begin: inside a chunk, at its edges, several in one, and before the first position."""
    documents = torch.tensor(begins).cumsum(-1)
    ours = partial(channel_decay_chunks, size=size, documents=documents)
    agree(ours, partial(naive, documents=documents), drawn(seed, 7))


@pytest.mark.parametrize(("n", "size"), [(16, 4), (23, 4)])
def test_a_long_text_goes_span_by_span_and_sends_gradients_back(
    monkeypatch: pytest.MonkeyPatch, n: int, size: int
) -> None:
    documents = (torch.arange(n + 1) // 5)[None]
    monkeypatch.setattr(chunked, "SPAN", 8)
    ours = partial(channel_decay_chunks, size=size, documents=documents)
    agree(ours, partial(naive, documents=documents), drawn(0, n))


@given(seeds, st.integers(1, 9))
def test_a_memory_carries_everything_across_a_split(seed: int, cut: int) -> None:
    *rows, bonus, memory = drawn(seed, 10)
    mix = partial(channel_decay_chunks, bonus=bonus, size=4)
    first, middle = mix(*(x[:, :, :cut] for x in rows), memory=memory)
    second, last = mix(*(x[:, :, cut:] for x in rows), memory=middle)
    z, expected = mix(*rows, memory=memory)
    close(torch.cat((first, second), -2), z)
    close(last, expected)


@given(seeds, lengths)
def test_the_pattern_is_a_product_of_decays_between_two_positions_and_the_bonus_on_its_diagonal(
    seed: int, n: int
) -> None:
    r, k, _, log_keep, bonus, _ = (x.detach() for x in drawn(seed, n))
    expected = torch.zeros(2, 2, n, n, dtype=torch.float64)
    for i in range(n):
        expected[..., i, i] = (r[..., i, :] * bonus * k[..., i, :]).sum(-1)
        for j in range(i):
            kept = log_keep[..., j + 1 : i, :].exp().prod(-2)
            expected[..., i, j] = (r[..., i, :] * k[..., j, :] * kept).sum(-1)
    close(channel_decay_pattern(r, k, log_keep, bonus), expected, 1e-12)


def test_channels_that_forget_at_once_neither_overflow_nor_hide_what_comes_after() -> None:
    """A quotient of running products would be 0 / 0 behind them; beside them stand channels that keep much."""
    r, k, v, log_keep, bonus, memory = (x.detach().float() for x in drawn(0, 200))
    log_keep[..., :2] = -1e4
    log_keep[..., 2] = -1e-3
    log_keep[..., 70, :] = -200.0
    log_keep.requires_grad_()
    z, last = channel_decay_chunks(r, k, v, log_keep, bonus, memory)
    expected, held = naive(*(x.double() for x in (r, k, v, log_keep, bonus, memory)))
    close(z.double(), expected, 1e-5)
    close(last.double(), held, 1e-5)
    assert torch.autograd.grad(z.sum(), log_keep)[0].isfinite().all()


@given(seeds)
def test_without_decay_and_with_a_bonus_of_one_it_is_linear_attention(seed: int) -> None:
    r, k, _, log_keep, bonus, _ = drawn(seed, 9)
    found = channel_decay_pattern(r, k, torch.zeros_like(log_keep), torch.ones_like(bonus))
    close(found, (r @ k.mT).tril())


@given(seeds)
def test_one_decay_for_all_channels_and_positions_is_lightning_a_position_behind(seed: int) -> None:
    """A position reads before its own decay: with a bonus of one over the decay, all is lightning over the decay."""
    config = Attention(2, d_head=4, mixer=Lightning((0.3, 0.3), activation="none"))
    other = Layer(randomise(config.build(D_MODEL, 64, 0, "").double().eval(), seed))
    x = stream(2, 7, seed)
    read = other.read(x, "query", "key", "pattern")
    rate, bonus = torch.full_like(read["query"], -0.3), torch.full((2, 4), 0.3, dtype=torch.float64).exp()
    found = channel_decay_pattern(read["query"], read["key"], rate, bonus)
    close(found * torch.tensor(-0.3, dtype=torch.float64).exp(), read["pattern"])


@pytest.mark.full
def test_the_gradients_of_chunks_pass_finite_differences_twice() -> None:
    inputs = drawn(0, 5)
    assert torch.autograd.gradcheck(partial(channel_decay_chunks, size=2), inputs)
    assert torch.autograd.gradgradcheck(partial(channel_decay_chunks, size=2), inputs, fast_mode=True)


@in_one_pass
@pytest.mark.parametrize("n_kv_heads", [1, 2])
def test_a_layer_is_the_recurrence_of_its_own_decays(n_kv_heads: int) -> None:
    attention, x = layer(n_kv_heads=n_kv_heads), stream(2, 40)
    read, mixer = attention.read(x, "query", "key", "value", "log_decay", "z"), attention.mixer
    rate = (x @ mixer.narrow.weight.T).tanh() @ mixer.widen.weight.T + mixer.rate.flatten()
    close(read["log_decay"], -rate.exp().unflatten(-1, (2, 4)).transpose(1, 2))
    k, v = (read[name].expand(-1, 2, -1, -1) for name in ("key", "value"))
    memory = torch.zeros(2, 2, 4, 4, dtype=torch.float64)
    close(read["z"], naive(read["query"], k, v, read["log_decay"], mixer.bonus, memory)[0], 1e-10)


def test_the_published_layer_shifts_all_it_reads_and_norms_groups() -> None:
    """The paper's layer in its own words: shares of the position before, GroupNorm without a bias, silu."""
    published: Any = published_block(Rwkv6(rank=3), n_heads=2, d_head=4).parts[0]
    assert published.departures(0) == [] and Attention(2, mixer=Rwkv6()).departures(0) != []
    attention = Layer(randomise(published.build(D_MODEL, 64, 0, "").double().eval()))
    x, module = stream(2, 9), attention.module
    projection, merge, mixer = module.projection, cast(Any, module.merge), attention.mixer
    shift = projection.shift
    before = F.pad(x, (0, 0, 1, -1))

    def lerped(reader: str) -> Tensor:
        i = shift.readers.index(reader)
        low = ((x + (before - x) * (1 - shift.base)) @ shift.narrow[i]).tanh() @ -shift.widen[i]
        return x + (before - x) * (1 - shift.share[i] + low)

    r, k, v = (
        (lerped(name) @ matrix.T).unflatten(-1, (2, 4)).transpose(1, 2)
        for name, matrix in zip(("query", "key", "value"), projection.qkv.weight.split(8))
    )
    d = (lerped("mix") @ mixer.narrow.weight.T).tanh() @ mixer.widen.weight.T + mixer.rate.flatten()
    log_keep = -d.exp().unflatten(-1, (2, 4)).transpose(1, 2)
    z, _ = naive(r, k, v, log_keep, mixer.bonus, torch.zeros(2, 2, 4, 4, dtype=torch.float64))
    flat = z.transpose(1, 2).flatten(0, 1).flatten(1)
    normed = F.group_norm(flat, 2, weight=merge.gain.repeat(2), eps=64e-5).view(2, 9, 8)
    close(attention(x), (F.silu(lerped("gate") @ merge.gate.weight.T) * normed) @ merge.output.weight.T)


def test_a_gate_that_is_to_be_shifted_has_to_be_there_and_positions_may_not_be_added_to_what_is() -> None:
    with pytest.raises(ConfigError, match="mixes what opens a gate"):
        Attention(2, projection=Shifted(gate=True))
    assert Attention(2, projection=Shifted(gate=True), merge=Merge(gate="silu")).positions == NoPositions()


def test_decays_and_bonus_begin_as_the_paper_has_them_halfway_up() -> None:
    mixer: Any = Attention(2, mixer=Rwkv6()).build(8, 8, 0, "").mixer
    rate = mixer.rate.detach().flatten()
    close(rate, -6 + 5 * (torch.arange(8) / 7) ** 1.35, 1e-6)
    assert rate.diff().min() > 0 and rate.min() == -6 and rate.max() == -1
    assert mixer.bonus.detach().flatten().tolist()[:2] == pytest.approx([0.5, 3 / 7 + 0.1])


@in_one_pass
@pytest.mark.parametrize("chunk", [1, 2, 8])
def test_the_chunk_length_changes_nothing_and_is_a_power_of_two(chunk: int) -> None:
    x = stream(2, 40)
    close(layer(Rwkv6(rank=3, chunk=chunk))(x), layer()(x))
    with pytest.raises(ConfigError, match="chunk=12 is halved"):
        Rwkv6(chunk=12)
    assert [power_of_two(n) for n in (1, 2, 3, 4, 5, 32, 33)] == [1, 2, 4, 4, 8, 32, 64]


def test_the_state_is_one_matrix_a_head_in_float32_and_one_row_however_long_the_text() -> None:
    mixer = Rwkv6(rank=3)
    module: Any = layer(mixer, projection=Shifted()).module.bfloat16()
    for n in (1, 9):
        x = stream(1, n).bfloat16()
        _, state = module(x, causal_context(x), state=module.begin(1, x))
        assert state.mixer.memory.shape == (1, 2, 4, 4) and state.mixer.memory.dtype == torch.float32
        assert torch.equal(state.projection.read, x[:, -1:])
        assert mixer.state_numbers(n, module.dims) == 32 and module.projection.state_numbers(n, 0) == D_MODEL


@in_one_pass
@pytest.mark.parametrize("documents", [False, True])
def test_a_long_text_makes_nothing_for_each_pair_of_positions(documents: bool) -> None:
    n = 2048
    attention = Layer(Attention(1, 1, 4, mixer=Rwkv6(rank=3)).build(D_MODEL, 64, 0, "").float())
    x = stream(1, n).float().requires_grad_()
    ids = torch.arange(n)[None] // 300 if documents else None
    with Largest() as seen:
        attention(x, causal_context(x, document_ids=ids)).sum().backward()
    assert seen.numbers <= n * 32


def test_operations_grow_with_length_and_are_those_of_the_products() -> None:
    assert channel_decay_flops(64_000, 64, 64, 32) == 2000 * channel_decay_flops(32, 64, 64, 32)
    # reading the memory and writing to it: two each for a number of it
    assert channel_decay_flops(1, 64, 32) == 2 * 2 * 64 * 32
    # of one chunk of eight: halves of four once, of two twice; weights with values; two with the memory
    assert channel_decay_flops(8, 6, 4, 8) == (4 * 4 + 2 * 2 * 2) * 2 * 6 + 2 * 8 * 8 * 4 + 4 * 8 * 6 * 4
