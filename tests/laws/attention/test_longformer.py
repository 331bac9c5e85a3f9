"""Longformer's attention: local and global rows, in texts read both ways, without the mask of all pairs."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from glassformer.attention import (
    Alibi,
    Atrous,
    Attention,
    Context,
    Longformer,
    Mask,
    NoPositions,
    PositionsConfig,
    Rope,
    Softmax,
    causal,
    documents,
    padding,
    per_query_head,
    window,
)
from glassformer.attention.kernels import blocked
from glassformer.errors import ConfigError
from glassformer.models import EncoderConfig, block, repeat
from glassformer.models.stack import make_context, tensors
from glassformer.testing import close
from glassformer.testing.largest import Largest
from glassformer.testing.layers import D_MODEL, Layer, causal_context, randomise, seeds, stream
from glassformer.trace import Tape

FORMS = {
    "local": Longformer(3),
    "first tokens": Longformer(3, n_global=2),
    "dilated": Longformer(3, n_global=1, dilation=3),
    "dilated by head": Longformer(2, n_global=3, dilation=(1, 4)),
}
MASKS = {
    "both ways": Mask(),
    "padded on the right": padding(torch.tensor([29, 3])),
    "padded on the left": padding(torch.tensor([29, 40]), total=40, left=True),
    "documents": documents(torch.tensor([[0] * 25 + [1] * 15, [0] * 40])),
    "causal": causal(),
    "narrower": causal() & window(2),
}
every = pytest.mark.parametrize("name", FORMS)


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few rows, so that texts of a few dozen tokens have many."""
    monkeypatch.setattr(blocked, "SHORTEST", 2)
    monkeypatch.setattr(blocked, "LONGEST", 4)


def layer(mixer: Any, positions: PositionsConfig | None = None, n_kv_heads: int = 2) -> Layer:
    config = Attention(2, n_kv_heads, 4, 4, positions=positions or NoPositions(), mixer=mixer)
    return Layer(randomise(config.build(D_MODEL, 64, 0, "").double()))


def both_ways(n: int, batch: int = 1, marked: Tensor | None = None, **kwargs: Any) -> Context:
    return make_context(batch, n, torch.device("cpu"), is_causal=False, marked=marked, **kwargs)


def gradients(attention: Layer, x: Tensor, context: Context, *read: str) -> list[Tensor]:
    out = attention(x, context, tape=attention.tape(*read) if read else None)
    wanted = [x, *attention.module.parameters()]
    return [out, *torch.autograd.grad(out.pow(3).sum(), wanted, allow_unused=True, materialize_grads=True)]


def both_routes(attention: Layer, n: int, context: Context, batch: int = 1) -> None:
    """Compare outputs and gradients with those by way of the pattern."""
    x = stream(batch, n).requires_grad_()
    for one, other in zip(gradients(attention, x, context), gradients(attention, x, context, "pattern"), strict=True):
        close(one, other)


@every
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("marks", [False, True])
def test_every_mask_is_honoured_without_the_pattern(name: str, mask: str, marks: bool) -> None:
    positions, marked = torch.arange(40)[None], None
    if marks:
        # not as many in each row, near each other and far apart
        marked = torch.zeros(2, 40, dtype=torch.bool)
        marked[0, [4, 5, 30]] = marked[1, 12] = True
    context = Context(MASKS[mask], positions, positions, marked=marked)
    both_routes(layer(FORMS[name]), 40, context, 2)


@every
@given(st.integers(1, 41), st.sampled_from([1, 2]))
@settings(max_examples=8)
def test_texts_of_any_length_equal_the_pattern(name: str, n: int, n_kv_heads: int) -> None:
    both_routes(layer(FORMS[name], Rope(), n_kv_heads), n, both_ways(n))


def test_what_positions_add_and_rows_padded_on_the_left_are_honoured() -> None:
    both_routes(layer(FORMS["dilated by head"], Alibi()), 20, both_ways(20))
    both_routes(layer(FORMS["dilated by head"]), 20, both_ways(20, 2, start=torch.tensor([5, 0])), 2)


