"""TransNormer and TransNormerLLM: which layers they are made of, and what their parts are apart from names."""

import math
from typing import Any

import pytest
import torch

from glassformer.attention import Lightning, Linear, LocalChunks, Lrpe, Merge, NoPositions, depth_slopes
from glassformer.errors import ConfigError
from glassformer.models import DecoderConfig, Mlp, RmsNorm, transnormer, transnormer_llm
from glassformer.testing import close
from glassformer.testing.layers import Layer, randomise, stream


def test_lower_layers_look_into_their_chunk_and_upper_ones_have_no_denominator() -> None:
    layers: Any = transnormer(4, n_heads=2, chunk=3, mlp=Mlp(8))
    mixers = [layer.parts[0].mixer for layer in layers]
    assert mixers == [LocalChunks(chunk=3, before=0)] * 2 + [Linear(denominator=False)] * 2
    assert layers[3].parts[0].merge == Merge(norm="all", gain=False)
    lower = DecoderConfig(11, 16, layers[:2], max_len=24).build(seed=0).double().eval()
    ids = torch.arange(9)[None]
    other = ids.clone()
    other[0, 2] = 10
    moved = (lower(ids) - lower(other)).abs().sum(-1)[0] > 0
    assert moved.tolist() == [False, False, True, False, False, False, False, False, False]


@pytest.mark.parametrize(("rule", "power"), [("transnormer", 8), ("minimax", 6)])
def test_slopes_fall_with_depth_until_the_last_layer_hardly_decays(rule: Any, power: int) -> None:
    found = torch.tensor([depth_slopes(power, layer, 5, rule) for layer in range(5)], dtype=torch.float64)
    first = torch.tensor([2 ** (-8 * (h + 1) / power) for h in range(power)], dtype=torch.float64)
    share = 1 - torch.arange(5, dtype=torch.float64) / 4
    close(found[:4], share[:4, None] * first, 1e-4)
    assert (found.diff(dim=0) < 0).all() and (found.diff(dim=1) < 0).all()
    assert (found[-1] > 0).all() and (found[-1] < 2e-5).all()
    assert all(math.isfinite(slope) for slope in depth_slopes(power, 0, 1, rule))
    with pytest.raises(ConfigError, match="layer 5 of n_layers=5"):
        depth_slopes(power, 5, 5, rule)


def test_the_larger_one_decays_by_depth_gates_linearly_and_has_a_bilinear_mlp() -> None:
    layers: Any = transnormer_llm(3, n_heads=2, d_mlp=8)
    for layer, config in enumerate(layers):
        attention = config.parts[0]
        assert attention.mixer == Lightning(slopes=depth_slopes(2, layer, 3))
        assert attention.positions == (Lrpe() if layer == 0 else NoPositions())
        assert config.norm == RmsNorm(gain=False)
    model = randomise(DecoderConfig(11, 16, layers, max_len=24).build(seed=0).double().eval())
    block: Any = model.stack.blocks[0]
    x = stream(1, 4, d_model=16)
    close(block.mlp.write(3 * x), 9 * block.mlp.write(x))
    merge, z = block.attn.merge, stream(2, 4, 3, d_model=8)[None]
    one, two = (merge.prepare(z, factor * x, merge.scale(z)) for factor in (1, 2))
    close(two, 2 * one)
    ids = torch.arange(9)[None]
    state = model.begin(batch=1)
    first, state = model(ids[:, :5], state=state)
    second, _ = model(ids[:, 5:], state=state)
    close(torch.cat((first, second), 1), model(ids))


@torch.no_grad()
def test_its_first_layer_is_that_of_the_released_code() -> None:
    """Queries and keys through silu, then doubled by cosines and sines of learned angles, then a decaying sum."""
    config: Any = transnormer_llm(2, n_heads=2)[0].parts[0]
    module: Any = randomise(config.build(8, 64, 0, "").double().eval())
    layer, x, n = Layer(module), stream(1, 9, d_model=8), 9
    read = layer.read(x, "query", "key", "value")
    theta = module.positions.frequencies[:, None] * torch.arange(n)[None, :, None]
    q, k = (
        torch.concat([u * torch.cos(theta), u * torch.sin(theta)], dim=-1)
        for u in (torch.nn.functional.silu(read[name]) for name in ("query", "key"))
    )
    age = (torch.arange(n)[:, None] - torch.arange(n)).double()
    slopes = torch.tensor(depth_slopes(2, 0, 2), dtype=torch.float64)[:, None, None]
    mixed = (torch.einsum("bhmd,bhnd->bhmn", q, k) * (-slopes * age).exp().tril()) @ read["value"]
    flat = mixed.transpose(1, 2).flatten(-2)
    normed = flat * (flat.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    close(layer(x), (normed * (x @ module.merge.gate.weight.T)) @ module.merge.output.weight.T)
