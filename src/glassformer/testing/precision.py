"""How exact a mechanism is in each floating-point type: held to itself in float64, on the same numbers."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from glassformer.attention import Attention, MixerConfig, Separate
from glassformer.testing.layers import D_MODEL, Layer, randomise, stream


def require_precision(mixer: MixerConfig, length: int = 12) -> None:
    """Hold a mechanism in each floating-point type to itself in float64, on the numbers that the type read.

    By the fused route and by way of the pattern; gradients of queries, keys and values in single precision. An error
    may be four of the type's epsilon times the length that is summed, of the size of the values: scores are of the
    order of one, so that weights carry a few epsilon, and each of `length` products is rounded once. A gradient sums
    twice, over keys and over what the weights are made of, and may be twice as far off. Where rounding decides on a
    hash, results are finite.
    """
    slots: dict[str, Any] = {"projection": Separate()} | mixer.as_published() | {"mixer": mixer}
    config = Attention(2, 2, 4, **slots)
    layer = Layer(randomise(config.build(D_MODEL, 32, 0, "").double().eval(), 3))
    x = stream(2, length)
    read = layer.read(x, "query", "key", "value")
    routes: list[tuple[str, ...]] = [(), ("pattern",)] if mixer.traits.linear_in_value != "no" else [()]
    for dtype, route in itertools.product((torch.float32, torch.bfloat16, torch.float16), routes):
        rows = [read[name].to(dtype) for name in ("query", "key", "value")]
        single = dtype == torch.float32
        low, exact = (_mixed(layer, one, rows, x, route, grad=single) for one in (dtype, torch.float64))
        assert low["z"].dtype == dtype and low["z"].isfinite().all(), f"{mixer}, {dtype}, {route}"
        if mixer.traits.hashes and not _hashed_alike(layer, rows[0]):
            continue
        for name, reference in exact.items():
            share = (4 if name == "z" else 8) * torch.finfo(dtype).eps * length
            size = reference.abs() + max(float(one.square().mean().sqrt()) for one in (reference, read["value"]))
            error = float(((low[name].double() - reference).abs() / size).max())
            assert error <= share, f"{mixer}, {dtype}, {route}: {name} {error:.2e} off, allowed {share:.2e}"
    # whatever type new tensors have by default
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        again = _mixed(layer, torch.float32, [read[name].float() for name in ("query", "key", "value")], x, ())
    finally:
        torch.set_default_dtype(before)
    assert again["z"].dtype == torch.float32, f"{mixer}, under a default of float64"


def moved_by_rounding(
    layer: Layer, x: Tensor, rows: Mapping[str, Tensor], dtype: torch.dtype, draws: int = 8
) -> Tensor:
    """How far z moves at most, in some draws of signs, if numbers are off by their type's epsilon of themselves.

    Weights are as exact as their scores: scores of 30 in bfloat16 lie a quarter apart.

    Args:
        layer: A layer in float64.
        x: What it reads.
        rows: Queries, keys and values, by their site. The first two are rounded, if rounding does not decide on a hash
            or a neighbour, and scores where a layer makes any.
        dtype: The number type in question.
        draws: How many draws.
    """
    traits, generator = layer.config.mixer.traits, torch.Generator().manual_seed(0)
    names = [] if traits.hashes or traits.searches else ["query", "key"]
    names += ["scores"] if "scores" in layer.sites() else []

    def z_off_by(share: float) -> Tensor:
        def edited(name: str) -> Callable[[Tensor], Tensor]:
            def edit(value: Tensor) -> Tensor:
                value = rows.get(name, value)
                if name not in names:
                    return value
                signs = torch.empty_like(value).bernoulli_(0.5, generator=generator) * 2 - 1
                return value * (1 + share * signs)

            return edit

        tape = layer.tape("z", edit={name: edited(name) for name in dict.fromkeys([*rows, *names])})
        layer(x, tape=tape)
        return tape.values["z"]

    exact = z_off_by(0.0)
    return torch.stack([(z_off_by(torch.finfo(dtype).eps) - exact).abs() for _ in range(draws)]).amax(0)


def _mixed(
    layer: Layer, dtype: torch.dtype, rows: Sequence[Tensor], x: Tensor, route: Sequence[str], *, grad: bool = False
) -> dict[str, Tensor]:
    """Return z of the mechanism alone in a number type, and the gradients of what it mixes."""
    layer.module.to(dtype)
    query, key, value = (row.to(dtype).requires_grad_(grad) for row in rows)
    if torch.equal(query, key):
        key = query
    read, tape = layer.mix_read(x).to(dtype), layer.tape(*route) if route else None
    z, _ = layer.mixer(query, key, value, read, layer.context(x), None, tape)
    found = {"z": z.detach()}
    if grad:
        weight = torch.linspace(-1, 1, z.numel(), dtype=torch.float64).view_as(z).to(dtype)
        leaves = {"gradient of q": query, "gradient of k": key, "gradient of v": value}
        grads = torch.autograd.grad((z * weight).sum(), list(leaves.values()), allow_unused=True)
        found |= {name: one for name, one in zip(leaves, grads) if one is not None}
    layer.module.double()
    return found


def _hashed_alike(layer: Layer, x: Tensor) -> bool:
    return torch.equal(layer.mixer.buckets(x), layer.mixer.buckets(x.double()))
