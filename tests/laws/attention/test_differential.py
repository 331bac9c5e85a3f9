"""Identities of differential attention."""

import math
from typing import Any

import torch
from hypothesis import given, strategies as st
from torch import Tensor

from glassformer.attention import Attention, Differential, Merge, Rope, Softmax, lambda_init_at
from glassformer.models import DecoderConfig, block
from glassformer.testing import close
from glassformer.testing.layers import D_MODEL, Layer, causal_context, randomise, seeds, stream
from glassformer.weights.heads import attention_views


def layer(
    n_heads: int = 4,
    n_kv_heads: int | None = None,
    merge: Merge = Merge(),  # noqa: B008
    mixer: Differential = Differential(0.3),  # noqa: B008
    **kwargs: Any,
) -> Layer:
    config = Attention(n_heads, n_kv_heads, d_head=4, mixer=mixer, merge=merge, **kwargs)
    return Layer(randomise(config.build(D_MODEL, 16, 0, "").double().eval()))


def strength(attention: Layer, x: Tensor) -> Tensor:
    return attention.read(x, "lambda")["lambda"]


@given(seeds, st.sampled_from([(4, 4), (4, 2), (4, 1), (6, 3)]))
def test_grouped_streams_equal_a_loop_over_heads(seed: int, heads: tuple[int, int]) -> None:
    """From the stream up, with the matrices cut by hand: head h reads both key streams of group h // (H/G)."""
    n_heads, n_kv_heads = heads
    attention, x = layer(n_heads, n_kv_heads), stream(2, 5, seed)
    rows = attention.module.projection.qkv.weight.split([n_heads * 8, n_kv_heads * 8, n_kv_heads * 8])
    l1, l2, l3, l4 = attention.mixer.lambdas
    scale = torch.exp((l1 * l2).sum()) - torch.exp((l3 * l4).sum()) + 0.3
    hidden = torch.ones(5, 5).triu(1).bool()
    for h in range(n_heads):
        g = h // (n_heads // n_kv_heads)
        maps = []
        for s in range(2):
            q = x @ rows[0][h * 8 + s * 4 : h * 8 + s * 4 + 4].T
            k = x @ rows[1][g * 8 + s * 4 : g * 8 + s * 4 + 4].T
            maps.append((q @ k.mT / 2).masked_fill(hidden, -torch.inf).softmax(-1))
        z = (maps[0] - scale * maps[1]) @ (x @ rows[2][g * 8 : g * 8 + 8].T)
        close(attention.read(x, "z")["z"][:, h], z)
        close(attention.read(x, "pattern")["pattern"][:, h], maps[0] - scale * maps[1])


@given(seeds, st.sampled_from([(4, 4), (4, 2), (4, 1), (6, 3)]))
def test_streams_in_a_row_equal_all_of_them_repeated(seed: int, heads: tuple[int, int]) -> None:
    """As the authors' plain file has it: a row of all heads' streams, keys repeated one by one, then taken in pairs."""
    n_heads, n_kv_heads = heads
    attention, x = layer(n_heads, n_kv_heads, mixer=Differential(0.3, "in_a_row")), stream(2, 5, seed).requires_grad_()
    rows = attention.module.projection.qkv.weight.split([n_heads * 8, n_kv_heads * 8, n_kv_heads * 8])
    repeats = n_heads // n_kv_heads
    q = (x @ rows[0].T).unflatten(-1, (2 * n_heads, 4)).transpose(1, 2)
    k = (x @ rows[1].T).unflatten(-1, (2 * n_kv_heads, 4)).transpose(1, 2).repeat_interleave(repeats, 1)
    v = (x @ rows[2].T).unflatten(-1, (n_kv_heads, 8)).transpose(1, 2).repeat_interleave(repeats, 1)
    hidden = torch.ones(5, 5).triu(1).bool()
    maps = (q @ k.mT / 2).masked_fill(hidden, -torch.inf).softmax(-1).unflatten(1, (n_heads, 2))
    strong = strength(attention, x)
    expected = maps[:, :, 0] - strong * maps[:, :, 1]
    close(attention.read(x, "pattern")["pattern"], expected)
    z = attention.tape("z", grad=True)
    attention(x, tape=z)
    close(z.values["z"], expected @ v)
    found, other = (torch.autograd.grad(u.pow(3).sum(), x)[0] for u in (z.values["z"], expected @ v))
    close(found, other)
    # scores by weights alone
    qk = attention_views(attention.module).qk().dense()
    scores = attention.read(x, "scores")["scores"].movedim(1, 2)
    made = torch.einsum("bnd,hsde,bme->bhsnm", x, qk, x) * attention.mixer.scale
    close(made.masked_fill(hidden, 0.0), scores.masked_fill(hidden, 0.0))


