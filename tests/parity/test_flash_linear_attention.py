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

from glassformer.attention import Attention, Delta, GatedDelta, Lightning, Linear
from glassformer.attention.kernels.chunked import chunked
from glassformer.attention.kernels.delta import delta_chunks, delta_pattern
from glassformer.testing import close
from glassformer.testing.layers import D_MODEL, Layer, randomise, stream

N, WIDTH, EXACT = 128, 6, 1e-10


def reference(name: str) -> Any:
    """Return what a naive file of the package defines, in float64."""
    package = importlib.util.find_spec("fla")
    if package is None or package.origin is None:
        pytest.skip("fla-core is not installed")
    pytest.importorskip("einops")
    path = Path(package.origin).parent / "ops" / name / "naive.py"
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


def compare(ours: Callable[[], tuple[Tensor, Tensor]], theirs: Callable[[], Any], *wanted: Tensor) -> None:
    """Hold outputs, last states and gradients to each other."""
    found, expected = ours(), theirs()
    weights = torch.sin(torch.arange(found[0].numel(), dtype=torch.float64)).view_as(found[0])
    totals = [(z * weights).sum() + last.sin().sum() for z, last in (found, expected)]
    for one, other in zip(found, expected, strict=True):
        close(one, other, EXACT)
    grads = [torch.autograd.grad(total, wanted) for total in totals]
    for one, other in zip(*grads, strict=True):
        close(one, other, EXACT)


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


def layer(mixer: Any) -> tuple[Layer, dict[str, Tensor]]:
    """Return a layer of three heads, and what its sites hold of a text."""
    config = Attention(3, d_head=WIDTH, d_value=4, mixer=mixer)
    attention = Layer(randomise(config.build(D_MODEL, N, 0, "").double().eval()))
    names = ("query", "key", "value", "z", *mixer.mixer.SITES)
    return attention, attention.read(stream(2, N), *names)


@pytest.mark.parametrize("mixer", [Delta(), Delta(negative_eigenvalues=True), GatedDelta()], ids=str)
def test_layers_of_the_delta_rule_mix_what_the_loops_do(mixer: Any) -> None:
    attention, read = layer(mixer)
    q, k = (attention.mixer.unit(read[name]) for name in ("query", "key"))
    gate = read.get("log_decay", torch.zeros_like(read["beta"]))
    rows = by_position(q, k, read["value"], read["beta"], gate)
    z, _ = reference("gated_delta_rule").naive_recurrent_gated_delta_rule(*rows)
    close(read["z"], z.transpose(1, 2), EXACT)


def test_linear_attention_is_the_loop_with_its_normaliser() -> None:
    attention, read = layer(Linear(eps=0.0))
    rows = by_position(*(attention.mixer.phi(read[name]) for name in ("query", "key")), read["value"])
    z, _ = reference("linear_attn").naive_recurrent_linear_attn(*rows, normalize=True)
    # theirs adds 1e-10 to a normaliser of order one
    close(read["z"], z.transpose(1, 2), 1e-9)


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


def test_lightning_with_the_decays_of_retention_is_retention() -> None:
    fla = reference("retention")
    decays = 1 - 2.0 ** (-5 - torch.arange(3, dtype=torch.float64))
    _, read = layer(Lightning(slopes=tuple((-decays.log()).tolist()), activation="none"))
    # theirs divides queries by sqrt(d_head), which the norm behind it undoes
    close(read["z"] * WIDTH**-0.5, fla.naive_retention(read["query"], read["key"], read["value"]), EXACT)
