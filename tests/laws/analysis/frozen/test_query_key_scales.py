"""With what norms of queries and keys divided by held fixed, weights give scores: raw ones, where scores are capped."""

from typing import Any

import pytest
import torch
from hypothesis import given
from torch import Tensor

import glassformer as gf
from families import all_cases, reference_folder
from glassformer import weights
from glassformer.analysis import Run, run
from glassformer.analysis.frozen import query_key_scales
from glassformer.attention import Alibi, Differential, Lightning, QueryKeyNorm, QueryKeyOnly, Rope, Softmax
from glassformer.errors import AnalysisUnavailable
from glassformer.models import DecoderConfig, EncoderDecoderConfig, LayerNorm, Learned, Mlp, NoNorm, RmsNorm, block
from glassformer.testing import close
from glassformer.testing.models import ARCHITECTURES, ENCODERS, Subject, attention_decoders, drawn, subject
from glassformer.weights import HeadWeights

EXACT = 1e-12
NORMS = {
    "shared": QueryKeyNorm(),
    "own": QueryKeyNorm(gains="own", bias=True),
    "centred": QueryKeyNorm(centred=True, bias=True, eps=0.03),
    "all": QueryKeyNorm(over="all", bias=True),
    "all centred": QueryKeyNorm(over="all", centred=True),
    "offset": QueryKeyNorm(offset=1.0),
}
LAYERS: dict[str, dict[str, Any]] = {
    "grouped": {"n_kv_heads": 2, "positions": Rope()},
    "biased": {"bias": True, "positions": Rope(fraction=0.5, pairing="interleaved")},
    "capped": {"mixer": Softmax(cap=0.5), "n_kv_heads": 1, "positions": Rope()},
    "alibi": {"positions": Alibi(), "bias": True},
    "query_key_only": {"positions": QueryKeyOnly(2.0)},
    "two maps": {"mixer": Differential(), "positions": Rope(), "n_kv_heads": 2},
    "post": {"wiring": "post", "bias": True},
}
PUBLISHED = (
    "qwen3_norms_on_queries_and_keys", "qwen3_biases_window_tied", "olmo2_norms_over_all_heads",
    "olmo2_biases_without_groups", "gemma2_caps_and_windows", "gemma3_local_and_global_layers",
)  # fmt: skip


def decoder(norm: QueryKeyNorm | bool, **settings: Any) -> Subject:
    last = NoNorm() if settings.get("wiring") == "post" else RmsNorm()
    layers = (block(**({"n_heads": 4, "qk_norm": norm, "mlp": Mlp(8)} | settings)),) * 2
    return drawn("decoder", DecoderConfig(11, 16, layers, max_len=24, final_norm=last))


def with_one(x: Tensor) -> Tensor:
    return torch.cat((x, torch.ones_like(x[..., :1])), -1)


def read_by(w: HeadWeights, done: Run, layer: Any, side: str) -> Tensor:
    """Return what queries or keys of a layer read, with the constant coordinate, less what is folded away."""
    place = w.sub_layers[layer.path]
    if side == "key" and layer.crosses:
        source = w.model.stacks[w.model.source or ""]
        return w.normed(
            with_one(done[f"{source.prefix}blocks.{len(source.blocks) - 1}.resid_post"].values), source.final
        )
    x = w.normed(with_one(done[place.at_stream].values), w.norm_before(layer))
    if isinstance(layer.module.config.positions, QueryKeyOnly):
        rows = layer.module.positions.config.rows(torch.arange(x.shape[1])[None], x.shape[-1] - 1, x.dtype)[0]
        x = x + torch.nn.functional.pad(rows, (0, 1))
    return x


def scores_of(done: Run, layer: Any) -> Tensor:
    """Return recorded scores before the cap, less what positions add, `batch head *stream query key`."""
    if layer.module.mixer.traits.capped_scores:
        return done[f"{layer.path}.scores_raw"].values
    scores = done[f"{layer.path}.scores"].values
    scores = scores if scores.ndim == 4 else scores.transpose(1, 2)
    if layer.module.positions.has_bias:
        from glassformer.analysis.from_weights import position_bias

        scores = scores - position_bias(layer, scores.shape[-1])
    return scores


