"""The network of neurons and astrocytes is linear attention: outputs, gradients and what both carry."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import elu, softplus

from glassformer.attention import Attention, Linear, MixerConfig, Performer
from glassformer.dynamics import NeuronAstrocyteNetwork
from glassformer.errors import WrongArgument
from glassformer.models.stack import make_context
from glassformer.testing import close
from one_pass import in_one_pass


def normal(*shape: int, seed: int = 0) -> Tensor:
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn.requires_grad_()


def text() -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values, `batch head pos d_head`."""
    return normal(2, 2, 6, 4), normal(2, 2, 6, 4, seed=1), normal(2, 2, 6, 3, seed=2)


def with_skip(u: Tensor) -> Tensor:
    return elu(u) + 1


@in_one_pass
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("config", [Linear(eps=0.0), Linear(eps=0.0, feature_map="softplus"), Performer(n_features=9)])
def test_the_network_is_a_layers_linear_attention_and_has_its_gradients(config: MixerConfig, causal: bool) -> None:
    mixer: Any = config.build(Attention(2, d_head=4).dims(8, 6), "mixer").double()
    network = NeuronAstrocyteNetwork(mixer.phi, mixer.of_queries, scale=7.0)
    context = make_context(2, 6, torch.device("cpu"), is_causal=causal)
    found = []
    for attend in (
        lambda q, k, v: mixer(q, k, v, q, context, None, None)[0],
        lambda q, k, v: network.attend(q, k, v, causal=causal),
    ):
        inputs = text()
        z = attend(*inputs)
        found.append((z, *torch.autograd.grad((z * z.detach().cos()).sum(), inputs)))
    for ours, expected in zip(found[1], found[0]):
        close(ours, expected)


def test_what_is_written_is_the_state_of_linear_attention_in_any_order() -> None:
    q, k, v = text()
    network, order = NeuronAstrocyteNetwork(with_skip), torch.tensor([3, 0, 5, 1, 4, 2])
    written = network.write(network.empty(k, v), k, v)
    close(network.write(network.empty(k, v), k[..., order, :], v[..., order, :]).neurons, written.neurons)
    mixer = Linear(eps=0.0).build(Attention(2, d_head=4, d_value=3).dims(8, 6), "mixer").double()
    context = make_context(2, 6, q.device, is_causal=True)
    _, state = mixer(q, k, v, q, context, mixer.begin(2, q), None)
    close(torch.cat((written.neurons.mT, written.astrocyte[..., None]), -1), state.memory)


def test_the_astrocyte_is_the_normaliser() -> None:
    q, k, v = text()
    network = NeuronAstrocyteNetwork(softplus)
    constant = torch.full_like(v, 2.5)
    close(network.attend(q, k, constant, causal=True), constant)
    synapses = network.write(network.empty(k, v), k, v)
    alone = softplus(q) @ synapses.neurons.mT
    close(network.read(synapses, q) * network.calcium(synapses, q)[..., None], alone)
    z = network.attend(q, k, v, causal=False)
    assert (z <= v.amax(-2, keepdim=True)).all() and (z >= v.amin(-2, keepdim=True)).all()


def test_what_is_no_rate_or_was_never_written_is_refused() -> None:
    q, k, v = text()
    with pytest.raises(WrongArgument, match="none is negative"):
        NeuronAstrocyteNetwork(elu).attend(q, k, v, causal=False)
    network = NeuronAstrocyteNetwork(with_skip)
    with pytest.raises(WrongArgument, match="Write first"):
        network.read(network.empty(k, v), q)
    with pytest.raises(WrongArgument, match="scale= takes"):
        NeuronAstrocyteNetwork(with_skip, scale=0.0)
