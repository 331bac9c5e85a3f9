"""Identities of temperatures: by head, by the number of keys a query sees, by how uncertain it is."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, strategies as st
from torch import Tensor

import glassformer as gf
from glassformer import weights
from glassformer.analysis import from_weights, paths
from glassformer.attention import (
    AdaptiveTemperature,
    Additive,
    Attention,
    Concat,
    ConcatLinear,
    Context,
    CoordinateScales,
    General,
    LearnedScale,
    LearnedTemperature,
    LogN,
    MixerConfig,
    QueryKeyNorm,
    Rope,
    Separate,
    Softmax,
    causal,
    documents,
    padding,
    window,
)
from glassformer.errors import AnalysisUnavailable, ConfigError
from glassformer.models import Decoder, DecoderConfig, Mlp, block, repeat
from glassformer.models.embedding import Learned
from glassformer.models.norms import NoNorm
from glassformer.models.stack import make_context, with_source
from glassformer.testing import close
from glassformer.testing.layers import D_MODEL, Layer, causal_context, randomise, seeds, stream
from one_pass import in_one_pass

KINDS = [Softmax, General, Additive, Concat, ConcatLinear]


def layer(mixer: MixerConfig, n_heads: int = 2, **kwargs: object) -> Layer:
    config = Attention(n_heads, d_head=4, mixer=mixer, **kwargs)  # type: ignore[arg-type]
    return Layer(randomise(config.build(D_MODEL, 16, 0, "").double().eval()))


def like(other: Layer, mixer: MixerConfig) -> Layer:
    """Return a layer with the weights of another, as far as it has them."""
    built = Layer(other.config.replace(mixer=mixer).build(D_MODEL, 16, 0, "").double().eval())
    built.module.load_state_dict(other.module.state_dict(), strict=False)
    return built


# by the number of keys ----------------------------------------------------------------------------------------------


@in_one_pass
@pytest.mark.parametrize("kind", KINDS)
def test_a_query_that_sees_length_keys_has_the_scores_it_has_without(kind: type[MixerConfig]) -> None:
    x, plain = stream(2, 6), layer(kind(sinks=True))  # type: ignore[call-arg]
    grown = like(plain, kind(sinks=True, temperature=LogN(4)))  # type: ignore[call-arg]
    ours, theirs = (one.read(x, "scores")["scores"] for one in (grown, plain))
    for i in range(6):
        close(ours[..., i, : i + 1], theirs[..., i, : i + 1] * (math.log(i + 1) / math.log(4)))
    # the same of z, by the fused route where there is one
    close(grown.read(x, "z")["z"][:, :, 3], plain.read(x, "z")["z"][:, :, 3])


@given(seeds, st.booleans())
def test_it_is_the_librarys_attention_on_queries_that_grow(seed: int, beyond: bool) -> None:
    x, attention = stream(2, 7, seed), layer(Softmax(temperature=LogN(3, beyond=beyond)))
    found = attention.read(x, "query", "key", "value", "z")
    grown = torch.arange(1.0, 8, dtype=torch.float64).log() / math.log(3)
    grown = grown.clamp_min(1.0) if beyond else grown
    q, k, v = found["query"] * grown[:, None], found["key"], found["value"]
    close(found["z"], F.scaled_dot_product_attention(q, k, v, is_causal=True))


MASKS = {
    "causal": causal(),
    "bidirectional": padding(torch.tensor([9, 6])),
    "padding": causal() & padding(torch.tensor([4, 7])),
    "left padding": causal() & padding(torch.tensor([4, 7]), total=9, left=True),
    "documents": causal() & documents(torch.tensor([[0, 0, 1, 1, 1, 2, 0, 0, 2]])),
    "either": causal() | window(2),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("size", [None, 3])
def test_keys_are_counted_as_the_dense_mask_has_them(mask: str, size: int | None, monkeypatch) -> None:
    positions = torch.arange(9)[None]
    for together in (1, 20, 1 << 20):
        monkeypatch.setattr("glassformer.attention.context.COUNTED", together)
        context = Context(MASKS[mask], positions, positions)
        whole = (context.mask if size is None else context.mask & window(size)).dense(9, 9)
        for n in (9, 2, 1):
            assert torch.equal(context.visible(n, size), whole[:, :, -n:].sum(-1))


def test_no_mask_of_a_long_text_is_whole_while_keys_are_counted(monkeypatch) -> None:
    made: list[int] = []
    plain = type(causal()).allows

    def allows(mask, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        found = plain(mask, b, q, k)
        made.append(found.numel())
        return found

    monkeypatch.setattr(type(causal()), "allows", allows)
    x = stream(1, 40)
    monkeypatch.setattr("glassformer.attention.context.COUNTED", 200)
    layer(Softmax(temperature=LogN(4)))(x)
    assert made
    assert max(made) <= 200


def test_cross_attention_counts_the_keys_of_the_source_that_are_real() -> None:
    attention = layer(Softmax(temperature=LogN(4)), cross=True)
    x, source = stream(2, 3), stream(2, 5, 7)
    context = with_source(causal_context(x), 5, torch.tensor([4, 2]))
    found, plain = (
        one.read(x, "scores", context=with_source(causal_context(x), 5, torch.tensor([4, 2])), source=source)["scores"]
        for one in (attention, like(attention, Softmax()))
    )
    assert context.source is not None
    assert context.source.visible(3).tolist() == [[[4] * 3], [[2] * 3]]
    close(found[0, ..., :4], plain[0, ..., :4])
    close(found[1, ..., :2], plain[1, ..., :2] / 2)


def test_one_document_of_a_packed_row_does_not_tell_another_how_long_it_is() -> None:
    x, ids = stream(1, 6), torch.tensor([[0, 0, 1, 1, 1, 1]])
    attention = layer(Softmax(temperature=LogN(4)))
    packed = attention(x, causal_context(x, document_ids=ids))
    close(packed[:, 2:], attention(x[:, 2:]))


def test_rows_stay_as_uncertain_as_keys_grow_in_number() -> None:
    """Su's argument, on random queries and keys: the entropy of plain softmax grows faster."""
    generator = torch.Generator().manual_seed(0)
    rise = []
    for temperature in (None, LogN(64)):
        mixer = Softmax(temperature=temperature).build(Attention(8, d_head=64).dims(512, 512), "")
        entropies = []
        for n in (64, 512):
            q, k = (torch.randn(1, 8, m, 64, generator=generator) for m in (16, n))
            context = make_context(1, 16, q.device, is_causal=False)
            context = Context(context.mask, torch.arange(16)[None], torch.arange(n)[None], crossed=True)
            pattern = mixer.pattern(q * 1.5, k, q, context, None)
            entropies.append(float(torch.special.entr(pattern).sum(-1).mean()))
        rise.append(entropies[1] - entropies[0])
    assert 0 <= rise[1] < 0.6 * rise[0]


