"""Every sub-layer against the suite of its laws, and what states, costs and single kinds promise besides.

A sub-layer is covered the moment it registers: its default config is always drawn. `CONFIGS` adds other settings.
"""

from dataclasses import fields
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, strategies as st
from torch import Tensor, nn

from glassformer.analysis.sweep import logit_difference, one_by_one, sweep
from glassformer.attention import (
    Attention,
    Convolved,
    DualChunk,
    Latent,
    LearnedScale,
    Lightning,
    LinearMemory,
    Merge,
    Persistent,
    Rope,
    Rwkv6,
    Shifted,
    Smeared,
    SubLayerConfig,
    SubLayerModule,
)
from glassformer.config import UNSAID
from glassformer.errors import ConfigError
from glassformer.models import (
    BlockConfig,
    Convolution,
    Decoder,
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    Gru,
    LayerNorm,
    MemoryContext,
    MixMlp,
    Mlp,
    NoNorm,
    RmsNorm,
    block,
)
from glassformer.models.accounting import state_bytes
from glassformer.models.stack import State, tensors
from glassformer.testing import SubLayerLaws, close
from glassformer.testing.layers import D_MODEL, causal_context, randomise, seeds, stream
from glassformer.trace import Add, At, Scale, SiteTable, Tape

REQUIRED: dict[str, dict[str, Any]] = {"attention": {"n_heads": 2}, "experts": {"n_experts": 3, "n_chosen": 2}}
CONFIGS: dict[str, SubLayerConfig] = {
    # every kind that can stand in a decoder, as it is by default
    **{kind: cast(Any, cls)(**REQUIRED.get(kind, {})) for kind, cls in SubLayerConfig.registry.items()},
    "attention rope": Attention(2, 1, positions=Rope(), projection=Smeared(bias=True)),
    "attention lightning": Attention(2, mixer=Lightning(chunk=2)),
    "attention convolved": Attention(2, 1, positions=Rope(at_read=True), projection=Convolved(width=3, qk_norm=True)),
    "attention shifted": Attention(
        2, mixer=Rwkv6(3), projection=Shifted(rank=2, gate=True, centred=True), merge=Merge(norm="head", gate="silu")
    ),
    "attention chunks": Attention(2, positions=DualChunk(3, 5)),
    "attention latent": Attention(2, 1, positions=Rope(at_read=True), projection=Latent(3)),
    "mlp gated": Mlp(7, "silu", gated=True, bias=False),
    "mlp scaled": Mlp(7, "silu", gated=True, bias=False, scale=LearnedScale(1.0, 0.5)),
    "gru narrow": Gru(5, bias=False),
    "gru bidirectional": Gru(5, bidirectional=True),
    "convolution dilated": Convolution(2, dilation=3, d_hidden=5, activation="tanh"),
    "convolution wide": Convolution(4, bias=False),
    "convolution pointwise": Convolution(1),
    "mix_mlp narrow": MixMlp(5, width=2, bias=False),
    "memory_context segments": MemoryContext(
        Attention(2, **LinearMemory(chunk=3).as_published()),
        Attention(2, 1, mixer=Persistent(2), positions=Rope()),
    ),
}
every = pytest.mark.parametrize("name", CONFIGS)
WIRINGS = ("pre", "post", "sandwich", "parallel")


class TestEverySubLayer(SubLayerLaws):
    sub_layer = CONFIGS


def sub_layer(name: str, seed: int = 0) -> SubLayerModule:
    return randomise(CONFIGS[name].build(D_MODEL, 32, 0, "").double().eval(), seed)


def hybrid_config(name: str, wiring: Any = "pre") -> DecoderConfig:
    """The sub-layer before an MLP, below a softmax block, and alone at the top."""
    part, norm = CONFIGS[name], NoNorm() if wiring == "post" else RmsNorm()
    return DecoderConfig(
        11, 16,
        (
            BlockConfig((part, Mlp(8)), LayerNorm(), wiring),
            block(n_heads=2, positions=Rope(), mlp=Mlp(8), wiring=wiring),
            BlockConfig((part,), LayerNorm(), wiring),
        ),
        max_len=24, final_norm=norm,
    )  # fmt: skip


def hybrid(name: str, wiring: str = "pre", seed: int = 0) -> Decoder:
    return randomise(hybrid_config(name, wiring).build().double().eval(), seed, std=0.2)


def tokens(batch: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 11, (batch, length), generator=torch.Generator().manual_seed(seed))


@every
def test_one_position_at_a_time_equals_one_pass(name: str) -> None:
    model, ids = hybrid(name), tokens(2, 8)
    state, steps = model.begin(2), []
    with torch.no_grad():
        for t in range(8):
            logits, state = model(ids[:, t : t + 1], state=state)
            steps.append(logits)
        close(torch.cat(steps, 1), model(ids))


