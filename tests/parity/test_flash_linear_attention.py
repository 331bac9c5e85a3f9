"""Ours against the naive references of fla-core, in float64: outputs, last states and gradients.

Its package needs triton when it is imported, and the references need nothing: their files are read by path. They turn
what they are given into float32; read here, the same text says float64.
"""

import importlib.util
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.attention import (
    Attention,
    Delta,
    GatedDelta,
    Lightning,
    Linear,
    Lrpe,
    MixerConfig,
    Performer,
    Rwkv6,
    StateSpace,
    depth_slopes,
)
from glassformer.attention.kernels.channel_decay import channel_decay_chunks, channel_decay_pattern
from glassformer.attention.kernels.chunked import chunked, gated
from glassformer.attention.kernels.delta import delta_chunks, delta_pattern
from glassformer.models import retention
from glassformer.testing import close
from glassformer.testing.layers import D_MODEL, Layer, randomise, stream

N, WIDTH, EXACT = 128, 6, 1e-10


def reference(name: str, file: str = "naive") -> Any:
    """Return what a naive file of the package defines, in float64."""
    package = importlib.util.find_spec("fla")
    if package is None or package.origin is None:
        pytest.skip("fla-core is not installed")
    pytest.importorskip("einops")
    path = Path(package.origin).parent / "ops" / name / f"{file}.py"
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"torch\.float(32)?\b", "torch.float64", text).replace(".float()", ".double()")
    found: dict[str, Any] = {}
    exec(compile(text, str(path), "exec"), found)
    return SimpleNamespace(**found)


def drawn() -> dict[str, Tensor]:
    """Return queries, keys of length one, values `batch head pos width`, gates `batch head pos`, and a state."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"q": (2, 3, N, WIDTH), "k": (2, 3, N, WIDTH), "v": (2, 3, N, 4), "state": (2, 3, WIDTH, 4)}
    shapes |= {"beta": (2, 3, N), "g": (2, 3, N)}
    found = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
    found["k"] = found["k"] / found["k"].norm(dim=-1, keepdim=True)
    found |= {"beta": found["beta"].sigmoid(), "g": -found["g"].abs()}
    return {name: x.requires_grad_() for name, x in found.items()}


def by_position(*tensors: Tensor) -> list[Tensor]:
    """Return tensors with positions before heads, as some of the references have them."""
    return [x.transpose(1, 2) for x in tensors]


def compare(ours: Callable[[], tuple[Tensor, ...]], theirs: Callable[[], tuple[Tensor, ...]], *wanted: Tensor) -> None:
    """Hold outputs, last states if there are any, and gradients to each other."""
    found, expected = ours(), theirs()
    weights = torch.sin(torch.arange(found[0].numel(), dtype=torch.float64)).view_as(found[0])
    totals = [(z * weights).sum() + sum(last.sin().sum() for last in rest) for z, *rest in (found, expected)]
    for one, other in zip(found, expected, strict=True):
        assert other.dtype == torch.float64
        close(one, other, EXACT)
    grads = [torch.autograd.grad(total, wanted) for total in totals]
    for one, other in zip(*grads, strict=True):
        close(one, other, EXACT)


def layer(mixer: MixerConfig, **kwargs: Any) -> Layer:
    """Return a layer of three heads."""
    config = Attention(3, d_head=WIDTH, d_value=4, mixer=mixer, **kwargs)
    return Layer(randomise(config.build(D_MODEL, N, 0, "").double().eval()))


def mixed(attention: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return what a layer's mechanism makes of queries, keys and values, with its positions."""
    x = stream(2, N)
    context = attention.module.positions.within(attention.context(x))
    return attention.mixer(q, k, v, x, context, None, None)[0]


