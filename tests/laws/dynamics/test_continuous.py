"""Neural ODEs: residual networks are Euler's steps, at a rate that is fitted, and the adjoint keeps nothing between."""

import sys
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from glassformer.dynamics import (
    BlockField,
    fitted_orders,
    integrate,
    kept_numbers,
    residual_gaps,
    solve,
)
from glassformer.errors import ConfigError, MissingExtra, ShapeMismatch, WrongArgument
from glassformer.models import Block, BlockConfig, DecoderConfig, Mlp, block, repeat
from glassformer.testing import close
from glassformer.testing.layers import causal_context, randomise

WIDTH = 6
LAYER = block(n_heads=2, mlp=Mlp(8, "tanh"))


def blocks(n: int, layer: BlockConfig = LAYER) -> list[Block]:
    config = DecoderConfig(vocab_size=5, d_model=WIDTH, layers=repeat(layer, n), max_len=8)
    return [found for found in randomise(config.build().double().eval()).stack.blocks]  # type: ignore[misc]


def stream(seed: int = 0) -> Tensor:
    return torch.randn(2, 3, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Linear(nn.Module):
    """dx/dt = x A."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.matrix = nn.Parameter(torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64) / 3)

    def forward(self, t: Any, x: Tensor) -> Tensor:
        return x @ self.matrix


def test_a_decoder_of_equal_blocks_is_so_many_steps_of_eulers() -> None:
    first, *others = blocks(3)
    for other in others:
        other.load_state_dict(first.state_dict())
    field, x = BlockField(first), stream()
    expected = x
    for found in (first, *others):
        expected = found(expected, causal_context(x))[0]
    close(integrate(field, x, 3, "euler", end=3.0), expected)


def test_a_linear_equation_is_solved_by_the_exponential_in_both_directions() -> None:
    field, x = Linear(), stream()
    exact = x @ torch.matrix_exp(field.matrix)
    close(integrate(field, x, 200, "rk4"), exact)
    close(integrate(field, exact, 200, "rk4", start=1.0, end=0.0), x)


def test_a_residual_network_comes_as_near_its_equation_as_it_is_deep() -> None:
    first, last = blocks(2)
    gaps = residual_gaps(BlockField(first, last), stream(), [6, 12], reference_steps=40)
    orders = fitted_orders(gaps)
    for name, found, order in zip(orders.coords["method"], orders.values.tolist(), (1, 2, 4)):
        assert abs(found - order) < 0.2 * order, (name, found)


def test_weights_lie_on_a_line_between_two_blocks() -> None:
    first, last = blocks(2)
    field, x = BlockField(first, last), stream()
    close(field(0.0, x), BlockField(first)(0.3, x))
    close(field(1.0, x), BlockField(last)(0.3, x))
    between = field(0.5, x)
    for one, other in zip(first.parameters(), last.parameters()):
        with torch.no_grad():
            one.copy_((one + other) / 2)
    close(BlockField(first)(0.0, x), between)


def test_steps_that_adapt_agree_with_many_small_ones() -> None:
    pytest.importorskip("torchdiffeq")
    first, last = blocks(2)
    field, x = BlockField(first, last), stream()
    exact = integrate(field, x, 24, "rk4")
    loose, tight = (solve(field, x, tolerance=tolerance) for tolerance in (1e-2, 1e-6))
    far, near = ((found.x - exact).abs().max() for found in (loose, tight))
    assert near < 1e-3 and near < far / 10
    assert loose.evaluations < tight.evaluations
    close(solve(field, x, steps=6).x, integrate(field, x, 6, "euler"))


def test_the_adjoint_is_the_gradient_of_the_equation() -> None:
    pytest.importorskip("torchdiffeq")
    field, x, weights = Linear(), stream(), stream(1)
    exact = (x @ torch.matrix_exp(field.matrix) * weights).sum()
    [expected] = torch.autograd.grad(exact, [field.matrix])
    errors: list[float] = []
    for tolerance in (1e-3, 1e-8):
        loss = (solve(field, x, tolerance=tolerance).x * weights).sum()
        errors.append(float((torch.autograd.grad(loss, [field.matrix])[0] - expected).abs().max()))
    through = (solve(field, x, tolerance=1e-8, gradient="backpropagation").x * weights).sum()
    close(torch.autograd.grad(through, [field.matrix])[0], expected, 1e-6)
    assert errors[1] < 1e-6 < errors[0]


def end_of(field: nn.Module, x: Tensor, steps: int, gradient: Any) -> Tensor:
    return solve(field, x, steps=steps, gradient=gradient).x


def test_the_adjoint_keeps_as_much_whatever_the_depth_and_backpropagation_in_proportion() -> None:
    pytest.importorskip("torchdiffeq")
    field, x = BlockField(blocks(1)[0]), stream()
    kept = {
        gradient: [kept_numbers(partial(end_of, field, x, n, gradient)) for n in (2, 4, 6)]
        for gradient in ("adjoint", "backpropagation")
    }
    assert kept["adjoint"][0] == kept["adjoint"][1] == kept["adjoint"][2]
    first, second, third = kept["backpropagation"]
    assert third - second == second - first > kept["adjoint"][0]


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchdiffeq", None)
    with pytest.raises(MissingExtra, match=r"pip install 'glassformer\[ode\]'"):
        solve(Linear(), stream())


def test_what_is_no_field_or_no_method_is_refused() -> None:
    first, last = blocks(2)
    [other] = blocks(1, block(n_heads=2, mlp=Mlp(4)))
    with pytest.raises(ShapeMismatch, match="batch pos d_model=6; found a tensor of shape"):
        BlockField(first)(0.0, torch.zeros(1, 2, WIDTH + 1))
    with pytest.raises(ConfigError, match="blocks with one config; these two differ"):
        BlockField(first, other)
    with pytest.raises(ConfigError, match=r"Call block\.eval\(\)"):
        BlockField(first, last.train())
    with pytest.raises(WrongArgument, match='Nearest: "euler"'):
        integrate(Linear(), stream(), 2, "eulr")  # type: ignore[arg-type]
    gaps = residual_gaps(Linear(), stream(), [2], ("euler",), reference_steps=8)
    with pytest.raises(ConfigError, match="two numbers of steps and more; found one"):
        fitted_orders(gaps)
