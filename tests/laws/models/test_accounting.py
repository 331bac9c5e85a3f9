"""Accounting: closed forms against published numbers, real modules, real states and torch's own counter."""

import json
import math

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from glassformer.attention import (
    AdaptiveSpan,
    Additive,
    Alibi,
    Attention,
    Concat,
    Differential,
    Lightning,
    Linear,
    LinearMap,
    Lrpe,
    Merge,
    MixerConfig,
    RelativeBias,
    RelativeSinusoids,
    Rope,
    Softmax,
    linear,
)  # fmt: skip
from glassformer.attention.kernels.growing import append
from glassformer.errors import ConfigError, TextError, UnknownModel
from glassformer.models import (
    PRESETS,
    DecoderConfig,
    EncoderDecoderConfig,
    Learned,
    Mlp,
    RmsNorm,
    block,
    preset,
    repeat,
)  # fmt: skip
from glassformer.models.accounting import account, count_flops, count_parameters, shapes, state_bytes
from glassformer.models.complexity import alike, complexity, confirm, count_mixing, path_length
from glassformer.models.presets import attention_only, transformer_base
from glassformer.models.schedules import hybrid, published_block
from glassformer.testing import close
from glassformer.trace import Tape
from one_pass import in_one_pass

GPT3, LLAMA3 = "gpt3-175b", "llama3-8b"
PUBLISHED = {
    "transformer-base": 63_045_632,
    "transformer-big": 214_171_648,
    "rnn-search": 79_786_660,
    "rnn-encoder-decoder": 73_058_660,
    "gpt2-small": 124_439_808,
    GPT3: 174_604_259_328,
    LLAMA3: 8_030_261_248,
    # of which an expert's three matrices are nearly all: 80 layers of 32
    "minimax-01": 80 * 32 * 3 * 6144 * 9216 + 21_224_216_576,
    "minimax-8l": 2_464_768,
    # a bigram table's two factors and a final norm; then 4 d^2 and a norm per layer
    "attention-only-0l": 2 * 1024 * 256 + 256,
    "attention-only-1l": 2 * 1024 * 256 + 256 + 1 * (4 * 256**2 + 256),
    "attention-only-2l": 2 * 1024 * 256 + 256 + 2 * (4 * 256**2 + 256),
}
VARIANTS = {
    "gqa": block(n_heads=4, n_kv_heads=2, positions=Rope(), mlp=Mlp(24, gated=True, bias=False), norm=RmsNorm()),
    "biases and norms": block(n_heads=4, bias=True, qk_norm=True, wiring="sandwich", mlp=Mlp()),
    "differential": block(n_heads=2, n_kv_heads=1, **Differential().as_published(2)),
    "lightning": published_block(Lightning(), n_heads=4),
    "linear": block(Linear(), n_heads=4, d_head=6),
    "smeared": block(n_heads=4, n_kv_heads=2, smeared=True, positions=Rope()),
    "smeared differential": block(n_heads=2, n_kv_heads=1, smeared=True, **Differential().as_published(2)),
    "window": block(Softmax(window=4), n_heads=2, positions=Alibi()),
}
every_variant = pytest.mark.parametrize("layer", VARIANTS.values(), ids=VARIANTS.keys())
MIXERS = [Softmax(), Softmax(window=4), Linear(), Lightning(chunk=8), Differential()]
CLOSED = [Softmax(cap=0.5), Additive(window=3), Concat(hidden=3), Linear(), Lightning(chunk=8)]
every_mixer = pytest.mark.parametrize("mixer", MIXERS, ids=str)


def small(layer, **kwargs: object) -> DecoderConfig:
    return DecoderConfig(50, 16, repeat(layer, 2), max_len=40, **kwargs)  # type: ignore[arg-type]


def counted(config) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in config.build().parameters())


# parameters -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_its_published_number_of_parameters(name: str) -> None:
    assert counted(preset(name)) == PUBLISHED[name]
    assert sum(count_parameters(preset(name)).values()) == PUBLISHED[name]


@in_one_pass
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_survives_json(name: str) -> None:
    config = preset(name)
    assert type(config).from_json(config.to_json()) == config


