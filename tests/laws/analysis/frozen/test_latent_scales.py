"""With what norms of latents divided by held as in a run, weights give its scores and its values."""

from typing import Any

import pytest
import torch
from torch import Tensor

import glassformer as gf
from families import all_cases, reference_folder
from glassformer import analysis, weights
from glassformer.analysis.frozen import query_key_scales, with_scales
from glassformer.attention import Attention, Differential, Latent, Longformer, Rope, Wasserstein
from glassformer.errors import AnalysisUnavailable
from glassformer.models import BlockConfig, Decoder, DecoderConfig, LayerNorm, Mlp
from glassformer.testing import close
from glassformer.testing.layers import randomise
from glassformer.weights import HeadWeights

EXACT = 1e-12
FULL = Latent(7, rotary=4, query_rank=5, norm=True)
FORMS: dict[str, dict[str, Any]] = {
    "full": {"projection": FULL},
    "queries of the stream": {"projection": FULL.replace(query_rank=None)},
    "without a rotary key": {"projection": FULL.replace(rotary=0), "positions": Rope(at_read=True)},
    "two maps": {"projection": FULL, "mixer": Differential()},
    "two values": {"projection": FULL, "mixer": Longformer(3, n_global=1)},
    "side by side": {"projection": FULL.replace(rotary=0), "mixer": Wasserstein(), "positions": Rope(at_read=True)},
}
forms = pytest.mark.parametrize("form", ["full", *[pytest.param(f, marks=pytest.mark.full) for f in list(FORMS)[1:]]])
IDS = torch.tensor([[1, 2, 3, 1, 2, 7], [4, 9, 9, 5, 1, 0]])


def decoder(form: str = "full", n_layers: int = 2) -> Decoder:
    fields: dict[str, Any] = {"positions": Rope()} | FORMS[form]
    part = Attention(4, 2, d_head=9, d_value=5, **fields)
    layer = BlockConfig((part, Mlp(8)), LayerNorm())
    return randomise(DecoderConfig(11, 16, (layer,) * n_layers, max_len=24).build().double().eval(), std=0.4)


def read_by(w: HeadWeights, done: Any, layer: Any) -> Tensor:
    """Return what a layer reads, less what is folded away, with the constant coordinate."""
    x = done[w.sub_layers[layer.path].at_stream].values[0]
    return w.normed(torch.cat((x, torch.ones_like(x[..., :1])), -1), w.norm_before(layer))


def compare(model: Any, ids: Tensor, fold: bool) -> None:
    """Compare values and, where scores are bilinear, scores of a run with those of weights and scales, at 1e-12."""
    w, done = weights.of(model, fold=fold, augment=True), gf.run(model, ids, read="*")
    if not any(layer.module.traits.bilinear_raw_scores for layer in w):
        with pytest.raises(AnalysisUnavailable, match="not bilinear"):
            query_key_scales(done)
        return
    scales = query_key_scales(done, row=0)
    for layer in w:
        x, n = read_by(w, done, layer), ids.shape[1]
        scores, value = (done[f"{layer.path}.{name}"].values[0] for name in ("scores", "value"))
        scores = scores if scores.ndim == 3 else scores.transpose(0, 1)
        for i, j in ((0, 0), (n - 1, 0), (n - 1, n - 1), (3, 2)):
            held = scales.at(layer, i, j)
            scale = layer.scaled_by(held).scale
            made = torch.einsum("d,h...de,e->h...", x[i], layer.qk(i - j, held).dense(), x[j]) * scale
            seen = scores[..., i, j].isfinite()
            close(made[seen], scores[..., i, j][seen], EXACT)
            moved = torch.einsum("d,kde->ke", x[j], layer.scaled_by(held).V)
            close(moved, value[..., j, :] if value.ndim == 3 else value[..., j, :].transpose(0, 1).flatten(1), EXACT)
            single = layer[1].scaled_by(scales.at(layer[1], i, j))
            for name in "QKV":
                close(getattr(single, name), getattr(layer.scaled_by(held)[1], name))


@pytest.mark.parametrize("fold", [False, True])
@forms
def test_weights_and_scales_of_a_run_give_its_scores_and_values(form: str, fold: bool) -> None:
    compare(decoder(form), IDS[:1], fold)


