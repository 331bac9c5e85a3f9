"""Identities of neural long-term memories, of their chunks, and of the linear one's pattern."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, strategies as st
from torch import Tensor

import glassformer as gf
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
from glassformer.attention.kernels.chunk_layout import chunk_layout
from glassformer.attention.kernels.neural_memory import (
    Activation,
    Gates,
    MemoryState,
    errors,
    linear_memory_reading,
    neural_memory,
    neural_memory_flops,
)
from glassformer.errors import AnalysisUnavailable, ConfigError, NoPattern
from glassformer.models import DecoderConfig, block
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
    """Return queries, unit keys, values, three gates, weights that texts begin with, and a state; with gradients."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    q, k, v = (normal(batch, 2, n, width) for width in (sizes[0], sizes[0], sizes[-1]))
    rate, momentum, forget = normal(3, batch, 2, n)
    gates = [rate.sigmoid() / 2, F.logsigmoid(momentum), F.logsigmoid(-forget)]
    pairs = list(pairwise(sizes))
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
    layout = chunk_layout(context, q.shape[-2], len(q), size, real)
    z, surprise, state = neural_memory(q, k, v, gates, state, start, layout, how)
    assert surprise is not None
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
            at = tuple((x + 0).requires_grad_() for x in opened)
            loss = (read(k[b, h, t], at, how) - v[b, h, t]).square().sum()
            gradients = torch.autograd.grad(loss, at, create_graph=True)
            rate, fade, keep = gates.rate[b, h, t], gates.log_momentum[b, h, t].exp(), gates.log_keep[b, h, t].exp()
            momentum = tuple(fade * s - rate * g for s, g in zip(momentum, gradients, strict=True))
            weights = tuple(keep * w + s for w, s in zip(weights, momentum, strict=True))
            rows.append(read(q[b, h, t], weights, how))
            lengths.append(sum(g.detach().square().sum() for g in gradients).sqrt())  # type: ignore[union-attr]
        states.append((opened, weights, momentum))
    z, surprise = (torch.stack(x).unflatten(0, (len(q), 2, n)) for x in (rows, lengths))
    ends = [
        torch.stack(x).unflatten(0, (len(q), 2)) for part in zip(*states, strict=True) for x in zip(*part, strict=True)
    ]
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
    context = make_context(2, 7, torch.device("cpu"), is_causal=True, past=past, lengths=past + torch.tensor(real))
    inputs = drawn(seed, 7)
    ours, slow = (
        form(*inputs, context=context, size=size, real=context.real_keys(7, "")) for form in (in_chunks, step_by_step)
    )
    # the chunk that is open behind padding is nobody's
    depth = 1
    for found, expected in zip([ours[0], *ours[2 + depth :]], [slow[0], *slow[2 + depth :]], strict=True):
        close(found, expected, 1e-9)


@given(seeds, widths, st.integers(1, 8), chunk_sizes)
def test_a_state_carries_everything_across_a_split(seed: int, sizes: Sequence[int], cut: int, size: int) -> None:
    *rows, gates, start, state = parted(drawn(seed, 9, sizes))
    rows = [*rows, *gates]

    def read_from(first: int, last: int, before: MemoryState) -> tuple[Tensor, Tensor | None, MemoryState]:
        q, k, v, *some = (x[:, :, first:last] for x in rows)
        context = make_context(2, last - first, q.device, is_causal=True, past=first)
        layout = chunk_layout(context, last - first, 2, size, None)
        return neural_memory(q, k, v, Gates(*some), before, start, layout)

    whole, first = read_from(0, 9, state), read_from(0, cut, state)
    second = read_from(cut, 9, first[2])
    close(torch.cat((first[0], second[0]), -2), whole[0])
    for found, expected in zip(tensors(second[2]), tensors(whole[2]), strict=True):
        close(found, expected)


def test_a_state_keeps_nothing_alive_but_the_numbers_it_holds() -> None:
    q, k, v, gates, start, before = parted([x.detach() for x in drawn(0, 9)])
    context = make_context(2, 9, q.device, is_causal=True)
    # the last chunk is open: it began with weights that momentum of then lies beside
    held = tensors(neural_memory(q, k, v, gates, before, start, chunk_layout(context, 9, 2, 4, None))[2])
    kept = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in held}
    assert sum(kept.values()) == sum(x.numel() * x.element_size() for x in held)


