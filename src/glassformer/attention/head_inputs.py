"""What each head reads, before the norm: the stream, until an edit gives a head another one.

    query_in  gate_in     batch head pos d_model
    key_in  value_in      batch kv_head key d_model     in cross-attention of the source, which no norm is before
    mix_in                batch pos d_model             of a mechanism that reads the layer's input itself

Read, they are views of the stream. A head that an edit gives a stream of its own projects that, after the norm; the
others stay on the usual route. For gradients the usual route stays too: what it would do with a head's own copy is
worked out on the way back.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.trace import Tape, changes

INPUTS = {
    "query_in": "batch head pos d_model",
    "key_in": "batch kv_head key d_model",
    "value_in": "batch kv_head key d_model",
    "gate_in": "batch head pos d_model",
    "mix_in": "batch pos d_model",
}
Through = Callable[[Float[Tensor, "copy batch pos d_model"]], Float[Tensor, "copy batch pos d_model"]]


class HeadInput(NamedTuple):
    """A stream for each head, and which heads read it; None if all do as usual and only gradients are asked for."""

    stream: Tensor
    heads: list[int] | None

    def replaced(self, usual: Tensor, axis: int, made: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Return what heads make of what they read.

        Args:
            usual: What all of them make of the one stream.
            axis: Its axis of heads.
            made: From copies `copy batch pos d_model`, and which heads they are for, to the same of those heads.
        """

        def of_heads(stream: Tensor, heads: list[int]) -> Tensor:
            own = stream if len(heads) == stream.shape[1] else stream[:, heads]
            return made(own.transpose(0, 1), torch.tensor(heads, device=stream.device))

        if self.heads is None:
            return tapped(usual, self.stream, lambda stream: of_heads(stream, list(range(stream.shape[1]))))
        if len(self.heads) == usual.shape[axis]:
            return of_heads(self.stream, self.heads)
        index = torch.tensor(self.heads, device=usual.device)
        return usual.index_copy(axis, index, of_heads(self.stream, self.heads))


class HeadInputs(NamedTuple):
    """What heads of a layer read, by quantity, and the norm that it passes."""

    own: Mapping[str, HeadInput]
    norm: Through


def visited(
    tape: Tape,
    names: Mapping[str, str],
    x: Float[Tensor, "batch pos d_model"],
    source: Float[Tensor, "batch key d_model"] | None,
) -> dict[str, HeadInput]:
    """Visit the sites of what heads read; return those that take a route of their own.

    Args:
        tape: Reads and edits.
        names: Full names of the layer's sites, by quantity.
        x: What the layer reads, before the norm.
        source: What keys and values of cross-attention are made of.
    """
    found: dict[str, HeadInput] = {}
    for quantity, name in names.items():
        if not tape.wants(name):
            continue
        stream = source if source is not None and quantity in ("key_in", "value_in") else x
        differentiated = tape.differentiates(name) and torch.is_grad_enabled()
        edited = changes(tape, name)
        if differentiated and not edited:
            # a variable of its own: the stream's gradient comes by the usual route
            stream = stream.detach().requires_grad_()
        axis = INPUTS[quantity].split()[1]
        per_head = axis.endswith("head")
        copies = stream.unsqueeze(1).expand(-1, tape.table[name].sizes[axis], -1, -1) if per_head else stream
        copies = tape.visit(name, copies)
        if edited:
            all_heads = list(range(copies.shape[1])) if per_head and differentiated else []
            found[quantity] = HeadInput(copies, all_heads or (tape.entries(name, axis) if per_head else []))
        elif differentiated:
            found[quantity] = HeadInput(copies, None)
    return found


def tapped(usual: Tensor, stream: Tensor, made: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a value as it is; its gradient also goes to what it would have been made of."""
    return _Tapped.apply(usual, stream, made)  # type: ignore[no-any-return]


class _Tapped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, usual: Tensor, stream: Tensor, made: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(stream)
        ctx.made = made
        return usual.view_as(usual)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        (stream,) = ctx.saved_tensors
        with torch.enable_grad():
            leaf = stream.detach().requires_grad_()
            (own,) = torch.autograd.grad(ctx.made(leaf), leaf, grads[0])
        return grads[0], own, None
