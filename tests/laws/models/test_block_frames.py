"""Macaron and MetaFormer blocks: what they equal in a limit, and of which order their steps are."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.attention import Attention, Merge, Softmax, Tied
from glassformer.errors import ConfigError, WrongArgument
from glassformer.handmade import rotated
from glassformer.models import BlockConfig, DecoderConfig, EncoderConfig, Mlp, NoNorm, block, macaron, metaformer
from glassformer.models.accounting import count_parameters
from glassformer.models.frames import TOKEN_MIXERS
from glassformer.models.stack import make_context
from glassformer.testing import close
from glassformer.testing.layers import causal_context, randomise, stream
from one_pass import in_one_pass


def config(*layers: BlockConfig) -> DecoderConfig:
    return DecoderConfig(vocab_size=11, d_model=12, layers=layers, max_len=24)


def alone(layer: BlockConfig) -> Any:
    return randomise(config(layer).build().stack.blocks[0].double().eval())


def test_without_its_first_half_and_with_the_second_doubled_it_is_the_usual_block():
    ours, usual = alone(macaron(n_heads=2, mlp=Mlp(10))), alone(block(n_heads=2, mlp=Mlp(10)))
    with torch.no_grad():
        for parameter in (ours.mlp.output.weight, ours.mlp.output.bias):
            parameter.zero_()
        usual.load_state_dict({
            name: ours.state_dict()[name.replace("mlp", "mlp_1", 1)] for name in usual.state_dict()
        })  # fmt: skip
        ours.mlp_1.output.weight.mul_(2)
        ours.mlp_1.output.bias.mul_(2)
    x = stream(2, 5)
    close(ours(x, causal_context(x))[0], usual(x, causal_context(x))[0])


def test_two_half_steps_of_one_mlp_are_left_where_attention_writes_nothing():
    ours = alone(macaron(n_heads=2, mlp=Mlp(10), norm=NoNorm()))
    with torch.no_grad():
        ours.attn.merge.output.weight.zero_()
    x = stream(2, 5)
    middle = x + ours.mlp.write(x) / 2
    close(ours(x, causal_context(x))[0], middle + ours.mlp_1.write(middle) / 2)


def test_with_halves_of_half_the_width_there_are_as_many_weights_as_in_the_usual_block():
    ours = count_parameters(config(macaron(n_heads=2, mlp=Mlp(24, bias=False), norm=NoNorm())))
    assert ours == count_parameters(config(block(n_heads=2, mlp=Mlp(48, bias=False), norm=NoNorm())))


def test_in_post_norm_halved_matrices_are_half_steps():
    mlp, attention = Mlp(10), Attention(2)
    ours = alone(BlockConfig((mlp, attention, mlp), wiring="post"))
    x = stream(2, 5)
    expected = x
    for name in ("mlp", "attn", "mlp_1"):
        part = ours.part(name)
        step = 1.0 if name == "attn" else 0.5
        expected = ours.norm_after(name)(expected + step * part(expected, causal_context(x))[0])
    with torch.no_grad():
        for name in ("mlp", "mlp_1"):
            for parameter in ours.part(name).output.parameters():
                parameter.mul_(0.5)
    close(ours(x, causal_context(x))[0], expected)


def test_a_mixer_of_tokens_that_there_is_not_is_refused_with_the_nearest_name():
    with pytest.raises(WrongArgument, match='Nearest: "pooling"'):
        metaformer("poolin")  # type: ignore[arg-type]


def test_attention_may_be_halved_and_what_makes_the_block_is_refused():
    parts = macaron(n_heads=2, halved="attention").parts
    assert [part.kind for part in parts] == ["attention", "mlp", "attention"]
    with pytest.raises(ConfigError, match="macaron: wiring is what makes this block"):
        macaron(n_heads=2, wiring="post")
    with pytest.raises(ConfigError, match="several norm_after are one for each of 2 parts; found 3"):
        block(n_heads=2, mlp=Mlp(4), wiring="sandwich", norm_after=(NoNorm(),) * 3)


def test_a_config_with_several_norms_behind_survives_json():
    ours = config(macaron(n_heads=2))
    assert DecoderConfig.from_json(ours.to_json()) == ours


Flow = Callable[[Tensor, float], Tensor]


def euler(field: Tensor) -> Flow:
    return lambda x, h: x + h * (field @ x)


def exact(field: Tensor) -> Flow:
    return lambda x, h: torch.matrix_exp(h * field) @ x


@in_one_pass
@pytest.mark.parametrize(
    ("solved", "halved", "order"), [(exact, False, 1), (exact, True, 2), (euler, False, 1), (euler, True, 1)]
)
def test_strangs_halves_are_of_second_order_and_a_step_of_eulers_in_each_of_first(
    solved: Callable[[Tensor], Flow], halved: bool, order: int
):
    generator = torch.Generator().manual_seed(0)
    mix, own = (torch.randn(6, 6, generator=generator, dtype=torch.float64) * 0.4 for _ in range(2))
    x = torch.randn(6, 1, generator=generator, dtype=torch.float64)
    f, g = solved(mix), solved(own)
    errors = []
    for n in (64, 128):
        y, h = x, 1 / n
        for _ in range(n):
            y = g(f(g(y, h / 2), h), h / 2) if halved else g(f(y, h), h)
        errors.append((y - torch.matrix_exp(mix + own) @ x).norm())
    # of the two numbers of steps; the next order of the error moves the slope by a hundredth
    assert abs(float(torch.log2(errors[0] / errors[1])) - order) < 0.05


def test_a_macaron_block_without_norms_is_a_step_of_the_splitting():
    ours = alone(macaron(n_heads=1, mlp=Mlp(7, activation="tanh"), norm=NoNorm()))
    x = stream(1, 4)
    context = causal_context(x)
    first = x + ours.mlp.write(x) / 2
    middle = first + ours.attn(first, context)[0]
    close(ours(x, context)[0], middle + ours.mlp_1.write(middle) / 2)


@in_one_pass
@pytest.mark.parametrize("name", TOKEN_MIXERS)
@pytest.mark.parametrize("reads_both_ways", [False, True])
def test_every_named_mixer_stands_in_the_frame_without_matrices_around_it(name: Any, reads_both_ways: bool):
    layer = metaformer(name, mlp=Mlp(10))
    kind = EncoderConfig if reads_both_ways else DecoderConfig
    model: Any = kind(vocab_size=11, d_model=12, layers=(layer,) * 2, max_len=24).build().double().eval()
    names = [key for key, _ in model.stack.blocks[0].attn.named_parameters()]
    assert all(key.startswith("mixer.") for key in names)
    assert model(torch.arange(9)[None]).shape[:2] == (1, 9)
    assert type(model.config).from_json(model.config.to_json()) == model.config


def test_bare_attention_is_attention_whose_matrices_are_the_identity():
    bare = Attention(1, projection=Tied(query="identity", value="identity"), merge=Merge(output=False))
    x = stream(2, 6)
    scores = (x @ x.mT / 12**0.5).masked_fill(torch.ones(6, 6).triu(1).bool(), float("-inf"))
    layer = bare.build(12, 24, 0, "").double()
    close(layer(x, make_context(2, 6, x.device, is_causal=True))[0], scores.softmax(-1) @ x)
    assert list(layer.parameters()) == []
    usual = Attention(1, mixer=Softmax()).build(12, 24, 0, "").double()
    with torch.no_grad():
        usual.projection.qkv.weight.copy_(torch.eye(12).repeat(3, 1))
        usual.merge.output.weight.copy_(torch.eye(12))
    close(layer(x, causal_context(x))[0], usual(x, causal_context(x))[0])


def test_a_stream_that_is_mixed_as_it_stands_has_coordinates_that_no_rotation_leaves_alone():
    model = config(metaformer("pooling", norm=NoNorm())).replace(final_norm=NoNorm()).build()
    with pytest.raises(ConfigError, match="queries, keys or values that are the stream"):
        rotated(model)
    # values of a matrix, and written without one
    bare = block(n_heads=2, norm=NoNorm(), merge=Merge(output=False))
    with pytest.raises(ConfigError, match="go by the coordinates of the stream"):
        rotated(config(bare).replace(final_norm=NoNorm()).build())


def test_only_identity_and_attention_do_not_mind_the_order_of_tokens():
    x, order = stream(1, 6), torch.tensor([3, 5, 0, 2, 4, 1])
    mixer: Any
    for mixer, minds in (("identity", False), (Softmax(), False), ("pooling", True), ("random", True), ("mlp", True)):
        layer = alone(metaformer(mixer))
        context = make_context(1, 6, x.device, is_causal=False)
        moved, there = (layer(u, context)[0] for u in (x[:, order], x))
        assert torch.allclose(moved, there[:, order]) != minds