@given(seeds, widths, activations)
def test_errors_make_the_gradient_that_autograd_finds(seed: int, sizes: Sequence[int], how: Activation) -> None:
    _, k, v, _, _, state = parted(drawn(seed, 5, sizes))
    k, v, *weights = (x.flatten(0, 1) for x in (k, v, *state.weights))
    loss = (read(k, weights, how) - v).square().sum()
    for x, d, expected in zip(*errors(k, v, weights, how), torch.autograd.grad(loss, weights), strict=True):
        close(2 * x.mT @ d, expected)


def of_constant_gates(n: int, size: int, *, rate: float, momentum: float, keep: float) -> tuple[list[Tensor], Tensor]:
    """Return queries, keys and values, and what an empty linear memory reads under gates that are all alike."""
    q, k, v, *_ = drawn(0, n)
    gates = Gates(*(torch.full((2, 2, n), gate, dtype=torch.float64) for gate in (rate, momentum, keep)))
    return [q, k, v], linear_memory_reading(q, k, gates, torch.arange(n)[None], size).pattern @ v


def test_one_chunk_without_momentum_or_forgetting_is_linear_attention_without_a_normaliser() -> None:
    (q, k, v), found = of_constant_gates(7, 7, rate=0.5, momentum=SHUT, keep=0.0)
    close(found, (q @ k.mT).tril() @ v)
    # and with forgetting the same, fading
    (q, k, v), found = of_constant_gates(7, 7, rate=0.5, momentum=SHUT, keep=-0.3)
    distance = (torch.arange(7)[:, None] - torch.arange(7)).double()
    close(found, ((q @ k.mT) * (-0.3 * distance).exp()).tril() @ v)


def test_chunks_of_one_without_momentum_or_forgetting_are_the_delta_rule() -> None:
    memory, delta = layer(LinearMemory(chunk=1, rate=0.5)), layer(Delta())
    delta.module.load_state_dict(memory.module.state_dict(), strict=False)
    with torch.no_grad():
        # beta is twice theta
        delta.mixer.write.weight.copy_(memory.mixer.gates.weight[:2])
        memory.mixer.gate_bias.copy_(torch.tensor([[0.0], [SHUT], [SHUT]]).expand(-1, 2))
        memory.mixer.gates.weight[2:].zero_()
    x = stream(2, 9)
    # queries of the delta rule are divided by the root of their width
    close(memory.read(x, "z")["z"], 2 * delta.read(x, "z")["z"])


def test_without_steps_and_forgetting_a_memory_stays_and_with_all_forgotten_it_is_the_momentum() -> None:
    *rows, gates, start, state = parted(drawn(0, 8, (4, 5, 3)))
    layout = chunk_layout(make_context(2, 8, torch.device("cpu"), is_causal=True, past=1), 8, 2, 3, None)
    still = Gates(torch.zeros_like(gates.rate), torch.full_like(gates.rate, SHUT), torch.zeros_like(gates.rate))
    z, _, after = neural_memory(*rows, still, state, start, layout)  # type: ignore[call-arg]
    close(z, read(rows[0], state.weights, "silu"))
    for found, expected in zip(after.weights, state.weights, strict=True):
        close(found, expected)
    wiped = gates._replace(log_keep=torch.full_like(gates.rate, SHUT))
    after = neural_memory(*rows, wiped, state, start, layout)[2]  # type: ignore[call-arg]
    for found, expected in zip(after.weights, after.momentum, strict=True):
        close(found, expected)


def test_other_chunks_are_other_models() -> None:
    x = stream(1, 9)
    for cls in (LinearMemory, NeuralMemory):
        found = [layer(cls(chunk=size, rate=0.3))(x) for size in (1, 2, 9, 12)]
        assert all((a - b).abs().max() > 1e-3 for a, b in pairwise(found[:3]))
        close(found[2], found[3])


@in_one_pass
@pytest.mark.parametrize("mixer", MEMORIES, ids=str)
@pytest.mark.parametrize("convolved", [False, True])
def test_no_output_has_a_gradient_of_any_later_token(mixer: MixerConfig, convolved: bool) -> None:
    """Of the layer, and of the layer of the paper: exactly zero, as gradients of a chunk are taken where it begins."""
    slots: Any = mixer.as_published() if convolved else {"mixer": mixer}
    config = Attention(2, d_head=4, **slots)
    attention = Layer(randomise(config.build(D_MODEL, 64, 0, "").double().eval()))
    x = stream(1, 8).requires_grad_()
    out = attention(x)
    for t in range(7):
        (gradient,) = torch.autograd.grad(out[0, t].square().sum(), x, retain_graph=True)
        assert (gradient[0, t + 1 :] == 0).all() and (gradient[0, : t + 1] != 0).any(-1).all()


