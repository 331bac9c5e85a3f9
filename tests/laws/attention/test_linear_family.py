"""Identities of linear attention, of attention with decay, and of the chunked kernel with its own backward."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from glassformer.attention import (
    Attention,
    Context,
    Lightning,
    Linear,
    Merge,
    MixerConfig,
    Performer,
    causal,
    documents,
)
from glassformer.attention.kernels import chunked as kernel
from glassformer.attention.kernels.chunked import chunked, decay_matrix, left_product, spans
from glassformer.errors import ConfigError
from glassformer.testing import close
from glassformer.testing.largest import Largest
from glassformer.testing.layers import D_MODEL, Layer, causal_context, randomise, seeds, stream
from glassformer.trace import Scale


def layer(mixer: MixerConfig, **kwargs: Any) -> Layer:
    config = Attention(2, d_head=4, mixer=mixer, **kwargs)
    return Layer(randomise(config.build(D_MODEL, 64, 0, "").double().eval()))


def tensors(seed: int, n: int, width: int = 3) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return queries, keys, values and an initial memory that want gradients."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((2, 2, n, 4), (2, 2, n, 4), (2, 2, n, width), (2, 2, 4, width))
    drawn = [torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes]
    return drawn[0], drawn[1], drawn[2], drawn[3]


def naive(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, memory: Tensor, documents: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The recurrence, one position at a time: memory <- decay memory + k v', z = q memory; none across documents."""
    rows, d = [], decay[:, None, None]
    for t in range(q.shape[-2]):
        if documents is not None:
            memory = memory * (documents[:, t] == documents[:, t + 1])[:, None, None, None]
        memory = d * memory + k[..., t, :, None] * v[..., t, None, :]
        rows.append((q[..., t, None, :] @ memory).squeeze(-2))
    return torch.stack(rows, -2), memory


DECAYS = [torch.tensor(pair, dtype=torch.float64) for pair in ((1.0, 1.0), (0.9, 0.5), (0.99, 0.0))]
decays = st.sampled_from(DECAYS)
chunk_sizes = st.integers(1, 9)


@given(seeds, decays, st.integers(1, 10), st.integers(1, 12))
def test_chunks_of_any_size_equal_the_recurrence(seed: int, decay: Tensor, n: int, size: int) -> None:
    q, k, v, memory = tensors(seed, n)
    for found, expected in zip(chunked(q, k, v, decay, memory, size), naive(q, k, v, decay, memory)):
        close(found, expected)


@given(seeds, decays, st.integers(1, 10), st.integers(1, 12))
def test_the_written_backward_equals_autograd_of_the_recurrence(seed: int, decay: Tensor, n: int, size: int) -> None:
    inputs = tensors(seed, n)
    gradients = []
    for function in (partial(chunked, size=size), naive):
        z, last = function(*inputs[:3], decay, inputs[3])
        # both outputs count: a state that goes on into a next segment sends a gradient back
        weighted = (z * torch.sin(torch.arange(z.numel())).view_as(z)).sum() + (last * last.detach().cos()).sum()
        gradients.append(torch.autograd.grad(weighted, inputs))
    for found, expected in zip(*gradients):
        close(found, expected)


@given(seeds, decays, st.lists(st.lists(st.booleans(), min_size=9, max_size=9), min_size=2, max_size=2), chunk_sizes)
def test_a_document_knows_nothing_of_the_one_before(
    seed: int, decay: Tensor, begins: list[list[bool]], size: int
) -> None:
    """Wherever documents begin: inside a chunk, at its edges, several in one, and before the first position."""
    inputs, documents = tensors(seed, 8), torch.tensor(begins).cumsum(-1)
    found = []
    for function in (partial(chunked, size=size, documents=documents), partial(naive, documents=documents)):
        z, last = function(*inputs[:3], decay, inputs[3])
        weighted = (z * torch.sin(torch.arange(z.numel())).view_as(z)).sum() + (last * last.detach().cos()).sum()
        found.append((z, last, *torch.autograd.grad(weighted, inputs)))
    for ours, expected in zip(*found):
        close(ours, expected)


