"""A model of folded weights says what the model says, and its parts add up in the convention of folded weights."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import glassformer as gf
from glassformer import weights
from glassformer.analysis.attribution import direct_logit_attribution
from glassformer.attention import Attention, Rope, Softmax
from glassformer.attention.merge import Merge
from glassformer.attention.projections import Latent
from glassformer.data.tokenizer import symbol_tokenizer
from glassformer.errors import AnalysisUnavailable
from glassformer.models import BlockConfig, DecoderConfig, EncoderConfig, LayerNorm, Mlp, block
from glassformer.testing import close
from glassformer.testing.models import ARCHITECTURES, ENCODERS, subject
from glassformer.weights import HeadWeights, folded_model
from glassformer.weights.fold import fold

# linear attention divides by a sum plus eps, so that its rows sum to one up to that
EXACT, NEARLY = 1e-12, 1e-6


@pytest.mark.parametrize("name", [*ARCHITECTURES, *ENCODERS, "rwkv", "mixed"])
def test_a_folded_model_gives_the_log_probabilities_and_logits_up_to_one_constant(name: str) -> None:
    one = subject(name)
    try:
        made = weights.folded(one.model)
    except AnalysisUnavailable as error:
        factored = getattr(one.model.config, "output_layer", None) is not None
        assert factored or name == "attention_only", error
        why = "factored output layer" if factored else "adds positions behind a norm whose gain"
        assert why in str(error)
        return
    before, after = one(), made(*one.inputs)
    tolerance = NEARLY if "linear" in name else EXACT
    close(after.log_softmax(-1), before.log_softmax(-1), tolerance)
    shift = after - before
    close(after - shift.mean(-1, keepdim=True), before, tolerance)
    # all but a norm on token vectors, which hold what it did
    assert set(one.model.sites()) - set(made.sites()) <= {"embed.norm", "embed.scale"}


def test_its_matrices_are_the_folded_ones_and_fold_no_further() -> None:
    model = subject("gpt2").model
    expected, found, again = weights.of(model, fold=True), weights.of(weights.folded(model)), weights.folded(model)
    again = weights.of(weights.folded(again))
    for w in (found, again):
        for ours, theirs in zip(w.attention, expected.attention, strict=True):
            close(ours.Q, theirs.Q, EXACT)
            close(ours.O, theirs.O, EXACT)
        close(w.U, expected.U, EXACT)
        close(w.E, expected.E, EXACT)


def test_nothing_of_the_model_itself_changes() -> None:
    one = subject("llama")
    before = {name: value.clone() for name, value in one.model.state_dict().items()}
    weights.folded(one.model)
    assert all(torch.equal(value, before[name]) for name, value in one.model.state_dict().items())


def test_heads_and_the_rest_of_a_folded_model_sum_to_its_logit_and_writes_have_no_mean() -> None:
    one = subject("gpt2")
    made = weights.folded(one.model)
    run = gf.run(made, *one.inputs[:1], read=[direct_logit_attribution, "blocks.*.attn.out", "blocks.*.mlp.out"])
    split = direct_logit_attribution(run, answer=3, position=-1)
    assert run.logits is not None
    close(split.contributions.values.sum(), run.logits[0, -1, 3], 1e-10)
    for name in run:
        if name.endswith(".out"):
            assert run[name].values.mean(-1).abs().max() < EXACT


def test_a_folded_model_is_saved_and_loaded_like_any(tmp_path: Path) -> None:
    made = weights.folded(gf.load("gpt-4l"))
    gf.save(made, tmp_path)
    found = gf.load(tmp_path)
    assert found.tokenizer is not None
    ids = torch.tensor([[5, 9, 3]])
    assert torch.equal(found(ids), made(ids))


@pytest.mark.parametrize("side", ["source", "output"])
def test_a_folded_model_names_the_tokens_of_every_vocabulary_alike(side: str) -> None:
    model = subject("translator_apart" if side == "source" else "classifier").model
    size = model.config.n_sources if side == "source" else model.config.n_outputs
    setattr(model, f"{side}_tokenizer", symbol_tokenizer([f"{side}{i}" for i in range(size)]))
    made = weights.folded(model)
    assert getattr(made, f"{side}_tokenizer") is getattr(model, f"{side}_tokenizer")


def test_a_gate_that_would_need_a_bias_is_refused() -> None:
    part = Attention(n_heads=2, mixer=Softmax(), merge=Merge(gate="sigmoid"))
    model = DecoderConfig(11, 8, (BlockConfig((part,)),), max_len=16).build().double()
    with torch.no_grad():
        bias = model.stack.blocks[0].norm("attn").bias
        assert bias is not None
        bias.fill_(0.5)
    with pytest.raises(AnalysisUnavailable, match="its gate would have a bias"):
        weights.folded(model)


@pytest.mark.parametrize("gated", [False, True])
def test_an_mlp_without_biases_takes_those_of_the_norm_before_it(gated: bool) -> None:
    mlp = Mlp(8, "silu", gated, bias=False)
    model = DecoderConfig(11, 8, (block(n_heads=2, mlp=mlp),), max_len=16).build().double().eval()
    bias = model.stack.blocks[0].norm("mlp").bias
    assert bias is not None
    with torch.no_grad():
        bias.fill_(0.5)
    ids = torch.tensor([[1, 2, 3]])
    close(weights.folded(model)(ids).log_softmax(-1), model(ids).log_softmax(-1), EXACT)


def layer(**kwargs: Any) -> BlockConfig:
    return BlockConfig((Attention(n_heads=2, **kwargs),))


REFUSED = {
    "the model has no unembedding": ENCODERS["masked_pre"].replace(predicts=False, readout=None),
    r"stores its matrices as products \(latent\)": DecoderConfig(11, 8, (layer(projection=Latent(3)),), max_len=16),
    "a norm on token and type vectors has a scale of both": EncoderConfig(
        11, 8, (layer(positions=Rope()),), max_len=16, n_types=2, embed_norm=LayerNorm()
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_no_config_describes_once_it_is_folded_is_refused(why: str) -> None:
    with pytest.raises(AnalysisUnavailable, match=why):
        weights.folded(REFUSED[why].build().double())


@pytest.mark.parametrize("factor", [2.0, math.nan])
def test_a_folded_model_that_says_something_else_is_none(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoilt(w: HeadWeights) -> HeadWeights:
        done = fold(w)
        return dataclasses.replace(done, U=factor * done.U)

    monkeypatch.setattr(folded_model, "fold", spoilt)
    with pytest.raises(AnalysisUnavailable, match="the folded model says something else"):
        weights.folded(subject("gpt2").model)


def test_a_folded_model_has_a_name_of_its_own_and_what_else_is_known_of_the_model() -> None:
    model = DecoderConfig(11, 8, (layer(),), max_len=16, embed_dropout=0.5).build().double()
    model.name, model.no_tokenizer, model.coordinate_names = "mine", "nobody has one", [f"is {i}" for i in range(8)]
    # a pass in training mode drops half of what enters
    made = weights.folded(model.train())
    assert (made.name, made.no_tokenizer) == ("mine folded", "nobody has one")
    assert made.coordinate_names == model.coordinate_names
    assert model.training and not made.training
    assert made.unembed.weight.dtype == torch.float64
    made.own_tokenizers["output"] = None
    assert not model.own_tokenizers
