"""Blocks of RetNet: their numbers, and that what the released code divides by is gone behind the norm of a head."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.attention import Lightning, Merge
from glassformer.errors import ConfigError
from glassformer.models import DecoderConfig, Mlp, RmsNorm, retention
from glassformer.testing import close
from glassformer.testing.layers import Layer, randomise, stream

N, HEADS, D_HEAD = 7, 3, 4
DECAYS = 1 - 2.0 ** (-5 - torch.arange(HEADS, dtype=torch.float64))
TINY = 1e-200


def layer(eps: float = 1e-6) -> Layer:
    config: Any = retention(1, n_heads=HEADS, d_head=D_HEAD, eps=eps)[0].parts[0]
    return Layer(randomise(config.build(12, 64, 0, "").double().eval()))


def retained(q: Tensor, k: Tensor) -> Tensor:
    """Return the paper's weights, from rotated queries and keys: scaled keys, a power of the decay by distance."""
    age = (torch.arange(N)[:, None] - torch.arange(N)).clamp_min(0)
    return (q @ k.mT / D_HEAD**0.5 * DECAYS[:, None, None] ** age).tril()


def root_of_summed_decays(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Rows divided by the root of what their decays sum to, then by the size of what they sum to if it is above one."""
    summed = torch.stack([(DECAYS[:, None] ** torch.arange(n + 1)).sum(-1) for n in range(N)], -1)
    weights = retained(q, k) / summed.sqrt()[..., None]
    return (weights / weights.detach().sum(-1, keepdim=True).abs().clamp(min=1)) @ v


def sum_of_sizes(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Rows divided by the sum of the sizes of their weights, if that is above one."""
    weights = retained(q, k)
    return (weights / weights.detach().abs().sum(-1, keepdim=True).clamp(min=1)) @ v


def root_that_grows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A memory kept divided by the root of how many positions it is worth."""
    memory, worth, rows = torch.zeros(*q.shape[:2], D_HEAD, v.shape[-1]).double(), torch.zeros(HEADS).double(), []
    for t in range(N):
        before, worth = worth, worth * DECAYS + 1
        kept, added = (before / worth).sqrt() * DECAYS, worth.rsqrt()
        write = k[..., t, :, None] * v[..., t, None, :] / D_HEAD**0.5
        memory = kept[:, None, None] * memory + added[:, None, None] * write
        rows.append((q[..., t, None, :] @ memory).squeeze(-2))
    return torch.stack(rows, -2)


FORMS: list[Callable[[Tensor, Tensor, Tensor], Tensor]] = [root_of_summed_decays, sum_of_sizes, root_that_grows]


def written(attention: Layer, z: Tensor, x: Tensor, eps: float) -> Tensor:
    """Return what the published merge writes of mixed values: each head normed, opened by a gate, one matrix."""
    merge: Any = attention.module.merge
    normed = (z * (z.square().mean(-1, keepdim=True) + eps).rsqrt()).transpose(1, 2).flatten(-2)
    opened = x @ merge.gate.weight.T
    return (opened * opened.sigmoid() * normed) @ merge.output.weight.T


def test_angles_end_at_one_over_base_and_decays_halve_their_distance_to_one() -> None:
    first, second = retention(2, n_heads=HEADS, d_head=8)
    attention: Any = first.parts[0]
    assert first == second and isinstance(attention.mixer, Lightning)
    close(attention.positions.frequencies(8), 10_000.0 ** -torch.linspace(0, 1, 4, dtype=torch.float64))
    close(torch.tensor(attention.mixer.slopes, dtype=torch.float64).neg().exp(), DECAYS)
    assert attention.d_value == 16 and attention.positions.pairing == "interleaved"
    assert attention.merge == Merge(norm="head", gain=False, eps=8e-6, gate="silu")
    assert first.norm == RmsNorm(eps=1e-6) and first.parts[1] == Mlp(activation="gelu", gated=True, bias=False)
    with pytest.raises(ConfigError, match="d_head=2"):
        retention(1, n_heads=1, d_head=2)


@pytest.mark.parametrize("form", FORMS)
def test_what_the_released_code_divides_by_is_gone_behind_the_norm_in_outputs_and_gradients(form: Any) -> None:
    attention, x = layer(TINY), stream(2, N).requires_grad_()
    tape = attention.tape("query", "key", "value", grad=True)
    attention(x, tape=tape)
    read = tape.values
    # weights large enough that its sums exceed the one that they are held to
    q, k, v = (read[name] * factor for name, factor in (("query", 5.0), ("key", 5.0), ("value", 1.0)))
    plain, theirs = retained(q, k) @ v, form(q, k, v)
    per_row = (theirs / plain).detach()
    close(per_row, per_row.mean(-1, keepdim=True).expand_as(per_row), 1e-8)
    assert (per_row > 0).all() and (per_row - 1).abs().max() > 0.1
    found, expected = (written(attention, z, x, 0.0) for z in (theirs, plain))
    close(found, expected, 1e-10)
    wanted = (x, *attention.module.parameters())
    grads = [torch.autograd.grad(z.sin().sum(), wanted, retain_graph=True) for z in (found, expected)]
    for one, other in zip(*grads, strict=True):
        close(one, other, 1e-9)


@pytest.mark.parametrize("size", [1.0, 0.01])
def test_a_layer_is_the_papers_with_its_eps_and_differs_from_the_code_by_what_eps_is_to_their_divisor(
    size: float,
) -> None:
    eps, x = 1e-6, stream(2, N)
    attention = layer(eps)
    attention.module.projection.qkv.weight.data[2 * HEADS * D_HEAD :] *= size
    read = attention.read(x, "query", "key", "value", "out")
    q, k, v = (read[name] for name in ("query", "key", "value"))
    z, theirs = retained(q, k) @ v, root_of_summed_decays(q, k, v)
    close(read["out"], written(attention, z, x, eps), 1e-10)
    mean, divisor = z.square().mean(-1, keepdim=True), (z / theirs)
    scale = ((mean + eps) / (mean + eps * divisor.square())).sqrt()
    shrunk = z * (mean + eps).rsqrt() * scale
    close(theirs * (theirs.square().mean(-1, keepdim=True) + eps).rsqrt(), shrunk, 1e-10)
    off = (read["out"] - written(attention, theirs, x, eps)).abs().max() / read["out"].abs().max()
    # nothing to speak of for values of size one, and much for values near the root of eps
    assert off < 1e-3 if size == 1 else off > 1e-3


def test_a_model_reads_on_from_a_state_and_turns_by_the_positions_it_is_at() -> None:
    layers = retention(2, n_heads=2, d_head=4, d_mlp=8)
    config = DecoderConfig(11, 8, layers, max_len=24)
    assert DecoderConfig.from_json(config.to_json()) == config
    model, ids = randomise(config.build(seed=0).double().eval()), torch.arange(9)[None]
    first, state = model(ids[:, :5], state=model.begin(batch=1))
    second, _ = model(ids[:, 5:], state=state)
    close(torch.cat((first, second), 1), model(ids))
