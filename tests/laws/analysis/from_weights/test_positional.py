"""Position-only scores are the mean over tokens of the model's own, and hand-made offsets are found."""

import math
from typing import cast

import pytest
import torch

import glassformer as gf
from glassformer import analysis, handmade, weights
from glassformer.analysis.from_weights._token_moments import TokenMoments
from glassformer.attention import (
    Alibi,
    General,
    LearnedTemperature,
    LogN,
    QueryKeyOnly,
    RelativeBias,
    Rope,
    Softmax,
)
from glassformer.attention.mixer import MixerConfig
from glassformer.errors import AnalysisUnavailable, NoPattern
from glassformer.models import DecoderConfig, EncoderConfig, Learned, NoNorm, RmsNorm, block
from glassformer.testing import close
from glassformer.testing.layers import randomise
from glassformer.testing.models import subject
from glassformer.weights import HeadWeights
from one_pass import in_one_pass

KINDS = {
    "learned": ({}, {"positions": Learned()}),
    "query_key_only": ({"positions": QueryKeyOnly(2.0)}, {}),
    "rope": ({"positions": Rope()}, {}),
    "partial rope": ({"positions": Rope(fraction=0.5, pairing="interleaved")}, {}),
    "alibi": ({"positions": Alibi()}, {}),
    "relative bias": ({"positions": RelativeBias(4, 6)}, {}),
    "form": ({"mixer": General(temperature=LearnedTemperature())}, {"positions": Learned()}),
    "log n": ({"mixer": Softmax(temperature=LogN(3)), "positions": Rope()}, {}),
}


def _one_layer(kind, n_kv_heads=2):
    attention, fields = KINDS[kind]
    norm = NoNorm() if kind in ("learned", "form") else RmsNorm()
    layer = block(n_heads=4, n_kv_heads=n_kv_heads, bias=True, norm=norm, **attention)
    config = DecoderConfig(5, 16, (layer,), max_len=6, **fields)
    return randomise(config.build().double().eval(), 4, std=0.4)


def _every_score(model):
    """Return the scores of all texts of two tokens placed at all pairs of positions: head query key x y."""
    w = weights.of(model)
    vocab, n = 5, 6
    found = torch.zeros(4, n, n, vocab, vocab, dtype=torch.float64)
    for x in range(vocab):
        for y in range(vocab):
            for i in range(n):
                tokens = torch.full((1, n), y)
                tokens[0, i] = x
                run = gf.run(w.model, tokens, read=["blocks.0.attn.scores"])
                row = run["blocks.0.attn.scores"].values[0, :, i]
                found[:, i, :, x, y] = row
    return found


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("fold", [True, False])
def test_position_scores_are_the_mean_over_all_tokens(kind, fold):
    model = _one_layer(kind)
    w = weights.of(model, fold=fold)
    scores = analysis.from_weights.position_scores(w, w[0], 6)
    every = _every_score(model)
    pattern = analysis.from_weights.positional_heads(w, length=6).patterns.values
    for i in range(6):
        # keys before the query hold their own token; at the query itself both sides are one token
        close(_less_mean(scores[:, i, :i]), _less_mean(every[:, i, :i].mean((-2, -1))), 1e-8)
        close(pattern[:, i, : i + 1], scores[:, i, : i + 1].softmax(-1))
        assert not pattern[:, i, i + 1 :].any()


def _less_mean(rows):
    return rows - rows.mean(-1, keepdim=True) if rows.shape[-1] else rows


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_share_of_position_is_that_in_the_variance_of_all_scores(kind):
    model = _one_layer(kind)
    w = weights.of(model, fold=True)
    layer = w[0]
    blocks = torch.zeros(4, 6, 6, 5, 5, dtype=torch.float64)
    for i in range(6):
        for j in range(i + 1):
            for query in w.sources(layer):
                for key in w.sources(layer):
                    table = w.full_qk(0, query, key, offset=i - j).dense()
                    table = table[:, i : i + 1] if query == "position" else table
                    table = table[..., j : j + 1] if key == "position" else table
                    # tables are those of a query that sees three keys
                    blocks[:, i, j] += table * (math.log(i + 1) / math.log(3) if kind == "log n" else 1.0)
            blocks[:, i, j] += analysis.from_weights.position_bias(layer, 6)[:, i, j, None, None]
    mean = blocks.mean((-2, -1))
    total, of_position = torch.zeros(len(blocks)).double(), torch.zeros(len(blocks)).double()
    for i in range(6):
        row = blocks[:, i, : i + 1]
        total = total + (row - row.mean((1, 3), keepdim=True)).square().mean((2, 3)).sum(1)
        of_position = of_position + _less_mean(mean[:, i, : i + 1]).square().sum(-1)
    close(analysis.from_weights.positional_heads(w, length=6).position_share.values, of_position / total, 1e-8)


