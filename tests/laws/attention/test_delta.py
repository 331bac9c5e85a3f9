"""Identities of the delta rule, with a gate and without, and of its chunks."""

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from glassformer.attention import (
    Attention,
    Convolved,
    Delta,
    GatedDelta,
    Merge,
    MixerConfig,
)
from glassformer.attention.kernels import chunked
from glassformer.attention.kernels.delta import delta_chunks, delta_flops, delta_pattern
from glassformer.models.schedules import published_block
from glassformer.testing import close
from glassformer.testing.largest import Largest
from glassformer.testing.layers import D_MODEL, Layer, causal_context, randomise, seeds, stream
from one_pass import in_one_pass

RULES = [Delta(), GatedDelta()]
chunk_sizes, lengths, gates = st.integers(1, 9), st.integers(1, 10), st.booleans()


def layer(mixer: MixerConfig, seed: int = 0, **kwargs: Any) -> Layer:
    config = Attention(2, d_head=4, mixer=mixer, **kwargs)
    return Layer(randomise(config.build(D_MODEL, 64, 0, "").double().eval(), seed))


def drawn(seed: int, n: int, gated: bool = True) -> list[Tensor | None]:
    """Return queries, keys of length one, values, shares, logarithms of what is kept, and a memory; with gradients."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((2, 2, n, 4), (2, 2, n, 4), (2, 2, n, 3), (2, 2, n), (2, 2, n), (2, 2, 4, 3))
    q, k, v, beta, log_keep, memory = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    found = [q, k / k.norm(dim=-1, keepdim=True), v, beta.sigmoid(), -log_keep.abs() if gated else None, memory]
    return [None if x is None else x.requires_grad_() for x in found]


def naive(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_keep: Tensor | None, memory: Tensor,
    documents: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The recurrence by its other form, S <- a (I - b k k') S + b k v', position by position; none across documents."""
    rows = []
    for t in range(q.shape[-2]):
        if documents is not None:
            memory = memory * (documents[:, t] == documents[:, t + 1])[:, None, None, None]
        keep = 1.0 if log_keep is None else log_keep[..., t, None, None].exp()
        key, share = k[..., t, :, None], beta[..., t, None, None]
        erasure = torch.eye(4, dtype=q.dtype) - share * (key @ key.mT)
        memory = keep * (erasure @ memory) + share * (key @ v[..., t, None, :])
        rows.append((q[..., t, None, :] @ memory).squeeze(-2))
    return torch.stack(rows, -2), memory


def with_gradients(function: Any, inputs: list[Tensor | None]) -> list[Tensor]:
    """Return both outputs and the gradients of all inputs: a memory that goes on sends one back."""
    z, last = function(*inputs)
    weighted = (z * torch.sin(torch.arange(z.numel())).view_as(z)).sum() + (last * last.detach().cos()).sum()
    return [z, last, *torch.autograd.grad(weighted, [x for x in inputs if x is not None])]


@given(seeds, gates, lengths, chunk_sizes)
def test_chunks_of_any_size_equal_the_recurrence_and_have_its_gradients(
    seed: int, gated: bool, n: int, size: int
) -> None:
    inputs = drawn(seed, n, gated)
    pairs = zip(with_gradients(partial(delta_chunks, size=size), inputs), with_gradients(naive, inputs), strict=True)
    for found, expected in pairs:
        close(found, expected, 1e-10)


@given(seeds, gates, st.lists(st.lists(st.booleans(), min_size=9, max_size=9), min_size=2, max_size=2), chunk_sizes)
def test_a_document_knows_nothing_of_the_one_before(
    seed: int, gated: bool, begins: list[list[bool]], size: int
) -> None:
    """Wherever documents begin: inside a chunk, at its edges, several in one, and before the first position."""
    inputs, documents = drawn(seed, 8, gated), torch.tensor(begins).cumsum(-1)
    ours = with_gradients(partial(delta_chunks, size=size, documents=documents), inputs)
    for found, expected in zip(ours, with_gradients(partial(naive, documents=documents), inputs), strict=True):
        close(found, expected, 1e-10)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("n", "size"), [(16, 4), (23, 4), (19, 9)])
