"""PolaFormer's attention: signs kept apart, powers, and what a convolution adds over a grid or along a text."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, strategies as st
from torch import Tensor

import glassformer as gf
from glassformer.attention import Attention, Context, Depthwise, Mask, Merge, Pola, documents, padding
from glassformer.errors import ConfigError
from glassformer.models import DecoderConfig, Mlp, block, published_block
from glassformer.models.stack import make_context
from glassformer.testing import close
from glassformer.testing.layers import D_MODEL, Layer, randomise, seeds, stream

GRID = 3, 4


def built(mixer: Pola, seed: int = 0, heads: tuple[int, int] = (4, 2), **fields: Any) -> Layer:
    config = Attention(*heads, 4, 3, mixer=mixer, **fields)
    return Layer(randomise(config.build(D_MODEL, 32, 0, "").double().eval(), seed))


def both_ways(n: int, mask: Mask | None = None) -> Context:
    positions = torch.arange(n)[None]
    return Context(mask or Mask(), positions, positions)


def as_released(layer: Layer, x: Tensor, eps: float) -> Tensor:
    """What the released code computes for one image, from the layer's numbers: its formulas, in our words."""
    attn: Any = layer.module
    mixer = layer.mixer
    heads, d = attn.dims.n_heads, attn.dims.d_head
    assert attn.dims.grid is not None
    rows, columns = attn.dims.grid
    n = x.shape[1]
    q, k, v = attn.projection.qkv(x).split(heads * d, -1)
    scale = F.softplus(mixer.scales).flatten()
    q, k = q / scale, (k + mixer.places[:, :n].transpose(0, 1).flatten(1)) / scale
    q, k, v = (u.unflatten(-1, (heads, d)).transpose(1, 2) for u in (q, k, v))
    power = 1 + mixer.config.alpha * mixer.power.sigmoid()[:, None]
    queries, keys = (torch.cat((u.relu() ** power, (-u).relu() ** power), -1) for u in (q, k))
    mixed = []
    for asked, part in zip((queries, queries.roll(d, -1)), v.chunk(2, -1)):
        z = 1 / (asked @ keys.mean(-2, keepdim=True).mT + eps)
        mixed.append(asked @ (keys.mT @ part / n) * z)
    image = v.flatten(0, 1).mT.unflatten(-1, (rows, columns))
    taps, bias = mixer.convolution.taps[:, None], mixer.convolution.bias
    local = F.conv2d(image, taps, bias, padding=taps.shape[-1] // 2, groups=d).flatten(2).mT.unflatten(0, (-1, heads))
    flat = (torch.cat(mixed, -1) + local).transpose(1, 2).flatten(2)
    return attn.merge.output(flat * attn.merge.gate(x))


@given(seeds)
def test_it_is_the_released_layer_over_a_grid(seed: int) -> None:
    part: Any = published_block(Pola(eps=12e-6), n_heads=3, grid=GRID).parts[0]
    layer = Layer(randomise(part.build(D_MODEL, 12, 0, "").double().eval(), seed))
    x = stream(2, 12, seed)
    close(layer(x, both_ways(12)), as_released(layer, x, 1e-6))


@given(st.data(), seeds)
def test_patterns_of_both_values_are_those_of_a_plain_loop(data: st.DataObject, seed: int) -> None:
    layer = built(Pola(key_places=data.draw(st.booleans()), eps=0.0), seed)
    x = stream(1, 5, seed)
    found = layer.read(x, "query", "key", "value", "pattern", "z")
    power, scale = layer.mixer.powers(), F.softplus(layer.mixer.scales)
    for head in range(4):
        for t in range(5):
            q = found["query"][0, head, t] / scale[head]
            weights = torch.zeros(2, 5, dtype=torch.float64)
            for s in range(t + 1):
                k = found["key"][0, head // 2, s]
                k = (k if layer.mixer.places is None else k + layer.mixer.places[head // 2, s]) / scale[head]
                alike = (q * k).abs() ** power[head]
                weights[0, s], weights[1, s] = alike[q * k > 0].sum(), alike[q * k < 0].sum()
            rows = weights / weights.sum(-1, keepdim=True).clamp_min(1e-300)
            close(found["pattern"][0, :, head, t], rows)
            values = found["value"][0, :, head // 2]
            close(found["z"][0, head, t], torch.cat((rows[0] @ values[0], rows[1] @ values[1])))


@given(seeds, st.sampled_from([Pola(), Pola(convolution=3), Pola(convolution=2, key_places=True)]))
def test_patterns_times_values_are_z_less_what_the_convolution_adds(seed: int, mixer: Pola) -> None:
    layer, x = built(mixer, seed), stream(2, 6, seed)
    fused = layer.read(x, "value", "z", *["local"] * (mixer.convolution is not None))
    pattern = layer.read(x, "pattern")["pattern"]
    mixed = layer.mixer.merged(pattern @ fused["value"].repeat_interleave(2, -3))
    close(mixed, fused["z"] - fused.get("local", 0))


@given(seeds)
def test_without_a_power_equal_signs_less_opposite_ones_are_the_product(seed: int) -> None:
    mixer = built(Pola(alpha=0.0), seed).mixer
    q, k = torch.randn(2, 1, 4, 5, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    (q_up, q_down), (k_up, k_down) = (mixer.polar(u).chunk(2, -1) for u in (q, k))
    same, opposite = q_up @ k_up.mT + q_down @ k_down.mT, q_up @ k_down.mT + q_down @ k_up.mT
    scale = F.softplus(mixer.scales)[:, None]
    close(same - opposite, (q / scale) @ (k / scale).mT)


@given(seeds, st.sampled_from(["query", "key"]))
def test_turning_the_sign_of_keys_or_queries_exchanges_the_patterns(seed: int, name: str) -> None:
    layer, x = built(Pola(), seed), stream(2, 6, seed)
    plain = layer.read(x, "pattern")["pattern"]
    tape = layer.tape("pattern", edit={name: lambda u: -u})
    layer(x, tape=tape)
    close(tape.values["pattern"], plain.flip(1))


def test_no_order_is_seen_without_a_convolution_and_places_and_one_is_with_either() -> None:
    x, order = stream(2, 12), torch.randperm(12, generator=torch.Generator().manual_seed(0))
    for mixer, seen in ((Pola(), False), (Pola(convolution=3), True), (Pola(key_places=True), True)):
        layer = built(mixer, grid=GRID)
        moved, plain = layer(x[:, order], both_ways(12)), layer(x, both_ways(12))[:, order]
        assert ((moved - plain).abs().max() > 1e-3) == seen
        if not seen:
            close(moved, plain)


def test_larger_powers_lower_the_mean_entropy_of_rows() -> None:
    q, k = torch.randn(2, 1, 1, 400, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = []
    for power in (1, 2, 3, 4, 5):
        # half of alpha, at the beginning
        mixer: Any = Pola(alpha=2.0 * (power - 1)).build(Attention(1).dims(8, 400), "").double()
        assert torch.equal(mixer.powers(), torch.full((1, 8), float(power), dtype=torch.float64))
        pattern = mixer.pattern(q, k[..., :50, :], q[0], both_ways(50), None)
        found.append(-torch.special.xlogy(pattern, pattern).sum(-1).mean())
    # from uniform over 50 keys, log 50 = 3.9, by a third of a nat and more each time
    assert found[0] < 3.9 and (torch.stack(found).diff() < -0.3).all()


def one_at_a_time(taps: Tensor, bias: Tensor, x: Tensor, grid: tuple[int, int]) -> Tensor:
    """The convolution over a grid as a loop over places and taps; x is `place channel`."""
    rows, columns, half = *grid, taps.shape[-1] // 2
    out = bias.expand_as(x).clone()
    for r in range(rows):
        for c in range(columns):
            for i in range(-half, half + 1):
                for j in range(-half, half + 1):
                    if 0 <= r + i < rows and 0 <= c + j < columns:
                        out[r * columns + c] += taps[:, i + half, j + half] * x[(r + i) * columns + c + j]
    return out


@given(seeds)
def test_over_a_grid_each_place_is_mixed_with_those_around_it(seed: int) -> None:
    convolution = randomise(Depthwise(5, 3, GRID).double(), seed)
    x = stream(2, 13, seed, d_model=5)
    # a class token in front takes no part
    for ahead in (0, 1):
        found = convolution.over(x[:, 1 - ahead :], both_ways(12 + ahead))
        assert not found[:, :ahead].any()
        for row in range(2):
            taps, bias = convolution.taps, convolution.bias
            close(found[row, ahead:], one_at_a_time(taps, bias, x[row, 1:], GRID))


@given(seeds)
def test_along_a_text_each_position_is_mixed_with_those_just_before_it(seed: int) -> None:
    convolution, x = randomise(Depthwise(5, 3).double(), seed), stream(2, 6, seed, d_model=5)
    found, last = convolution.along(x, make_context(2, 6, x.device, is_causal=True))
    taps, zero = convolution.taps, torch.zeros(2, 5, dtype=torch.float64)
    for t in range(6):
        before = [x[:, t - i] if t >= i else zero for i in range(3)]
        close(found[:, t], sum(u * taps[:, i] for i, u in enumerate(before)) + convolution.bias)
    assert torch.equal(last, x[:, 4:])


@given(seeds)
def test_packed_and_padded_images_are_those_alone(seed: int) -> None:
    layer = built(Pola(convolution=3, key_places=True), seed, grid=GRID)
    x = stream(2, 24, seed)
    packed_at = torch.arange(24)[None] % 12
    packed = layer(x, Context(documents(torch.arange(24)[None] // 12), packed_at, packed_at))
    for part in (slice(0, 12), slice(12, 24)):
        close(packed[:, part], layer(x[:, part], both_ways(12)))
    # the last two places hidden: as if their values were zero
    hidden = layer.read(x[:, :12], "local", "value", context=both_ways(12, padding(torch.tensor([10, 12]))))
    kept = hidden["value"].clone()
    kept[0, ..., 10:, :] = 0
    expected = layer.mixer.local(kept, both_ways(12))[0]
    expected[0, :, 10:] = 0
    close(hidden["local"], expected)


def test_a_convolution_over_a_grid_refuses_what_is_not_whole() -> None:
    layer = built(Pola(convolution=3), grid=GRID)
    x = stream(1, 12)
    with pytest.raises(ConfigError, match="cannot be causal"):
        layer(x)
    with pytest.raises(ConfigError, match="no state"):
        layer.module(x, both_ways(12), state=layer.module.begin(1, x))
    with pytest.raises(ConfigError, match="no grid of 3 x 4"):
        layer(x[:, :10], both_ways(10))
    with pytest.raises(ConfigError, match="use 5"):
        built(Pola(convolution=4), grid=GRID)
    # the attention alone asks for no grid, and may look back
    assert built(Pola(), grid=GRID)(x).shape == x.shape


def test_the_bias_makes_z_affine_in_the_values_and_local_says_by_how_much() -> None:
    layer, x = built(Pola(convolution=3)), stream(1, 6)
    tape = layer.tape("z", "local", edit={"value": lambda v: v * 0})
    layer(x, tape=tape)
    bias = layer.mixer.convolution.bias.detach()
    close(tape.values["z"], bias.expand(1, 4, 6, -1))
    assert torch.equal(tape.values["z"], tape.values["local"])


def test_the_published_layer_has_a_gate_behind_the_convolution() -> None:
    config: Any = published_block(Pola(), n_heads=2).parts[0]
    assert config.mixer == Pola(convolution=5, key_places=True)
    assert config.merge == Merge(bias=True, gate="linear", gate_bias=True)
    assert config.departures(0) == []


def test_both_patterns_of_a_head_have_roles_and_the_convolution_leaves_them_to_be_looked_at() -> None:
    for mixer in (Pola(), Pola(convolution=3)):
        layer = block(mixer, n_heads=2, mlp=Mlp(8))
        model = DecoderConfig(11, 16, (layer,) * 2, max_len=16).build(seed=0).double().eval()
        run = gf.run(model, torch.arange(9)[None] % 5, read=[gf.analysis.heads.head_roles])
        found = gf.analysis.heads.head_roles(run)
        assert list(found.scores.coords["head"])[:4] == ["L0H0/0", "L0H0/1", "L0H1/0", "L0H1/1"]
