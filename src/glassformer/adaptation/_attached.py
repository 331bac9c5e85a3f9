"""A weight with an adapter: what a pass multiplies by, composed of what is stored and of the changes of its rows.

    weight = changes(rows of the original), rows without a change as they are

It is torch's parametrization of a module's weight. What it makes is computed once and kept until a number of it
changes, and lies in the same place for whoever reads it, with gradients or without: the backward pass composes it anew.
The original is constant: no gradient reaches it while an adapter stands before it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.nn.utils import parametrize

from glassformer.adaptation._change import Change

Rows = tuple[range, Change]


class AdaptedWeight(nn.Module):
    """The parametrization of one weight by the changes of its matrices.

    Args:
        rows: Which rows each change is of, where the weight is laid out as one matrix.
    """

    def __init__(self, rows: Sequence[Rows]) -> None:
        super().__init__()
        ordered = sorted(rows, key=lambda one: one[0].start)
        self.ranges = [own for own, _ in ordered]
        self.changes = nn.ModuleList(change for _, change in ordered)
        self._kept: tuple[tuple[tuple[int, int], ...], Tensor] | None = None

    def forward(self, original: Tensor) -> Tensor:
        base, numbers = original.detach(), list(self.parameters())
        if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            return self.composed(base)
        made = self._made(base)
        if not torch.is_grad_enabled() or not any(one.requires_grad for one in numbers):
            return made
        return _Composed.apply(made, self, base, *numbers)  # type: ignore[no-any-return]

    def composed(self, base: Tensor) -> Tensor:
        """What the changes make of a weight, with a graph if one is kept."""
        laid = base.reshape(-1, base.shape[-1])
        pieces, at = list[Tensor](), 0
        for own, change in zip(self.ranges, self.changes):
            assert isinstance(change, Change), "it was given changes"
            pieces += [laid[at : own.start], change.composed(laid[own.start : own.stop])]
            at = own.stop
        return torch.cat([*pieces, laid[at:]]).view(base.shape)

    def _made(self, base: Tensor) -> Tensor:
        now = tuple((one.data_ptr(), -1 if one.is_inference() else one._version) for one in self._all(base))
        if self._kept is None or self._kept[0] != now:
            # what was made under inference mode would be of no use to passes outside of it
            with torch.inference_mode(False), torch.no_grad():
                self._kept = now, self.composed(base)
        return self._kept[1]

    def _all(self, base: Tensor) -> list[Tensor]:
        return [base, *self.parameters(), *self.buffers()]


class _Composed(torch.autograd.Function):
    """A weight that is composed already, with the derivative by the numbers that it is composed of."""

    @staticmethod
    def forward(ctx: Any, made: Tensor, weight: AdaptedWeight, base: Tensor, *numbers: Tensor) -> Tensor:
        ctx.weight, ctx.base = weight, base
        ctx.save_for_backward(*numbers)
        return made.view_as(made)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, ...]:
        numbers = ctx.saved_tensors
        wanted = [one for one in numbers if one.requires_grad]
        with torch.enable_grad():
            made = ctx.weight.composed(ctx.base)
        found = iter(torch.autograd.grad(made, wanted, grads[0], allow_unused=True))
        return (None, None, None, *(next(found) if one.requires_grad else None for one in numbers))


def is_adapted(module: nn.Module) -> bool:
    """Whether an adapter is attached to a module's weight."""
    return parametrize.is_parametrized(module, "weight")


def register(module: nn.Module, rows: Sequence[Rows]) -> None:
    """Let a module's weight be composed of what it stores and of changes."""
    stored = module._parameters["weight"]
    assert stored is not None, "a matrix has a weight"
    # torch puts the parameter's values where they are: nothing was written that a digest should notice
    with _unsafe_preserve_version_counter(stored):
        parametrize.register_parametrization(module, "weight", AdaptedWeight(rows), unsafe=True)


def unregister(module: nn.Module) -> None:
    """Let a module's weight be what it stores: the same parameter, in its old place among the others."""
    others = list(module._parameters)
    parametrize.remove_parametrizations(module, "weight", leave_parametrized=False)
    for name in others:
        module._parameters[name] = module._parameters.pop(name)
