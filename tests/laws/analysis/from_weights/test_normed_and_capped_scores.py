"""What weights alone say of heads with normed queries and keys, or capped scores: compared with what models do."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

import glassformer as gf
from families import all_cases, reference_folder
from glassformer import weights
from glassformer.analysis import run
from glassformer.analysis.from_weights import (
    composition,
    induction_circuits,
    matching_trace,
    position_bias,
    position_scores,
    positional_heads,
)
from glassformer.analysis.frozen import query_key_scales
from glassformer.analysis.paths import score_paths
from glassformer.analysis.vocabulary import skip_trigrams, token_circuits, token_pairs
from glassformer.attention import Alibi, Attention, QueryKeyNorm, Rope, Softmax
from glassformer.models import DecoderConfig, Learned, Mlp, block
from glassformer.testing import close
from glassformer.testing.models import Subject, drawn
from one_pass import in_one_pass

NORMS = {
    "shared": QueryKeyNorm(),
    "own": QueryKeyNorm(gains="own", bias=True, eps=0.03),
    "all centred": QueryKeyNorm(over="all", centred=True, bias=True),
}
FAMILIES = (
    "qwen3_norms_on_queries_and_keys", "olmo2_norms_over_all_heads", "gemma2_caps_and_windows",
    "gemma3_local_and_global_layers",
)  # fmt: skip


def decoder(positions: Any = None, learned: bool = False, **settings: Any) -> Subject:
    layers = (block(**({"n_heads": 4, "n_kv_heads": 2, "positions": positions, "bias": True} | settings)),) * 2
    return drawn("decoder", DecoderConfig(11, 16, layers, max_len=24, positions=Learned() if learned else None))


def pairs(found: Subject, layer: int = 0) -> Tensor:
    """Return the raw score of every second token for every first one before it, `head query key`, from the model."""
    first, second = torch.meshgrid(torch.arange(11), torch.arange(11), indexing="ij")
    path = f"blocks.{layer}.attn.scores"
    site = f"{path}_raw" if f"{path}_raw" in found.model.sites() else path
    done = run(found.model, torch.stack((first.flatten(), second.flatten()), 1), read=[site])
    return done[site].values[:, :, 1, 0].unflatten(0, (11, 11)).permute(2, 1, 0)


@pytest.mark.parametrize("mixer", [Softmax(), Softmax(cap=0.5)])
@pytest.mark.parametrize("norm", [False, *NORMS])
def test_full_circuits_of_the_first_layer_are_its_scores(norm: str | bool, mixer: Softmax) -> None:
    found = decoder(Rope(), qk_norm=NORMS[norm] if isinstance(norm, str) else False, mixer=mixer)
    for w in (weights.of(found.model), weights.of(found.model, fold=True), weights.of(found.model, True, True)):
        # without a norm biases are a part by themselves; behind one they are the tokens'
        sources = w.sources(w[0])
        assert ("bias" in sources) == (norm is False)
        made = sum((w.full_qk(0, q, k, offset=1).dense() for q in sources for k in sources), torch.zeros(()))
        close(made, pairs(found), 1e-9)
        one = sum((w.full_qk("L0H3", q, k, offset=1).dense() for q in sources for k in sources), torch.zeros(()))
        close(one[0], made[3])


@pytest.mark.parametrize("norm", NORMS)
def test_position_only_scores_are_means_over_tokens(norm: str) -> None:
    found = decoder(Rope(), qk_norm=NORMS[norm], mixer=Softmax(cap=0.5))
    w = weights.of(found.model, fold=True)
    raw = position_scores(w, w[0], 2)
    close(raw[:, 1, 0], pairs(found).mean((1, 2)), 1e-9)
    # the cap acts on the mean of raw scores, in the softmax over the two keys that the second query sees
    weight = (0.5 * (raw / 0.5).tanh())[:, 1].softmax(-1)[:, 0]
    close(positional_heads(w, length=2).scores.values[:4, 1], weight, 1e-9)


def test_a_cap_acts_before_what_positions_add() -> None:
    found = decoder(Alibi(), mixer=Softmax(cap=0.5), qk_norm=True)
    w = weights.of(found.model, fold=True)
    ours, layer = positional_heads(w, ["L0H1"], length=6), w["L0H1"]
    bias = position_bias(layer, 6)[0]
    content = position_scores(w, layer, 6)[0] - bias
    expected = (0.5 * (content / 0.5).tanh() + bias).masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf)
    close(ours.patterns.values[0], expected.softmax(-1))


@in_one_pass
@pytest.mark.parametrize("gains", ["shared", "own"])
@pytest.mark.parametrize("side", ["query", "key"])
def test_parts_share_one_scale_where_positions_are_in_the_stream(side: Any, gains: Any) -> None:
    found = decoder(learned=True, qk_norm=QueryKeyNorm(gains=gains, bias=True))
    w = weights.of(found.model, fold=True)
    layer, table = w[0], w.P
    assert table is not None
    matrix, bias = (layer.Q, layer.bQ) if side == "query" else (layer.K, layer.bK)
    before = w.norm_before(layer)
    assert bias is not None
    rows = w.normed(w.E + table[:11], before, w.source_scale(layer), bias=False)
    made = rows @ matrix + bias[:, None]
    # what is divided by, as a mean over tokens at positions taken in turn
    common = 1 / (1 / (made.square().mean(-1) + torch.finfo(made.dtype).eps).sqrt()).mean(-1)
    norm = layer.module.projection.norm_of(side)
    gain, shift = (u if u.ndim == 1 else u[:, None] for u in (norm.gain, norm.bias))
    expected = made / common[:, None, None] * gain + shift
    parts = [w.projected(layer, side, source) for source in w.sources(layer)]
    assert len(parts) == 3
    close(
        torch.stack([part[..., :11, :].expand(-1, 11, -1) for part in parts]).sum(0),
        layer.expanded(side, expected),
        1e-9,
    )


@pytest.mark.parametrize("norm", [QueryKeyNorm(), QueryKeyNorm(over="all"), QueryKeyNorm(gains="own", centred=True)])
def test_composition_is_that_of_a_model_with_the_gains_in_its_matrices(norm: QueryKeyNorm) -> None:
    found = decoder(Rope(), qk_norm=norm, bias=False)
    plain = DecoderConfig(11, 16, _without_norms(found.model.config.layers), max_len=24).build().double()
    plain.load_state_dict(found.model.state_dict(), strict=False)
    with torch.no_grad():
        for mine, theirs in zip(weights.of(plain), weights.of(found.model)):
            mine.Q.copy_(theirs.looking("query"))
            mine.K.copy_(theirs.looking("key"))
    for exact in (True, False):
        ours, expected = (composition(m, exact=exact, draws=8) for m in (found.model, plain))
        for name in ("scores", "null_mean"):
            close(getattr(ours, name).values.nan_to_num(), getattr(expected, name).values.nan_to_num(), 1e-6)
    assert ours.left_out == {} and ours.scores.values[:, :4, 4:].isfinite().all()


def _without_norms(layers: Any) -> Any:
    def bare(part: Any) -> Any:
        own = isinstance(part, Attention)
        return dataclasses.replace(part, projection=part.projection.replace(qk_norm=False)) if own else part

    return tuple(dataclasses.replace(layer, parts=tuple(map(bare, layer.parts))) for layer in layers)


def test_scales_of_a_run_bring_traces_to_its_units_and_change_no_ratio() -> None:
    found = decoder(Rope(), qk_norm=QueryKeyNorm(gains="own"))
    w, scales = weights.of(found.model, fold=True), query_key_scales(found.model, found.inputs[0])
    without, held = (induction_circuits(w, draws=0, scales=s, offsets=(1, 2)) for s in (None, scales))
    means = scales.mean(w[1])
    expected = without.trace.values[:4, 4:] / (means.query * means.key)
    close(held.trace.values[:4, 4:], expected)
    for name in ("match", "combined", "duplicate", "copy"):
        close(getattr(held, name).values.nan_to_num(), getattr(without, name).values.nan_to_num(), 1e-6)
    rows = w.normed(w.E, w.norm_before(w[0]), bias=False)
    one = induction_circuits(w, draws=0, scales=scales, offsets=(1, 2), through="token")
    big = rows @ w[1].qk((1, 2), means).dense()[2] @ w[0].ov().dense()[1].mT @ rows.mT * w[1].scale
    close(one.trace.select(earlier="L0H1", later="L1H2").values, big.trace())
    assert any("normed" in note.seen for note in without.notes) and not held.notes


def test_attention_of_skip_trigrams_is_that_of_capped_scores() -> None:
    found = decoder(Rope(), mixer=Softmax(cap=0.5), qk_norm=True)
    w, rivals = weights.of(found.model, fold=True), [1, 4, 6]
    rules = skip_trigrams(w, ["L0H2"], context=rivals, offset=1, k=5)
    scores = 0.5 * (w.full_qk("L0H2", offset=1).dense()[0] / 0.5).tanh()
    s, d = (u.values[0] for u in (rules.sources, rules.destinations))
    weight = scores[d, s].exp()
    close(rules.attention.values[0], weight / (weight + scores[d][:, rivals].exp().sum(-1)))
    assert any("raw ones" in note.meaning for note in rules.notes)


@pytest.mark.parametrize("name", FAMILIES)
def test_published_families_are_read_off_their_weights(name: str, tmp_path: Any) -> None:
    pytest.importorskip("transformers")
    reference_folder(*all_cases()[name].make(), tmp_path, torch.float64)
    model = gf.load(tmp_path, dtype=torch.float64)
    everything = [
        composition(model, draws=4).scores, positional_heads(model, length=8).scores, token_circuits(model, 3).sought,
        token_pairs(model, "QK", through="stream").values, skip_trigrams(model).attention,
        induction_circuits(model, draws=0).copy, matching_trace(model).prefix_matching,
    ]  # fmt: skip
    assert all(found.values.isfinite().any() for found in everything)
    assert score_paths(model, torch.arange(3, 10)[None], head="L1H1").total.values.isfinite().all()


def test_what_has_no_circuit_is_left_out_and_named() -> None:
    mixed = (block(n_heads=2, positions=Rope(), qk_norm=True), block(n_heads=2, positions=Rope(), clip=0.7))
    found = drawn("mixed", DecoderConfig(11, 16, (*mixed, block(n_heads=2, positions=Rope(), mlp=Mlp(8))), max_len=24))
    assert "clip" in composition(found.model, draws=0).left_out["blocks.1.attn Q"]
    assert set(skip_trigrams(found.model).left_out) == {"L1H0", "L1H1"}
