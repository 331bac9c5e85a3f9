"""What one pass leaves behind for circuits: the stream, and what every sender wrote to it."""

import dataclasses
from typing import Literal

import torch
from torch import Tensor

from glassformer.analysis.prepare import Inputs
from glassformer.attention import Context
from glassformer.errors import ShapeMismatch
from glassformer.models import Encoder, EncoderDecoder, ModelLike
from glassformer.models.stack import cross_context, make_context

Off = Literal["corrupt", "zero", "mean"]


@dataclasses.dataclass(eq=False)
class Pass:
    """What one pass left behind; `world` is 1 where all worlds are alike.

    Args:
        entry: What each sender in front of the stack wrote, `world sender batch pos d_model`.
        source: An encoder's output, `batch key d_model`.
        streams: The stream before each sub-layer and at the end, `world batch pos d_model`.
        totals: What each sub-layer wrote, biases included, `world batch pos d_model`.
        writes: What each sender of a sub-layer wrote, `world sender batch pos d_model`; None where nobody asked.
        final: What the unembedding reads, `world batch pos d_model`.
    """

    entry: Tensor
    source: Tensor | None
    streams: list[Tensor]
    totals: list[Tensor] = dataclasses.field(default_factory=list)
    writes: list[Tensor | None] = dataclasses.field(default_factory=list)
    final: Tensor | None = None

    def upto(self, step: int) -> "Pass":
        """Return what was there before a sub-layer ran."""
        return Pass(self.entry, self.source, self.streams[: step + 1], self.totals[:step], self.writes[:step])

    def of(self, step: int) -> Tensor:
        """Return what the senders of a step wrote; -1 is in front of the stack."""
        found = self.entry if step < 0 else self.writes[step]
        assert found is not None, "passes that others read from keep what heads write"
        return found


def context_of(given: Inputs, worlds: int, model: ModelLike) -> Context:
    """Return the facts of a pass of the stack that ends in the logits, with so many worlds side by side."""
    assert given.ids is not None
    batch, length = given.ids.shape

    def repeated(name: str) -> Tensor | None:
        value = given.kwargs.get(name)
        return None if value is None else value.repeat(worlds, *[1] * (value.ndim - 1))

    context = make_context(
        batch * worlds, length, given.ids.device, is_causal=not isinstance(model, Encoder), lengths=repeated("lengths"),
        document_ids=repeated("documents"),
    )  # fmt: skip
    if not isinstance(model, EncoderDecoder):
        return context
    assert given.source_ids is not None
    source = cross_context(context, given.source_ids.shape[1], repeated("source_lengths"))
    return dataclasses.replace(context, source=source)


def substitute(corrupt: Pass, off: Off) -> Pass:
    """Return what stands on cut edges."""
    if off == "corrupt":
        return corrupt

    def instead(value: Tensor) -> Tensor:
        return torch.zeros_like(value) if off == "zero" else value.mean(-3, keepdim=True).expand_as(value)

    source = None if corrupt.source is None else instead(corrupt.source)
    writes = [None if value is None else instead(value) for value in corrupt.writes]
    return dataclasses.replace(corrupt, entry=instead(corrupt.entry), source=source, writes=writes)


def require_alike(clean: Inputs, corrupt: Inputs) -> None:
    for name, a, b in (("tokens", clean.ids, corrupt.ids), ("source tokens", clean.source_ids, corrupt.source_ids)):
        if a is not None and b is not None and a.shape != b.shape:
            raise ShapeMismatch(
                f"the clean prompt has {name} batch={a.shape[0]} pos={a.shape[1]}, the corrupt one batch={b.shape[0]} "
                f"pos={b.shape[1]}; what senders write is exchanged position by position: give prompts of one shape."
            )
    for name in ("lengths", "source_lengths", "documents"):
        a, b = clean.kwargs.get(name), corrupt.kwargs.get(name)
        if (a is None) != (b is None) or (a is not None and b is not None and not torch.equal(a, b)):
            raise ShapeMismatch(f"the clean and the corrupt prompts differ in {name}; give prompts that are aligned.")
