"""Memory as context, as gate, as layer and alone: what is joined, and that no later token is heard of."""

from typing import Any

import pytest
import torch
from torch import Tensor

import glassformer as gf
from glassformer.attention import Attention, LinearMemory, NeuralMemory, Persistent, Softmax
from glassformer.errors import ConfigError, WrongArgument
from glassformer.models import GREEDY, DecoderConfig, MemoryGate, Mlp, titans
from glassformer.testing import close
from glassformer.testing.layers import D_MODEL, causal_context, randomise, stream
from glassformer.trace import Tape
from one_pass import in_one_pass

USES = ("context", "gate", "layer", "alone")


def gate(memory: Any = None, seed: int = 0) -> Any:
    config = MemoryGate(
        Attention(2, **(memory or NeuralMemory(chunk=3)).as_published()), Attention(2, mixer=Persistent(2, 3))
    )
    return randomise(config.build(D_MODEL, 32, 0, "").double().eval(), seed)


def model(used: Any, **kwargs: Any) -> Any:
    layers = titans(2, n_heads=2, memory=NeuralMemory(chunk=3), used=used, window=3, tokens=2, mlp=Mlp(8), **kwargs)
    return randomise(DecoderConfig(11, 12, layers, max_len=64).build(0).double().eval(), 0, std=0.2)


def test_what_is_written_is_what_the_equation_says() -> None:
    layer, x = gate(), stream(2, 7)
    m, y = (part(x, causal_context(x))[0] for part in (layer.memory, layer.attention))

    def normed(u: Tensor, gain: Tensor) -> Tensor:
        return u / (u.square().mean(-1, keepdim=True) + 1e-6).sqrt() * gain

    close(layer(x, causal_context(x))[0], normed(m, layer.gains[0]).sigmoid() * normed(y, layer.gains[1]))


def test_a_memory_that_says_nothing_opens_everything_by_half() -> None:
    layer, x = gate(), stream(2, 7)
    with torch.no_grad():
        layer.memory.merge.output.weight.zero_()
    y = layer.attention(x, causal_context(x))[0]
    close(layer(x, causal_context(x))[0] * 2 / layer.gains[1], y / (y.square().mean(-1, keepdim=True) + 1e-6).sqrt())


@in_one_pass
@pytest.mark.parametrize("used", USES)
def test_no_logit_has_a_gradient_of_any_later_token(used: str) -> None:
    found = model(used)
    ids = torch.arange(9)[None] % 11
    tape = Tape(found, read="blocks.0.resid_pre", grad=True)
    logits = found(ids, tape=tape)
    (vectors,) = tape.values.values()
    for t in range(8):
        (gradient,) = torch.autograd.grad(logits[0, t].square().sum(), vectors, retain_graph=True)
        assert (gradient[0, t + 1 :] == 0).all() and (gradient[0, : t + 1] != 0).any(-1).all()


@in_one_pass
@pytest.mark.parametrize("used", USES)
def test_beyond_the_window_only_the_memory_reaches(used: str) -> None:
    """Windows of three and convolutions of four reach ten back; what a memory learnt is read however far it lies."""
    found = model(used)
    ids = torch.arange(12)[None] % 11
    other = ids.clone()
    other[0, 0] = 5
    assert (found(ids)[0, -1] - found(other)[0, -1]).abs().max() > 1e-8
    if used != "alone":
        for part in found.modules():
            if hasattr(part, "gate_bias"):
                # no step is taken, and nothing forgotten
                part.gate_bias.data[[0, 2]] = -1e4
        assert torch.equal(found(ids)[0, -1], found(other)[0, -1])


@in_one_pass
@pytest.mark.parametrize("used", USES)
def test_texts_are_continued_as_they_are_read_whole(used: str) -> None:
    found = model(used)
    prompts = [[1, 2, 3, 4, 5, 6, 7], [3, 1]]
    together = gf.generate(found, prompts, max_new_tokens=6, sampling=GREEDY)
    for row, prompt in enumerate(prompts):
        ids = list(prompt)
        for _ in range(6):
            ids.append(int(found(torch.tensor([ids]))[0, -1].argmax()))
        assert list(together.ids[row]) == ids
    assert DecoderConfig.from_json(found.config.to_json()) == found.config


def test_uses_differ_in_their_parts_alone() -> None:
    memory = LinearMemory(chunk=4)
    kinds = {used: [part.kind for part in titans(1, n_heads=2, memory=memory, used=used)[0].parts] for used in USES}  # type: ignore[arg-type]
    assert kinds == {
        "context": ["memory_context"],
        "gate": ["memory_gate"],
        "layer": ["attention", "attention"],
        "alone": ["attention"],
    }
    long, near = titans(1, n_heads=2, memory=memory, used="layer", window=7, tokens=3)[0].parts
    assert isinstance(long, Attention) and long.mixer == memory
    assert isinstance(near, Attention) and near.mixer == Persistent(3, 7)


def test_another_use_of_a_memory_is_refused_with_those_there_are() -> None:
    with pytest.raises(WrongArgument, match="titans: used= takes 'context' or 'gate' or 'layer' or 'alone'"):
        titans(1, n_heads=2, used="core")  # type: ignore[arg-type]


def test_neither_layer_may_read_another_stack() -> None:
    with pytest.raises(ConfigError, match="cross-attention"):
        MemoryGate(attention=Attention(2, mixer=Softmax(), cross=True))