def test_the_delta_rule_is_that_of_its_loop_its_chunks_and_its_parallel_form(monkeypatch: pytest.MonkeyPatch) -> None:
    fla, x = reference("delta_rule"), drawn()
    q, k, v, beta, state = (x[name] for name in ("q", "k", "v", "beta", "state"))

    compare(
        lambda: delta_chunks(q * WIDTH**-0.5, k, v, beta, None, state),
        lambda: fla.delta_rule_recurrence(q, k, v, beta, initial_state=state),
        q, k, v, beta, state,
    )  # fmt: skip
    empty = torch.zeros_like(state)
    compare(
        lambda: delta_chunks(q * WIDTH**-0.5, k, v, beta, None, empty),
        lambda: fla.delta_rule_chunkwise(q, k, v, beta),
        q, k, v, beta,
    )  # fmt: skip
    monkeypatch.setattr(torch, "zeros", partial(torch.zeros, dtype=torch.float64))
    with torch.no_grad():
        z, pattern = fla.delta_rule_parallel(q, k, v, beta)
        # theirs multiplies values that are weighed already
        scaled = q * WIDTH**-0.5
        close(delta_pattern(scaled, k, beta, None), pattern * beta[..., None, :], EXACT)
        close(delta_chunks(scaled, k, v, beta, None, empty)[0], z, EXACT)


def test_the_gated_delta_rule_is_that_of_its_loop_and_its_chunks() -> None:
    fla, x = reference("gated_delta_rule"), drawn()
    q, k, v, beta, g, state = (x[name] for name in ("q", "k", "v", "beta", "g", "state"))
    for function in (fla.naive_recurrent_gated_delta_rule, fla.naive_chunk_gated_delta_rule):

        def theirs(function: Any = function) -> tuple[Tensor, Tensor]:
            names = ("q", "k", "v", "beta", "g")
            rows = dict(zip(names, by_position(q, k, v, beta, g)))
            z, last = function(**rows, initial_state=state, output_final_state=True)
            return z.transpose(1, 2), last

        compare(lambda: delta_chunks(q * WIDTH**-0.5, k, v, beta, g, state), theirs, q, k, v, beta, g, state)


@pytest.mark.parametrize("mixer", [Delta(), Delta(negative_eigenvalues=True), GatedDelta()], ids=str)
def test_layers_of_the_delta_rule_mix_what_the_loops_do(mixer: Any) -> None:
    attention = layer(mixer)
    read = attention.read(stream(2, N), "query", "key", "value", "z", *mixer.mixer.SITES)
    q, k = (attention.mixer.unit(read[name]) for name in ("query", "key"))
    gate = read.get("log_decay", torch.zeros_like(read["beta"]))
    rows = by_position(q, k, read["value"], read["beta"], gate)
    z, _ = reference("gated_delta_rule").naive_recurrent_gated_delta_rule(*rows)
    close(read["z"], z.transpose(1, 2), EXACT)


def test_decays_by_channel_are_those_of_the_loop_and_the_chunks_of_rwkv6() -> None:
    loop, chunks = (reference("rwkv6", f"{form}_naive") for form in ("recurrent", "chunk"))
    x, generator = drawn(), torch.Generator().manual_seed(1)
    r, k, v, state = (x[name] for name in ("q", "k", "v", "state"))
    gate = -torch.randn(2, 3, N, WIDTH, generator=generator, dtype=torch.float64).exp()
    bonus = torch.randn(3, WIDTH, generator=generator, dtype=torch.float64)
    gate, bonus = gate.requires_grad_(), bonus.requires_grad_()
    compare(
        lambda: channel_decay_chunks(r, k, v, gate, bonus, state),
        lambda: loop.naive_recurrent_rwkv6(r, k, v, gate, bonus, 1.0, state, output_final_state=True),
        r, k, v, gate, bonus, state,
    )  # fmt: skip
    # theirs in chunks writes in place, and has no gradients
    z = chunks.naive_chunk_rwkv6(*(x.detach() for x in (r, k, v, gate, bonus)))
    close(channel_decay_chunks(r, k, v, gate, bonus, torch.zeros_like(state))[0], z, EXACT)
    close(channel_decay_pattern(r, k, gate, bonus) @ v, z, EXACT)


def test_a_layer_of_rwkv6_mixes_what_the_loop_does() -> None:
    attention = layer(Rwkv6(rank=3))
    read = attention.read(stream(2, N), "query", "key", "value", "log_decay", "z")
    rows = (read[name] for name in ("query", "key", "value", "log_decay"))
    z, _ = reference("rwkv6", "recurrent_naive").naive_recurrent_rwkv6(*rows, attention.mixer.bonus.detach(), scale=1.0)
    close(read["z"], z, EXACT)


