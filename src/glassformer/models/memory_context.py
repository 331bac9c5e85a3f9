"""Memory as context: what a long-term memory knows stands before the tokens that attention reads.

    h_t = M_opened(x_t W_a)                              what the memory knew when the segment of t began
    y_t = attention of x_t to h_s and x_s, s <= t        of its own segment, and to persistent tokens
    out = sigmoid(g_1 * m / rms(m)) * (g_2 * y / rms(y)),    m = memory(y)

Segments are the chunks of the memory: it takes gradients of the weights that it has when one begins, and these are what
is asked. Segments see each other through the memory alone. To attention a segment is a text of its own, in which each
read stands one place before its token; so a window would count both, and positions begin anew.

As published a segment is read as a whole: every token sees what was found for all of them, later ones too, and what
opens its output is a memory that has read them all. No token may be foretold that way. Here a token sees the reads up
to its own, and what opens is the memory behind its own write, so that no output knows of a later token.

State: that of the memory, and keys and values of the last segment - 1 tokens and reads.
Cost: that of the memory, and O(pos segment) of attention along rows twice as long; one segment after the other.
Pattern: in `attention.pattern`, exact given what was read: a row's weights of tokens, and of reads. What reads hold is
no linear function of values.
Differs from the paper besides: it leaves open where in a row reads stand, and whether they have positions of their own;
queries at reads are made, and what is mixed there dropped.
Source: Behrouz, Zhong, Mirrokni 2025, "Titans" (2501.00663), section 4.1, equations 21 to 25.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.arguments import Positive
from glassformer.attention import (
    Attention,
    Context,
    LinearMap,
    LinearMemory,
    NeuralMemory,
    Persistent,
    Rope,
    SubLayerConfig,
    SubLayerModule,
)
from glassformer.attention.linear_map import parameters_of
from glassformer.config import require
from glassformer.models.by_segment import Pieces, along, at_tokens, beside_reads, by_turns, pieces, placed
from glassformer.models.memory_gate import normed
from glassformer.trace import Site, Tape, declare, full_names, site, wants

INSIDE = (
    "it is found segment by segment, each from what the memory has learnt of those before; edit asked, gate, out or "
    "what the sub-layer reads."
)


def _memory() -> Attention:
    return Attention(4, **NeuralMemory().as_published())


def _beside() -> Attention:
    return Attention(4, mixer=Persistent(), positions=Rope())


@dataclass(frozen=True)
class MemoryContext(SubLayerConfig, kind="memory_context"):
    """A memory whose reads stand before the tokens that attention reads.

    Args:
        memory: A `LinearMemory` or `NeuralMemory`, whose `chunk` is the length of a segment.
        attention: What reads a segment, reads and tokens by turns.
        eps: Added to the mean squares of the norms.
    """

    memory: Attention = field(default_factory=_memory)
    attention: Attention = field(default_factory=_beside)
    eps: Positive = 1e-6

    role: ClassVar[str] = "mac"
    only_backwards: ClassVar[bool] = True

    def __post_init__(self) -> None:
        mixer, inner = self.memory.mixer, self.attention.mixer
        require(
            not (self.memory.cross or self.attention.cross),
            "memory_context: both layers read the stream that they write to; neither may be cross-attention.",
        )
        require(
            isinstance(mixer, LinearMemory | NeuralMemory),
            f'memory_context: what is asked for a segment is what "linear_memory" or "neural_memory" knew when it '
            f'began; found "{mixer.kind}".',
        )
        require(
            inner.stores_keys and inner.reach is None and inner.continues,
            f'memory_context: a segment is all that attention sees, and its keys are kept; "{inner.kind}" as set here '
            'has a reach or a state of its own. Leave its window out, or use "persistent" or "softmax".',
        )

    @property
    def segment(self) -> int:
        """Positions of a segment."""
        mixer: Any = self.memory.mixer
        return mixer.chunk

    def build(self, d_model: int, max_len: int, layer: int, path: str) -> "MemoryContextLayer":
        return MemoryContextLayer(self, d_model, max_len, layer, path)


class MemoryContextState(NamedTuple):
    """What both layers carry; of attention always as many rows."""

    memory: Any
    attention: Any


class MemoryContextLayer(SubLayerModule):
    """Asks the memory, lets attention read, lets the memory learn; segment by segment.

    `asked` are the queries, of length one, that the memory is asked by, `recalled` what it gives for them, `gate` what
    multiplies, `out` what is written. What both layers are inside is read at their own sites, at tokens.
    """

    SITES: ClassVar[dict[str, str]] = {
        "asked": "batch head pos d_head",
        "recalled": "batch pos d_model",
        "gate": "batch pos d_model",
        "out": "batch pos d_model",
    }

    def __init__(self, config: MemoryContext, d_model: int, max_len: int, layer: int, path: str) -> None:
        super().__init__()
        self.config, self.d_model, self.layer, self.path = config, d_model, layer, path
        self.segment = config.segment
        self.at = full_names(path, self.SITES)
        inside = f"{path}." if path else ""
        self.memory: Any = config.memory.build(d_model, max_len, layer, f"{inside}memory")
        # to attention every segment is a text of its own
        self.attention: Any = config.attention.build(d_model, 2 * self.segment, layer, f"{inside}attention")
        require(
            not self.attention.projection.stores_keys,
            f'memory_context: projection "{config.attention.projection.kind}" keeps what keys are made of, and here '
            'keys are kept; use "separate".',
        )
        dims = self.memory.dims
        self.ask = LinearMap(d_model, dims.n_heads * dims.d_head, bias=False)
        self.gains = nn.Parameter(torch.ones(2, d_model))
        self.kind = str(config.kind)
        # which axis counts positions, and whether they are of reads and tokens by turns
        of_attention = {found.name for found in self.attention.sites()}
        self.inside = {found.name: (along(found.axes), found.name in of_attention) for found in self._inside()}

    def forward(
        self,
        x: Float[Tensor, "batch pos d_model"],
        context: Context,
        *,
        source: Tensor | None = None,
        state: MemoryContextState | None = None,
        tape: Tape | None = None,
    ) -> tuple[Float[Tensor, "batch pos d_model"], MemoryContextState | None]:
        held = self.begin(len(x), x) if state is None else state
        asked = self.ask(x).unflatten(-1, (self.memory.dims.n_heads, -1)).transpose(1, 2)
        asked = site(tape, self.at.asked, self.memory.mixer.unit(asked).to(x.dtype))
        inner = None if tape is None else Pieces(tape, self.inside)
        spans, found = pieces(context, x.shape[1], self.segment, self.kind), []
        for start, stop in spans:
            rows, held = self._read(
                x[:, start:stop], asked[..., start:stop, :], context.piece(start, stop), held, inner
            )
            found.append(rows)
        recalled, y, m = (torch.cat(parts, 1) for parts in zip(*found, strict=True))
        site(tape, self.at.recalled, recalled)
        if tape is not None and inner is not None:
            self._tell(tape, inner, spans, 0 if state is None else self.segment - 1)
        opens, opened = normed(m, y, self.gains, self.config.eps)
        out = site(tape, self.at.gate, opens.sigmoid()) * opened
        return site(tape, self.at.out, out), None if state is None else held

    def _read(
        self, x: Tensor, asked: Tensor, context: Context, state: MemoryContextState, tape: Pieces | None
    ) -> tuple[tuple[Tensor, Tensor, Tensor], MemoryContextState]:
        """Return what is recalled of a segment, what attention and the memory make of it, and the state behind it."""
        recalled = self.recalled(asked, x, context, state.memory)
        beside, rows = beside_reads(context, x.shape[1], self.segment, self.kind)
        y, attention = self.attention(by_turns(recalled, x), beside, state=last_rows(state.attention, rows), tape=tape)
        y = y[:, 1::2]
        m, memory = self.memory(y, context, state=state.memory, tape=tape)
        return (recalled, y, m), MemoryContextState(memory, last_rows(attention, self._rows))

    def recalled(
        self, asked: Float[Tensor, "batch head pos d_head"], x: Tensor, context: Context, memory: Any
    ) -> Float[Tensor, "batch pos d_model"]:
        """Return what the memory, as it was when the segment of each position began, gives for queries."""
        z, merge = self.memory.mixer.recalled(asked, context, memory.mixer), self.memory.merge
        gate = None if merge.gate is None else merge.gate(x)
        return merge.output(merge.prepare(z, x, None if merge.linear else merge.scale(z, gate), gate))

    def _tell(self, tape: Tape, inner: Pieces, spans: list[tuple[int, int]], before: int) -> None:
        """Let a tape see what was inside, at tokens; keys of a carried state are columns of a pattern too."""
        for name, (axis, by_pairs) in self.inside.items():
            if not wants(tape, name):
                continue
            values = inner.found[name]
            if name == self.attention.at.pattern:
                value = placed(values, spans, before)
            else:
                value = torch.cat(values, axis)
                value = at_tokens(value, axis) if by_pairs else value
            site(tape, name, value)

    @property
    def _rows(self) -> int:
        """Rows of reads and tokens that a state keeps."""
        return 2 * (self.segment - 1)

    def _inside(self) -> Iterator[Site]:
        """Yield the sites of both layers that are told, as they are at tokens; what they have by pairs is not."""
        for found in self.attention.sites():
            if found.quantity == "pattern":
                batch, *axes = found.axes
                kinds = {**found.sizes, "value_stream": 2}
                yield replace(found, axes=(batch, "value_stream", *axes), sizes=kinds, read_only=INSIDE)
            elif found.quantity in ("query", "persistent", "z", "out"):
                yield replace(found, read_only=INSIDE)
        for found in self.memory.sites():
            if not found.lazy:
                yield replace(found, read_only=INSIDE)

    def begin(self, batch: int, like: Tensor) -> MemoryContextState:
        return MemoryContextState(
            self.memory.begin(batch, like), last_rows(self.attention.begin(batch, like), self._rows)
        )

    def keeps(self, length: int) -> bool:
        return False

    def outgrows(self, before: int, after: int) -> bool:
        inside = (min(2 * n, 2 * self.segment) for n in (before, after))
        return self.memory.outgrows(before, after) or self.attention.outgrows(*inside)

    def flops(self, length: int, source_length: int, causal: bool) -> dict[str, int]:
        found: Counter[str] = Counter()
        widths = self.config.memory.mixer.widths(self.memory.dims)  # type: ignore[attr-defined]
        for start in range(0, length, self.segment):
            n = min(self.segment, length - start)
            of_memory = self.memory.flops(n, n, causal=True)
            read = 2 * n * self.memory.dims.n_heads * sum(a * b for a, b in pairwise(widths))
            found.update(self.attention.flops(2 * n, 2 * n, causal=True))
            found.update(of_memory)
            found.update({"query": 2 * n * self.ask.weight.numel(), "mixing": read})
            found.update({part: of_memory[part] for part in ("output", "output gate")})
        return dict(found)

    def state_bytes(self, length: int, source_length: int, dtype: torch.dtype) -> int:
        rows = self.attention.state_bytes(self._rows, source_length, dtype)
        return self.memory.state_bytes(length, source_length, dtype) + rows

    def own_parameters(self) -> Iterator[tuple[str, int]]:
        yield "norms", self.gains.numel()
        yield from parameters_of("query", self.ask)

    def sites(self) -> Iterator[Site]:
        dims = self.memory.dims
        sizes = {"d_model": self.d_model, "head": dims.n_heads, "d_head": dims.d_head}
        asked, recalled, *ends = declare(self.path, self.SITES, sizes, layer=self.layer)
        yield asked
        yield replace(recalled, read_only=INSIDE)
        yield from self._inside()
        yield from ends


def last_rows(state: Any, n: int) -> Any:
    """Return what attention carries with the last so many keys and values, zeros before the first."""

    def last(rows: Tensor) -> Tensor:
        kept = rows[..., max(rows.shape[-2] - n, 0) :, :]
        return F.pad(kept, (0, 0, n - kept.shape[-2], 0))

    return state._replace(mixer=type(state.mixer)(*map(last, state.mixer)))