def test_a_long_text_goes_span_by_span_and_sends_gradients_back(
    monkeypatch: pytest.MonkeyPatch, n: int, size: int, gated: bool
) -> None:
    inputs, documents = drawn(0, n, gated), (torch.arange(n + 1) // 5)[None]
    expected = with_gradients(partial(naive, documents=documents), inputs)
    monkeypatch.setattr(chunked, "SPAN", 8)
    ours = with_gradients(partial(delta_chunks, size=size, documents=documents), inputs)
    for found, one in zip(ours, expected, strict=True):
        close(found, one, 1e-10)


@given(seeds, gates, st.integers(1, 9))
def test_a_memory_carries_everything_across_a_split(seed: int, gated: bool, cut: int) -> None:
    *rows, memory = drawn(seed, 10, gated)
    halves = [[x if x is None else x[:, :, part] for x in rows] for part in (slice(cut), slice(cut, None))]
    first, middle = delta_chunks(*halves[0], memory, 4)  # type: ignore[arg-type]
    second, last = delta_chunks(*halves[1], middle, 4)  # type: ignore[arg-type]
    z, expected = delta_chunks(*rows, memory, 4)  # type: ignore[arg-type]
    close(torch.cat((first, second), -2), z)
    close(last, expected)


@given(seeds, gates)
def test_a_memory_adds_what_its_own_reading_would_be_of_keys_as_queries(seed: int, gated: bool) -> None:
    """The offset of a state is linear in it: z(S) - z(0) of twice the state is twice as large."""
    *rows, memory = drawn(seed, 7, gated)
    none, once, twice = (delta_chunks(*rows, f * memory, 3)[0] for f in (0.0, 1.0, 2.0))  # type: ignore[arg-type, operator]
    close(twice - none, 2 * (once - none))


@pytest.mark.full
@pytest.mark.parametrize("gated", [False, True])
def test_the_gradients_of_chunks_pass_finite_differences_twice(gated: bool) -> None:
    inputs = drawn(0, 4, gated)

    def mixed(*given: Tensor) -> tuple[Tensor, Tensor]:
        rest = iter(given)
        return delta_chunks(*[None if x is None else next(rest) for x in inputs], size=3)  # type: ignore[arg-type]

    held = [x for x in inputs if x is not None]
    assert torch.autograd.gradcheck(mixed, held)
    assert torch.autograd.gradgradcheck(mixed, held, fast_mode=True)


def test_a_gate_that_shuts_neither_overflows_nor_forgets_what_comes_after() -> None:
    q, k, v, beta, log_keep, memory = (x.detach().float() for x in drawn(0, 200) if x is not None)
    log_keep[..., 70] = -1e4
    log_keep.requires_grad_()
    z, last = delta_chunks(q, k, v, beta, log_keep, memory)
    expected, held = naive(*(x.double() for x in (q, k, v, beta, log_keep, memory)))
    close(z.double(), expected, 1e-5)
    close(last.double(), held, 1e-5)
    assert torch.autograd.grad(z.sum(), log_keep)[0].isfinite().all()


@given(seeds)
def test_a_gate_that_stays_open_changes_nothing(seed: int) -> None:
    q, k, v, beta, _, memory = drawn(seed, 9)
    ours, expected = (delta_chunks(q, k, v, beta, g, memory, 4) for g in (torch.zeros_like(beta), None))  # type: ignore[arg-type]
    for one, other in zip(ours, expected):
        close(one, other)


@given(seeds)
def test_what_is_written_in_full_is_read_back_and_writing_it_again_changes_nothing(seed: int) -> None:
    q, k, v, beta, _, memory = drawn(seed, 1, gated=False)
    full = torch.ones_like(beta)  # type: ignore[arg-type]
    z, once = delta_chunks(k, k, v, full, None, memory)  # type: ignore[arg-type]
    close(z, v)  # type: ignore[arg-type]
    # of two writes with one key the last is held, and of an additive memory both would be
    twice = [torch.cat((x, y), -2) for x, y in ((k, k), (k, k), (v, v + 1))]  # type: ignore[operator]
    z, _ = delta_chunks(*twice, full.expand(-1, -1, 2), None, memory)  # type: ignore[arg-type]
    close(z[..., 1:, :], v + 1)  # type: ignore[operator]
    again = [torch.cat((x, x), -2) for x in (q, k, v)]  # type: ignore[list-item]
    close(delta_chunks(*again, full.expand(-1, -1, 2), None, memory)[1], once)  # type: ignore[arg-type]


@given(seeds)
def test_keys_at_right_angles_make_it_linear_attention(seed: int) -> None:
    q, _, v, beta, _, memory = drawn(seed, 4, gated=False)
    generator = torch.Generator().manual_seed(seed)
    k = torch.linalg.qr(torch.randn(2, 2, 4, 4, generator=generator, dtype=torch.float64)).Q
    z, _ = delta_chunks(q, k, v, torch.ones_like(beta), None, torch.zeros_like(memory), 3)  # type: ignore[arg-type]
    close(z, (q @ k.mT).tril() @ v)  # type: ignore[operator, union-attr]


@given(seeds)
def test_a_step_is_a_step_of_gradient_descent_on_what_the_key_should_give(seed: int) -> None:
    q, k, v, beta, _, memory = drawn(seed, 1, gated=False)
    _, found = delta_chunks(q, k, v, beta, None, memory)  # type: ignore[arg-type]
    loss = 0.5 * (k @ memory - v).square().sum()  # type: ignore[operator]
    close(found, memory - beta[..., None] * torch.autograd.grad(loss, memory)[0])  # type: ignore[index, operator]


@pytest.mark.parametrize(("share", "off"), [(1e-3, 5e-3), (1e-5, 5e-5)])
def test_small_shares_make_it_linear_attention_that_fades(share: float, off: float) -> None:
    q, k, _, beta, log_keep, _ = drawn(3, 8)
    found = delta_pattern(q, k, torch.full_like(beta, share), log_keep) / share  # type: ignore[arg-type]
    total = log_keep.cumsum(-1)  # type: ignore[union-attr]
    fading = (q @ k.mT) * (total[..., :, None] - total[..., None, :]).exp().tril()  # type: ignore[operator, union-attr]
    close(found, fading, off)


@pytest.mark.parametrize("negative", [False, True])
def test_what_is_held_for_a_key_shrinks_by_its_share_and_turns_around_above_one(negative: bool) -> None:
    attention, x = layer(Delta(negative_eigenvalues=negative, eps=1e-30)), stream(1, 1)
    read, held = attention.read(x, "key", "beta"), stream(2, 4, 5, 4)[None]
    k = read["key"] / read["key"].norm(dim=-1, keepdim=True)
    edited = attention.tape("z", edit=[("value", torch.zeros_like)])
    state = attention.module.begin(1, x)
    state = state._replace(mixer=state.mixer._replace(memory=held))
    context = causal_context(x)
    _, after = attention.module(x, context, state=state, tape=edited)
    close(k @ after.mixer.memory, (1 - read["beta"][..., None]) * (k @ held))
    logit = (x @ attention.mixer.write.weight.T).mT
    close(read["beta"], (2.0 if negative else 1.0) / (1 + (-logit).exp()))


def test_the_gate_is_what_its_equation_says() -> None:
    attention, x = layer(GatedDelta()), stream(2, 5)
    mixer = attention.mixer
    step = (1 + (x @ mixer.step.weight.T + mixer.step_bias).exp()).log()
    close(attention.read(x, "log_decay")["log_decay"], -(mixer.log_rate.exp() * step).mT)


@in_one_pass
@pytest.mark.parametrize("mixer", RULES, ids=lambda mixer: mixer.kind)
def test_a_layer_is_the_recurrence_of_its_own_gates(mixer: MixerConfig) -> None:
    attention, x = layer(mixer, n_kv_heads=1), stream(2, 40)
    gated = mixer.kind == "gated_delta"
    read = attention.read(x, "query", "key", "value", "beta", "z", *(["log_decay"] if gated else []))
    q, k = (u / (u.square().sum(-1, keepdim=True) + 1e-6).sqrt() for u in (read["query"], read["key"]))
    memory = torch.zeros(2, 2, 4, 4, dtype=torch.float64)
    k, v = (u.expand(-1, 2, -1, -1) for u in (k, read["value"]))
    expected, _ = naive(q / 2, k, v, read["beta"], read.get("log_decay"), memory)
    close(read["z"], expected, 1e-10)


def test_gates_begin_between_the_steps_and_rates_of_the_paper() -> None:
    torch.manual_seed(0)
    mixer: Any = Attention(400, d_head=1, mixer=GatedDelta()).build(D_MODEL, 8, 0, "").mixer
    with torch.no_grad():
        step, rate = torch.nn.functional.softplus(mixer.step_bias), mixer.log_rate.exp()
    assert 1e-3 <= float(step.min()) < 2e-3 and 0.09 < float(step.max()) <= 0.1
    assert abs(float(step.log().mean()) - torch.tensor([1e-3, 0.1]).log().mean()) < 0.2
    assert float(rate.min()) > 0 and float(rate.max()) <= 16 and abs(float(rate.mean()) - 8) < 1


@in_one_pass
@pytest.mark.parametrize("mixer", RULES, ids=lambda mixer: mixer.kind)
def test_the_chunk_length_changes_nothing(mixer: MixerConfig) -> None:
    x = stream(2, 40)
    close(layer(mixer.replace(chunk=7))(x), layer(mixer)(x))


@in_one_pass
@pytest.mark.parametrize("mixer", RULES, ids=lambda mixer: mixer.kind)
def test_the_state_is_one_matrix_a_head_in_float32_however_long_the_text(mixer: MixerConfig) -> None:
    module = layer(mixer).module.bfloat16()
    for n in (1, 9):
        x = stream(1, n).bfloat16()
        _, state = module(x, causal_context(x), state=module.begin(1, x))
        assert [tuple(part.shape) for part in state.mixer] == [(1, 2, 4, 4)]
        assert state.mixer.memory.dtype == torch.float32 and mixer.state_numbers(n, module.dims) == 32


@in_one_pass
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("mixer", RULES, ids=lambda mixer: mixer.kind)
def test_a_long_text_makes_nothing_for_each_pair_of_positions(mixer: MixerConfig, documents: bool) -> None:
    n = 2048
    attention = Layer(Attention(1, 1, 4, mixer=mixer).build(D_MODEL, 64, 0, "").float())
    x = stream(1, n).float().requires_grad_()
    ids = torch.arange(n)[None] // 300 if documents else None
    with Largest() as seen:
        attention(x, causal_context(x, document_ids=ids)).sum().backward()
    assert seen.numbers <= n * 32


def test_operations_grow_with_length_and_a_step_has_those_of_its_products() -> None:
    assert delta_flops(64_000, 64, 64, 32) == 1000 * delta_flops(64, 64, 64, 32)
    # reading what is held for the key, the write, and reading for the query: two each for a number of the memory
    assert delta_flops(1, 64, 32) == 3 * 2 * 64 * 32
    # of one chunk: keys with keys, queries with keys, half a product for each row that is solved for, and their mixing;
    # then three with the memory
    assert delta_flops(32, 8, 4, 32) == 32 * 32 * (2 * 8 + 2 * 8 + 8 + 4 + 2 * 4) + 32 * 3 * 2 * 8 * 4


def test_published_layers_have_convolutions_with_silu_and_norms_and_the_gated_one_a_gate() -> None:
    for mixer, merge in ((Delta(), Merge(norm="head")), (GatedDelta(), Merge(norm="head", gate="silu"))):
        attention: Any = published_block(mixer, n_heads=2).parts[0]
        assert attention.projection == Convolved(activation="silu") and attention.merge == merge
        assert attention.departures(0) == []
        assert Attention(2, mixer=mixer).departures(0) != []


def test_a_convolution_with_silu_is_silu_of_one_without() -> None:
    x = stream(2, 6)
    plain, active = (
        layer(Delta(), projection=Convolved(width=3, activation=how)).read(x, "query", "key", "value")
        for how in (None, "silu")  # type: ignore[arg-type]
    )
    for name, value in plain.items():
        close(active[name], value * value.sigmoid())