def test_sums_without_decay_are_the_loop_of_linear_attention() -> None:
    fla, x = reference("linear_attn"), drawn()
    q, k, v, state = (x[name] for name in ("q", "k", "v", "state"))

    def theirs() -> tuple[Tensor, Tensor]:
        z, last = fla.naive_recurrent_linear_attn(*by_position(q, k, v), initial_state=state, output_final_state=True)
        return z.transpose(1, 2), last

    alike = torch.ones(3, dtype=torch.float64)
    compare(lambda: chunked(q * WIDTH**-0.5, k, v, alike, state), theirs, q, k, v, state)


@pytest.mark.parametrize("form", ["naive_recurrent_simple_gla", "naive_chunk_simple_gla"])
def test_a_fixed_decay_is_the_loop_and_the_chunks_with_one_gate_at_every_position(form: str) -> None:
    function, x = getattr(reference("simple_gla"), form), drawn()
    q, k, v, state = (x[name] for name in ("q", "k", "v", "state"))
    decay = torch.tensor([0.9, 0.5, 0.99], dtype=torch.float64)

    def theirs() -> tuple[Tensor, Tensor]:
        gate = decay.log()[:, None].expand(2, -1, N)
        z, last = function(*by_position(q, k, v, gate), initial_state=state, output_final_state=True)
        return z.transpose(1, 2), last

    compare(lambda: chunked(q * WIDTH**-0.5, k, v, decay, state), theirs, q, k, v, state)


@pytest.mark.parametrize("form", ["naive_recurrent_simple_gla", "naive_chunk_simple_gla"])
def test_what_each_position_keeps_is_a_gate_of_the_loop_and_the_chunks(form: str) -> None:
    function, x = getattr(reference("simple_gla"), form), drawn()
    q, k, v, g, state = (x[name] for name in ("q", "k", "v", "g", "state"))

    def theirs() -> tuple[Tensor, Tensor]:
        z, last = function(*by_position(q, k, v, g), initial_state=state, output_final_state=True)
        return z.transpose(1, 2), last

    compare(lambda: gated(q * WIDTH**-0.5, k, v, g, state), theirs, q, k, v, g, state)


@pytest.mark.parametrize("form", ["naive_recurrent_simple_gla", "naive_chunk_simple_gla", "naive_parallel_simple_gla"])
def test_a_state_space_is_the_gated_loop_of_what_its_steps_write_beside_what_it_skips(form: str) -> None:
    function, attention = getattr(reference("simple_gla"), form), layer(StateSpace())
    read, skip = attention.read(stream(2, N), "query", "key", "value", "step", "log_decay", "z"), attention.mixer.skip
    rows = (read["query"], read["key"], read["step"][..., None] * read["value"], read["log_decay"])
    found = function(*by_position(*rows), scale=1.0)
    z = (found[0] if isinstance(found, tuple) else found).transpose(1, 2)
    close(read["z"], z + skip[:, None, None] * read["value"], EXACT)


MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "elu": lambda u: torch.where(u > 0, u + 1, u.exp()),
    "softplus": lambda u: (1 + u.exp()).log(),
    "relu": lambda u: torch.where(u > 0, u, 0.0),
    "exp": torch.exp,
    "signed_elu": lambda u: torch.where(u > 0, u, u.exp() - 1),
}
# theirs adds 1e-10 to a normaliser; it divides out what all queries are multiplied by
LOUD = 1e8


