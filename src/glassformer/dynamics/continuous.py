"""Neural ODEs: a residual network as steps in time, and gradients without what its layers keep.

    dx/dt = f(t, x),   f(t, x) = block_t(x) - x
    x_(k+1) = x_k + (1/N) f(k/N, x_k)          a residual network of N layers: Euler's method
    da/dt = -a' df/dx,   dL/dtheta = integral of a' df/dtheta,   a(1) = dL/dx(1)          the adjoint

A block of ours is a step of length 1 of its own field. With weights on a line between those of two blocks,
theta(t) = (1 - t) theta_0 + t theta_1, depth is time, and networks of N layers have a limit, N -> infinity. Backwards
the adjoint works out x(t) again from x(1) while it integrates a, so that nothing in between is kept; what it gives is
the gradient of the ODE, which that of N steps is as near as their lengths let it.

Solving with steps that adapt to an error, and the adjoint, are torchdiffeq's (the extra `ode`).

Source: Chen et al. 2018, "Neural Ordinary Differential Equations", arXiv 1806.07366, sections 1 and 2; Sander, Ablin
and Peyre 2022, "Do Residual Neural Networks discretize Neural Ordinary Differential Equations?", arXiv 2205.14612.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.arguments import Count, Positive, checked
from glassformer.config import require
from glassformer.dynamics.steps import Field, Method, integrate
from glassformer.errors import MissingExtra, ShapeMismatch
from glassformer.labelled import Labelled
from glassformer.models import Block
from glassformer.models.stack import make_context


class BlockField(nn.Module):
    """The vector field of a block, f(t, x) = block_t(x) - x; called with a time and a stream.

    Args:
        block: Gives the weights at time 0, or at all times.
        end: Gives those at time 1, of the same config; weights lie on a line between both.
        causal: Whether positions see only those before them.

    Raises:
        ConfigError: A block is in training mode, in which what it draws would be another field at each call; or the two
            are built alike no more.
        ShapeMismatch: When called, the stream is none of the block's.
    """

    def __init__(self, block: Block, end: Block | None = None, *, causal: bool = True) -> None:
        super().__init__()
        require(
            not block.training and not (end is not None and end.training),
            "a field is the same at each call: a block in training mode draws its dropout anew. Call block.eval().",
        )
        require(
            end is None or end.config == block.config,
            "weights at time 0 and at time 1 are of blocks with one config; these two differ.",
        )
        self.block, self.end, self.causal = block, end, causal

    def forward(self, t: Any, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        if x.ndim != 3 or x.shape[-1] != self.block.d_model:
            raise ShapeMismatch(
                f"the field is of streams batch pos d_model={self.block.d_model}; found a tensor of shape "
                f"{tuple(x.shape)}."
            )
        context = make_context(len(x), x.shape[1], x.device, is_causal=self.causal)
        if self.end is None:
            return self.block(x, context)[0] - x
        between = {
            name: (1 - t) * first + t * last
            for (name, first), last in zip(self.block.named_parameters(), self.end.parameters())
        }
        return torch.func.functional_call(self.block, between, (x, context))[0] - x


class OdeSolution(NamedTuple):
    """What a solver found: the state at the end, and how often it asked for the field on its way there."""

    x: Tensor
    evaluations: int


@checked
def solve(
    field: nn.Module,
    x: Tensor,
    *,
    tolerance: Positive = 1e-6,
    steps: Count | None = None,
    gradient: Literal["adjoint", "backpropagation"] = "adjoint",
    end: float = 1.0,
) -> OdeSolution:
    """Return x(end) from x(0) by torchdiffeq: steps of Dormand and Prince that adapt to a tolerance, or equal ones.

    Args:
        field: f(t, x), of the shape of x.
        x: The state at time 0.
        tolerance: Of the error in each step, absolute and relative.
        steps: So many equal steps of Euler's method in place of those.
        gradient: By the adjoint, which keeps nothing of what lies between, or by backpropagation through all steps.
        end: Time.

    Raises:
        MissingExtra: torchdiffeq is not installed.

    Source: Chen et al. 2018, appendix B and C.
    """
    solvers = _torchdiffeq()
    counted = _Counted(field)
    times = torch.tensor([0.0, end], dtype=x.dtype, device=x.device)
    how: dict[str, Any] = (
        {"rtol": tolerance, "atol": tolerance}
        if steps is None
        else {"method": "euler", "options": {"step_size": abs(end) / steps}}
    )
    found = (solvers.odeint_adjoint if gradient == "adjoint" else solvers.odeint)(counted, x, times, **how)
    return OdeSolution(found[-1], counted.calls)


class _Counted(nn.Module):
    def __init__(self, field: nn.Module) -> None:
        super().__init__()
        self.field, self.calls = field, 0

    def forward(self, t: Tensor, x: Tensor) -> Tensor:
        self.calls += 1
        return self.field(t, x)


def _torchdiffeq() -> Any:
    try:
        import torchdiffeq  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingExtra("solving an ODE needs torchdiffeq: pip install 'glassformer[ode]'.") from error
    return torchdiffeq


def kept_numbers(compute: Callable[[], Tensor]) -> int:
    """How many numbers autograd keeps for the backward pass of a computation; each storage counts once.

    Args:
        compute: Makes a tensor that has a gradient.
    """
    sizes: dict[int, int] = {}
    held: list[Tensor] = []  # what was freed would give its place to others

    def keep(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes() // x.element_size()
        held.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        compute()
    return sum(sizes.values())


def residual_gaps(
    field: Field,
    x: Tensor,
    depths: Sequence[int],
    methods: Sequence[Method] = ("euler", "heun", "rk4"),
    *,
    reference_steps: Count = 512,
) -> Labelled:
    """Distances, `method steps`, of what N steps reach from what the ODE does, in the norm of the latter.

    With Euler's method, N steps are a residual network of N layers whose writes are divided by N.

    Args:
        field: f(t, x).
        x: The state at time 0.
        depths: Numbers of steps N.
        methods: From `STEPS`.
        reference_steps: Steps of the method of fourth order that stand for the ODE itself.
    """
    with torch.no_grad():
        exact = integrate(field, x, reference_steps, "rk4")
        gaps = [[(integrate(field, x, n, method) - exact).norm() / exact.norm() for n in depths] for method in methods]
    values = torch.stack([torch.stack(row) for row in gaps])
    return Labelled(values, ("method", "steps"), {"method": [*methods], "steps": [*depths]})