@pytest.mark.parametrize(("n", "size"), [(16, 4), (23, 4), (19, 9), (5, 7)])
def test_a_long_text_goes_span_by_span(monkeypatch: pytest.MonkeyPatch, n: int, size: int) -> None:
    """Spans end with chunks, whether the text does or not; a chunk may be longer than one."""
    documents = (torch.arange(n + 1) // 5)[None]
    inputs = tensors(0, n)
    expected = naive(*inputs[:3], DECAYS[1], inputs[3], documents)
    monkeypatch.setattr(kernel, "SPAN", 8)
    assert [stop for _, stop, _ in spans(n, size)][-1] == n
    for found, one in zip(chunked(*inputs[:3], DECAYS[1], inputs[3], size, documents), expected):
        close(found, one)


@given(seeds, decays, st.integers(1, 10), st.integers(1, 12))
def test_tiles_of_any_size_equal_chunks(seed: int, decay: Tensor, n: int, tile: int) -> None:
    q, k, v, memory = tensors(seed, n)
    expected, _ = chunked(q, k, v, decay, torch.zeros_like(memory), 4)
    close(left_product(q, k, v, decay, tile), expected)
    t = torch.arange(n)
    close(((q @ k.mT) * decay_matrix(decay, t, t)) @ v, expected)


@given(seeds, decays, st.integers(1, 9))
def test_a_memory_carries_everything_across_a_split(seed: int, decay: Tensor, cut: int) -> None:
    q, k, v, memory = tensors(seed, 10)
    first, middle = chunked(q[..., :cut, :], k[..., :cut, :], v[..., :cut, :], decay, memory, 4)
    second, last = chunked(q[..., cut:, :], k[..., cut:, :], v[..., cut:, :], decay, middle, 4)
    z, expected = chunked(q, k, v, decay, memory, 4)
    close(torch.cat((first, second), -2), z)
    close(last, expected)


@given(seeds)
def test_without_memory_a_position_sees_itself_only(seed: int) -> None:
    q, k, v, memory = tensors(seed, 6)
    z, _ = chunked(q, k, v, torch.zeros(2, dtype=torch.float64), torch.zeros_like(memory), 4)
    close(z, (q * k).sum(-1, keepdim=True) * v)


@given(seeds)
def test_without_decay_the_kernel_is_a_cumulative_sum(seed: int) -> None:
    q, k, v, memory = tensors(seed, 6)
    z, last = chunked(q, k, v, torch.ones(2, dtype=torch.float64), torch.zeros_like(memory), 4)
    sums = (k[..., :, None] * v[..., None, :]).cumsum(2)
    close(z, torch.einsum("bhnd,bhnde->bhne", q, sums))
    close(last, sums[:, :, -1])


@given(seeds)
def test_a_column_of_ones_gives_the_denominator(seed: int) -> None:
    q, k, _, memory = tensors(seed, 7, width=1)
    z, _ = chunked(q, k, torch.ones_like(k[..., :1]), torch.ones(2, dtype=torch.float64), torch.zeros_like(memory), 3)
    close(z[..., 0], (q @ k.mT).tril().sum(-1))


def test_the_written_backward_passes_finite_differences() -> None:
    q, k, v, memory = tensors(0, 5)
    assert torch.autograd.gradcheck(lambda q, k, v, memory: chunked(q, k, v, DECAYS[1], memory, 2), (q, k, v, memory))


@pytest.mark.full
@pytest.mark.parametrize("documents", [None, torch.tensor([[0, 0, 0, 0, 1, 1], [0, 1, 1, 2, 2, 2]])])
def test_the_written_backward_has_a_derivative_itself(documents: Tensor | None) -> None:
    def mixed(q: Tensor, k: Tensor, v: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        return chunked(q, k, v, DECAYS[1], memory, 2, documents)

    assert torch.autograd.gradgradcheck(mixed, tensors(0, 5))


def test_a_long_decay_does_not_overflow() -> None:
    q, k, v, memory = (u.float() for u in tensors(0, 300))
    z, last = chunked(q, k, v, torch.tensor([1e-3, 0.5]), memory, 64)
    assert z.isfinite().all() and last.isfinite().all()


@pytest.mark.parametrize("mixer", [Linear(), Lightning(), Performer()])
def test_the_state_does_not_grow_with_the_text(mixer: MixerConfig) -> None:
    module = layer(mixer).module
    assert len({mixer.state_numbers(n, module.dims) for n in (1, 10, 100)}) == 1


# linear attention ---------------------------------------------------------------------------------------------------


@given(seeds, st.floats(0.1, 10.0))
def test_scaling_the_features_of_queries_changes_nothing(seed: int, factor: float) -> None:
    attention, x = layer(Linear(eps=0.0)), stream(2, 5, seed)
    bare, of_queries = attention(x), attention.mixer.of_queries
    attention.mixer.of_queries = lambda q: of_queries(q) * factor
    close(attention(x), bare)


def test_the_first_position_gives_its_own_value() -> None:
    values = layer(Linear()).read(stream(2, 4), "value", "z")
    # eps is 1e-6 beside a normaliser of order one
    close(values["z"][:, :, 0], values["value"][:, :, 0], 1e-4)


def test_unmasked_and_unnormalised_the_pattern_has_no_more_rank_than_the_head_is_wide() -> None:
    attention = layer(Linear())
    values = attention.read(stream(1, 9), "query", "key")
    weight = attention.mixer.phi(values["query"]) @ attention.mixer.phi(values["key"]).mT
    assert torch.linalg.matrix_rank(weight).max() <= 4


MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "elu": lambda u: torch.where(u > 0, u + 1, u.exp()),
    "softplus": lambda u: (1 + u.exp()).log(),
    "relu": lambda u: torch.where(u > 0, u, 0.0),
    "exp": torch.exp,
    "signed_elu": lambda u: torch.where(u > 0, u, u.exp() - 1),
}


@pytest.mark.parametrize("feature_map", MAPS)
@pytest.mark.parametrize("denominator", [True, False])
def test_linear_attention_is_its_recurrence(feature_map: Any, denominator: bool) -> None:
    if (feature_map == "signed_elu" and denominator) or (feature_map == "exp" and not denominator):
        with pytest.raises(ConfigError, match=f'feature_map="{feature_map}"'):
            Linear(feature_map=feature_map, denominator=denominator)
        return
    attention, x = layer(Linear(feature_map=feature_map, denominator=denominator)), stream(2, 6)
    values = attention.read(x, "query", "key", "value", "z")
    u, guard = MAPS[feature_map], 1.0
    q, k, v = u(values["query"]), u(values["key"]), values["value"]
    memory, weight = torch.zeros(2, 2, 4, 4, dtype=torch.float64), torch.zeros(2, 2, 4, dtype=torch.float64)
    for t in range(6):
        memory = memory + k[:, :, t, :, None] * v[:, :, t, None, :]
        weight = weight + k[:, :, t]
        z = torch.einsum("bhd,bhde->bhe", q[:, :, t], memory)
        if feature_map == "exp":
            # eps is beside sums of which the query's largest feature was taken off
            guard = q[:, :, t].amax(-1, keepdim=True)
        if denominator:
            z = z / ((q[:, :, t] * weight).sum(-1, keepdim=True) + 1e-6 * guard)
        close(values["z"][:, :, t], z)


def test_the_exponential_neither_overflows_nor_lets_a_later_key_change_what_came_before() -> None:
    attention = layer(Linear(feature_map="exp"))
    q, k, v = (stream(2, 6, seed).view(2, 6, 3, -1).transpose(1, 2)[:, :2, :, :4].float() for seed in range(3))
    loud = k.clone()
    loud[:, :, 3:] *= 1e4
    x = stream(2, 6).float()
    quiet, found = (attention.mixer(200 * q, one, v, x, causal_context(x), None, None)[0] for one in (k, loud))
    assert found.isfinite().all() and torch.equal(found[:, :, :3], quiet[:, :, :3])
    close(attention.mixer(q + 300, k, v, x, causal_context(x), None, None)[0],
          attention.mixer(q, k, v, x, causal_context(x), None, None)[0], 1e-4)  # fmt: skip


def test_rectified_rows_sum_to_one_or_are_zero() -> None:
    attention = layer(Linear(feature_map="relu", eps=0.0))
    x = stream(2, 7)
    sums = attention.read(x, "pattern")["pattern"].sum(-1)
    assert ((sums - 1).abs() < 1e-12).logical_or(sums == 0).all() and (sums == 0).any() and (sums > 0.5).any()


# attention without its denominator ----------------------------------------------------------------------------------


@given(seeds, st.floats(0.1, 1e3))
def test_behind_its_norm_attention_without_a_denominator_does_not_know_the_size_of_values(seed: int, factor: float):
    mixer = Linear(denominator=False)
    attention = layer(mixer, merge=Merge(norm="all", gain=False, eps=1e-30))
    x = stream(2, 6, seed)
    scaled = attention.tape("z", edit=[Scale("value", factor)])
    close(attention(x, tape=scaled), attention(x), 1e-9)
    z = mixer.as_published()["merge"].replace(eps=1e-30).build(attention.module.dims)
    normed = z.normed(scaled.values["z"], z.scale(scaled.values["z"], None))
    close(normed.norm(dim=-1), torch.full((2, 6), normed.shape[-1] ** 0.5, dtype=torch.float64))


def test_without_a_denominator_it_is_lightning_that_does_not_decay() -> None:
    x = stream(2, 9)
    ours = layer(Linear(feature_map="signed_elu", denominator=False))
    values = ours.read(x, "query", "key", "value", "z")
    bare = layer(Lightning(slopes=(0.0, 0.0), activation="none"))
    q, k = (torch.nn.functional.elu(values[name]) for name in ("query", "key"))
    close(bare.mixer(q, k, values["value"], x, causal_context(x), None, None)[0], values["z"])


def test_the_share_of_the_gradient_that_the_denominator_makes_is_unbounded() -> None:
    """Of weights over their sum one is p (1 - p) / s away from another: tiny sums make it as large as one likes."""
    x = stream(1, 3)
    sizes = {}
    for denominator in (True, False):
        attention = layer(Linear(feature_map="relu", eps=0.0, denominator=denominator))
        found = []
        for factor in (1.0, 1e-3):
            q = torch.tensor([1.0, 0.0, 0.0, 0.0]).double().expand(1, 2, 3, 4)
            k = (factor * stream(1, 3).abs()[..., :4].expand(1, 2, 3, 4)).requires_grad_()
            v = stream(1, 3, 2)[..., :4].expand(1, 2, 3, 4)
            z, _ = attention.mixer(q, k, v, x, causal_context(x), None, None)
            found.append(float(torch.autograd.grad((z * stream(1, 3, 4)[..., :4]).sum(), k)[0].norm()))
        sizes[denominator] = found[1] / found[0]
    assert abs(sizes[True] - 1e3) < 1e-6 and abs(sizes[False] - 1) < 1e-9


# lightning ----------------------------------------------------------------------------------------------------------


def test_slopes_set_the_decay_of_each_head() -> None:
    attention, x = layer(Lightning(slopes=(0.0, 0.7), activation="none")), stream(1, 5)
    values = attention.read(x, "query", "key", "pattern")
    age = (torch.arange(5.0)[:, None] - torch.arange(5.0)).double()
    for head, slope in enumerate((0.0, 0.7)):
        weight = values["query"][0, head] @ values["key"][0, head].T
        close(values["pattern"][0, head], (weight * torch.exp(-slope * age)).tril())


def test_default_slopes_are_a_geometric_series() -> None:
    attention = layer(Lightning())
    decay = attention.mixer.decay(torch.zeros((), dtype=torch.float64))
    close(-decay.log(), torch.tensor([2.0**-4, 2.0**-8], dtype=torch.float64))


def test_decays_are_never_rounded_to_bfloat16() -> None:
    decay = layer(Lightning()).mixer.decay(torch.zeros((), dtype=torch.bfloat16))
    assert decay.dtype == torch.float32


def test_the_chunk_length_changes_nothing() -> None:
    x = stream(2, 20)
    for merge in (Merge(), Merge(norm="all", gate="sigmoid")):
        close(layer(Lightning(chunk=3), merge=merge)(x), layer(Lightning(chunk=64), merge=merge)(x))


def test_state_in_bfloat16_is_kept_in_float32() -> None:
    for mixer in (Linear(), Linear(denominator=False), Lightning(), Performer()):
        module = layer(mixer).module.bfloat16()
        x = stream(1, 3).bfloat16()
        _, state = module(x, causal_context(x), state=module.begin(1, x))
        assert all(part.dtype == torch.float32 for part in state.mixer)


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("mixer", [Linear(), Lightning(), Performer()])
def test_a_long_text_makes_nothing_for_each_pair_of_positions(mixer: MixerConfig, documents: bool) -> None:
    n = 16_384
    attention = Layer(Attention(1, 1, 4, mixer=mixer).build(D_MODEL, 64, 0, "").float())
    x = stream(1, n).float().requires_grad_()
    ids = torch.arange(n)[None] // 1000 if documents else None
    with Largest() as seen:
        attention(x, causal_context(x, document_ids=ids)).sum().backward()
    assert seen.numbers <= n * 64


@pytest.mark.parametrize("mixer", [Linear(), Lightning(), Performer()])
def test_documents_within_documents_go_by_way_of_the_pattern(mixer: MixerConfig) -> None:
    attention, x = layer(mixer), stream(1, 7)
    positions = torch.arange(7)[None]
    context = Context(causal() & documents(positions // 3) & documents(positions // 4), positions, positions)
    close(attention(x, context), attention(x, context, tape=attention.tape("pattern")))
