"""Influence on what memories give: of a linear one the size of its pattern, of all that which small changes do."""

from typing import Any

import pytest
import torch
from torch import Tensor

import glassformer as gf
from glassformer.analysis.attribution import memory_influence
from glassformer.attention import LinearMemory, MixerConfig, NeuralMemory
from glassformer.errors import AnalysisUnavailable
from glassformer.models import Decoder, DecoderConfig, Mlp, published_block, titans
from glassformer.testing import close
from glassformer.testing.layers import randomise
from glassformer.testing.models import subject
from glassformer.trace import Add, At, Tape
from one_pass import in_one_pass

IDS = torch.tensor([[3, 1, 4, 1, 5]])


def model(*memories: MixerConfig, **kwargs: Any) -> Decoder:
    layers = tuple(published_block(memory, n_heads=2, mlp=Mlp(8), **kwargs) for memory in memories)
    return randomise(DecoderConfig(11, 8, layers, max_len=16).build(0).double().eval(), 0, std=0.3)


@in_one_pass
@pytest.mark.parametrize("n_kv_heads", [2, 1])
@pytest.mark.parametrize("learned_start", [False, True])
def test_of_a_linear_memory_it_is_the_size_of_the_pattern(n_kv_heads: int, learned_start: bool) -> None:
    one = LinearMemory(chunk=2, learned_start=learned_start)
    found = model(one, one, n_kv_heads=n_kv_heads)
    values = memory_influence(found, IDS, positions="all").values
    assert values.labels("head") == ["L0H0", "L0H1", "L1H0", "L1H1"]
    run = gf.run(found, IDS, read=["*.pattern"])
    close(values.values, torch.cat([run[f"blocks.{i}.attn.pattern"].values[0].abs() for i in range(2)]))


def changed(found: Decoder, z: str, at: str, key: int, **where: Any) -> Tensor:
    """Return how much z changes with each number of a site at one position, over two small steps."""
    width = found.sites()[at].sizes[found.sites()[at].axes[-1]]
    slopes = []
    for i in range(width):
        step = torch.zeros(width, dtype=torch.float64)
        step[i] = 1e-5
        ends = []
        for sign in (1, -1):
            tape = Tape(found, z, [Add(at, sign * step, at=At(**{where["axis"]: key}))])
            found(IDS, tape=tape)
            ends.append(tape.values[z][0])
        slopes.append((ends[0] - ends[1]) / 2e-5)
    return torch.stack(slopes).square().sum((0, -1))


@torch.no_grad()
def test_of_a_deep_memory_it_is_what_small_changes_do() -> None:
    found = model(NeuralMemory(chunk=2))
    for told, at, axis in (("value", "blocks.0.attn.value", "key"), ("input", "blocks.0.attn.norm", "pos")):
        values = memory_influence(found, IDS, told=told, positions=[1, -1]).values.values  # type: ignore[arg-type]
        for key in (0, 1, 4):
            expected = (changed(found, "blocks.0.attn.z", at, key, axis=axis) / 4).sqrt()[:, [1, 4]]
            close(values[..., key], expected, 1e-6)
    assert (values[:, 0, 2:] == 0).all() and (values[:, 0, :2] > 0).all()


@in_one_pass
@pytest.mark.parametrize("used", ["context", "gate", "layer"])
def test_memories_beside_attention_are_asked_where_they_stand(used: Any) -> None:
    layers = titans(1, n_heads=2, memory=NeuralMemory(chunk=2), used=used, window=2, tokens=1)
    found = randomise(DecoderConfig(11, 8, layers, max_len=16).build(0).double().eval(), 0, std=0.3)
    values = memory_influence(found, IDS, told="input", positions="all").values
    inside = {"context": "L0 mac", "gate": "L0 mag", "layer": "L0"}[used]
    assert values.labels("head") == [f"{inside}H0", f"{inside}H1"]
    assert (values.values.triu(1) == 0).all() and (values.values[:, -1] > 0).all()
    if used == "context":
        with pytest.raises(AnalysisUnavailable, match=r'L0 mac is a memory as context(.|\n)*told="input"'):
            memory_influence(found, IDS)


def test_rows_at_once_change_nothing() -> None:
    found = model(LinearMemory(chunk=2), NeuralMemory(chunk=3))
    few, many = (memory_influence(found, IDS, positions="all", rows_at_once=n).values.values for n in (5, 64))
    close(few, many)


def test_it_says_that_it_is_of_derivatives_and_refuses_models_without_a_memory() -> None:
    (note,) = memory_influence(model(NeuralMemory(chunk=2)), IDS).notes
    assert "lengths of derivatives, no weights" in str(note)
    with pytest.raises(AnalysisUnavailable, match=r"no layer of this model has one(.|\n)*input_gradients"):
        memory_influence(subject("gpt2").model, IDS)
