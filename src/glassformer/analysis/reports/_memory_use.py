"""What came from the window and what from memory, in the pass that is explained: of each layer that has a memory."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from glassformer.analysis._run import Run
from glassformer.analysis.reports.explanation import MemoryUse
from glassformer.attention import (
    AttentionLayer,
    LinearMemory,
    NearestMemory,
    NeuralMemory,
    Persistent,
    SegmentRecurrence,
)
from glassformer.models import MemoryContext, MemoryGate, ModelLike

REMEMBERS = LinearMemory | NeuralMemory | NearestMemory | Persistent | SegmentRecurrence


@dataclasses.dataclass(frozen=True)
class _Parts:
    """Where the sites of a layer with a memory are; None for what it lacks.

    Args:
        label: How the layer is called.
        attends: Attention whose rows are shared out.
        learns: The memory that learns while it reads.
        gate: Site of what a memory opens.
        reads: Whether what a memory gives stands among the keys.
    """

    label: str
    attends: AttentionLayer | None
    learns: AttentionLayer | None
    gate: str | None = None
    reads: bool = False

    @property
    def sites(self) -> list[str]:
        found = [] if self.learns is None else [self.learns.mixer.at.surprise]
        found += [] if self.gate is None else [self.gate]
        if self.attends is None:
            return found
        at, mixer = self.attends.mixer.at, self.attends.config.mixer
        found += [at.memory_share if isinstance(mixer, NearestMemory) else at.pattern]
        return [*found, at.persistent] if isinstance(mixer, Persistent) else found


def _layers(model: ModelLike) -> Iterator[_Parts]:
    """Yield the layers of the stack that ends in the logits that have a memory, in order."""
    for one in model.sub_layers():
        part: Any = one.part
        config = getattr(part, "config", None)
        if isinstance(config, MemoryContext | MemoryGate):
            # of a mechanism without patterns nothing is shared out
            attends = part.attention if part.attention.traits.one_pattern else None
            yield _Parts(one.label, attends, part.memory, part.at.gate, isinstance(config, MemoryContext))
        elif one.attention is not None and isinstance(one.attention.config.mixer, REMEMBERS):
            learns = isinstance(one.attention.config.mixer, LinearMemory | NeuralMemory)
            yield _Parts(one.label, None if learns else one.attention, one.attention if learns else None)


def memory_sites(model: ModelLike) -> list[str]:
    """Return the sites that say what came from memory.

    Args:
        model: One of ours; without a memory it has none of them.
    """
    return [site for parts in _layers(model) for site in parts.sites]


def memory_use(run: Run, position: int) -> tuple[MemoryUse, ...]:
    """Return what came from the window and what from memory at a position, layer by layer.

    Args:
        run: A pass that read `memory_sites` of its model.
        position: Of the text that the logits are of.
    """
    return tuple(_use(run, parts, position) for parts in _layers(run.model))


def _use(run: Run, parts: _Parts, position: int) -> MemoryUse:
    window = persistent = memory = gate = surprise = mean = None
    if parts.learns is not None:
        measured = run[parts.learns.mixer.at.surprise].values[0, :, : position + 1].double().mean(0)
        surprise, mean = float(measured[-1]), float(measured.mean())
    if parts.gate is not None:
        gate = float(run[parts.gate].values[0, position].double().mean())
    if (layer := parts.attends) is not None:
        mixer = layer.config.mixer
        if isinstance(mixer, NearestMemory):
            memory = float(run[layer.mixer.at.memory_share].values[0, :, position].double().mean())
            window = 1 - memory
        else:
            window, memory = _shared_out(run[layer.mixer.at.pattern].values[0], mixer, position, parts.reads)
        if isinstance(mixer, Persistent):
            persistent = float(run[layer.mixer.at.persistent].values[0, :, position].double().mean())
    return MemoryUse(
        label=parts.label, window=window, persistent=persistent, memory=memory, gate=gate, surprise=surprise,
        mean_surprise=mean,
    )  # fmt: skip


def _shared_out(pattern: Tensor, mixer: Any, position: int, reads: bool) -> tuple[float, float | None]:
    """Return how much of a row is of tokens that are seen, and of what is remembered; None where nothing is."""
    if reads:
        of_tokens, of_reads = pattern[..., position, :].double().sum(-1).mean(-1).tolist()
        return of_tokens, of_reads
    row = pattern[:, position].double().mean(0)
    if isinstance(mixer, SegmentRecurrence):
        begin = position // mixer.segment * mixer.segment
        return float(row[begin:].sum()), float(row[:begin].sum())
    return float(row.sum()), None