# by head ------------------------------------------------------------------------------------------------------------


@in_one_pass
@pytest.mark.parametrize("kind", KINDS)
def test_a_learned_temperature_multiplies_scores_by_head_and_starts_where_asked(kind: type[MixerConfig]) -> None:
    x, attention = stream(2, 5), layer(kind(temperature=LearnedTemperature(2.0)))  # type: ignore[call-arg]
    plain = like(attention, kind())  # type: ignore[call-arg]
    fresh: Any = kind(temperature=LearnedTemperature(2.0)).build(attention.module.dims, "")  # type: ignore[call-arg]
    assert torch.allclose(fresh.temperature.log_factor.exp(), torch.full((2,), 2.0))
    with torch.no_grad():
        attention.mixer.temperature.log_factor.copy_(torch.tensor([2.0, 0.5], dtype=torch.float64).log())
    ours, theirs = (one.read(x, "scores")["scores"] for one in (attention, plain))
    seen = theirs.isfinite()
    factor = torch.tensor([2.0, 0.5], dtype=torch.float64)[:, None, None].expand_as(theirs)
    close(ours[seen], (theirs * factor)[seen])


def test_it_is_the_scale_of_softmax() -> None:
    x, attention = stream(2, 5), layer(Softmax(temperature=LearnedTemperature()))
    with torch.no_grad():
        attention.mixer.temperature.log_factor.fill_(math.log(2))
    close(attention(x), like(attention, Softmax(scale=2 / 4**0.5))(x))


def test_normed_queries_and_keys_with_a_learned_temperature_are_the_cosine() -> None:
    """Henry et al. 2020; the norm is that of the root mean square, so a product of normed rows is d_head cosines."""
    x = stream(2, 5)
    mixer = Softmax(scale=1 / 4, temperature=LearnedTemperature(10.0))
    attention = layer(mixer, projection=Separate(qk_norm=QueryKeyNorm(eps=1e-12)))
    with torch.no_grad():
        attention.mixer.temperature.log_factor.fill_(math.log(10.0))
        for norm in attention.module.projection.norms:
            norm.weight.fill_(1.0)
    found = attention.read(x, "query", "key", "scores")
    cosine = F.cosine_similarity(found["query"][..., :, None, :], found["key"][..., None, :, :], -1)
    seen = found["scores"].isfinite()
    close(found["scores"][seen], 10 * cosine[seen], 1e-8)