def test_the_previous_token_head_is_found_and_no_other():
    model = handmade.induction_model()
    found = analysis.from_weights.positional_heads(model)
    label, score = found.best(1)
    assert label == "L0H0" and score > 0.999
    assert float(found.position_share.select(head="L0H0").values) > 0.999
    others = found.scores.select(offset="1").values
    assert int((others > 0.2).sum()) == 1


def test_both_halves_of_the_virtual_head_look_one_back():
    found = analysis.from_weights.positional_heads(handmade.virtual_head_model())
    assert (found.scores.select(offset="1").values > 0.999).all()


@pytest.mark.parametrize("offset", [1, 3])
@pytest.mark.parametrize("rope", [Rope(), Rope(pairing="interleaved"), Rope(fraction=0.5)])
def test_the_rotary_head_looks_as_far_back_as_it_was_built_to(offset, rope):
    model = handmade.rope_model(offset=offset, rope=rope, max_len=64)
    found = analysis.from_weights.positional_heads(model)
    assert found.best(offset)[1] > 0.999
    assert found.kinds == ("rotary",)
    profile = analysis.from_weights.offset_profile(model, offsets=32)
    assert int(profile.values[0].argmax()) == offset
    frequencies = rope.frequencies(32)[:4]
    at = torch.arange(32, dtype=torch.float64)[:, None] - offset
    expected = 60.0 * (at * frequencies).cos().sum(-1)
    close(profile.values[0], expected - expected.mean(), 1e-7)


def test_alibi_falls_by_its_slope():
    model = subject("alibi_window").model
    profile = analysis.from_weights.offset_profile(model, ["L1H0", "L1H2"], offsets=8)
    slopes = profile.values[:, 0] - profile.values[:, 1]
    close(slopes, torch.tensor([2.0**-2, 2.0**-6], dtype=torch.float64))


def test_what_heads_do_on_random_tokens_agrees_with_the_weights():
    model = handmade.induction_model()
    ids = torch.cat([torch.zeros(4, 1, dtype=torch.long), torch.randint(1, 21, (4, 40))], 1)
    run = gf.run(model, ids, read=[analysis.from_weights.offset_scores])
    found = analysis.from_weights.offset_scores(run)
    assert float(found.scores.select(head="L0H0", offset="1").values) > 0.999
    close(found.explained.select(head="L0H0").values, torch.tensor(1.0, dtype=torch.float64), 0.2)
    # the induction head rests on the first token, which has no offset of its own
    assert float(found.explained.select(head="L1H0").values) < 0.5
    rope = handmade.rope_model(max_len=41)
    found = analysis.from_weights.offset_scores(gf.run(rope, ids, read=[analysis.from_weights.offset_scores]))
    close(found.explained.values, torch.ones(1, dtype=torch.float64))
    close(found.without_first.values, found.scores.values, 1e-6)


def test_attention_to_the_first_key_can_be_left_out():
    model = subject("gpt2").model
    ids = torch.randint(0, 11, (2, 20), generator=torch.Generator().manual_seed(0))
    run = gf.run(model, ids, read=[analysis.from_weights.offset_scores])
    found = analysis.from_weights.offset_scores(run, offsets=3, first_query=5)
    pattern = run["blocks.1.attn.pattern"].values.clone()
    pattern[..., 0] = 0
    pattern = pattern / pattern.sum(-1, keepdim=True)
    expected = pattern.diagonal(-2, -2, -1)[..., 3:].mean((0, 2))
    close(found.without_first.select(offset="2").values[4:], expected)