@every
def test_one_state_can_be_continued_twice(name: str) -> None:
    model, ids, other = hybrid(name), tokens(2, 6), tokens(2, 6, 5)
    with torch.no_grad():
        _, state = model(ids[:, :4], state=model.begin(2))
        before = [part.clone() for part in tensors(state.layers)]
        ends = [model(new[:, 4:], state=state)[0] for new in (ids, other, ids)]
    assert torch.equal(ends[0], ends[2])
    close(ends[1], model(torch.cat((ids[:, :4], other[:, 4:]), 1))[:, 4:])
    assert all(map(torch.equal, tensors(state.layers), before))


@every
def test_gradients_at_its_sites_are_the_effects_of_small_edits(name: str) -> None:
    layer, x = sub_layer(name), stream(1, 4)
    table = Table(layer)
    for at, found in table.sites().items():
        if found.lazy or found.read_only:
            continue
        tape = Tape(table, [at], grad=True)
        (gradient,) = torch.autograd.grad(layer(x, causal_context(x), tape=tape)[0].sum(), tape.values[at])
        tapes = [Tape(table, edit=[Scale(at, 1 + step)]) for step in (1e-5, -1e-5)]
        ends = [layer(x, causal_context(x), tape=tape)[0].sum() for tape in tapes]
        close((gradient * tape.values[at]).sum(), (ends[0] - ends[1]) / 2e-5, 1e-4)


class Table:
    """The sites of one sub-layer, for a tape over it alone."""

    def __init__(self, layer: SubLayerModule) -> None:
        self.layer = layer

    def sites(self, glob: str = "*") -> Any:
        table = SiteTable({found.name: found for found in self.layer.sites()})
        return table if glob == "*" else SiteTable({at: table[at] for at in table.match(glob)})


@every
def test_later_tokens_cannot_change_earlier_logits(name: str) -> None:
    layer, x = sub_layer(name), stream(1, 6).requires_grad_()
    out = layer(x, causal_context(x))[0] @ stream(1, 1, 3)[0, 0]
    influence = torch.stack([torch.autograd.grad(out[0, t], x, retain_graph=True)[0][0].norm(dim=-1) for t in range(6)])
    # exact zero, not small
    assert (influence.triu(1) == 0).all()
    assert (influence.diagonal() > 0).all()
    alone = (influence.tril(-1) == 0).all()
    assert alone == (layer.by_position or name == "convolution pointwise")


@every
def test_a_config_survives_json(name: str) -> None:
    config, part = hybrid_config(name), CONFIGS[name]
    assert DecoderConfig.from_json(config.to_json()) == config
    assert SubLayerConfig.from_json(part.to_json()) == part
    said = {f.name for f in fields(cast(Any, part)) if UNSAID not in f.metadata or getattr(part, f.name) != f.default}
    assert said == set(part.to_dict()) - {"kind"}


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@torch.no_grad()
def test_a_real_state_has_the_bytes_that_are_stated(name: str, dtype: torch.dtype) -> None:
    config = hybrid_config(name)
    model = config.build().to(dtype)
    state = model.begin(1)
    for step in (1, 6, 1):
        _, state = model(tokens(1, step), state=state)
        found = sum(part.numel() * part.element_size() for part in tensors(state.layers))
        assert found == state_bytes(config, state.length, dtype)


@every
@given(seeds, st.integers(0, 6))
def test_a_state_that_is_kept_can_be_cut_to_any_earlier_length(name: str, seed: int, cut: int) -> None:
    model, ids = hybrid(name, seed=seed), tokens(2, 8, seed)
    parts = [[block.part(at) for at in block.names] for block in cast(Any, model.stack.blocks)]
    _, state = model(ids[:, :6], state=model.begin(2))
    if not all(part.keeps(6) for own in parts for part in own):
        assert any(tensors(held) for held in state.layers)
        return
    layers = [tuple(p.cut(h, cut) for p, h in zip(own, held)) for own, held in zip(parts, state.layers)]
    logits, _ = model(ids[:, cut:], state=State(cut, tuple(layers)))
    close(logits, model(ids)[:, cut:])


@every
@pytest.mark.parametrize("memory", [None, 1])
def test_sweeps_that_go_on_from_carried_states_equal_whole_passes(name: str, memory: int | None) -> None:
    model, ids = hybrid(name), tokens(2, 7)
    role = CONFIGS[name].role
    plan = [[Scale(f"blocks.{layer}.{role}.out", 0.5, at=At(pos=pos))] for layer in (0, 2) for pos in (0, 3, 6)]
    plan += [[Add("blocks.1.attn.z", 1.0, at=At(pos=4))]]
    found = sweep(model, ids, plan, logit_difference(1, 2), memory=memory)
    close(found.values.values, one_by_one(model, ids, plan, logit_difference(1, 2)).values.values)