@given(seeds)
def test_rows_and_values_are_those_of_a_plain_loop(seed: int) -> None:
    """The definition again, a head and a query at a time."""
    attention, x, n = layer(Longformer(3, dilation=(1, 2)), n_kv_heads=1), stream(1, 9, seed), 9
    marked = torch.tensor([[0, 0, 1, 0, 0, 0, 0, 1, 0]]).bool()
    found = attention.read(x, "query", "key", "value", "z", context=both_ways(n, marked=marked))
    for head, step in enumerate((1, 2)):
        for t in range(n):
            own = int(marked[0, t])
            q, k, v = found["query"][0, own, head, t], found["key"][0, own, 0], found["value"][0, own, 0]
            near = [abs(t - s) <= 2 * step and (t - s) % step == 0 for s in range(n)]
            looks = torch.tensor([bool(own) or near[s] or bool(marked[0, s]) for s in range(n)])
            weights = (k @ q / 2).masked_fill(~looks, float("-inf")).softmax(0)
            close(weights @ v, found["z"][0, head, t])


@given(seeds)
def test_each_pattern_multiplies_values_of_its_own_and_the_probe_finds_both(seed: int) -> None:
    attention, x, context = layer(FORMS["dilated by head"]), stream(2, 12, seed), both_ways(12, 2)
    fused, dense = (
        attention.read(x, *names, context=context) for names in (("query", "key", "value", "z"), ("pattern",))
    )
    local, everywhere = dense["pattern"].unbind(1)
    v = per_query_head(fused["value"], fused["query"])
    close(local @ v[:, 0] + everywhere @ v[:, 1], fused["z"])
    close(attention.mixer.probe(fused["query"], fused["key"], x, context), dense["pattern"])
    close((local + everywhere).sum(-1), torch.ones_like(local[..., 0]))
    is_global = torch.arange(12) < 3
    assert (local[..., is_global, :] == 0).all() and (everywhere[..., ~is_global, :] == 0).all()
    assert (everywhere[..., is_global, :] > 0).all() and (local[..., ~is_global, :][..., is_global] > 0).all()


def softmax_of(attention: Layer, which: int) -> Layer:
    """Return softmax attention with one of the streams of a Longformer."""
    plain, rows = layer(Softmax()), attention.module.projection.qkv.weight
    with torch.no_grad():
        plain.module.projection.qkv.weight.copy_(rows.unflatten(0, (3, 2, 2, 4))[:, :, which].flatten(0, 2))
        plain.module.merge.output.weight.copy_(attention.module.merge.output.weight)
    return plain


def test_limits_are_full_attention_by_either_set_of_matrices_and_the_window() -> None:
    x = stream(2, 10)
    wide, everyone = layer(Longformer(10)), layer(Longformer(2))
    close(wide(x, both_ways(10, 2)), softmax_of(wide, 0)(x, both_ways(10, 2)))
    marked = torch.ones(2, 10, dtype=torch.bool)
    close(everyone(x, both_ways(10, 2, marked=marked)), softmax_of(everyone, 1)(x, both_ways(10, 2)))
    # global matrices that are copies of local ones, and one global token: a row and a column are open
    copied = layer(Longformer(2, n_global=1))
    with torch.no_grad():
        rows = copied.module.projection.qkv.weight.unflatten(0, (3, 2, 2, 4))
        rows[:, :, 1] = rows[:, :, 0]
    plain, at = softmax_of(copied, 0), torch.arange(10)
    allowed = ((at[:, None] - at).abs() < 2) | (at[:, None] == 0) | (at == 0)
    scores = plain.read(x, "scores", context=both_ways(10, 2))["scores"].masked_fill(~allowed, float("-inf"))
    mixed = scores.softmax(-1) @ plain.read(x, "value", context=both_ways(10, 2))["value"]
    close(copied.read(x, "z", context=both_ways(10, 2))["z"], mixed)


def test_without_global_tokens_a_causal_text_is_that_of_a_dilated_window() -> None:
    x, local = stream(2, 15), layer(Longformer(3, dilation=(1, 2)))
    dilated = softmax_of(local, 0)
    other = layer(Atrous(rate=(1, 2), window=3))
    other.module.load_state_dict(dilated.module.state_dict())
    close(local(x), other(x))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("step", [1, (1, 2)])
def test_where_no_token_is_ever_global_a_head_is_one_of_a_dilated_window(mask: str, step: Any) -> None:
    alone, other = layer(Longformer(3, n_global=None, dilation=step)), layer(Longformer(3, dilation=step))
    positions, x = torch.arange(40)[None], stream(2, 40).requires_grad_()
    context = Context(MASKS[mask], positions, positions)
    alone.module.load_state_dict(softmax_of(other, 0).module.state_dict())
    close(alone(x, context), other(x, context))
    both_routes(alone, 40, context, 2)
    assert alone.mixer.traits == Atrous.traits and alone.module.traits.one_pattern
    fused = alone.read(x, "query", "key", "value", "z", context=context)
    pattern = alone.read(x, "pattern", context=context)["pattern"]
    close(pattern @ fused["value"], fused["z"])
    close(alone.mixer.probe(fused["query"], fused["key"], x, context), pattern)


