"""Norms in all their forms, where they stand, and what stands beside them at both ends of the stream."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, strategies as st

from glassformer import weights
from glassformer.analysis import run
from glassformer.analysis.attribution import direct_logit_attribution
from glassformer.analysis.circuits import circuit_graph
from glassformer.analysis.frozen import writes
from glassformer.attention import LearnedScale
from glassformer.errors import AnalysisUnavailable, ConfigError
from glassformer.models import (
    BlockConfig,
    DecoderConfig,
    LayerNorm,
    Learned,
    Mlp,
    NoNorm,
    RmsNorm,
    ScaleOnly,
    Sinusoidal,
    UnitNorm,
    block,
)
from glassformer.models.accounting import count_parameters
from glassformer.models.mlp import ACTIVATIONS
from glassformer.testing import close
from glassformer.testing.layers import randomise, seeds, stream
from glassformer.testing.models import subject
from glassformer.trace import Scale, Tape
from one_pass import in_one_pass

NORMS = [LayerNorm(), LayerNorm(bias=False), LayerNorm(gain=False), LayerNorm(gain=False, bias=False)]
NORMS += [RmsNorm(), RmsNorm(offset=1.0), NoNorm(), LayerNorm(offset=1.0), ScaleOnly(0.3)]
NORMS += [UnitNorm(), UnitNorm(gain=LearnedScale(0.3, 0.1))]


def small(*, n_layers: int = 1, seed: int = 0, **fields: Any) -> Any:
    """Return a random decoder in float64."""
    at_block = {f: fields.pop(f) for f in ("norm", "wiring", "norm_after", "shared_norm") if f in fields}
    layers = (block(n_heads=2, mlp=Mlp(6), **at_block),) * n_layers
    config = DecoderConfig(**({"vocab_size": 7, "d_model": 8, "max_len": 8, "layers": layers} | fields))
    return randomise(config.build().double().eval(), seed)


TOKENS = torch.tensor([[1, 5, 2, 0, 3], [4, 4, 6, 1, 2]])


@given(st.sampled_from(NORMS), seeds)
def test_a_direction_before_a_norm_has_the_dot_product_of_the_one_behind_it(config, seed):
    norm = randomise(config.build(12, "n", None).double(), seed)
    x, u = stream(2, 3, seed), stream(2, 3, seed + 7)
    scale = norm.scale(x)
    behind = norm.linear(x, torch.ones_like(scale))
    close((x * norm.transposed(u)).sum(-1), (behind * u).sum(-1))
    if not norm.identity:
        close(norm.affine(x, scale), norm(x))


def test_an_offset_is_added_to_the_stored_weight_in_single_precision():
    norm = RmsNorm(offset=1.0).build(64, "n", None).bfloat16()
    assert norm.weight is not None and not norm.weight.any()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        norm.weight.copy_(torch.randn(64, generator=generator) * 1e-3)
    x = torch.randn(2, 5, 64, generator=generator).bfloat16()
    wide = F.rms_norm(x.float(), (64,), eps=1e-5) * (1 + norm.weight.float())
    assert torch.equal(norm(x), wide.bfloat16())
    # 1 + weight in half precision would be 1
    assert norm.gain is not None and norm.gain.dtype == torch.float32 and (norm.gain != 1).all()


def test_one_norm_for_all_sub_layers_is_as_many_equal_ones():
    shared = small(n_layers=2, wiring="parallel", shared_norm=True)
    own = small(n_layers=2, wiring="parallel")
    state = shared.state_dict()
    assert not any("mlp_norm" in name for name in state)
    state |= {name.replace("attn_norm", "mlp_norm"): value for name, value in state.items() if "attn_norm" in name}
    own.load_state_dict(state)
    close(shared(TOKENS), own(TOKENS))
    for model in (shared, own):
        model(TOKENS).square().sum().backward()
    first, second = (own.stack.blocks[0].norm(name) for name in ("attn", "mlp"))
    close(shared.stack.blocks[0].norm("attn").weight.grad, first.weight.grad + second.weight.grad)
    counts = [count_parameters(model.config)["norms"] for model in (shared, own)]
    assert counts[1] - counts[0] == 2 * 2 * 8
    close(copy.deepcopy(shared).double()(TOKENS), shared(TOKENS))


def test_an_edit_of_what_one_sub_layer_reads_through_a_shared_norm_leaves_the_others():
    model = small(wiring="parallel", shared_norm=True)
    read = ["blocks.0.attn.norm", "blocks.0.mlp.norm", "blocks.0.mlp.out"]
    clean, edited = (run(model, TOKENS, read=read, edit=edit) for edit in ([], [Scale("blocks.0.attn.norm", 2.0)]))
    close(clean[read[0]].values, clean[read[1]].values)
    close(edited[read[0]].values, 2 * clean[read[0]].values)
    close(edited[read[2]].values, clean[read[2]].values)


def test_norms_behind_sub_layers_only():
    model = small(wiring="sandwich", norm=NoNorm(), norm_after=RmsNorm())
    sites = ["blocks.0.resid_pre", "blocks.0.attn.norm", "blocks.0.attn.out", "blocks.0.resid_mid"]
    pre, read, out, mid = (run(model, TOKENS, read=sites)[site].values for site in sites)
    gain = model.stack.blocks[0].norm_after("attn").weight
    close(read, pre)
    close(mid, pre + F.rms_norm(out, (8,), gain, 1e-5))


@in_one_pass
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("positions", [None, Learned()])
def test_what_enters_the_first_block_is_the_norm_of_the_sum_and_its_parts_add_up(norm, positions):
    model = small(embed_norm=norm, positions=positions)
    places = ["embed.token", *(["embed.position"] if positions else []), "blocks.0.resid_pre"]
    found = run(model, TOKENS, read=[*places, writes, direct_logit_attribution])
    entered = torch.stack([found[place].values for place in places[:-1]]).sum(0)
    twin = norm.build(8, "n", None).double()
    if model.embed.norm is not None:
        twin.load_state_dict(model.embed.norm.state_dict())
    close(found["blocks.0.resid_pre"].values, twin(entered))
    parts = writes(found, site="blocks.0.resid_pre", position=2)
    close(parts.vectors.values.sum(0), found["blocks.0.resid_pre"].values[0, 2])
    split = direct_logit_attribution(found, position=None, row=None)
    close(split.sum.values, split.total.values)
    biased = model.embed.norm is not None and model.embed.norm.shift is not None
    assert ("embed norm bias" in [c.label for c in split.components]) == biased


def test_what_a_norm_on_the_sum_of_tokens_and_positions_forbids_says_so():
    model = small(embed_norm=LayerNorm(), positions=Learned())
    w = weights.of(model)
    with pytest.raises(AnalysisUnavailable, match="embed_norm"):
        w.full_ov("L0H0")
    with pytest.raises(AnalysisUnavailable, match="embed_norm"):
        circuit_graph(model, split_embedding=True)
    with pytest.raises(AnalysisUnavailable, match="embed_norm"):
        direct_logit_attribution(run(model, TOKENS, read=[direct_logit_attribution]), norm="live")
    # without positions each token has a vector of its own behind the norm
    alone = small(embed_norm=LayerNorm())
    close(weights.of(alone).E[TOKENS], run(alone, TOKENS, read=["blocks.0.resid_pre"])["blocks.0.resid_pre"].values)


def test_a_table_with_an_offset_skips_its_first_rows():
    model, plain = small(positions=Learned(offset=2)), small(positions=Learned())
    state = model.state_dict()
    assert state["embed.positions.weight"].shape == (10, 8)
    plain.load_state_dict(state | {"embed.positions.weight": state["embed.positions.weight"][2:]})
    close(model(TOKENS), plain(TOKENS))
    placed = weights.of(model).P
    assert placed is not None
    close(placed, state["embed.positions.weight"][2:])


def test_sines_before_cosines_are_the_interleaved_ones_in_another_order():
    ids = torch.arange(5)[None]
    halves, interleaved = (
        Sinusoidal(layout).build(8, 8)(ids, stream(1, 1)) for layout in ("halves", "interleaved")
    )  # fmt: skip
    close(halves, torch.cat((interleaved[..., 0::2], interleaved[..., 1::2]), -1))


@pytest.mark.parametrize("tied", [True, False])
def test_narrow_token_vectors_and_a_factor_on_logits_are_products_of_matrices(tied):
    model = small(d_embed=3, tied=tied, unembed_scale=0.25, unembed_bias=True, embed_scale=True)
    full = small(tied=False, unembed_bias=True, embed_scale=True)
    maps = ("embed.map.weight", "unembed.map.weight")
    state = {name: value for name, value in model.state_dict().items() if name not in maps}
    inner = model.embed.matrix if tied else model.unembed.matrix
    state["embed.matrix"] = model.embed.matrix @ model.embed.map.weight.T
    state["unembed.matrix"] = 0.25 * inner @ model.unembed.map.weight
    full.load_state_dict(state)
    close(model(TOKENS), full(TOKENS))
    close(model.unembed.weight, full.unembed.weight)
    close(model.unembed.direction(TOKENS), full.unembed.weight[TOKENS])
    close(model.embed.weight, full.embed.weight)


def test_a_factor_on_token_vectors_is_that_times_their_matrix():
    model, plain = small(tied=False, embed_scale=3.0), small(tied=False)
    plain.load_state_dict(model.state_dict() | {"embed.matrix": 3 * model.embed.matrix})
    close(model(TOKENS), plain(TOKENS))
    rooted, counted = small(embed_scale=True), small(embed_scale=float(model.config.d_model) ** 0.5)
    counted.load_state_dict(rooted.state_dict())
    close(counted(TOKENS), rooted(TOKENS))


def test_a_factor_behind_sub_layers_is_that_times_what_they_write_with():
    model, plain = small(wiring="sandwich", norm_after=ScaleOnly(0.3)), small()
    writes = (".merge.output.", ".mlp.output.")
    scaled = {n: 0.3 * t if any(w in n for w in writes) else t for n, t in model.state_dict().items()}
    plain.load_state_dict(scaled)
    close(model(TOKENS), plain(TOKENS))
    # reading its scale takes the other route
    tape = Tape(model, ["blocks.0.attn.write_scale", "logits"])
    close(model(TOKENS, tape=tape), plain(TOKENS))
    close(tape.values["blocks.0.attn.write_scale"], torch.full(TOKENS.shape, 1 / 0.3, dtype=model(TOKENS).dtype))


def test_a_layer_norm_stored_around_zero_is_one_stored_around_one():
    around: Any = LayerNorm(offset=1.0).build(8, "n", None)
    plain = LayerNorm().build(8, "n", None)
    assert not around.weight.any()
    plain.load_state_dict({"weight": 1 + torch.linspace(-1, 1, 8), "bias": torch.linspace(0, 1, 8)})
    around.load_state_dict({"weight": torch.linspace(-1, 1, 8), "bias": torch.linspace(0, 1, 8)})
    x = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    close(around(x), plain(x))
    half = around.bfloat16()(x.bfloat16())
    assert half.dtype == torch.bfloat16 and (half.float() - plain(x)).abs().max() < 0.05


def test_activations_are_what_their_names_say():
    x = torch.linspace(-4, 4, 17, dtype=torch.float64)
    close(ACTIVATIONS["gelu_sigmoid"](x), x / (1 + (-1.702 * x).exp()))
    close(ACTIVATIONS["relu_squared"](x), x.clamp_min(0) ** 2)
    close(ACTIVATIONS["tanh"](x), (x.exp() - (-x).exp()) / (x.exp() + (-x).exp()))


@in_one_pass
@pytest.mark.parametrize(
    "build, match",
    [
        (lambda: BlockConfig((Mlp(),), norm_after=RmsNorm()), 'wiring "pre". Use wiring="sandwich"'),
        (lambda: BlockConfig((Mlp(),), shared_norm=True), 'wiring "pre". Use wiring="parallel"'),
        (lambda: RmsNorm(offset=float("nan")), "offset must be a finite number"),
        (lambda: LayerNorm(offset=1.0, gain=False), "part of a gain, and there is none"),
        (lambda: ScaleOnly(0.0), "factor must be a finite number other than 0"),
        (lambda: BlockConfig((Mlp(),), norm=ScaleOnly(2.0)), "stands behind sub-layers"),
        (lambda: DecoderConfig(3, 4, (), embed_scale=0.0), "embed_scale must be true, false or a finite number"),
        (lambda: Learned(offset=-1), "offset must not be negative"),
        (lambda: DecoderConfig(3, 4, (), unembed_scale=0.0), "unembed_scale must be a finite number other than 0"),
        (lambda: DecoderConfig(3, 4, (), d_embed=0), "d_embed must be at least 1"),
    ],
)
def test_settings_that_mean_nothing_are_refused(build, match):
    with pytest.raises(ConfigError, match=match):
        build()


def test_the_architectures_hold_each_of_them():
    entered, behind = subject("entered").model.config, subject("behind").model.config
    assert entered.layers[0].shared_norm and entered.embed_norm and entered.d_embed and entered.positions.offset
    assert behind.layers[0].norm_after.offset and behind.embed_norm.offset
    proportioned = subject("proportioned").model.config
    assert isinstance(proportioned.layers[0].norm_after, ScaleOnly) and proportioned.embed_scale == 3.0
