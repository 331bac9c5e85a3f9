"""Norms of queries and keys, and clipped projections: what they are, and what analyses make of them."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, strategies as st
from torch import Tensor

from glassformer import analysis, weights
from glassformer.attention import Attention, Differential, HeadNorm, NoHeadNorm, QueryKeyNorm, Rope, Separate, Softmax
from glassformer.errors import AnalysisUnavailable, ConfigError
from glassformer.models import DecoderConfig, LayerNorm, block
from glassformer.testing import close
from glassformer.testing.layers import D_MODEL, QUERY_KEY_NORMS, Layer, randomise, seeds, stream
from glassformer.testing.models import subject
from one_pass import in_one_pass

NORMS = [norm for norm in QUERY_KEY_NORMS if isinstance(norm, QueryKeyNorm)] + [QueryKeyNorm()]


def layer(norm: QueryKeyNorm | bool, streams: int = 1, **kwargs: object) -> Layer:
    mixer = Softmax() if streams == 1 else Differential()
    projection = Separate(qk_norm=norm, **kwargs)  # type: ignore[arg-type]
    config = Attention(4, 2, 3, mixer=mixer, projection=projection)
    return Layer(randomise(config.build(D_MODEL, 16, 0, "").double().eval()))


def reference(norm: HeadNorm | NoHeadNorm, flat: Tensor) -> Tensor:
    """Return projected rows through a norm, head by head, by the library's functions."""
    if isinstance(norm, NoHeadNorm):
        return flat
    config, d = norm.config, 3
    gain = None if norm.weight is None else norm.weight + config.offset
    eps = torch.finfo(flat.dtype).eps if config.eps is None else config.eps
    if config.over == "all":
        found = F.rms_norm(flat, flat.shape[-1:], gain, eps)
        return found if norm.bias is None else found + norm.bias
    made = []
    for i, part in enumerate(flat.split(d, -1)):
        head = i // norm.streams
        g, b = (None if p is None else p[head] if config.gains == "own" else p for p in (gain, norm.bias))
        centred = F.layer_norm(part, (d,), g, b, eps)
        plain = F.rms_norm(part, (d,), g, eps)
        made.append(centred if config.centred else plain if b is None else plain + b)
    return torch.cat(made, -1)


@in_one_pass
@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_queries_and_keys_are_normed_head_by_head_or_all_together(norm: QueryKeyNorm, streams: int) -> None:
    attention, x = layer(norm, streams), stream(2, 4)
    projection = attention.module.projection
    values = attention.read(x, "query", "key")
    flat = projection.qkv(x).split(projection.widths, -1)
    for name, rows, own in zip(("query", "key"), flat, projection.norms):
        cut = reference(own, rows).unflatten(-1, (-1, streams, 3)).permute(0, 3, 2, 1, 4)
        close(values[name], cut if streams > 1 else cut[:, 0])


@given(st.sampled_from(NORMS), seeds)
def test_addends_through_a_norm_sum_to_what_it_makes_of_their_sum(norm: QueryKeyNorm, seed: int) -> None:
    own = layer(norm).module.projection.norms[0]
    addends = torch.randn(5, 4, 6, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    split = own.linear(addends, addends.sum(0, keepdim=True))
    whole = split.sum(0, keepdim=True)
    close(whole if own.bias is None else whole + own.shift(split), own(addends.sum(0, keepdim=True)))


def test_a_norm_asked_for_by_true_is_the_default_one() -> None:
    assert Separate(qk_norm=True) == Separate(qk_norm=QueryKeyNorm())
    assert Separate.from_dict({"kind": "separate", "bias": False, "qk_norm": True}) == Separate(qk_norm=True)
    with pytest.raises(ConfigError, match=r"gains=.own. says so of over=.head. only"):
        QueryKeyNorm(over="all", gains="own")


def test_an_offset_gain_begins_at_one() -> None:
    norm: Any = QueryKeyNorm(offset=1.0).build(2, 2, 4)[0]
    close(norm.gain, torch.ones(4))
    close(norm.weight, torch.zeros(4))


def test_clipped_projections_are_cut_off_before_any_norm() -> None:
    attention, bare, x = layer(False, clip=0.7), layer(False), stream(2, 4)
    clipped, plain = (a.read(x, "query", "key", "value") for a in (attention, bare))
    for name, value in clipped.items():
        close(value, plain[name].clamp(-0.7, 0.7))
        assert (value.abs() == 0.7).any()
    assert not attention.module.traits.bilinear_scores


def clipped(clip: float | None = 0.5) -> DecoderConfig:
    layer = block(n_heads=4, n_kv_heads=2, bias=True, clip=clip, norm=LayerNorm(), positions=Rope())
    return DecoderConfig(7, 16, (layer,) * 2, max_len=8, final_norm=LayerNorm(), tied=False)


def test_folded_weights_of_a_clipped_model_give_its_log_probabilities() -> None:
    model, tokens = randomise(clipped().build().double().eval(), std=0.4), torch.arange(6)[None] % 7
    expected = model(tokens).log_softmax(-1)
    assert not torch.allclose(expected, model_without_clip(model)(tokens).log_softmax(-1), atol=1e-3)
    for fold, augment in ((False, False), (True, False), (True, True)):
        found = weights.logits(weights.of(model, fold=fold, augment=augment), tokens)
        close(found.log_softmax(-1), expected)


def model_without_clip(model: Any) -> Any:
    bare = clipped(None).build().double().eval()
    bare.load_state_dict(model.state_dict())
    return bare


def test_analyses_of_what_is_clipped_are_refused_by_name() -> None:
    model = randomise(clipped().build().double().eval())
    w = weights.of(model)
    with pytest.raises(AnalysisUnavailable, match=r"layer 1 cuts its values off at 0.5 \(clip\)"):
        w["L1H0"].ov()
    with pytest.raises(AnalysisUnavailable, match=r"layer 1 cuts its queries and keys off at 0.5"):
        w["L1H0"].qk(0)
    ids = torch.arange(5)[None]
    with pytest.raises(AnalysisUnavailable, match=r"expand_paths: layer 0 cuts its values off"):
        analysis.paths.expand_paths(analysis.run(model, ids, read=[analysis.paths.expand_paths]), answer=1)
    done = analysis.run(model, ids, read=[analysis.paths.score_paths])
    with pytest.raises(AnalysisUnavailable, match=r"score_paths: layer 1 cuts its queries and keys off at 0.5"):
        analysis.paths.score_paths(done, head="L1H0")


def test_circuits_of_capped_scores_are_those_of_raw_scores() -> None:
    w = weights.of(subject("bounded").model)
    assert w["L0H0"].qk(0).shape == w["L0H0"].ov().shape == (1, 16, 16)