def test_the_parts_of_gpt3_are_the_published_products() -> None:
    d, layers, found = 12_288, 96, count_parameters(preset(GPT3))
    for part in ("query", "key", "value", "output"):
        assert found[part] == 128 * 12_288 * 96 * 96 == 14_495_514_624
    assert found["mlp in"] == found["mlp out"] == 4 * 12_288**2 * 96 == 57_982_058_496
    assert found["biases"] == layers * (4 * d + 4 * d + d)
    assert found["embedding"] == 12_288 * 50_257 == 617_558_016
    assert found["positions"] == 2048 * d
    assert found["norms"] == (2 * layers + 1) * 2 * d
    assert "unembedding" not in found


def test_gpt3_untied_without_biases_positions_and_norms_has_the_sum_of_its_products() -> None:
    layer = block(n_heads=96, mlp=Mlp(bias=False))
    found = count_parameters(DecoderConfig(50_257, 12_288, repeat(layer, 96), tied=False))
    attention = sum(found[part] for part in ("query", "key", "value", "output"))
    assert attention == 57_982_058_496
    assert sum(found.values()) - found["norms"] == 175_181_291_520
    assert round(attention / 175_181_291_520, 3) == 0.331


@every_variant
def test_no_parameter_is_left_out_of_the_parts(layer) -> None:
    config = small(layer, positions=Learned(), unembed_bias=True)
    assert sum(count_parameters(config).values()) == counted(config)


def test_positions_of_a_layer_are_counted_if_they_are_learned() -> None:
    for mixer, positions in ((Softmax(), RelativeBias()), (Softmax(), RelativeSinusoids()), (Lightning(), Lrpe())):
        found = count_parameters(small(layer := block(mixer, n_heads=4, positions=positions)))
        assert found["positions"] > 0 and sum(found.values()) == counted(small(layer)), positions.kind


def test_the_vocabulary_of_transformer_base_is_counted_once() -> None:
    assert counted(transformer_base(37_001)) - counted(transformer_base(37_000)) == 512


def test_attention_only_models_have_neither_biases_nor_an_mlp() -> None:
    with torch.device("meta"):
        names = [name for name, _ in attention_only(2).build().named_parameters()]
    assert not [name for name in names if "bias" in name or "mlp" in name]


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(UnknownModel, match=r'no preset "gpt2-smal"\. Nearest: "gpt2-small"'):
        preset("gpt2-smal")


# operations -----------------------------------------------------------------------------------------------------------


def flops_of(config: DecoderConfig, length: int, *, backward: bool, dense: bool) -> int:
    """What torch's counter sees on the meta device."""
    with torch.device("meta"):
        model = config.build()
        tape = Tape(model, read=["*.pattern"], grad=True) if dense else None
        tokens = torch.zeros(1, length, dtype=torch.int64)
        with FlopCounterMode(display=False) as counter:
            logits = model(tokens, tape=tape)
            if backward:
                logits.sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("dense", [True, False], ids=["dense", "fused"])
def test_dense_attention_costs_what_torch_counts_forward_and_backward(dense: bool) -> None:
    config = small(block(n_heads=4, n_kv_heads=2, positions=Rope(), mlp=Mlp(48, gated=True)), tied=False)
    found = account(config, 32)
    assert flops_of(config, 32, backward=False, dense=dense) == found.forward
    assert flops_of(config, 32, backward=True, dense=dense) == found.forward + found.backward


@every_variant
def test_every_mechanism_costs_what_torch_counts_in_its_fast_form(layer) -> None:
    config = small(layer)
    for length in (7, 32, 40):
        assert flops_of(config, length, backward=False, dense=False) == account(config, length).forward


@every_mixer
@pytest.mark.parametrize("scan", [False, True], ids=["parallel", "scan"])
def test_mixing_costs_what_torch_counts_at_once_and_step_by_step(mixer: MixerConfig, scan: bool) -> None:
    seen, formula = count_mixing(mixer, 21, 16, d_head=4, scan=scan)
    assert seen == formula > 0