def compare(found: Subject, fold: bool) -> int:
    """Compare scores made of weights and scales with those of a run, head by head; returns how many layers."""
    w = weights.of(found.model, fold=fold, augment=True)
    bilinear = [a for a in w if a.module.traits.bilinear_raw_scores and not hasattr(a.module.projection, "smear")]
    # what goes by how many keys a query sees is no part of the weights
    bilinear = [a for a in bilinear if not getattr(getattr(a.module.mixer, "temperature", None), "by_query", False)]
    read = [f"{a.path}.scores*" for a in bilinear] + ["*resid*", "*blocks.*"]
    done = run(found.model, *found.inputs, read=[*read, query_key_scales])
    if not bilinear:
        return 0
    scales = query_key_scales(done, row=1)
    for layer in bilinear:
        x, y, recorded = read_by(w, done, layer, "query"), read_by(w, done, layer, "key"), scores_of(done, layer)
        n, m = recorded.shape[-2:]
        for i, j in ((0, 0), (n - 1, 0), (n - 1, m - 1), (n // 2, m // 2), (3, 2)):
            held = scales.at(layer, i, j)
            made = layer.qk(i - j, held).dense() * layer.scale
            score = torch.einsum("d,h...de,e->h...", x[1, i], made, y[1, j])
            there = recorded[1, ..., i, j]
            close(score[there.isfinite()], there[there.isfinite()], EXACT)
            single = layer[1].qk(i - j, scales.at(layer[1], i, j)).dense()
            close(single[0], layer.qk(i - j, held).dense()[1], EXACT)
    return len(bilinear)


@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("name", [*ARCHITECTURES, *ENCODERS])
def test_weights_and_scales_of_a_run_give_its_scores(name: str, fold: bool) -> None:
    if fold and name == "attention_only":
        pytest.skip("positions enter behind the norm that is folded")
    assert compare(subject(name), fold) or name in ("linear", "smeared")


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("layer", LAYERS)
def test_so_it_is_for_every_norm_in_every_layer(layer: str, norm: str) -> None:
    assert compare(decoder(NORMS[norm], **LAYERS[layer]), fold=False) == 2


def test_so_it_is_for_cross_attention() -> None:
    made = {"n_heads": 4, "qk_norm": QueryKeyNorm(over="all", bias=True), "bias": True, "mlp": Mlp(8)}
    config = EncoderDecoderConfig(
        11, 16, encoder_layers=(block(**made),) * 2, decoder_layers=(block(cross=True, **made),) * 2,
        max_len=24, positions=Learned(), final_norm=LayerNorm(),
    )  # fmt: skip
    assert compare(drawn("pair", config), fold=True) == 6


@pytest.mark.full
@given(attention_decoders(mlps=True))
def test_so_it_is_in_any_small_model(found: Subject) -> None:
    blocks = found.model.config.layers
    if not any(
        isinstance(part.positions, QueryKeyOnly) for one in blocks for part in one.parts if hasattr(part, "mixer")
    ):
        compare(found, fold=True)


@pytest.mark.parametrize("name", PUBLISHED)
def test_so_it_is_for_published_families(name: str, tmp_path: Any) -> None:
    pytest.importorskip("transformers")
    reference_folder(*all_cases()[name].make(), tmp_path, torch.float64)
    model = gf.load(tmp_path, dtype=torch.float64)
    tokens = torch.randint(3, 19, (2, 7), generator=torch.Generator().manual_seed(0))
    assert compare(Subject(name, model, (tokens,)), fold=True) >= 2


def test_without_scales_a_score_is_given_up_to_them() -> None:
    found = decoder(QueryKeyNorm(centred=True), n_kv_heads=2)
    layer, scales = weights.of(found.model)[1], query_key_scales(found.model, found.inputs[0])
    held = scales.at(layer, 5, 2)
    close(layer.qk().dense() / (held.query * held.key)[:, None, None], layer.qk(scales=held).dense())
    assert (held.query > 0).all() and (held.key[0] == held.key[1]).all() and held.key[0] != held.key[2]


def test_means_are_geometric_and_know_no_padding() -> None:
    model = decoder(True).model
    layer = weights.of(model)[0]
    together, alone = query_key_scales(model, [[1, 2, 3, 4, 5], [6, 7]], row=1), query_key_scales(model, [[6, 7]])
    close(together.query.values, alone.query.values)
    close(together.mean(layer).query, alone.query.values[:4].log().mean(-1).exp())


def test_without_norms_nothing_is_divided_and_without_bilinear_scores_there_is_no_answer() -> None:
    found = subject("gpt2")
    scales = query_key_scales(found.model, found.inputs[0])
    assert (scales.query.values == 1).all() and (scales.key.values == 1).all()
    found = decoder(True, mixer=Lightning())
    with pytest.raises(AnalysisUnavailable, match='"lightning", whose scores are not bilinear'):
        query_key_scales(found.model, found.inputs[0])
    found = subject("lightning_hybrid")
    scales = query_key_scales(found.model, found.inputs[0])
    assert set(scales.left_out) == {"L0H0", "L0H1", "L0H2", "L0H3"}
    with pytest.raises(AnalysisUnavailable, match='there are none of "L0H0"'):
        scales.at(weights.of(found.model)[0], 0, 0)


def test_a_bias_that_no_scale_divides_needs_scales_to_be_carried() -> None:
    w = weights.of(decoder(QueryKeyNorm(bias=True)).model, augment=True)
    with pytest.raises(AnalysisUnavailable, match="which their scales do not divide"):
        w[0].qk()