def test_heads_that_know_no_positions_say_so():
    with pytest.raises(AnalysisUnavailable, match="nothing tells layer 0"):
        analysis.from_weights.positional_heads(handmade.skip_trigram_model())
    with pytest.raises(AnalysisUnavailable, match="bilinear"):
        analysis.from_weights.positional_heads(subject("linear").model)
    with pytest.raises(AnalysisUnavailable, match="vectors"):
        analysis.from_weights.offset_profile(subject("gpt2").model)
    with pytest.raises(NoPattern):
        analysis.from_weights.offset_scores(gf.run(handmade.bigram_model(torch.eye(3)), torch.tensor([[0, 1]])))


# maps of differential attention are read one by one, and what General does to turned queries is refused
VISIBLE = [
    mixer
    for kind, cls in sorted(cast(dict[str, type[MixerConfig]], MixerConfig.registry).items())
    for mixer in (cls(**settings) for settings in ({}, *cls.variants))
    if mixer.traits.bilinear_raw_scores and kind not in ("differential", "general")
]


@pytest.mark.full
@in_one_pass
@pytest.mark.parametrize("mixer", VISIBLE, ids=str)
def test_where_all_tokens_are_one_position_alone_gives_the_pattern(mixer):
    layer = block(mixer, n_heads=4, positions=Rope(), bias=True, norm=RmsNorm())
    config = EncoderConfig if mixer.bidirectional else DecoderConfig
    model = randomise(config(5, 16, (layer,), max_len=7).build().double().eval(), 4, std=0.4)
    with torch.no_grad():
        model.embed.weight[:] = model.embed.weight[0]
    seen = gf.run(model, torch.arange(7)[None] % 5, read=["blocks.0.attn.pattern"])["blocks.0.attn.pattern"].values[0]
    if not weights.of(model).of_stack()[0].module.mixer.traits.bilinear_raw_scores:
        with pytest.raises(AnalysisUnavailable, match="bilinear"):
            analysis.from_weights.positional_heads(model)
        return
    if mixer.has_own_keys:
        with pytest.raises(AnalysisUnavailable, match="tokens that are of no text"):
            analysis.from_weights.positional_heads(model, length=7)
        return
    # streams of a head follow each other
    by_map = seen if seen.ndim == 3 else seen.transpose(0, 1).flatten(0, 1)
    close(analysis.from_weights.positional_heads(model, length=7).patterns.values, by_map)
    if getattr(mixer, "sinks", False):
        assert (seen.sum(-1) < 1).all()


@in_one_pass
@pytest.mark.parametrize("kind", ["learned", "query_key_only", "partial rope", "form"])
@pytest.mark.parametrize("fold", [True, False])
def test_moments_over_tokens_are_those_of_their_queries_and_keys(kind, fold):
    w = weights.of(_one_layer(kind), fold=fold)
    moments = TokenMoments(w)
    for side in ("query", "key"):
        rows, (mean, spread) = w.projected(w[0], side), moments(w[0], side)
        close(mean, rows.mean(-2, keepdim=True))
        deviation = rows - mean
        close(spread, deviation.mT @ deviation / rows.shape[-2])


@pytest.mark.parametrize("fold", [True, False])
def test_layers_that_read_tokens_alike_share_one_pass_over_the_vocabulary(fold, monkeypatch):
    read = list[str]()
    rows = HeadWeights.source_rows

    def counted(self, layer, *args, **kwargs):
        read.append(layer.path)
        return rows(self, layer, *args, **kwargs)

    monkeypatch.setattr(HeadWeights, "source_rows", counted)
    passes = []
    for n_layers in (1, 3):
        layers = (block(n_heads=2, positions=Rope(), norm=RmsNorm()),) * n_layers
        model = randomise(DecoderConfig(7, 8, layers, max_len=6).build(), 1)
        read.clear()
        analysis.from_weights.positional_heads(weights.of(model, fold=fold))
        passes.append(len(read))
    assert passes[0] == passes[1]