@in_one_pass
@pytest.mark.parametrize("mixer", CLOSED, ids=str)
@pytest.mark.parametrize(("n_queries", "n_keys"), [(13, 13), (150, 150), (1, 13), (4, 150)])
def test_a_closed_form_equals_the_count_that_it_spares(mixer: MixerConfig, n_queries: int, n_keys: int) -> None:
    dims = Attention(4, 2, 4, mixer=mixer).dims(16, 256, 1)
    assert mixer.flops(n_queries, n_keys, dims) == MixerConfig.flops(mixer, n_queries, n_keys, dims) > 0


def test_a_mechanism_that_reads_numbers_is_asked_for_a_closed_form() -> None:
    dims = Attention(2, mixer=AdaptiveSpan()).dims(8, 16)
    with pytest.raises(NotImplementedError, match="Write `flops` in AdaptiveSpan"):
        MixerConfig.flops(AdaptiveSpan(), 4, 4, dims)


def test_an_encoder_decoder_costs_what_torch_counts() -> None:
    encoder, decoder = (repeat(block(n_heads=2, cross=cross, mlp=Mlp(), wiring="post"), 2) for cross in (False, True))
    config = EncoderDecoderConfig(30, 8, encoder, decoder)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        config.build()(torch.zeros(1, 9, dtype=torch.int64), torch.zeros(1, 5, dtype=torch.int64))
    assert counter.get_total_flops() == sum(count_flops(config, 5, source_length=9).values())


def test_one_layer_trains_at_the_tabulated_cost() -> None:
    n, d = 256, 128
    flops = count_flops(DecoderConfig(1, d, (block(n_heads=4, mlp=Mlp()),)), n)
    layer = sum(flops.values()) - flops["unembedding"]
    # 72 b n d^2 (1 + n / 6d) for b = 2
    assert 3 * 2 * layer == 72 * 2 * n * d * d * (6 * d + n) // (6 * d) == 805_306_368


@pytest.mark.full
def test_six_flops_per_parameter_and_token_give_the_published_training_cost_of_gpt3() -> None:
    tokens, total = 300e9, PUBLISHED[GPT3]
    assert f"{6 * total * tokens:.2e}" == "3.14e+23"
    # what 6ND leaves out and what it counts too much (embeddings are looked up, not multiplied) nearly cancel
    exact = account(preset(GPT3), 2048)
    assert math.isclose(3 * exact.forward / 2048, 6 * total, rel_tol=0.03)