@pytest.mark.parametrize("name", ["deepseek_v2", pytest.param("deepseek_v3", marks=pytest.mark.full)])
def test_so_it_is_for_published_families(name: str, tmp_path: Any) -> None:
    pytest.importorskip("transformers")
    reference_folder(*all_cases()[name].make(), tmp_path, torch.float64)
    tokens = torch.randint(3, 19, (1, 7), generator=torch.Generator().manual_seed(0))
    compare(gf.load(tmp_path, dtype=torch.float64), tokens, fold=True)


def test_matrices_with_scales_held_at_a_position_give_the_logits_there() -> None:
    model = decoder(n_layers=1)
    # the first position sees itself alone
    w = query_key_scales(model, IDS[:1]).hold(model, query=0, key=0)
    close(weights.logits(w, IDS[:1])[0, 0].log_softmax(-1), model(IDS[:1])[0, 0].log_softmax(-1), EXACT)
    assert (weights.logits(w, IDS[:1])[0, 3].log_softmax(-1) - model(IDS[:1])[0, 3].log_softmax(-1)).abs().max() > 1e-3


def test_held_at_their_means_circuits_are_the_means_of_circuits() -> None:
    w = weights.of(decoder())
    scales = query_key_scales(w.model, IDS[:1])
    for layer, by_key, by_query in zip(w, scales.hold(w), scales.hold(w, key=0)):
        each = [layer.scaled_by(scales.at(layer, 0, j)).ov().dense() for j in range(6)]
        close(by_key.ov().dense(), torch.stack(each).mean(0), EXACT)
        each = [layer.qk(2, scales.at(layer, i, 0)).dense() for i in range(6)]
        close(by_query.qk(2).dense(), torch.stack(each).mean(0), EXACT)


def test_of_weights_alone_ratios_ranks_and_shares_are_those_of_whatever_scale_is_held() -> None:
    model = decoder()
    held = query_key_scales(model, IDS[:1]).hold(model, query=4, key=2)
    from_weights, vocabulary, subspaces = analysis.from_weights, analysis.vocabulary, analysis.subspaces
    alone, scaled = (from_weights.copying(one) for one in (model, held))
    for name in ("ratio", "positive"):
        close(getattr(alone, name).values, getattr(scaled, name).values)
    assert (alone.trace.values - scaled.trace.values).abs().max() > 1e-3
    rates = [from_weights.copying_rates(one) for one in (model, held)]
    for name in ("rate", "suppressed", "positive", "z"):
        close(getattr(rates[0], name).values, getattr(rates[1], name).values)
    made = [vocabulary.token_circuits(one, 5, k=4) for one in (weights.of(model, fold=True), held)]
    assert torch.equal(made[0].raised_tokens.values, made[1].raised_tokens.values)
    close(*(subspaces.erasers(one).head_ratio.values for one in (model, held)))
    pairs = [analysis.paths.virtual_copying(one, 0, 1).score.values for one in (weights.of(model, fold=True), held)]
    close(pairs[0], pairs[1])
    scores = [from_weights.composition(one, draws=0).scores for one in (model, held)]
    by_value = [one.select(kind="V").values.nan_to_num() for one in scores]
    close(by_value[0], by_value[1])
    # how much the part of a key that passes no norm counts is the scale's to say
    assert scores[0].select(kind="K").values.isnan().all() and scores[1].select(kind="K").values.isfinite().any()


def test_without_a_rotary_key_scores_too_are_up_to_one_number_for_query_and_key() -> None:
    model = decoder("without a rotary key")
    held = query_key_scales(model, IDS[:1]).hold(model)
    scores = [analysis.from_weights.composition(one, draws=0).scores.values.nan_to_num() for one in (model, held)]
    close(scores[0], scores[1])
    found = [analysis.from_weights.induction_circuits(one, through="token") for one in (model, held)]
    for name in ("duplicate", "copy", "match"):
        close(getattr(found[0], name).values.nan_to_num(), getattr(found[1], name).values.nan_to_num())


def test_what_is_said_says_what_it_holds() -> None:
    model = decoder()
    found = analysis.from_weights.copying(model), analysis.from_weights.copying(with_scales(weights.of(model), IDS[:1]))
    for one, said in zip(found, ("up to what that norm divides by", "as they were on the text given")):
        assert any(said in str(note) for note in one.notes), one.notes
    plain = DecoderConfig(11, 16, decoder().config.layers[:0], max_len=24).build()
    assert with_scales(weights.of(plain), IDS[:1]).attention == ()
    other = query_key_scales(decoder(n_layers=1), IDS[:1])
    with pytest.raises(AnalysisUnavailable, match='there are none of "L1H0"'):
        other.hold(model)
