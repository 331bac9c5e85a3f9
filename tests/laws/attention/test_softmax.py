"""Identities of scaled dot-product attention, its heads and its state (mechanism by mechanism definitions)."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, strategies as st
from torch import Tensor

from glassformer.attention import (
    Alibi,
    Attention,
    AttentionLayer,
    AttentionState,
    Context,
    Mask,
    NoPositions,
    Rope,
    Separate,
    Softmax,
    causal,
    per_query_head,
)
from glassformer.attention.kernels.fused import fused_softmax
from glassformer.attention.mixer import KeyValue
from glassformer.attention.scores import masked_softmax
from glassformer.models.stack import make_context, with_source
from glassformer.testing import close
from glassformer.testing.layers import D_MODEL, Layer, causal_context, randomise, seeds, stream
from one_pass import in_one_pass


def layer(mixer: Softmax = Softmax(), n_heads: int = 4, **kwargs: object) -> Layer:  # noqa: B008
    config = Attention(n_heads, d_head=4, mixer=mixer, **kwargs)  # type: ignore[arg-type]
    return Layer(randomise(config.build(D_MODEL, 16, 0, "").double().eval()))


def bidirectional(x: Tensor) -> Context:
    return make_context(x.shape[0], x.shape[1], x.device, is_causal=False)


@given(seeds, st.booleans())
def test_it_is_the_librarys_scaled_dot_product_attention(seed: int, is_causal: bool) -> None:
    x, attention = stream(2, 6, seed), layer()
    context = causal_context(x) if is_causal else bidirectional(x)
    values = attention.read(x, "query", "key", "value", "pattern", "z", context=context)
    q, k, v = values["query"], values["key"], values["value"]
    close(values["z"], F.scaled_dot_product_attention(q, k, v, is_causal=is_causal))
    close(values["pattern"] @ v, values["z"])


@pytest.mark.parametrize("packed", [False, True])
def test_gradients_in_bfloat16_are_those_of_float32_rounded_once(packed: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, heads, 6, 4, generator=generator).bfloat16().requires_grad_() for heads in (4, 2, 2))
    documents = torch.tensor([[0, 0, 1, 1, 1, 2], [0, 0, 0, 0, 0, 0]]) if packed else None
    context = make_context(2, 6, q.device, is_causal=True, document_ids=documents)
    allowed = context.allowed(6, 6, None) if packed else torch.ones(6, 6, dtype=torch.bool).tril()
    for autocast in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            z = fused_softmax(q, k, v, 0.5, context)
        wide = (q.float(), k.float(), v.float())
        expected = F.scaled_dot_product_attention(*wide, attn_mask=allowed, scale=0.5, enable_gqa=True).bfloat16()
        # causal and masked kernels may round float32 differently in the last place
        torch.testing.assert_close(z, expected, rtol=2**-8, atol=1e-6)
        ours, theirs = (torch.autograd.grad(out.float().square().sum(), (q, k, v)) for out in (z, expected))
        for own, other in zip(ours, theirs):
            torch.testing.assert_close(own, other, rtol=2**-7, atol=1e-3)


def test_a_constant_added_to_a_row_of_scores_changes_nothing() -> None:
    x, attention = stream(2, 5), layer()
    shift = torch.randn(2, 4, 5, 1, dtype=torch.float64)
    close(attention(x, tape=attention.tape(edit=[("scores", lambda scores: scores + shift)])), attention(x))


def test_a_key_bias_does_nothing_unless_keys_rotate() -> None:
    x = stream(2, 5)
    for positions, matters in ((NoPositions(), False), (Rope(), True)):
        attention = layer(projection=Separate(bias=True), positions=positions)
        bare = attention(x)
        with torch.no_grad():
            attention.module.projection.qkv.bias[16:32] += 1.0
        assert matters == bool((attention(x) - bare).abs().max() > 1e-6)


def test_permuting_keys_and_values_together_changes_nothing() -> None:
    x, attention, order = stream(2, 5), layer(), torch.tensor([4, 2, 0, 1, 3])
    context = bidirectional(x)
    edit = [(name, lambda value: value[..., order, :]) for name in ("key", "value")]
    close(attention(x, context, tape=attention.tape(edit=edit)), attention(x, context))


def test_the_jacobian_of_a_row_is_diag_minus_outer() -> None:
    scores = torch.randn(5, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(masked_softmax, scores)
    pattern = scores.softmax(0)
    close(jacobian, pattern.diag() - torch.outer(pattern, pattern))


def test_scale_one_on_scaled_queries_is_the_default() -> None:
    x, default = stream(2, 5), layer()
    plain = Layer(layer(Softmax(scale=1.0)).module)
    close(plain(x, tape=plain.tape(edit=[("query", lambda q: q / 2)])), default(x))


@given(seeds)
def test_the_unscaled_product_is_the_scaled_one_on_longer_queries(seed: int) -> None:
    x, default = stream(2, 5, seed), layer()
    unscaled = layer(Softmax(scale=1.0))
    close(unscaled(x), default(x, tape=default.tape(edit=[("query", lambda q: q * 4**0.5)])))


def test_permuting_heads_with_their_output_rows_changes_nothing() -> None:
    x, attention, order = stream(2, 5), layer(), torch.tensor([2, 0, 3, 1])
    bare = attention(x)
    module = attention.module
    with torch.no_grad():
        qkv, output = module.projection.qkv.weight, module.merge.output.weight
        qkv.copy_(qkv.unflatten(0, (3, 4, 4))[:, order].flatten(0, 2))
        output.copy_(output.unflatten(1, (4, 4))[:, order].flatten(1))
    close(attention(x), bare)


def test_rescaling_values_against_the_output_matrix_changes_nothing() -> None:
    x, attention = stream(2, 5), layer()
    bare = attention(x)
    with torch.no_grad():
        attention.module.projection.qkv.weight[32:] *= 3
        attention.module.merge.output.weight.div_(3)
    close(attention(x), bare)


def test_a_window_as_long_as_the_text_is_no_window_and_one_of_one_copies_values() -> None:
    x = stream(2, 5)
    close(layer(Softmax(window=5))(x), layer()(x))
    values = layer(Softmax(window=1)).read(x, "value", "z")
    close(values["z"], values["value"])


@given(st.integers(1, 6))
def test_a_window_hides_what_is_further_back(size: int) -> None:
    pattern = layer(Softmax(window=size)).read(stream(1, 6), "pattern")["pattern"]
    expected = torch.ones(6, 6).tril() * torch.ones(6, 6).triu(1 - size)
    assert torch.equal((pattern[0, 0] > 0).float(), expected)


# grouped keys and values --------------------------------------------------------------------------------------------


def grouped(source: AttentionLayer, n_kv_heads: int, pool: bool = False) -> Layer:
    """Copy the weights of a full layer into a grouped one: the first head of each group, or the mean of all."""
    target = layer(n_kv_heads=n_kv_heads)
    q, k, v = source.projection.qkv.weight.detach().split(16)

    def shared(rows: Tensor) -> Tensor:
        groups = rows.unflatten(0, (n_kv_heads, -1, 4))
        return (groups.mean(1) if pool else groups[:, 0]).flatten(0, 1)

    with torch.no_grad():
        target.module.projection.qkv.weight.copy_(torch.cat((q, shared(k), shared(v))))
        target.module.merge.output.weight.copy_(source.merge.output.weight)
    return target


@in_one_pass
@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("pool", [False, True])
def test_keys_and_values_tied_inside_groups_equal_grouped_ones(n_kv_heads: int, pool: bool) -> None:
    x, full = stream(2, 5), layer()
    with torch.no_grad():
        for rows in full.module.projection.qkv.weight.split(16)[1:]:
            groups = rows.unflatten(0, (n_kv_heads, -1, 4))
            groups.copy_(groups[:, :1].expand_as(groups).clone())
    close(grouped(full.module, n_kv_heads, pool)(x), full(x))


def test_head_h_uses_group_h_over_heads_per_group() -> None:
    """Neighbouring heads share; the other order (`repeat`) would be a different model."""
    x = torch.arange(2.0).view(1, 2, 1, 1)
    assert per_query_head(x, torch.zeros(1, 6, 1, 1)).flatten().tolist() == [0, 0, 0, 1, 1, 1]


# the online normaliser: partial results over chunks of keys merge to the whole -------------------------------------


@given(seeds, st.sets(st.integers(1, 8)), st.randoms(use_true_random=False))
def test_partial_softmax_results_merge_in_any_order(seed: int, cuts: set[int], random: object) -> None:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(9, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    edges = [0, *sorted(cuts), 9]
    parts = []
    for start, stop in pairwise(edges):
        scores = q @ k[start:stop].T
        parts.append((scores.logsumexp(-1), masked_softmax(scores) @ v[start:stop]))
    random.shuffle(parts)  # type: ignore[attr-defined]
    total, mixed = parts[0]
    for other, more in parts[1:]:
        mixed = mixed - torch.sigmoid(other - total)[:, None] * (mixed - more)
        total = total - F.logsigmoid(total - other)
    close(mixed, masked_softmax(q @ k.T) @ v)


# state --------------------------------------------------------------------------------------------------------------


def prefilled(attention: Layer, x: Tensor) -> KeyValue:
    _, state = attention.module(x, causal_context(x), state=attention.module.begin(x.shape[0], x))
    return state.mixer


def step(attention: Layer, x: Tensor, past: int, state: KeyValue) -> Tensor:
    context = make_context(x.shape[0], x.shape[1], x.device, is_causal=True, past=past)
    return attention.module(x, context, state=AttentionState(None, state))[0]


def test_the_order_of_a_state_does_not_matter_once_positions_are_inside_the_keys() -> None:
    x, attention, order = stream(2, 5), layer(positions=Rope()), torch.tensor([3, 0, 2, 1])
    state = prefilled(attention, x[:, :4])
    shuffled = KeyValue(state.key[..., order, :], state.value[..., order, :])
    close(step(attention, x[:, 4:], 4, shuffled), step(attention, x[:, 4:], 4, state))


def test_a_cropped_state_continues_like_a_fresh_one() -> None:
    x, attention = stream(2, 6), layer(positions=Rope())
    state = prefilled(attention, x[:, :5])
    cropped = KeyValue(state.key[..., :3, :], state.value[..., :3, :])
    close(step(attention, x[:, 5:], 3, cropped), step(attention, x[:, 5:], 3, prefilled(attention, x[:, :3])))


def test_reordering_rows_of_a_state_is_index_select() -> None:
    x, attention, order = stream(3, 5), layer(), torch.tensor([2, 2, 0])
    state = prefilled(attention, x[:, :4])
    chosen = KeyValue(state.key[order], state.value[order])
    close(step(attention, x[order, 4:], 4, chosen), attention(x)[order, 4:])


def test_a_rolling_state_keeps_what_the_window_can_see() -> None:
    attention = layer(Softmax(window=3))
    assert prefilled(attention, stream(1, 6)).key.shape[-2] == 2


# cross-attention ----------------------------------------------------------------------------------------------------


def test_cross_attention_to_itself_is_bidirectional_self_attention() -> None:
    x = stream(2, 5)
    crossed, plain = layer(cross=True), layer()
    close(crossed(x, with_source(causal_context(x), 5, None), source=x), plain(x, bidirectional(x)))


def test_a_single_source_token_gives_every_query_the_same_output() -> None:
    x, attention = stream(2, 5), layer(cross=True)
    out = attention(x, with_source(causal_context(x), 1, None), source=stream(2, 1, 4))
    close(out, out[:, :1].expand_as(out))


def test_no_positions_and_no_mask_make_attention_permutation_equivariant() -> None:
    x, attention, order = stream(2, 5), layer(), torch.tensor([3, 1, 4, 0, 2])
    close(attention(x[:, order], bidirectional(x)), attention(x, bidirectional(x))[:, order])


def test_a_mask_term_may_be_repeated() -> None:
    x, attention, positions = stream(1, 4), layer(), torch.arange(4)[None]
    twice = Context(causal() & causal() & Mask(), positions, positions)
    close(attention(x, twice), attention(x))


@given(seeds)
def test_capped_scores_are_the_cap_times_the_tanh_of_their_share_of_it(seed: int) -> None:
    x, attention = stream(2, 5, seed), layer(Softmax(cap=0.5))
    values = attention.read(x, "query", "key", "scores_raw", "scores", "pattern")
    close(values["scores_raw"], values["query"] @ values["key"].mT / 2)
    seen = torch.ones(5, 5, dtype=torch.bool).tril().expand_as(values["scores"])
    close(values["scores"][seen], 0.5 * (values["scores_raw"] / 0.5).tanh()[seen])
    close(values["pattern"], values["scores"].softmax(-1))
    assert "scores_raw" not in layer().sites()


def test_positions_add_to_scores_behind_the_cap() -> None:
    x, attention = stream(1, 5), layer(Softmax(cap=0.1), positions=Alibi())
    assert attention.read(x, "scores")["scores"].nan_to_num(neginf=0.0).min() < -0.1


def test_a_wide_cap_is_none() -> None:
    x = stream(2, 5)
    close(layer(Softmax(cap=1e6))(x), layer()(x))


@given(seeds)
def test_a_sink_takes_its_share_of_each_row_and_gives_nothing(seed: int) -> None:
    x, attention = stream(2, 5, seed), layer(Softmax(sinks=True))
    values = attention.read(x, "scores", "pattern")
    weights = values["scores"].exp()
    close(values["pattern"], weights / (attention.mixer.sinks.exp()[:, None, None] + weights.sum(-1, keepdim=True)))
    assert (values["pattern"].sum(-1) < 1).all()
    assert not attention.mixer.traits.rows_sum_to_one


def test_a_sink_of_zero_adds_one_to_the_denominator_and_a_very_low_one_nothing() -> None:
    x, attention, plain = stream(2, 5), layer(Softmax(sinks=True)), layer()
    plain.module.load_state_dict(attention.module.state_dict(), strict=False)
    with torch.no_grad():
        attention.mixer.sinks.zero_()
        weights = attention.read(x, "scores")["scores"].exp()
        close(attention.read(x, "pattern")["pattern"], weights / (1 + weights.sum(-1, keepdim=True)))
        attention.mixer.sinks.fill_(-1e3)
        close(attention(x), plain(x))


def test_what_was_set_is_named() -> None:
    assert (Softmax().described, Softmax(cap=50.0).described) == ("softmax", "softmax(cap=50.0)")