# by entropy ---------------------------------------------------------------------------------------------------------


def rule() -> object:
    return AdaptiveTemperature().build(1, 4).eval()


def test_the_rule_sharpens_between_two_entropies_only() -> None:
    low, high = 0.8486, 5.9442
    inside = torch.linspace(low + 1e-3, high - 1e-3, 500, dtype=torch.float64)
    assert (rule().factor(inside) > 1).all()  # type: ignore[attr-defined]
    outside = torch.cat((torch.linspace(0, low - 1e-3, 100), torch.linspace(high + 1e-3, 20, 100))).double()
    assert (rule().factor(outside) == 1).all()  # type: ignore[attr-defined]
    top = torch.linspace(4, 5, 10001, dtype=torch.float64)
    factor = rule().factor(top)  # type: ignore[attr-defined]
    assert abs(float(factor.max()) - 2.421) < 1e-3
    assert abs(float(top[factor.argmax()]) - 4.41) < 1e-2


@given(seeds, st.floats(0.1, 6.0), st.integers(2, 600))
def test_no_row_becomes_less_certain_and_the_largest_weight_stays_the_largest(seed: int, size: float, n: int) -> None:
    scores = torch.randn(3, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * size
    before, after = scores.softmax(-1), rule().sharpened(scores).softmax(-1)  # type: ignore[attr-defined]
    assert (torch.special.entr(after).sum(-1) <= torch.special.entr(before).sum(-1) + 1e-12).all()
    assert torch.equal(after.argmax(-1), before.argmax(-1))
    certain = torch.special.entr(before).sum(-1) <= 0.5
    assert torch.equal(after[certain], before[certain])


@in_one_pass
@pytest.mark.parametrize("n", [2, 50, 381, 382, 1000])
def test_even_rows_stay_even(n: int) -> None:
    scores = torch.full((n,), 1.7, dtype=torch.float64)
    close(rule().sharpened(scores).softmax(-1), torch.full((n,), 1 / n, dtype=torch.float64))  # type: ignore[attr-defined]
    assert (float(rule().factor(torch.tensor(math.log(n)))) == 1) == (n in (2, 382, 1000))  # type: ignore[attr-defined]


@in_one_pass
@pytest.mark.parametrize("kind", KINDS)
def test_it_acts_in_evaluation_and_behind_the_scores(kind: type[MixerConfig]) -> None:
    x, attention = stream(2, 9), layer(kind(temperature=AdaptiveTemperature()))  # type: ignore[call-arg]
    plain = like(attention, kind())  # type: ignore[call-arg]
    found, bare = attention.read(x, "scores", "pattern"), plain.read(x, "scores", "pattern")
    seen = bare["scores"].isfinite()
    close(found["scores"][seen], bare["scores"][seen])
    assert float((found["pattern"] - bare["pattern"]).abs().max()) > 1e-3
    close(found["pattern"], (attention.mixer.temperature.sharpened(bare["scores"])).softmax(-1))
    attention.module.train()
    assert torch.equal(attention(x), plain(x))


# what weights say ---------------------------------------------------------------------------------------------------

SCORED = {
    "learned": Softmax(temperature=LearnedTemperature(2.0)),
    "log n": Softmax(temperature=LogN(4)),
    "general": General(),
    "general, learned": General(temperature=LearnedTemperature(0.5), scale=1.0),
    "general, log n": General(temperature=LogN(5, beyond=True)),
    "adaptive": General(temperature=AdaptiveTemperature()),
}


def decoder(mixer: MixerConfig, **kwargs: Any) -> Decoder:
    kwargs = {"bias": True} | kwargs
    layers = repeat(block(mixer, n_heads=4, n_kv_heads=2, mlp=Mlp(), **kwargs), 2)
    model = DecoderConfig(vocab_size=13, d_model=16, layers=layers, max_len=16).build(seed=0).double().eval()
    return randomise(model, 1)


@pytest.mark.parametrize("name", SCORED)
@pytest.mark.parametrize("rotary", [False, True])
def test_score_paths_sum_to_the_scores_of_the_run(name: str, rotary: bool) -> None:
    model = decoder(SCORED[name], **({"positions": Rope()} if rotary else {}))
    ids = torch.tensor([[3, 1, 4, 1, 5, 9]])
    run = gf.run(model, ids, read=[paths.score_paths, "blocks.1.attn.scores"])
    scores = run["blocks.1.attn.scores"].values[0]
    for h in range(4):
        total = paths.score_paths(run, head=f"L1H{h}").total.values
        close(total.tril(), scores[h].tril().nan_to_num(neginf=0.0))


@in_one_pass
@pytest.mark.parametrize("name", SCORED)
def test_qk_circuits_hold_what_stands_between_query_and_key(name: str) -> None:
    model = decoder(SCORED[name], bias=False)
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    run = gf.run(model, ids, read=["blocks.0.attn.norm", "blocks.0.attn.scores"])
    x, scores = run["blocks.0.attn.norm"].values[0], run["blocks.0.attn.scores"].values[0]
    layer = weights.of(model, fold=False)[0]
    found = torch.stack([x @ layer[h].qk().dense()[0] @ x.mT for h in range(4)]) * layer.scale
    close(found, (x @ layer.qk().dense() @ x.mT) * layer.scale)
    temperature = SCORED[name].temperature
    if isinstance(temperature, LogN):
        # said of a query that sees as many keys as it was set for
        grown = (torch.arange(1.0, 6).double().log() / math.log(temperature.length))[:, None]
        found = found * (grown.clamp_min(1.0) if temperature.beyond else grown)
    close(found.tril(), scores.tril().nan_to_num(neginf=0.0))


@pytest.mark.parametrize("name", SCORED)
@pytest.mark.parametrize("rotary", [False, True])
def test_the_forward_pass_from_matrices_is_that_of_the_model(name: str, rotary: bool) -> None:
    model, ids = decoder(SCORED[name], **({"positions": Rope()} if rotary else {})), torch.tensor([[3, 1, 4, 1, 5, 9]])
    expected = model(ids).log_softmax(-1)
    for fold in (False, True):
        close(weights.logits(weights.of(model, fold=fold), ids).log_softmax(-1), expected)
    close(weights.folded(model)(ids).log_softmax(-1), expected)


def test_scores_of_positions_alone_have_the_temperature_and_the_form() -> None:
    """With one token in the vocabulary nothing is averaged over: the position-only pattern is the pattern."""
    for mixer in SCORED.values():
        layers = (block(mixer.replace(sinks=True), n_heads=4, n_kv_heads=2, mlp=Mlp(), norm=NoNorm()),)
        config = DecoderConfig(1, 16, layers, max_len=8, positions=Learned(), final_norm=NoNorm())
        model = randomise(config.build(seed=0).double().eval(), 3)
        run = gf.run(model, torch.zeros(1, 8, dtype=torch.long), read=["blocks.0.attn.pattern"])
        found = from_weights.positional_heads(weights.of(model, fold=False))
        close(found.patterns.values, run["blocks.0.attn.pattern"].values[0])
        close(found.position_share.values, torch.ones(4, dtype=torch.float64))


def test_a_form_behind_rotation_has_no_circuit_by_offset() -> None:
    layer = weights.of(decoder(General(), positions=Rope()))[0]
    with pytest.raises(AnalysisUnavailable, match=r"both positions and not on their distance"):
        layer.qk(offset=1)


# configs ------------------------------------------------------------------------------------------------------------


def test_configs_without_a_temperature_are_written_as_they_were() -> None:
    assert Softmax().to_dict() == {"kind": "softmax", "window": None, "scale": None, "cap": None, "sinks": False}
    old = {"kind": "softmax", "window": 4, "scale": None, "cap": 2.0, "sinks": True}
    assert MixerConfig.from_dict(old) == Softmax(4, None, 2.0, True)
    scales = CoordinateScales(LearnedScale(1.0, 0.5))
    for temperature in (LogN(7, True), LearnedTemperature(3.0), scales, AdaptiveTemperature(threshold=0.2)):
        mixer = Softmax(temperature=temperature)
        assert MixerConfig.from_json(mixer.to_json()) == mixer


def test_temperatures_that_make_no_sense_are_refused() -> None:
    for make in (
        lambda: LogN(1),
        lambda: LearnedTemperature(0.0),
        lambda: AdaptiveTemperature(coefficients=()),
        lambda: AdaptiveTemperature(threshold=-1.0),
    ):
        with pytest.raises(ConfigError):
            make()
