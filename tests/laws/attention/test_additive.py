"""Identities of additive attention and of concat, which is additive attention by another name."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from glassformer.attention import Additive, Attention, Concat, ConcatLinear, Context, MixerConfig
from glassformer.models.stack import make_context
from glassformer.testing import close
from glassformer.testing.largest import Largest
from glassformer.testing.layers import D_MODEL, Layer, randomise, seeds, stream

KERNEL = "glassformer.attention.kernels.additive.LARGEST"


def layer(mixer: MixerConfig, seed: int = 0, n_kv_heads: int = 1) -> Layer:
    config = Attention(2, n_kv_heads, d_head=4, mixer=mixer)
    return Layer(randomise(config.build(D_MODEL, 64, 0, "").double().eval(), seed))


def bidirectional(x: Tensor) -> Context:
    return make_context(x.shape[0], x.shape[1], x.device, is_causal=False)


@given(seeds, st.booleans(), st.booleans(), st.sampled_from([None, 3]))
def test_scores_are_those_of_a_loop_over_pairs(seed: int, bias: bool, normalised: bool, hidden: int | None) -> None:
    x, attention = stream(1, 5, seed), layer(Additive(hidden=hidden, bias=bias, normalised=normalised), seed)
    found, mixer = attention.read(x, "query", "key", "scores", context=bidirectional(x)), attention.mixer
    for h in range(2):
        v = mixer.read[h].tolist()
        if normalised:
            length = math.sqrt(sum(a * a for a in v))
            v = [float(mixer.gain[h]) * a / length for a in v]
        for i in range(5):
            for j in range(5):
                q, k, score = found["query"][0, h, i], found["key"][0, 0, j], 0.0
                for a in range(hidden or 4):
                    total = float(mixer.bias[h, a]) if bias else 0.0
                    total += sum(
                        float((q[d] * mixer.of_query[h, d, a] + k[d] * mixer.of_key[h, d, a]).detach())
                        for d in range(4)
                    )
                    score += v[a] * math.tanh(total)
                assert abs(score - float(found["scores"][0, h, i, j])) < 1e-12


@given(seeds)
def test_concat_is_additive_attention_without_a_bias(seed: int) -> None:
    x, concat, additive = stream(2, 5, seed), layer(Concat(), seed), layer(Additive(bias=False), seed)
    state = concat.module.state_dict()
    of_query, of_key = state.pop("mixer.joint").chunk(2, 1)
    additive.module.load_state_dict(state | {"mixer.of_query": of_query, "mixer.of_key": of_key})
    close(concat(x), additive(x))
    # W [q; k], the two on top of each other
    found = concat.read(x, "query", "key", "scores", context=bidirectional(x))
    q, k = found["query"], found["key"].expand(-1, 2, -1, -1)
    both = torch.cat(torch.broadcast_tensors(q[:, :, :, None], k[:, :, None]), -1)
    joined = torch.einsum("bhqkd,hda->bhqka", both, concat.mixer.joint).tanh()
    close(found["scores"], torch.einsum("bhqka,ha->bhqk", joined, concat.mixer.read))


def test_without_a_query_part_all_rows_are_alike() -> None:
    x, attention = stream(2, 5), layer(Additive())
    with torch.no_grad():
        attention.mixer.of_query.zero_()
    pattern = attention.read(x, "pattern", context=bidirectional(x))["pattern"]
    close(pattern, pattern[..., :1, :].expand_as(pattern))


@pytest.mark.parametrize("size", [1.0, 1e3])
def test_scores_and_weights_are_bounded_by_what_is_read_off(size: float) -> None:
    x, attention = size * stream(2, 9), layer(Additive())
    found = attention.read(x, "scores", "pattern", context=bidirectional(x))
    bound = attention.mixer.read.detach().abs().sum(-1)[:, None, None]
    assert (found["scores"].abs() <= bound).all()
    assert (found["pattern"] <= (2 * bound).exp() / ((2 * bound).exp() + 8)).all()


def test_with_small_weights_it_becomes_linear_concat_which_sees_no_query() -> None:
    x, linear = stream(2, 5), layer(ConcatLinear())
    errors = []
    for size in (1e-2, 1e-3):
        additive = layer(Additive(bias=False))
        with torch.no_grad():
            additive.mixer.of_query *= size
            additive.mixer.of_key *= size
            linear.mixer.of_query.copy_(torch.einsum("hda,ha->hd", additive.mixer.of_query, additive.mixer.read))
            linear.mixer.of_key.copy_(torch.einsum("hda,ha->hd", additive.mixer.of_key, additive.mixer.read))
            linear.module.projection.qkv.weight.copy_(additive.module.projection.qkv.weight)
        ours, theirs = (one.read(x, "scores", context=bidirectional(x))["scores"] for one in (additive, linear))
        errors.append(float((ours - theirs).abs().max() / theirs.abs().max()))
    # tanh(u) = u - u^3 / 3 + ...
    assert errors[1] < 1e-4
    assert 90 < errors[0] / errors[1] < 110


def test_the_length_of_a_normalised_vector_does_not_matter() -> None:
    x, attention = stream(2, 5), layer(Additive(normalised=True))
    before = attention(x)
    with torch.no_grad():
        attention.mixer.read *= 7
    close(attention(x), before)
    fresh: Any = Additive(normalised=True).build(attention.module.dims, "")
    assert torch.allclose(fresh.gain, torch.full((2,), 0.5))


@pytest.mark.parametrize("together", [1, 64, 200])
def test_a_few_queries_at_a_time_give_what_all_give_at_once(together: int, monkeypatch) -> None:
    x, attention = stream(2, 9).requires_grad_(), layer(Additive(), n_kv_heads=2)
    found = []
    for largest in (1 << 30, together):
        monkeypatch.setattr(KERNEL, largest)
        out = attention(x)
        found.append([out, *torch.autograd.grad(out.pow(3).sum(), [x, *attention.module.parameters()])])
    for one, other in zip(*found):
        close(one, other)


def test_the_hidden_layer_of_a_long_text_is_never_whole(monkeypatch) -> None:
    n, hidden = 64, 16
    x, attention = stream(1, n).requires_grad_(), layer(Additive(hidden=hidden))
    found = []
    for largest in (1 << 30, 1 << 12):
        monkeypatch.setattr(KERNEL, largest)
        with Largest() as seen:
            attention(x).sum().backward()
        found.append(seen.numbers)
    assert found[0] == 2 * n * n * hidden
    # what is left are patterns
    assert found[1] == 2 * n * n
