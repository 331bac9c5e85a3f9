"""Memory as gate: a long-term memory opens what attention within a window writes.

    out = sigmoid(g_1 * m / rms(m)) * (g_2 * y / rms(y)),    m = memory(x),  y = attention(x)

Both read the same stream at the same positions, each by projections of its own. As published y is attention within a
window and to persistent tokens, and m a neural memory: `models.titans` builds such blocks, and those in which the
memory is a layer by itself. Heads of both are read at their sites, `blocks.0.mag.memory.z`; analyses that go through a
model head by head know those of attention that is a sub-layer by itself, and take this one whole.

State: that of both.
Source: Behrouz, Zhong, Mirrokni 2025, "Titans" (2501.00663), section 4.2, equations 26 to 28. How both are joined is
said there in words: normed with learned gains, then a non-linearity. Which side that stands on is ours to say.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.arguments import Positive
from glassformer.attention import Attention, Context, NeuralMemory, Persistent, Rope, SubLayerConfig, SubLayerModule
from glassformer.config import require
from glassformer.trace import Site, Tape, declare, full_names, site


def _memory() -> Attention:
    return Attention(4, **NeuralMemory().as_published())


def _windowed() -> Attention:
    return Attention(4, mixer=Persistent(window=256), positions=Rope())


@dataclass(frozen=True)
class MemoryGate(SubLayerConfig, kind="memory_gate"):
    """A memory that opens what attention writes.

    Args:
        memory: What opens.
        attention: What is opened.
        eps: Added to the mean squares of the norms.
    """

    memory: Attention = field(default_factory=_memory)
    attention: Attention = field(default_factory=_windowed)
    eps: Positive = 1e-6

    role: ClassVar[str] = "mag"
    only_backwards: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(
            not (self.memory.cross or self.attention.cross),
            "memory_gate: both layers read the stream that they write to; neither may be cross-attention.",
        )

    def build(self, d_model: int, max_len: int, layer: int, path: str) -> "MemoryGateLayer":
        return MemoryGateLayer(self, d_model, max_len, layer, path)


class MemoryGateState(NamedTuple):
    """What both layers carry."""

    memory: Any
    attention: Any


class MemoryGateLayer(SubLayerModule):
    """Runs both layers on one stream. `gate` is what multiplies, `out` what is written."""

    SITES: ClassVar[dict[str, str]] = {"gate": "batch pos d_model", "out": "batch pos d_model"}

    def __init__(self, config: MemoryGate, d_model: int, max_len: int, layer: int, path: str) -> None:
        super().__init__()
        self.config, self.d_model, self.layer, self.path = config, d_model, layer, path
        self.at = full_names(path, self.SITES)
        inside = f"{path}." if path else ""
        self.memory = config.memory.build(d_model, max_len, layer, f"{inside}memory")
        self.attention = config.attention.build(d_model, max_len, layer, f"{inside}attention")
        self.gains = nn.Parameter(torch.ones(2, d_model))

    def forward(
        self,
        x: Float[Tensor, "batch pos d_model"],
        context: Context,
        *,
        source: Tensor | None = None,
        state: MemoryGateState | None = None,
        tape: Tape | None = None,
    ) -> tuple[Float[Tensor, "batch pos d_model"], MemoryGateState | None]:
        before = (None, None) if state is None else state
        m, memory = self.memory(x, context, state=before[0], tape=tape)
        y, attention = self.attention(x, context, state=before[1], tape=tape)
        opens, opened = normed(m, y, self.gains, self.config.eps)
        out = site(tape, self.at.gate, opens.sigmoid()) * opened
        return site(tape, self.at.out, out), None if state is None else MemoryGateState(memory, attention)

    def begin(self, batch: int, like: Tensor) -> MemoryGateState:
        return MemoryGateState(self.memory.begin(batch, like), self.attention.begin(batch, like))

    def keeps(self, length: int) -> bool:
        return self.memory.keeps(length) and self.attention.keeps(length)

    def cut(self, state: MemoryGateState, length: int) -> MemoryGateState:
        return MemoryGateState(self.memory.cut(state.memory, length), self.attention.cut(state.attention, length))

    def outgrows(self, before: int, after: int) -> bool:
        return self.memory.outgrows(before, after) or self.attention.outgrows(before, after)

    def flops(self, length: int, source_length: int, causal: bool) -> dict[str, int]:
        found: Counter[str] = Counter()
        for part in (self.memory, self.attention):
            found.update(part.flops(length, source_length, causal))
        return dict(found)

    def state_bytes(self, length: int, source_length: int, dtype: torch.dtype) -> int:
        return sum(part.state_bytes(length, source_length, dtype) for part in (self.memory, self.attention))

    def own_parameters(self) -> Iterator[tuple[str, int]]:
        yield "norms", self.gains.numel()

    def sites(self) -> Iterator[Site]:
        yield from self.memory.sites()
        yield from self.attention.sites()
        yield from declare(self.path, self.SITES, {"d_model": self.d_model}, layer=self.layer)


def normed(
    m: Float[Tensor, "batch pos d_model"],
    y: Float[Tensor, "batch pos d_model"],
    gains: Float[Tensor, "2 d_model"],
    eps: float,
) -> tuple[Float[Tensor, "batch pos d_model"], Float[Tensor, "batch pos d_model"]]:
    """Return what a memory gives and what it opens, each of them normed."""
    opens, opened = (F.rms_norm(u, u.shape[-1:], gain, eps) for u, gain in zip((m, y), gains, strict=True))
    return opens, opened