@pytest.mark.parametrize("feature_map", MAPS)
@pytest.mark.parametrize("form", ["naive_recurrent_linear_attn", "naive_chunk_linear_attn"])
def test_features_of_linear_attention_are_mixed_as_the_loop_and_the_chunks_do(feature_map: Any, form: str) -> None:
    function, x = getattr(reference("linear_attn"), form), drawn()
    q, k, v = (x[name] for name in ("q", "k", "v"))
    phi = MAPS[feature_map]
    for denominator in (True, False):
        if (feature_map == "signed_elu" and denominator) or (feature_map == "exp" and not denominator):
            continue

        def theirs(divided: bool = denominator) -> tuple[Tensor]:
            rows = by_position(phi(q), phi(k), v)
            found = function(*rows, scale=LOUD if divided else 1.0, normalize=divided)
            z = found[0] if isinstance(found, tuple) else found
            return (z.transpose(1, 2),)

        attention = layer(Linear(feature_map=feature_map, eps=0.0, denominator=denominator))

        def ours(attention: Layer = attention) -> tuple[Tensor]:
            return (mixed(attention, q, k, v),)

        compare(ours, theirs, q, k, v)


def test_random_features_are_mixed_as_the_loop_does() -> None:
    fla, x, attention = reference("linear_attn"), drawn(), layer(Performer(9))
    q, k, v = (x[name] for name in ("q", "k", "v"))
    rows = attention.mixer.directions

    def phi(u: Tensor) -> Tensor:
        u = u * WIDTH**-0.25
        return (u @ rows.T - u.square().sum(-1, keepdim=True) / 2).exp()

    def theirs() -> tuple[Tensor]:
        found = fla.naive_recurrent_linear_attn(*by_position(phi(q), phi(k), v), scale=LOUD, normalize=True)
        return (found[0].transpose(1, 2),)

    compare(lambda: (mixed(attention, q, k, v),), theirs, q, k, v)


@pytest.mark.parametrize("positions", [{}, {"positions": Lrpe()}], ids=["plain", "lrpe"])
def test_lightning_of_any_depth_is_the_loop_with_its_slopes_as_gates(positions: Any) -> None:
    fla, x, slopes = reference("simple_gla"), drawn(), depth_slopes(3, 1, 4)
    q, k, v = (x[name] for name in ("q", "k", "v"))
    attention = layer(Lightning(slopes=slopes), **positions)
    learned = list(attention.module.positions.parameters())

    def turned(u: Tensor) -> Tensor:
        u = u * u.sigmoid()
        if not learned:
            return u
        angle = learned[0][:, None] * torch.arange(N, dtype=torch.float64)[:, None]
        return torch.cat((u * angle.cos(), u * angle.sin()), -1)

    def theirs() -> tuple[Tensor]:
        gate = -torch.tensor(slopes, dtype=torch.float64)[:, None].expand(2, -1, N)
        z, _ = fla.naive_recurrent_simple_gla(*by_position(turned(q), turned(k), v, gate), scale=1.0)
        return (z.transpose(1, 2),)

    compare(lambda: (mixed(attention, q, k, v),), theirs, q, k, v, *learned)


def test_lightning_with_the_decays_of_retention_is_retention() -> None:
    fla, x = reference("retention"), drawn()
    q, k, v = (x[name] for name in ("q", "k", "v"))
    decays = 1 - 2.0 ** (-5 - torch.arange(3, dtype=torch.float64))
    attention = layer(Lightning(slopes=tuple((-decays.log()).tolist()), activation="none"))
    # theirs divides queries by sqrt(d_head), which the norm behind it undoes
    compare(lambda: (mixed(attention, q, k, v) * WIDTH**-0.5,), lambda: (fla.naive_retention(q, k, v),), q, k, v)


def test_a_published_layer_of_retention_is_theirs_behind_the_norm() -> None:
    fla = reference("retention")
    config: Any = retention(1, n_heads=3, d_head=WIDTH)[0].parts[0]
    attention = Layer(randomise(config.build(D_MODEL, N, 0, "").double().eval()))
    x = stream(2, N).requires_grad_()
    merge: Any = attention.module.merge

    def theirs() -> tuple[Tensor]:
        tape = attention.tape("query", "key", "value", grad=True)
        attention(x, tape=tape)
        z = fla.naive_retention(*(tape.values[name] for name in ("query", "key", "value")))
        normed = (z * (z.square().mean(-1, keepdim=True) + 1e-6).rsqrt()).transpose(1, 2).flatten(-2)
        return (torch.nn.functional.silu(x @ merge.gate.weight.T) * normed @ merge.output.weight.T,)

    compare(lambda: (attention(x),), theirs, x, *attention.module.parameters())
