"""Load of experts: counts are those of a plain loop, and routers built by hand have the numbers that are known."""

import math

import pytest
import torch
from hypothesis import given

import glassformer as gf
from glassformer.analysis.behaviour import ExpertLoad, expert_load
from glassformer.errors import AnalysisUnavailable
from glassformer.models import DecoderConfig, MixtureOfExperts, RmsNorm, block
from glassformer.models.experts import ExpertsLayer
from glassformer.testing import close
from glassformer.testing.layers import randomise, seeds
from glassformer.testing.models import subject


def model(*mixtures: MixtureOfExperts, seed: int = 0):
    layers = tuple(block(n_heads=2, norm=RmsNorm(), mlp=one) for one in mixtures)
    return randomise(DecoderConfig(11, 16, layers, max_len=16).build().double(), seed, std=0.3)


def number(found: ExpertLoad, measure: str, layer: int = 0) -> float:
    return float(found.measures.values[layer, found.measures.coords["measure"].index(measure)])


@given(seeds)
def test_tokens_and_weights_are_those_of_a_plain_loop(seed: int) -> None:
    tested = model(MixtureOfExperts(4, 2, 5), MixtureOfExperts(3, 1, 5), seed=seed)
    ids, lengths = torch.randint(11, (2, 6), generator=torch.Generator().manual_seed(seed)), torch.tensor([6, 4])
    run = gf.run(tested, ids, lengths=lengths, read=[expert_load])
    found = expert_load(run)
    for i, n in enumerate((4, 3)):
        weights = run[f"blocks.{i}.mlp.weights"].values
        for e in range(n):
            mine = [float(weights[b, t, e]) for b in range(2) for t in range(int(lengths[b])) if weights[b, t, e] != 0]
            assert found.tokens.values[i, e] == len(mine)
            if mine:
                close(found.weight.values[i, e], torch.tensor(sum(mine) / len(mine), dtype=torch.float64))
    assert found.tokens.values[1, 3].isnan() and found.load.values[1, 3].isnan()
    close(found.load.values.nansum(-1), torch.ones(2))
    close(found.tokens.values.nansum(-1), torch.tensor([20.0, 10.0]))


def test_a_router_without_weights_is_undecided_and_one_that_always_says_the_same_loads_one_expert() -> None:
    tested = model(MixtureOfExperts(4, 1, 5, router_bias=True))
    layer = tested.stack.blocks[0].part("mlp")
    assert isinstance(layer, ExpertsLayer) and layer.router.bias is not None
    with torch.no_grad():
        layer.router.weight.zero_()
        layer.router.bias.zero_()
        flat = expert_load(tested, torch.arange(8)[None], capacity=1.0)
        layer.router.bias.copy_(torch.tensor([0.0, 0.0, 60.0, 0.0]))
        sure = expert_load(tested, torch.arange(8)[None], capacity=1.0)
    assert number(flat, "choice_entropy_bits") == pytest.approx(2) and number(flat, "balance") == pytest.approx(1)
    assert number(flat, "router_z") == pytest.approx(math.log(4) ** 2)
    close(sure.load.values, torch.tensor([[0.0, 0, 1, 0]]))
    assert number(sure, "load_entropy_bits") == 0 and number(sure, "balance") == pytest.approx(4)
    # eight ask, and one holds two
    assert number(sure, "dropped") == pytest.approx(0.75) and number(sure, "router_z") == pytest.approx(3600)


def test_what_would_be_dropped_is_what_training_drops() -> None:
    tested = model(MixtureOfExperts(4, 2, 5, capacity=0.5))
    ids = torch.randint(11, (2, 8), generator=torch.Generator().manual_seed(3))
    found = expert_load(tested, ids)
    tape = gf.Tape(tested.train(), ["blocks.0.mlp.weights"])
    tested(ids, tape=tape)
    left = float((tape.values["blocks.0.mlp.weights"] != 0).sum())
    assert found.capacity == 0.5 and 0 < number(found, "dropped") == pytest.approx(1 - left / 32)
    assert number(expert_load(tested, ids, capacity=4.0), "dropped") == 0


def test_models_without_experts_say_so() -> None:
    tested = subject("gpt2")
    with pytest.raises(AnalysisUnavailable, match="no sub-layer of this model is a mixture of experts"):
        expert_load(tested.model, tested.inputs[0])
