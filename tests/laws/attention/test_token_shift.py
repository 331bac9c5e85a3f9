"""Token shift: what stands before each position, where nothing does, and what is kept of a text."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from glassformer import run
from glassformer.analysis.frozen import output_gates
from glassformer.attention import Attention, Merge, Rwkv6, Shifted, TokenShift
from glassformer.attention.context import padding
from glassformer.attention.token_shift import last_read, shifted_by_one
from glassformer.errors import AnalysisUnavailable
from glassformer.models import DecoderConfig, block
from glassformer.testing import close
from glassformer.testing.layers import D_MODEL, Layer, causal_context, randomise, seeds, stream
from glassformer.testing.models import subject
from glassformer.trace import Scale, Tape


def layer(seed: int = 0, **fields: Any) -> Layer:
    config = Attention(
        2, d_head=4, mixer=Rwkv6(rank=3), projection=Shifted(rank=2, gate=True, **fields), merge=Merge(gate="silu")
    )
    return Layer(randomise(config.build(D_MODEL, 64, 0, "").double().eval(), seed))


@given(seeds, st.lists(st.booleans(), min_size=6, max_size=6))
def test_what_stands_before_a_position_is_the_one_before_it_or_zeros_where_a_text_begins(
    seed: int, begins: list[bool]
) -> None:
    x, ids = stream(1, 6, seed), torch.tensor([begins]).cumsum(-1)
    found = shifted_by_one(x, causal_context(x, document_ids=ids))
    for t in range(6):
        alone = t == 0 or bool(ids[0, t] != ids[0, t - 1])
        close(found[:, t], torch.zeros_like(x[:, t]) if alone else x[:, t - 1])


def test_what_is_kept_is_what_was_read_last_and_is_no_padding() -> None:
    x, last = stream(3, 5), stream(3, 1, 9)
    context = causal_context(x, lengths=torch.tensor([2, 5, 1]))
    close(last_read(x, context, last), torch.stack((x[0, 1], x[1, 4], x[2, 0]))[:, None])
    # of a pass that is all padding, what was there before
    hidden = replace(context, mask=context.mask & padding(torch.tensor([5, 0, 5])))
    close(last_read(x, hidden, last), torch.stack((x[0, 1], last[1, 0], x[2, 0]))[:, None])


@given(seeds)
def test_padding_on_the_right_leaves_no_trace_in_a_state(seed: int) -> None:
    attention, x = layer(seed), stream(2, 6, seed)
    length = torch.tensor([4, 4])
    _, padded = attention.module(x, causal_context(x, lengths=length), state=attention.module.begin(2, x))
    _, alone = attention.module(x[:, :4], causal_context(x[:, :4]), state=attention.module.begin(2, x))
    for one, other in zip((*padded.projection, *padded.mixer), (*alone.projection, *alone.mixer), strict=True):
        close(one, other)


def test_shares_of_one_read_the_position_and_shares_of_none_the_one_before() -> None:
    shift, x = TokenShift(D_MODEL, ("query", "key")).double(), stream(2, 5)
    with torch.no_grad():
        shift.share[0], shift.share[1] = 1.0, 0.0
        close(shift("query", x, x.roll(1, 1)), x)
        close(shift("key", x, x.roll(1, 1)), x.roll(1, 1))


def test_shares_that_depend_on_what_is_read_begin_as_constants() -> None:
    x, before = stream(2, 5), stream(2, 5, 3)
    plain, ranked = (TokenShift(D_MODEL, ("query",), rank).double() for rank in (None, 4))
    close(ranked("query", x, before), plain("query", x, before))
    assert plain.flops(5) == 0 and ranked.flops(5) == 2 * (2 * 5 * D_MODEL * 4)


def test_each_reader_has_shares_of_its_own_and_all_are_used() -> None:
    attention, x = layer(), stream(1, 4)
    found = torch.autograd.grad(attention(x).sin().sum(), attention.module.projection.shift.share)[0]
    assert attention.module.projection.shift.readers == ("query", "key", "value", "mix", "gate")
    assert (found.abs().sum(-1) > 0).all()


def test_a_head_with_a_stream_of_its_own_shifts_that() -> None:
    """All heads given twice the stream, one quantity after another, are a layer that reads twice the stream."""
    config = DecoderConfig(11, 8, (block(Rwkv6(rank=3), n_heads=2, projection=Shifted(rank=2, gate=True),
                                         merge=Merge(gate="silu")),), max_len=16)  # fmt: skip
    model = randomise(config.build(seed=0).double().eval())
    ids = torch.arange(6)[None]
    part: Any = model.stack.blocks[0]
    inputs = [f"blocks.0.attn.{name}" for name in ("query_in", "key_in", "value_in", "mix_in", "gate_in")]

    def other(x: Tensor) -> Tensor:
        return x.flip(-1)

    changed = run(model, ids, read=["blocks.0.attn.out"], edit=[(name, other) for name in inputs])
    stream_ = run(model, ids, read=["blocks.0.resid_pre"])["blocks.0.resid_pre"].values
    read = part.attn_norm(other(stream_), None)
    close(changed["blocks.0.attn.out"].values, part.attn(read, causal_context(read))[0])


def test_gates_held_as_in_a_run_are_those_that_read_shifted() -> None:
    model: Any = subject("rwkv").model
    layer = next(part for part in model.sub_layers() if part.attention is not None)
    part = layer.attention
    found = run(model, torch.arange(7)[None], read=[part.at.z, part.at.out, *layer.multiplier_sites])
    held = layer.multiplier(lambda name: found[name].values)
    assert layer.multiplier_sites == [part.at.z_scale, "blocks.0.attn.gate_read"]
    close(((found[part.at.z].values * held) @ part.merge.matrix()).sum(1), found[part.at.out].values)
    weights = output_gates(model, torch.arange(7)[None])
    close(weights.multiplier.values[:2], held[0])


def test_a_head_with_a_stream_of_its_own_is_refused_where_a_state_goes_on() -> None:
    config = DecoderConfig(11, 8, (block(n_heads=2, projection=Shifted()),), max_len=16)
    model, ids = config.build(seed=0).double().eval(), torch.arange(4)[None]
    tape = Tape(model, (), [Scale("blocks.0.attn.query_in", 2.0)])
    with pytest.raises(AnalysisUnavailable, match="in one pass, without a state"):
        model(ids, state=model.begin(batch=1), tape=tape)
