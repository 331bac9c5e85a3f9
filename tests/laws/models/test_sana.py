"""SANA's block: ReLU linear attention, which sees no order, and a Mix-FFN, whose convolution does."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from glassformer.attention import Context, Linear, Mask, Pola, documents
from glassformer.errors import ConfigError
from glassformer.models import (
    DecoderConfig,
    EncoderConfig,
    MixMlp,
    Mlp,
    Patches,
    block,
    image_encoder,
    published_block,
    sana,
)
from glassformer.models.accounting import account
from glassformer.testing import close
from glassformer.testing.layers import D_MODEL, causal_context, randomise, seeds, stream

GRID = 3, 4


def both_ways(n: int, ids: Tensor | None = None) -> Context:
    positions = torch.arange(n)[None]
    return Context(Mask() if ids is None else documents(ids), positions, positions)


def built(part: Any, seed: int = 0) -> Any:
    return randomise(part.build(D_MODEL, 32, 0, "").double().eval(), seed)


def block_of(seed: int = 0, **fields: Any) -> Any:
    config = sana(1, n_heads=3, grid=GRID, **fields)
    encoder = EncoderConfig(11, D_MODEL, config, max_len=12).build().double().eval()
    return randomise(encoder, seed).stack.blocks[0]


def as_released(layer: Any, x: Tensor) -> Tensor:
    """What the released code computes of one image: `batch channel row column`, maps as convolutions of width 1."""
    image = x.mT.unflatten(-1, GRID)
    u = F.silu(F.conv2d(image, layer.input.weight[..., None, None], layer.input.bias))
    taps, bias = layer.convolution.taps, layer.convolution.bias
    a, gate = F.conv2d(u, taps[:, None], bias, padding=1, groups=len(bias)).chunk(2, 1)
    return F.conv2d(a * F.silu(gate), layer.output.weight[..., None, None]).flatten(2).mT


@given(seeds)
def test_it_is_the_released_layer_over_a_grid(seed: int) -> None:
    layer, x = built(MixMlp(5, grid=GRID), seed), stream(2, 12, seed)
    close(layer(x, both_ways(12))[0], as_released(layer, x))


@given(seeds)
def test_attention_is_that_of_the_released_code(seed: int) -> None:
    attention, x = block_of(seed).attn, stream(2, 12, seed)
    assert attention.mixer.config == Linear("relu", eps=1e-15)
    q, k, v = (u.unflatten(-1, (3, -1)).permute(0, 2, 3, 1) for u in attention.projection.qkv(x).chunk(3, -1))
    # values in columns, and a row of ones below them
    total = F.pad(v, (0, 0, 0, 1), value=1) @ k.relu().mT @ q.relu()
    mixed = total[:, :, :-1] / (total[:, :, -1:] + 1e-15)
    close(attention(x, both_ways(12))[0], attention.merge.output(mixed.flatten(1, 2).mT))


@pytest.mark.parametrize("grid", [None, GRID])
def test_a_kernel_that_sees_its_own_place_makes_a_pointwise_gated_mlp(grid: tuple[int, int] | None) -> None:
    layer, x = built(MixMlp(5, grid=grid)), stream(2, 12)
    with torch.no_grad():
        layer.convolution.taps.zero_()
        layer.convolution.taps[(..., 0) if grid is None else (..., 1, 1)] = 1.0
    a, gate = (F.silu(layer.input(x)) + layer.convolution.bias).chunk(2, -1)
    close(layer(x, both_ways(12))[0], layer.output(a * F.silu(gate)))


@given(seeds)
def test_attention_sees_no_order_and_the_mix_ffn_does(seed: int) -> None:
    x, order = stream(1, 12, seed), torch.randperm(12, generator=torch.Generator().manual_seed(seed))
    context, block = both_ways(12), block_of(seed)
    assert not torch.equal(order, torch.arange(12))
    close(block.attn(x[:, order], context)[0], block.attn(x, context)[0][:, order])
    mixed, moved = (block.mlp(u, context)[0] for u in (x, x[:, order]))
    assert (moved - mixed[:, order]).abs().max() > 1e-6
    plain = built(Mlp(5, "silu", gated=True), seed)
    close(plain(x[:, order], context)[0], plain(x, context)[0][:, order])


def test_a_class_token_in_front_is_mixed_with_nothing() -> None:
    layer, x = built(MixMlp(5, grid=GRID)), stream(1, 13)
    found = layer(x, both_ways(13))[0]
    close(found[:, 1:], layer(x[:, 1:], both_ways(12))[0])
    assert not found[:, 0].any()


@pytest.mark.parametrize("bias", [True, False])
def test_a_class_token_that_a_layer_is_told_of_is_an_image_of_one_place(bias: bool) -> None:
    config = MixMlp(5, bias=bias).on_grid(GRID, 1)
    assert (
        config.to_json() != MixMlp(5, bias=bias, grid=GRID).to_json() and MixMlp.from_json(config.to_json()) == config
    )
    layer, x = built(config), stream(2, 13).requires_grad_()
    single = built(MixMlp(5, bias=bias, grid=(1, 1)))
    single.load_state_dict(layer.state_dict())
    found = layer(x, both_ways(13))[0]
    close(found[:, :1], single(x[:, :1], both_ways(1))[0])
    whole = built(MixMlp(5, bias=bias, grid=GRID))
    close(found[:, 1:], whole(x[:, 1:], both_ways(12))[0])
    # the image says nothing to its class token here, nor the token to the image
    assert not torch.autograd.grad(found[:, 0].sum(), x, retain_graph=True)[0][:, 1:].any()
    assert not torch.autograd.grad(found[:, 1:].square().sum(), x)[0][:, 0].any()
    packed = torch.arange(26)[None] // 13
    close(layer(torch.cat((x, x), 1), both_ways(26, packed))[0], torch.cat((found, found), 1))
    with pytest.raises(ConfigError, match="12 tokens are no grid of 3 x 4 = 12, 1 in front of it"):
        layer(x[:, 1:], both_ways(12))


def test_an_encoder_of_images_with_a_class_token_may_have_mix_ffns() -> None:
    layers = (block(n_heads=3, mlp=MixMlp(5)),)
    encoder = image_encoder(Patches((6, 8), 2, class_token=True), D_MODEL, layers, n_classes=2).build().eval()
    assert encoder(torch.rand(2, 1, 6, 8)).shape == (2, 13, 2)


def test_packed_images_are_those_alone() -> None:
    layer, x = built(MixMlp(5, grid=GRID)), stream(2, 24)
    packed = layer(x, both_ways(24, torch.arange(24)[None] // 12))[0]
    for part in (slice(0, 12), slice(12, 24)):
        close(packed[:, part], layer(x[:, part], both_ways(12))[0])


def test_a_grid_is_read_whole_and_a_text_backwards_only() -> None:
    layer, x = built(MixMlp(5, grid=GRID)), stream(1, 12)
    with pytest.raises(ConfigError, match="cannot be causal"):
        layer(x, causal_context(x))
    with pytest.raises(ConfigError, match="no state"):
        layer(x, both_ways(12), state=layer.begin(1, x))
    for parts in (sana(1, n_heads=3, grid=GRID), (published_block(Pola(), n_heads=3, grid=GRID),)):
        with pytest.raises(ConfigError, match="cannot be causal"):
            DecoderConfig(11, D_MODEL, parts, max_len=12)
    assert layer.state_bytes(12, 0, torch.float32) == 0
    with pytest.raises(ConfigError, match="reads both ways"):
        EncoderConfig(11, D_MODEL, sana(1, n_heads=3), max_len=12)
    # in a decoder, two tokens are kept of what is expanded
    text = built(MixMlp(5))
    assert text.begin(1, x).expanded.shape == (1, 2, 10) and text.state_bytes(7, 0, torch.float32) == 80
    DecoderConfig(11, D_MODEL, sana(2, n_heads=3), max_len=12).build()


@pytest.mark.parametrize("pola", [False, True])
def test_over_a_grid_it_costs_what_torch_counts_and_survives_json(pola: bool) -> None:
    blocks = (published_block(Pola(), n_heads=3, grid=GRID),) if pola else sana(2, n_heads=3, grid=GRID)
    config = EncoderConfig(11, D_MODEL, blocks, max_len=12)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        config.build()(torch.zeros(1, 12, dtype=torch.int64))
    assert counter.get_total_flops() == account(config, 12).forward
    assert EncoderConfig.from_json(config.to_json()) == config