@every
@given(seeds, st.integers(1, 5))
def test_a_decoder_with_cross_attention_continues_where_it_was_cut(name: str, seed: int, cut: int) -> None:
    layers = (BlockConfig((CONFIGS[name], Attention(2, cross=True), Mlp(8))),) * 2
    config = EncoderDecoderConfig(11, 16, (block(n_heads=2),), layers, max_len=24)
    model = randomise(config.build().double().eval(), seed, std=0.2)
    source, ids = tokens(2, 5, seed + 1), tokens(2, 6, seed)
    lengths = torch.tensor([3, 5])
    first, state = model(None, ids[:, :cut], state=model.begin(source, lengths))
    second, _ = model(None, ids[:, cut:], state=state)
    close(torch.cat((first, second), 1), model(source, ids, source_lengths=lengths))


@every
def test_encoders_take_what_reads_both_ways_and_refuse_what_looks_backwards_only(name: str) -> None:
    layers = (BlockConfig((CONFIGS[name],)),)
    if CONFIGS[name].only_backwards:
        with pytest.raises(ConfigError, match="looks at earlier positions only"):
            EncoderConfig(11, 16, layers)
    else:
        EncoderConfig(11, 16, layers)


# a recurrence, and a convolution -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@given(seeds)
def test_it_is_torchs_gated_recurrent_unit_with_its_gradients(bias: bool, seed: int) -> None:
    ours = randomise(Gru(5, bias=bias).build(D_MODEL, 32, 0, "").double(), seed)
    theirs = nn.GRU(D_MODEL, 5, bias=bias, batch_first=True).double()
    pairs = {"weight_ih_l0": ours.input.weight, "weight_hh_l0": ours.recurrent.weight}
    if bias:
        pairs |= {"bias_ih_l0": ours.input.bias, "bias_hh_l0": ours.recurrent.bias}
    theirs.load_state_dict({key: value.detach() for key, value in pairs.items()})
    x = stream(2, 6, seed)
    tape = Tape(Table(ours), ["hidden"], grad=True)
    ours(x, causal_context(x), tape=tape)
    expected = theirs(x)[0]
    close(tape.values["hidden"], expected)
    mine = torch.autograd.grad(tape.values["hidden"].square().sum(), list(pairs.values()))
    reference = torch.autograd.grad(expected.square().sum(), [getattr(theirs, key) for key in pairs])
    for one, other in zip(mine, reference):
        close(one, other)


@given(seeds)
def test_gates_explain_the_state_they_lead_to(seed: int) -> None:
    layer, x = sub_layer("gru", seed), stream(2, 5, seed)
    tape = Tape(Table(layer), "*")
    layer(x, causal_context(x), tape=tape)
    hidden, update, candidate = (tape.values[at] for at in ("hidden", "update", "candidate"))
    before = torch.cat((torch.zeros_like(hidden[:, :1]), hidden[:, :-1]), 1)
    close(hidden, (1 - update) * candidate + update * before)


def test_an_edit_of_what_the_gates_are_told_is_felt_by_all_later_positions() -> None:
    layer, x = sub_layer("gru"), stream(1, 6)
    told = Add("input", 1.0, at=At(pos=2))
    plain, edited = Tape(Table(layer), ["hidden"]), Tape(Table(layer), ["hidden"], [told])
    for tape in (plain, edited):
        layer(x, causal_context(x), tape=tape)
    moved = (edited.values["hidden"] - plain.values["hidden"])[0].norm(dim=-1)
    assert (moved[:2] == 0).all()
    assert (moved[2:] > 0).all()


@given(seeds, st.integers(1, 4), st.integers(1, 3), st.integers(1, 8))
def test_it_is_torchs_convolution_padded_on_the_left(seed: int, width: int, dilation: int, n: int) -> None:
    layer = randomise(Convolution(width, dilation, 5).build(D_MODEL, 32, 0, "").double(), seed)
    x = stream(2, n, seed)
    kernel = layer.input.weight.unflatten(1, (width, D_MODEL)).transpose(1, 2)
    padded = F.pad(x.mT, ((width - 1) * dilation, 0))
    expected = F.conv1d(padded, kernel, layer.input.bias, dilation=dilation).mT
    tape = Tape(Table(layer), ["pre"])
    layer(x, causal_context(x), tape=tape)
    close(tape.values["pre"], expected)


def test_a_dilated_convolution_reads_evenly_spaced_positions() -> None:
    layer, x = sub_layer("convolution dilated"), stream(1, 9).requires_grad_()
    (gradient,) = torch.autograd.grad(layer(x, causal_context(x))[0][0, 8].sum(), x)
    assert gradient[0].norm(dim=-1).nonzero().flatten().tolist() == [5, 8]
