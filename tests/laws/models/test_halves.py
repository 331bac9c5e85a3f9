"""A stream of two halves, each read to write into the other: what Reformer's reversible layers make of it."""

from typing import Any

import pytest
import torch

import glassformer as gf
from glassformer.analysis.attribution import direct_logit_attribution
from glassformer.checkpoints import load, save
from glassformer.checkpoints.shards import AttentionReader
from glassformer.errors import AnalysisUnavailable, ConfigError
from glassformer.models import Axial, BlockConfig, DecoderConfig, LayerNorm, Mlp, ModelConfig, ScaleOnly, block
from glassformer.models.norms import Norm
from glassformer.models.stack import make_context
from glassformer.testing import close
from glassformer.testing.layers import randomise, stream
from glassformer.testing.models import subject

NORMS = [LayerNorm(half="first"), LayerNorm(half="second", gain=False, bias=False), ScaleOnly(0.5, half="second")]


def test_two_streams_by_hand_give_the_same():
    one = subject("halves")
    model: Any = one.model
    (ids,) = one.inputs
    entered = model.embed(ids, torch.arange(ids.shape[1])[None], None)
    first, second = entered.chunk(2, -1)
    for i, layer in enumerate(model.stack.blocks):
        name = layer.names[0]
        part: Any = layer.part(name)
        norm = layer.norm(name)
        read = second if i % 2 == 0 else first
        normed = torch.nn.functional.layer_norm(read, read.shape[-1:], norm.weight, norm.bias, norm.eps)
        whole = torch.zeros_like(entered)
        whole[..., norm.inside] = normed
        written = part(whole, make_context(len(ids), ids.shape[1], ids.device, is_causal=True))[0]
        half = written.shape[-1] // 2
        if i % 2 == 0:
            first = first + written[..., :half]
        else:
            second = second + written[..., half:]
    logits = model.unembed(model.stack.final(torch.cat((first, second), -1)), None)
    close(model(ids), logits)


@pytest.mark.parametrize("config", NORMS, ids=str)
def test_a_norm_of_a_half_is_affine_at_its_scale_and_reads_and_writes_nothing_else(config: LayerNorm | ScaleOnly):
    norm = randomise(Norm(config, 12, "p", 0, ("norm", "scale")).double())
    x, u = stream(2, 4).requires_grad_(), stream(1, 1, 3)[0, 0]
    out = norm(x)
    close(norm.affine(x, norm.scale(x)), out)
    close(norm.linear(x, torch.ones(2, 4)) @ u, x @ norm.transposed(u))
    (gradient,) = torch.autograd.grad(out.sum(), x)
    outside = slice(6, 12) if config.half == "first" else slice(0, 6)
    assert (out[..., outside] == 0).all() and (gradient[..., outside] == 0).all()


def test_weights_and_attribution_are_those_of_the_model_and_folding_is_refused():
    one = subject("halves")
    (ids,) = one.inputs
    close(gf.weights.logits(gf.weights.of(one.model, fold=False), ids), one.model(ids))
    with pytest.raises(AnalysisUnavailable, match="half of the stream"):
        gf.weights.of(one.model, fold=True)
    found = direct_logit_attribution(one.model, ids[:1])
    close(found.sum.values, found.total.values)


def test_it_comes_back_as_it_was_saved(tmp_path):
    model = subject("halves").model
    assert ModelConfig.from_json(model.config.to_json()) == model.config
    loaded = load(save(model, tmp_path))
    ids = torch.arange(6)[None]
    close(loaded.double()(ids), model.float().double()(ids), 1e-5)


def test_layers_read_one_by_one_are_not_folded_either(tmp_path):
    folder = save(subject("halves").model, tmp_path)
    AttentionReader(folder, fold=False)
    with pytest.raises(AnalysisUnavailable, match="half of the stream"):
        AttentionReader(folder)


def test_where_a_half_would_leave_the_other_behind_it_is_refused():
    half = LayerNorm(half="first")
    wirings: list[Any] = ["post", "parallel", "sandwich"]
    for wiring in wirings:
        with pytest.raises(ConfigError, match="half"):
            block(n_heads=1, norm=half, wiring=wiring)
    with pytest.raises(ConfigError, match="no norm"):
        BlockConfig((Mlp(4),), wiring="sandwich", norm_after=half)
    for name in ("final_norm", "embed_norm"):
        with pytest.raises(ConfigError, match=f"{name} reads the whole stream"):
            DecoderConfig(11, 8, (block(n_heads=1),)).replace(**{name: half})


def test_sizes_that_do_not_fit_are_refused_in_words():
    with pytest.raises(ConfigError, match="even width"):
        DecoderConfig(11, 7, (block(n_heads=1, d_head=4, norm=LayerNorm(half="first")),)).build()
    with pytest.raises(ConfigError, match="axial positions"):
        DecoderConfig(11, 8, (block(n_heads=1),), max_len=30, positions=Axial((5, 5), (4, 4))).build()