@given(seeds, st.integers(1, 9), chunk_sizes)
def test_a_linear_memory_with_a_learned_start_reads_a_pattern_of_values_and_an_offset(
    seed: int, n: int, size: int
) -> None:
    attention, x = layer(LinearMemory(chunk=size, learned_start=True), seed), stream(2, n)
    fast = attention.read(x, "value", "surprise", "z")
    dense = attention.read(x, "pattern", "surprise", "z")
    zero = attention.tape("z", edit=[("value", torch.zeros_like)])
    attention(x, tape=zero)
    close(dense["pattern"] @ fast["value"] + zero.values["z"], fast["z"], 1e-9)
    close(dense["z"], fast["z"], 1e-9)
    close(dense["surprise"], fast["surprise"], 1e-9)
    assert zero.values["z"].abs().max() > 0 and attention.module.traits.linear_in_value == "affine"


@in_one_pass
@pytest.mark.parametrize("mixer", [LinearMemory(chunk=3), NeuralMemory(chunk=3)], ids=str)
def test_a_layer_is_the_definition_by_its_own_gates(mixer: Any) -> None:
    attention, x = layer(mixer, n_kv_heads=1), stream(2, 8)
    names = ("rate", "log_momentum", "log_decay")
    found = attention.read(x, "query", "key", "value", "surprise", "z", *names)
    logits = (x @ attention.mixer.gates.weight.T).mT.unflatten(1, (3, 2)) + attention.mixer.gate_bias[..., None]
    close(found["rate"], logits[:, 0].sigmoid() / 3)
    close(found["log_momentum"].exp(), logits[:, 1].sigmoid())
    close(1 - found["log_decay"].exp(), logits[:, 2].sigmoid())
    q, k = (u / (u.square().sum(-1, keepdim=True) + 1e-6).sqrt() for u in (found["query"], found["key"]))
    k, v = (u.expand(-1, 2, -1, -1) for u in (k, found["value"]))
    start = list(attention.mixer.start(v, 4))
    state = [w.expand(2, *w.shape) * share for share in (1, 1, 0) for w in start]
    slow = step_by_step(q, k, v, *(found[name] for name in names), *start, *state, context=causal_context(x), size=3)
    close(found["z"], slow[0], 1e-9)
    close(found["surprise"], slow[1], 1e-9)


def test_surprise_falls_as_a_pair_comes_again_and_rises_with_another_value() -> None:
    """Of a linear memory with a step that writes whole values, by chunks of one."""
    k = F.normalize(torch.ones(1, 1, 5, 4, dtype=torch.float64), dim=-1)
    v = torch.ones(1, 1, 5, 3, dtype=torch.float64)
    v[:, :, 3] = -1
    gates = Gates(torch.full((1, 1, 5), 0.5), *torch.tensor([SHUT, 0.0]).double().view(2, 1, 1, 1).expand(-1, 1, 1, 5))
    empty = torch.zeros(1, 1, 4, 3, dtype=torch.float64)
    layout = chunk_layout(make_context(1, 5, k.device, is_causal=True), 5, 1, 1, None)
    surprise = neural_memory(k, k, v, gates, MemoryState((empty,), (empty,), (empty,)), [empty[0]], layout)[1]
    assert surprise is not None
    close(surprise[0, 0], 2 * 3**0.5 * torch.tensor([1.0, 0, 0, 2, 2], dtype=torch.float64))


def test_surprise_is_measured_and_cannot_be_edited() -> None:
    attention = layer(LinearMemory())
    with pytest.raises(AnalysisUnavailable, match=r"surprise.*edit rate"):
        attention.tape("z", edit=[("surprise", torch.zeros_like)])
    x = stream(1, 6)
    tape = attention.tape("z", edit=[("rate", torch.zeros_like)])
    attention(x, tape=tape)
    assert (tape.values["z"] == 0).all()


@in_one_pass
@pytest.mark.parametrize("mixer", [LinearMemory(), NeuralMemory()], ids=str)
def test_the_state_is_three_times_the_memory_in_float32_however_long_the_text(mixer: Any) -> None:
    module = layer(mixer).module.bfloat16()
    numbers = 3 * 2 * (16 if isinstance(mixer, LinearMemory) else 2 * 4 * 8)
    for n in (1, 40):
        x = stream(1, n).bfloat16()
        _, state = module(x, causal_context(x), state=module.begin(1, x))
        held = tensors(state.mixer)
        assert sum(part.numel() for part in held) == mixer.state_numbers(n, module.dims) == numbers
        assert all(part.dtype == torch.float32 for part in held)