@given(seeds)
def test_rows_sum_to_one_minus_lambda(seed: int) -> None:
    attention, x = layer(), stream(2, 5, seed)
    pattern = attention.read(x, "pattern")["pattern"]
    close(pattern.sum(-1), (1 - strength(attention, x)).expand(2, 4, 5))


@given(seeds)
def test_each_streams_own_map_is_a_site_with_rows_that_sum_to_one(seed: int) -> None:
    attention, x = layer(n_kv_heads=2, positions=Rope()), stream(2, 5, seed)
    values = attention.read(x, "patterns", "pattern", "lambda")
    close(values["patterns"].sum(-1), torch.ones(2, 2, 4, 5, dtype=torch.float64))
    first, second = values["patterns"].unbind(1)
    close(values["pattern"], first - values["lambda"] * second)


def test_lambda_zero_is_plain_attention_over_the_first_stream() -> None:
    x, attention = stream(2, 5), layer()
    values = attention.read(x, "query", "key", "value")
    plain = Layer(Attention(4, d_head=4, d_value=8, mixer=Softmax()).build(D_MODEL, 16, 0, "").double())
    edit = [(n, lambda _, v=values[n]: v[:, 0] if v.ndim == 5 else v) for n in ("query", "key", "value")]
    tape = plain.tape("z", edit=edit)
    plain(x, tape=tape)
    off = attention.tape("z", edit=[("lambda", lambda _: torch.zeros((), dtype=torch.float64))])
    attention(x, tape=off)
    close(off.values["z"], tape.values["z"])


def test_equal_streams_leave_one_minus_lambda_of_the_pattern() -> None:
    x, attention = stream(2, 5), layer()
    same = [(n, lambda u: u[:, :1].expand_as(u)) for n in ("query", "key")]
    tape = attention.tape("patterns", "pattern", edit=same)
    attention(x, tape=tape)
    close(tape.values["pattern"], (1 - strength(attention, x)) * tape.values["patterns"][:, 0])


def test_the_head_norm_makes_the_output_blind_to_the_size_of_values() -> None:
    x, attention = stream(2, 5), layer(merge=Merge(norm="head", eps=1e-12))
    bigger = attention(x, tape=attention.tape(edit=[("value", lambda v: 5 * v)]))
    close(bigger, attention(x), 1e-6)


def test_the_full_head_is_the_pattern_once_its_scale_is_frozen() -> None:
    x, attention = stream(2, 5), layer(merge=Merge(norm="head", factor=0.7, gain=False))
    values = attention.read(x, "pattern", "value", "z_scale", "head_out")
    z = 0.7 * values["pattern"] @ values["value"] / values["z_scale"][..., None]
    w_o = attention.module.merge.output.weight.unflatten(1, (4, 8))
    close(torch.einsum("bhnd,mhd->bhnm", z, w_o), values["head_out"])


def test_lambda_starts_at_the_papers_schedule() -> None:
    expected = [0.2, 0.3555, 0.4707, 0.5561]
    assert all(math.isclose(lambda_init_at(i), e, abs_tol=5e-5) for i, e in enumerate(expected))
    x = stream(1, 2)
    found = torch.stack(
        [
            strength(Layer(Attention(2, d_head=32, mixer=Differential(0.3)).build(D_MODEL, 8, 0, "").double()), x)
            for _ in range(200)
        ]
    )
    # vectors of size 0.1 in 32 dimensions: exp(l1.l2) has deviation sqrt(32) * 0.01 = 0.06
    assert abs(float(found.mean()) - 0.3) < 0.02 and 0.04 < float(found.std()) < 0.15


def test_the_schedule_builds_layers_with_their_depths_lambda() -> None:
    layers = tuple(block(n_heads=2, **Differential().as_published(i)) for i in range(3))
    model: Any = DecoderConfig(7, 8, layers).build().double()
    for i, part in enumerate(model.stack.blocks):
        attention = part.part("attn")
        assert attention.config.mixer.lambda_init == lambda_init_at(i)
        assert math.isclose(attention.merge.config.factor, 1 - lambda_init_at(i))
    assert model(torch.zeros(1, 3, dtype=torch.long)).isfinite().all()


def test_the_state_holds_two_key_streams_and_one_value() -> None:
    attention, x = layer(n_kv_heads=2), stream(3, 5)
    _, state = attention.module(x, causal_context(x), state=attention.module.begin(3, x))
    state = state.mixer
    assert state.key.shape == (3, 2, 2, 5, 4) and state.value.shape == (3, 2, 5, 8)