def test_marks_are_refused_where_no_token_is_ever_global() -> None:
    config = EncoderConfig(
        11, 12, repeat(block(Longformer(2, n_global=None), n_heads=2, positions=Rope()), 2), max_len=32
    )
    assert EncoderConfig.from_json(config.to_json()) == config
    assert not Longformer(2).traits.one_pattern
    model, tokens = config.build().eval(), torch.arange(20)[None] % 11
    for route in (None, Tape(model, ["blocks.1.attn.pattern"])):
        with pytest.raises(ConfigError, match=r"no layer of this .* global tokens \(longformer\(.*n_global=None"):
            model(tokens, marked=tokens == 3, tape=route)
        # in a stack where others have some, and of no token too: who speaks of marks takes the layer for another one
        mixed = EncoderConfig(
            11, 12, tuple(block(Longformer(2, n_global=n), n_heads=2) for n in (0, None)), max_len=32
        ).build()
        for marked in (tokens == 3, tokens < 0):
            with pytest.raises(ConfigError, match=r"layer 1 has no global tokens .*n_global=None.*marks some"):
                mixed(tokens, marked=marked, tape=None if route is None else Tape(mixed, ["blocks.1.attn.pattern"]))
    plain = EncoderConfig(11, 12, (block(Softmax(), n_heads=2),), max_len=32).build()
    with pytest.raises(ConfigError, match=r"no layer of this encoder has global tokens \(softmax\)"):
        plain(tokens, marked=tokens == 3)


def test_the_state_of_a_text_without_global_tokens_is_a_window_of_local_keys() -> None:
    attention, x = layer(Longformer(3, dilation=2)), stream(1, 20)
    _, state = attention.module(x, causal_context(x), state=attention.module.begin(1, x))
    assert state.mixer.key.shape == state.mixer.value.shape == (1, 2, 4, 4)
    assert sum(part.numel() for part in tensors(state)) * 8 == attention.module.state_bytes(20, 0, torch.float64)


def test_nothing_is_made_for_each_pair_of_a_long_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked, "SHORTEST", 32)
    monkeypatch.setattr(blocked, "LONGEST", 128)
    n = 16_384
    x, attention = stream(1, n).float().requires_grad_(), layer(Longformer(65, n_global=4, dilation=(1, 2)))
    attention.module.float()
    with Largest() as seen:
        attention(x, both_ways(n, lengths=torch.tensor([n - 3]))).sum().backward()
    assert seen.numbers <= 2 * n * 256


def test_bfloat16_is_finite_and_near() -> None:
    x = stream(1, 100)
    for mixer in FORMS.values():
        attention = layer(mixer)
        exact = attention(x, both_ways(100))
        attention.module.to(torch.bfloat16)
        found = attention(x.to(torch.bfloat16), both_ways(100))
        assert found.isfinite().all() and (found.double() - exact).norm() < 0.05 * exact.norm()


def test_an_encoder_says_which_tokens_are_global_and_every_token_hears_of_them() -> None:
    config = EncoderConfig(11, 12, repeat(block(Longformer(2), n_heads=2, positions=Rope()), 1), max_len=32)
    model = randomise(config.build().double().eval())
    tokens = torch.arange(20)[None] % 11
    other, marked = tokens.clone(), torch.zeros(1, 20, dtype=torch.bool)
    other[0, 10], marked[0, 10] = 3, True
    changed = (model(other) != model(tokens)).any(-1)[0].nonzero().flatten().tolist()
    assert changed == [9, 10, 11]
    assert (model(other, marked=marked) != model(tokens, marked=marked)).any(-1).all()
    # heads are as wide as without a second stream
    assert Attention(2, mixer=Longformer()).dims(12, 32).d_head == 6


def test_what_means_nothing_is_refused() -> None:
    for fields in ({"window": 0}, {"n_global": -1}, {"dilation": 0}):
        with pytest.raises(ConfigError, match="longformer: "):
            Longformer(**fields)
    with pytest.raises(ConfigError, match="goes by distance"):
        Attention(2, mixer=Longformer(), cross=True)
