"""The normalised transformer: its equations written out, the sphere that nothing leaves, and what is said of it."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import glassformer as gf
from glassformer.analysis.attribution import direct_logit_attribution
from glassformer.analysis.behaviour import rank_of_stream, residual_ratio
from glassformer.analysis.cards import cards
from glassformer.analysis.from_weights import virtual_weights
from glassformer.analysis.from_weights._reads_and_writes import norms_passed
from glassformer.analysis.frozen import writes
from glassformer.attention import Attention, Concat, CoordinateScales, LearnedScale, NoPositions, Rope, Softmax
from glassformer.checkpoints import load, save
from glassformer.errors import AnalysisUnavailable, ConfigError
from glassformer.handmade import rotated
from glassformer.models import (
    BlockConfig,
    Decoder,
    DecoderConfig,
    Mlp,
    ModelConfig,
    NoNorm,
    RmsNorm,
    UnitNorm,
    block,
    generate,
    normalise_vectors,
    normalised_block,
    normalised_decoder,
    stream_vectors,
)
from glassformer.models.accounting import count_parameters
from glassformer.models.sampling import GREEDY
from glassformer.models.stack import make_context
from glassformer.testing import applies, close
from glassformer.testing.layers import randomise
from glassformer.testing.models import subject
from glassformer.trace import Set, Tape
from one_pass import in_one_pass

WIDTH, HEADS, RATE = 16, 2, 0.5
IDS = torch.tensor([[1, 5, 2, 0, 3, 9], [4, 4, 6, 1, 2, 8]])


def sphere(seed: int = 0, scales: bool = True) -> Any:
    """Return a decoder in float64 whose vectors have length 1; its scales are drawn, or as they begin."""
    model = normalised_decoder(11, WIDTH, 2, n_heads=HEADS, d_mlp=12, max_len=24, rate=RATE).build(seed).double().eval()
    normalise_vectors(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in [p for p in model.parameters() if p.ndim == 1 or p.shape == (HEADS, WIDTH // HEADS)]:
            drawn = torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.mul_(0.5 + drawn if scales else 1.0)
    return model


def unit(x: Tensor) -> Tensor:
    return x / x.square().sum(-1, keepdim=True).sqrt()


def turned(x: Tensor) -> Tensor:
    """Return heads with coordinates t and t + d / 2 as one complex number, which turns by its position."""
    first, second = x.chunk(2, -1)
    n, pairs = x.shape[-2], first.shape[-1]
    angle = torch.arange(n).double()[:, None] * 10000.0 ** (-torch.arange(pairs).double() / pairs)
    z = torch.complex(first, second) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((z.real, z.imag), -1)


def by_hand(model: Decoder, ids: Tensor) -> Tensor:
    """Return logits by the paper's equations, from nothing but the parameters."""
    p, root = dict(model.named_parameters()), math.sqrt(WIDTH)
    h = p["embed.matrix"][ids]
    for i in range(2):
        own = {name.removeprefix(f"stack.blocks.{i}."): value for name, value in p.items() if f"blocks.{i}." in name}
        joined = (h @ own["attn.projection.qkv.weight"].T).chunk(3, -1)
        q, k, v = (x.unflatten(-1, (HEADS, -1)).transpose(1, 2) for x in joined)
        s = own["attn.mixer.temperature.scale"][:, None] * root
        q, k = (unit(turned(x)) * s for x in (q, k))
        scores = q @ k.mT * math.sqrt(WIDTH / HEADS)
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        z = scores.masked_fill(hidden, -math.inf).softmax(-1) @ v
        h_a = unit(z.transpose(1, 2).flatten(2) @ own["attn.merge.output.weight"].T)
        h = unit(h + own["attn_norm_out.weight"].abs() * RATE * root * (h_a - h))
        u = h @ own["mlp.input.unscaled.weight"].T * own["mlp.input.scale"]
        nu = h @ own["mlp.gate.unscaled.weight"].T * own["mlp.gate.scale"] * root
        h_m = unit((u * F.silu(nu)) @ own["mlp.output.weight"].T)
        h = unit(h + own["mlp_norm_out.weight"].abs() * RATE * root * (h_m - h))
    return h @ p["unembed.matrix"].T * p["unembed.token_scale"] * root