@in_one_pass
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("mixer", [LinearMemory(), NeuralMemory()], ids=str)
def test_a_long_text_makes_nothing_for_each_pair_of_positions(mixer: MixerConfig, documents: bool) -> None:
    n = 2048
    attention = Layer(Attention(1, 1, 4, mixer=mixer).build(D_MODEL, 64, 0, "").float())
    x = stream(1, n).float().requires_grad_()
    ids = torch.arange(n)[None] // 300 if documents else None
    with Largest() as seen:
        attention(x, causal_context(x, document_ids=ids)).sum().backward()
    assert seen.numbers <= n * 48


def test_long_texts_go_span_by_span(monkeypatch: pytest.MonkeyPatch) -> None:
    x = stream(2, 23)
    for mixer in MEMORIES:
        whole = layer(mixer)(x)
        with monkeypatch.context() as patch:
            patch.setattr(kernel, "SPAN", 7)
            close(layer(mixer)(x), whole)


def test_gates_that_all_but_forget_leave_gradients_that_are_numbers() -> None:
    """What is left over a chunk may be less than the smallest number there is."""
    for mixer in MEMORIES:
        attention, x = layer(mixer.replace(chunk=40)), stream(1, 50).requires_grad_()  # type: ignore[call-arg]
        with torch.no_grad():
            attention.mixer.gate_bias[1:] = torch.tensor([[-40.0], [40.0]])
        out = attention(x)
        assert out.isfinite().all()
        assert torch.autograd.grad(out.sum(), x)[0].isfinite().all()


def test_what_has_faded_for_good_is_nothing_and_has_its_gradient() -> None:
    """Products of it would be denormal, over which some processors take many times as long."""
    context = make_context(2, 5, torch.device("cpu"), is_causal=True, past=4)
    inputs = [x.detach().float().requires_grad_() for x in drawn(0, 5, (4, 5, 3))]
    n = len(tensors(parted(inputs)[-1]))
    faded, none = ([*inputs[:-n], *((x * by).detach().requires_grad_() for x in inputs[-n:])] for by in (1e-20, 0.0))
    found, expected = (with_gradients(partial(in_chunks, context=context, size=4), one) for one in (faded, none))
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    assert any(gradient.any() for gradient in found[-n:])


@in_one_pass
@pytest.mark.parametrize("mixer", [LinearMemory(chunk=4), NeuralMemory(chunk=4, depth=3)], ids=str)
@pytest.mark.parametrize("n", [1, 3, 8, 9])
def test_operations_are_those_that_torch_counts(mixer: Any, n: int) -> None:
    dims = Attention(2, d_value=3, mixer=mixer).dims(D_MODEL, 32)
    assert mixer.flops(n, n, dims) == MixerConfig.flops(mixer, n, n, dims)


def test_operations_grow_with_length_and_a_step_has_those_of_its_products() -> None:
    assert neural_memory_flops(64_000, (64, 128, 64), 32) == 1000 * neural_memory_flops(64, (64, 128, 64), 32)
    # a matrix gives for the key, is written into twice, gives for the query with the momentum beside it, and fades
    assert neural_memory_flops(1, (8, 4), 32) == 2 * (5 * 8 * 4 + 8 + 4 + 2) + 8 * 8 * 4


def test_gates_begin_where_the_docstring_says() -> None:
    attention: Any = Attention(2, d_head=4, mixer=NeuralMemory(chunk=4)).build(D_MODEL, 8, 0, "")
    read = Layer(attention).read(torch.zeros(1, 2, D_MODEL), "rate", "log_momentum", "log_decay")
    close(read["rate"], torch.full((1, 2, 2), 0.5 / 4))
    close(read["log_momentum"].exp(), torch.full((1, 2, 2), 0.5))
    close(1 - read["log_decay"].exp(), torch.full((1, 2, 2), 0.02), 1e-5)


def test_published_layers_have_convolutions_with_silu_and_a_norm_behind_a_gate() -> None:
    for mixer in (LinearMemory(), NeuralMemory()):
        attention: Any = published_block(mixer, n_heads=2).parts[0]
        assert attention.projection == Convolved(activation="silu")
        assert attention.merge == Merge(norm="head", gate="sigmoid")


def test_one_matrix_is_asked_for_by_its_own_name() -> None:
    with pytest.raises(ConfigError, match='"linear_memory"'):
        NeuralMemory(depth=1)


def test_analyses_that_need_a_pattern_say_that_there_is_none() -> None:
    layers = (block(NeuralMemory(chunk=3), n_heads=2),)
    run = gf.run(DecoderConfig(11, 8, layers, max_len=16).build(0).eval(), torch.arange(6)[None], read="*")
    with pytest.raises(NoPattern, match=r'neural_memory.*linear_in_value="no"'):
        gf.analysis.token_flow.alti(run)