@pytest.mark.parametrize(("length", "ratio"), [(8_192, 0.847), (131_072, 0.319), (1_048_576, 0.155)])
def test_a_hybrid_saves_as_much_as_its_closed_form_says(length: int, ratio: float) -> None:
    """MiniMax's table with chunks of d/h rows; element-wise work, which it counts, is added to both."""
    n, d, h, n_layers = length, 6144, 64, 80
    kwargs = {"n_heads": h, "mlp": Mlp(bias=False)}
    mixed = hybrid(n_layers, period=8, **kwargs)
    mixed = tuple(
        b.replace(parts=tuple(p.replace(mixer=Lightning(chunk=d // h), merge=Merge()) if getattr(p, "mixer", None) ==
                              Lightning() else p for p in b.parts)) for b in mixed
    )  # fmt: skip
    found = [
        sum(flops.values()) - flops["unembedding"] + 20 * n * n_layers * d + gates
        # the gate of the published model is of low rank: 4 n d^2 / h per lightning layer
        for layers, gates in ((mixed, 70 * 4 * n * d * d // h), (repeat(block(**kwargs), n_layers), 0))
        for flops in [count_flops(DecoderConfig(1, d, layers, max_len=n), n)]
    ]
    assert round(found[0] / found[1], 3) == ratio


# state ----------------------------------------------------------------------------------------------------------------


def bytes_of(state: object) -> int:
    if isinstance(state, Tensor):
        return state.numel() * state.element_size()
    return sum(map(bytes_of, state)) if isinstance(state, tuple) else 0


@every_variant
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@torch.no_grad()
def test_a_real_state_has_the_bytes_of_the_closed_form(layer, dtype: torch.dtype) -> None:
    config = small(layer)
    model = config.build().to(dtype)
    state = model.begin(1)
    for step in (1, 6, 1, 20):
        _, state = model(torch.zeros(1, step, dtype=torch.int64), state=state)
        assert bytes_of(state.layers) == state_bytes(config, state.length, dtype)


@torch.no_grad()
def test_the_state_of_an_encoder_decoder_has_the_bytes_of_the_closed_form() -> None:
    encoder, decoder = (repeat(block(n_heads=2, cross=cross, mlp=Mlp()), 2) for cross in (False, True))
    config = EncoderDecoderConfig(30, 8, encoder, decoder)
    model = config.build()
    state = model.begin(torch.zeros(1, 9, dtype=torch.int64))
    assert bytes_of(tuple(state)) == state_bytes(config, 0, source_length=9)
    _, state = model(None, torch.zeros(1, 5, dtype=torch.int64), state=state)
    assert bytes_of(tuple(state)) == state_bytes(config, 5, source_length=9)


def test_key_value_states_of_published_models_have_their_known_sizes() -> None:
    half, kib, gib = torch.float16, 2**10, 2**30
    assert state_bytes(preset(GPT3), 1, half) == 4.5 * 2**20
    assert state_bytes(preset(GPT3), 2048, half) == 9 * gib
    assert state_bytes(preset(LLAMA3), 1, half) == 128 * kib
    assert state_bytes(preset(LLAMA3), 8192, half) == gib
    seventy = DecoderConfig(128_256, 8192, repeat(block(n_heads=64, n_kv_heads=8, mlp=Mlp()), 80))
    assert state_bytes(seventy, 131_072, half) == 40 * gib


def test_a_recurrent_state_does_not_grow() -> None:
    found = account(small(VARIANTS["linear"]), 40)
    assert found.state_growth == 0 < found.state_bytes


@torch.no_grad()
def test_rows_that_grow_stay_what_they_were_when_their_store_is_shared() -> None:
    _, start = append(torch.zeros(1, 0, 2), torch.ones(1, 3, 2))
    first, kept = append(start, torch.full((1, 1, 2), 2.0))
    second, _ = append(start, torch.full((1, 1, 2), 3.0))
    assert first.data_ptr() == start.data_ptr() != second.data_ptr()
    assert first[0, :, 0].tolist() == [1, 1, 1, 2]
    assert second[0, :, 0].tolist() == [1, 1, 1, 3]
    # rows that were selected or edited are no front of the store any more
    edited, _ = append(kept * 10, torch.zeros(1, 1, 2))
    assert edited[0, :, 0].tolist() == [10, 10, 10, 20, 0]
    cropped, _ = append(kept[:, :2], torch.zeros(1, 1, 2))
    assert cropped[0, :, 0].tolist() == [1, 1, 0]
    assert first[0, :, 0].tolist() == [1, 1, 1, 2]


@pytest.mark.parametrize("keep", [None, 50, 0])
@torch.no_grad()
def test_rows_that_grow_by_any_steps_equal_their_concatenation(keep: int | None) -> None:
    pieces = torch.randn(2, 3, 500, 4).split([1, 70, 1, 1, 200, 3, 224], -2)
    rows = expected = torch.zeros(2, 3, 0, 4)
    for piece in pieces:
        whole, rows = append(rows, piece, keep)
        expected = torch.cat((expected, piece), -2)
        assert torch.equal(whole, expected)
        expected = expected if keep is None else expected[..., max(expected.shape[-2] - keep, 0) :, :]
        assert torch.equal(rows, expected)


def test_rows_with_gradients_are_concatenated_plainly() -> None:
    x = torch.ones(1, 1, 2, requires_grad=True)
    whole, kept = append(torch.zeros(1, 1, 2), x)
    assert kept is whole
    (gradient,) = torch.autograd.grad(whole.sum(), x)
    assert gradient.tolist() == [[[1, 1]]]


# shapes and products --------------------------------------------------------------------------------------------------


@every_variant
def test_walked_shapes_are_those_of_a_real_pass(layer) -> None:
    config = small(layer, positions=Learned())
    model = config.build()
    tape = Tape(model, read="*")
    model(torch.zeros(1, 11, dtype=torch.int64), tape=tape)
    assert shapes(config, 11) == {name: tuple(value.shape) for name, value in tape.values.items()}


@pytest.mark.full
def test_every_shape_of_gpt3_can_be_walked() -> None:
    found = shapes(preset(GPT3), 1000)
    assert found["blocks.95.attn.pattern"] == (1, 96, 1000, 1000)
    assert found["blocks.0.mlp.hidden"] == (1, 1000, 49_152)
    assert found["logits"] == (1, 1000, 50_257)
    with pytest.raises(TextError, match="max_len=2048"):
        shapes(preset(GPT3), 2049)


@in_one_pass
@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize("bias", [True, False])
def test_the_quick_product_equals_the_usual_one(rows: int, bias: bool) -> None:
    layer = LinearMap(33, 65, bias=bias)
    x = torch.randn(rows, 2, 33).transpose(0, 1)
    expected = torch.nn.functional.linear(x.double(), layer.weight.double(), None if not bias else layer.bias.double())
    with torch.no_grad():
        close(layer(x).double(), expected, 1e-5)
        close(linear(x, layer.weight[3:9]).double(), (x @ layer.weight[3:9].T).double(), 1e-5)
    (gradient,) = torch.autograd.grad(layer(x).sum(), layer.weight)
    close(gradient, x.sum((0, 1)).expand(65, 33))


# complexity -----------------------------------------------------------------------------------------------------------


def test_layers_scale_as_the_table_says() -> None:
    table = {row.name: row for row in complexity(512, 256, d_head=32, window=16, kernel=4)}
    assert {name: (row.operations, row.steps, row.layers) for name, row in table.items()} == {
        "full attention": (512 * 512 * 256, 1, 1),
        "restricted attention": (16 * 512 * 256, 1, 35),
        "linear attention": (512 * 256 * 32, 8, 1),
        "recurrent": (512 * 256 * 256, 512, 511),
        "convolution": (4 * 512 * 256 * 256, 1, 171),
        "convolution, dilated": (4 * 512 * 256 * 256, 1, 5),
        "convolution, separable": (4 * 512 * 256 + 512 * 256 * 256, 1, 171),
    }


def test_self_attention_is_cheaper_than_recurrence_exactly_when_shorter_than_wide() -> None:
    for length, cheaper in ((255, True), (256, False), (257, False)):
        table = {row.name: row.operations for row in complexity(length, 256, d_head=32, window=16)}
        assert (table["full attention"] < table["recurrent"]) == cheaper


@pytest.mark.parametrize(("length", "window"), [(9, 3), (9, 5), (14, 4)])
def test_measured_layers_confirm_the_table(length: int, window: int) -> None:
    table = {row.name: row for row in complexity(length, 32, d_head=8, window=window)}
    for row in confirm(length, 32, d_head=8, window=window):
        assert row.layers == table[row.name].layers
        assert row.counted == row.formula


@pytest.mark.full
def test_counted_work_grows_with_the_leading_term() -> None:
    def ratio(mixer: MixerConfig, scan: bool) -> float:
        long, short = (count_mixing(mixer, n, 32, d_head=8, scan=scan)[0] for n in (32, 16))
        return long / short

    assert ratio(Softmax(), scan=False) == 4
    assert ratio(Linear(), scan=True) == 2
    # the first r - 1 positions of a window have less to see
    assert ratio(Softmax(window=4), scan=True) == (32 * 4 - 6) / (16 * 4 - 6)


def test_a_window_of_one_never_reaches_further() -> None:
    with pytest.raises(ValueError, match="never reaches"):
        path_length(alike(block(Softmax(window=1), n_heads=2)), 4)
    with pytest.raises(ConfigError, match="window must be at least 2"):
        complexity(10, 8, d_head=4, window=1)


def test_an_account_writes_plain_json() -> None:
    data = account(preset("gpt2-small"), 1024).to_dict()
    assert json.loads(json.dumps(data)) == data
    assert data["parameters"]["total"] == 124_439_808
    assert data["flops_backward"] == 2 * data["flops_forward"]["total"]