def test_logits_and_gradients_are_those_of_the_equations() -> None:
    model = sphere()
    upstream = torch.randn(2, 6, 11, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ours, theirs = model(IDS), by_hand(model, IDS)
    close(ours, theirs)
    names = [name for name, _ in model.named_parameters()]
    gradients = [torch.autograd.grad((x * upstream).sum(), list(model.parameters())) for x in (ours, theirs)]
    for name, one, other in zip(names, *gradients, strict=True):
        assert one.abs().max() > 0, name
        close(one, other)


def test_the_stream_never_leaves_the_sphere_and_moves_by_what_is_written() -> None:
    model = sphere()
    places = [place for one in model.stack.blocks for place in one.at_resid]
    parts = [f"blocks.{i}.{part}" for i in range(2) for part in ("attn", "mlp")]
    read = gf.run(model, IDS, read=[*places, *(f"{part}.{what}" for part in parts for what in ("write", "out_norm"))])
    for place in places:
        close(read[place].values.norm(dim=-1), torch.ones(2, 6, dtype=torch.float64))
    layers = model.sub_layers()
    for layer, part in zip(layers, parts, strict=True):
        before, behind, write = (read[at].values for at in (layer.at_stream, layer.at_behind, f"{part}.write"))
        assert layer.at_write == f"{part}.write" and layer.rate is not None
        close(unit(before + write), behind)
        close(write, read[f"{part}.out_norm"].values - layer.rate.detach() * before)
    # what is not written moves nothing: the model is its embedding and unembedding
    still = model(IDS, tape=Tape(model, edit=[Set(layer.at_write, 0.0) for layer in layers]))
    close(still, model.unembed.logits(model.embed.matrix[IDS]))


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_a_rate_of_nothing_leaves_the_stream_and_one_of_all_puts_what_is_returned_in_its_place(rate: float) -> None:
    model = sphere(scales=False)
    with torch.no_grad():
        for one in model.stack.blocks:
            for name in one.names:
                one.norm_out(name).weight.mul_(rate / RATE)
    for layer in model.sub_layers():
        read = gf.run(model, IDS, read=[layer.at_stream, layer.at_out, layer.at_behind])
        before, out, behind = (read[at].values for at in (layer.at_stream, layer.at_out, layer.at_behind))
        close(behind, before if rate == 0 else unit(out))


def test_a_size_that_scales_are_stored_at_changes_their_gradients_and_nothing_else() -> None:
    stored = torch.tensor([0.5, -2.0], dtype=torch.float64, requires_grad=True)
    one, other = LearnedScale(0.05, 0.25), LearnedScale(0.05, 0.05)
    assert one.stored(3).tolist() == [0.25] * 3 and other.factors(stored) is stored
    close(one.factors(stored * 5), stored)
    close(torch.autograd.grad(one.factors(stored).sum(), stored)[0], torch.full((2,), 0.2, dtype=torch.float64))


def test_vectors_that_are_kept_at_one_are_those_along_the_stream() -> None:
    model = sphere()
    found = {path: axis for path, _, axis in stream_vectors(model)}
    assert {path.rpartition("blocks.")[2] for path in found} == {
        "embed", "unembed",
        *(f"{i}.{part}" for i in range(2) for part in (
            "attn.projection.qkv", "attn.merge.output", "mlp.gate.unscaled", "mlp.input.unscaled", "mlp.output",
        )),
    }  # fmt: skip
    assert {path.rpartition(".")[2] for path, axis in found.items() if axis == -2} == {"output"}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    normalise_vectors(model)
    for path, stored, axis in stream_vectors(model):
        was = before[f"{path}.{'weight' if 'blocks' in path else 'matrix'}"]
        close(stored.norm(dim=axis), torch.ones_like(stored.norm(dim=axis)))
        close(stored * was.norm(dim=axis, keepdim=True), was)


def test_it_goes_on_from_a_state_from_any_layer_and_writes_what_the_whole_text_says() -> None:
    model = sphere()
    state, pieces = model.begin(2), []
    for piece in IDS.split([2, 1, 3], 1):
        logits, state = model(piece, state=state)
        pieces.append(logits)
    close(torch.cat(pieces, 1), model(IDS))
    close(model(IDS, form="scan"), model(IDS))
    close(model(IDS, tape=Tape(model, "*")), model(IDS))
    entered = gf.run(model, IDS, read=["blocks.1.resid_pre"])["blocks.1.resid_pre"].values
    close(model.resume(1, entered, at=torch.tensor([[5], [2]])), model(IDS)[torch.arange(2), [5, 2]][:, None])
    (written,) = generate(model, [[1, 5]], GREEDY, max_new_tokens=3).tokens
    assert list(written[-3:]) == _greedy(model, [1, 5], 3)


def _greedy(model: Any, ids: list[int], n: int) -> list[int]:
    for _ in range(n):
        ids = [*ids, int(model(torch.tensor([ids]))[0, -1].argmax())]
    return ids[-n:]


def test_it_comes_back_as_it_was_saved_and_counts_what_it_holds(tmp_path) -> None:
    model = sphere().float()
    assert ModelConfig.from_json(model.config.to_json()) == model.config
    loaded = load(save(model, tmp_path))
    assert torch.equal(loaded(IDS), model(IDS))
    counted = count_parameters(model.config)
    assert sum(counted.values()) == sum(parameter.numel() for parameter in model.parameters())
    assert counted["norms"] == 4 * WIDTH and counted["mechanism"] == 2 * WIDTH
    assert counted["unembedding"] == 11 * (WIDTH + 1)


def test_a_rotation_of_the_stream_turns_what_is_stored_and_no_factor() -> None:
    layers = (block(n_heads=2, norm=NoNorm(), mlp=Mlp(8, gated=True, bias=False, scale=LearnedScale(1.0, 0.5))),)
    factors = {"token_scale": LearnedScale(1.0, 0.3), "unembed_scale": 0.5}
    config = DecoderConfig(11, WIDTH, layers, max_len=24, final_norm=NoNorm(), tied=False, **factors)
    model = randomise(config.build().double().eval(), 0)
    close(rotated(model)(IDS), model(IDS))


def test_weights_folded_or_not_give_its_logits() -> None:
    model = sphere()
    for fold in (False, True):
        found = gf.weights.logits(gf.weights.of(model, fold=fold), IDS)
        close(found.log_softmax(-1), model(IDS).log_softmax(-1))


def test_writes_less_what_was_taken_away_of_them_sum_to_the_stream_and_to_logits() -> None:
    model = sphere()
    found = direct_logit_attribution(model, IDS[:1])
    close(found.sum.values, found.total.values)
    close(found.total.values, model(IDS[:1])[0, -1].max())
    for place in ("blocks.0.resid_mid", "blocks.1.resid_post"):
        stream = gf.run(model, IDS[:1], read=[place])[place].values[0, -1]
        close(writes(model, IDS[:1], site=place).vectors.values.sum(0), stream)
    # a rate of all leaves nothing of what was written before
    with torch.no_grad():
        model.stack.blocks[1].norm_out("mlp").weight.fill_(1 / (RATE * math.sqrt(WIDTH)))
    last = direct_logit_attribution(model, IDS[:1]).contributions
    assert [label for label, value in zip(last.labels("component"), last.values.tolist()) if value] == ["L1 mlp"]


def test_weights_alone_have_no_scales_to_carry_a_write_by() -> None:
    model = sphere()
    first, second = (layer for layer in model.sub_layers() if layer.attention is not None)
    with pytest.raises(AnalysisUnavailable, match="L0 attn moves the stream on a sphere"):
        norms_passed(model, first, second)
    with pytest.raises(AnalysisUnavailable, match="normalise the stream itself between a write and what reads it"):
        virtual_weights(model)


def test_without_its_skips_the_stream_is_the_direction_of_what_was_written() -> None:
    model = sphere()
    found = rank_of_stream(model, IDS[:1], initial=None).ratio
    h, context = model.embed.matrix[IDS[:1]], make_context(1, 6, IDS.device, is_causal=True)
    for layer in model.sub_layers():
        h = unit(layer.rate * unit(layer.part(h, context)[0]))
    close(found.select(weights="trained", variant="+ MLP").values[-1], residual_ratio(h[0]))


def test_scores_of_scaled_coordinates_that_turn_are_of_places_and_not_of_distances() -> None:
    layer = gf.weights.of(sphere(), fold=False).attention[0]
    with pytest.raises(AnalysisUnavailable, match="depend on both positions"):
        layer.qk(1)


@in_one_pass
@pytest.mark.parametrize(
    "build, match",
    [
        (lambda: block(n_heads=2, wiring="spherical"), r"a stream on the sphere has length 1, norm=UnitNorm\(\)"),
        (lambda: normalised_block(16, n_heads=2, norm=RmsNorm()), "found norm=rms_norm"),
        (lambda: normalised_block(16, n_heads=2, norm_after=UnitNorm()), "norm_after=unit, unit"),
        (lambda: BlockConfig((Mlp(),), norm_after=UnitNorm()), 'wiring "pre"'),
        (lambda: Mlp(scale=LearnedScale()), "of products alone; set bias=False"),
        (lambda: LearnedScale(0.0), "start must be positive"),
        (lambda: _layer(Concat(temperature=CoordinateScales())), '"concat" makes scores otherwise'),
        (
            lambda: _layer(Softmax(temperature=CoordinateScales()), Rope(at_read=True)),
            "as set here turn queries when they meet keys",
        ),
    ],
)
def test_settings_that_mean_nothing_are_refused(build: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        build()


def _layer(mixer: Any, positions: Any = None) -> Any:
    return Attention(2, mixer=mixer, positions=positions or NoPositions()).build(16, 8, 0, "")


@pytest.mark.parametrize(
    "name",
    [
        "direct_logit_attribution", "neuron_effects",
        *(pytest.param(name, marks=pytest.mark.full) for name in ("source_effects", "meaning_shift", "acdc", "patch")),
        *(pytest.param(name, marks=pytest.mark.full) for name in ("logit_lens", "ablate_each", "circuits", "explain")),
    ],
)  # fmt: skip
def test_analyses_are_what_their_judges_say(name: str) -> None:
    card = next(card for card in cards() if card.name == name)
    assert applies.outcome(card, subject("normalised")).compared
