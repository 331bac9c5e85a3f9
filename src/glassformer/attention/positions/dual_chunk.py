"""Dual chunk attention: rotary positions for texts longer than any a model was trained on.

    key j turns by       P_k = j mod s
    query i turns by     P_q = i mod s                     for keys of its own chunk of s positions
                               min(i mod s + s, c - 1)     for keys of the chunk before it
                               c - 1                       for keys of earlier chunks
    score                q turned by P_q . k turned by P_k

so that no distance P_q - P_k reaches the trained length c, and distances up to c - s, or s if that is less, are what
they are. Keys are written once, turned by their place in their chunk; queries meet them turned in three ways.

Source: An et al. 2024, "Training-Free Long-Context Scaling of Large Language Models", section 3.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.arguments import Count
from glassformer.attention.context import Context
from glassformer.attention.kernels.parts import Part, in_parts
from glassformer.attention.positions.positions import Positions, PositionsConfig
from glassformer.attention.positions.rotary import Rope
from glassformer.config import require
from glassformer.errors import AnalysisUnavailable


@dataclass(frozen=True)
class DualChunk(PositionsConfig, kind="dual_chunk"):
    """Rotary positions by chunks, for causal self-attention.

    Args:
        chunk: Positions of one chunk, s above.
        length: Positions that the model was trained on, c above.
        rope: The rotation it was trained with.
    """

    chunk: Count = 1280
    length: int = 2048
    rope: Rope = field(default_factory=Rope)

    crosses: ClassVar[bool] = False
    turns_for_each: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(
            1 <= self.chunk < self.length,
            f"dual_chunk: chunk must be from 1 to length - 1 = {self.length - 1}, found {self.chunk}.",
        )
        require(
            not self.rope.at_read and not (self.rope.scaling is not None and self.rope.scaling.by_length),
            "dual_chunk: its rope turns keys when they are written and goes by positions alone; give one without "
            "at_read and without a scaling that goes by length.",
        )

    def build(self, dims: Any) -> "DualChunkPositions":
        return DualChunkPositions(self, dims)


def by_chunk(x: Float[Tensor, "batch head pos d"], size: int) -> Float[Tensor, "chunk_and_batch head row d"]:
    """Return a row for each chunk of each text: all texts' first, then all texts' second."""
    return x.unflatten(-2, (-1, size)).movedim(2, 0).flatten(0, 1)


class DualChunkPositions(Positions):
    has_scores = True
    rotates = True

    def __init__(self, config: DualChunk, dims: Any) -> None:
        super().__init__(config)
        self.rope = config.rope.build(dims)

    def rotate(self, q: Tensor, k: Tensor | None, context: Context) -> tuple[Tensor, Tensor | None]:
        """Return keys turned by their place in their chunk; queries are turned in `scores`."""
        return q, None if k is None else self.rope.placed_at(k, context.positions % self.config.chunk)

    def scores(
        self,
        score: Callable[[Tensor, Tensor], Tensor],
        q: Float[Tensor, "batch *stream head query d_head"],
        k: Float[Tensor, "batch *stream head key d_head"],
        context: Context,
    ) -> Float[Tensor, "batch *stream head query key"]:
        if not context.looks_back:
            raise AnalysisUnavailable(
                '"dual_chunk" positions are for causal self-attention; use "rope", "alibi" or "relative_bias" here.'
            )
        size, last = self.config.chunk, self.config.length - 1
        queries, keys = context.positions, context.key_positions[:, -k.shape[-2] :]
        within = queries % size
        own, before, earlier = (
            score(self.rope.placed_at(q, places), k)
            for places in (within, (within + size).clamp_max(last), torch.full_like(within, last))
        )
        chunks = (queries // size)[:, :, None] - (keys // size)[:, None, :]
        for _ in range(q.ndim - 3):
            chunks = chunks.unsqueeze(1)
        return torch.where(chunks <= 0, own, torch.where(chunks == 1, before, earlier))

    def has_parts(self, context: Context) -> bool:
        return context.is_causal and context.first == 0

    def mix(
        self,
        q: Float[Tensor, "batch head pos d_head"],
        k: Float[Tensor, "batch head pos d_head"],
        v: Float[Tensor, "batch head pos d_value"],
        scale: float,
    ) -> Float[Tensor, "batch head pos d_value"]:
        size, last, n, batch = self.config.chunk, self.config.length - 1, q.shape[-2], len(q)
        # what fills the last chunk comes after all positions, and no position looks ahead
        q, k, v = (F.pad(x, (0, 0, 0, -n % size)) for x in (q, k, v))
        within = torch.arange(q.shape[-2], device=q.device)[None] % size
        own, before, earlier = (
            by_chunk(self.rope.placed_at(q, places), size)
            for places in (within, (within + size).clamp_max(last), torch.full_like(within, last))
        )
        keys, values = by_chunk(k, size), by_chunk(v, size)
        parts = [Part(0, own, keys, values, causal=True)]
        if len(own) > batch:
            parts.append(Part(batch, before[batch:], keys[:-batch], values[:-batch]))
        for i in range(2, len(own) // batch):
            past, blocks = slice(0, (i - 1) * size), slice(i * batch, (i + 1) * batch)
            parts.append(Part(i * batch, earlier[blocks], k[..., past, :], v[..., past, :]))
        z = in_parts(parts, scale).unflatten(0, (-1, batch))
        return z.movedim(0, 2).flatten(2, 3)[..., :n, :]

    def extra_flops(self, n_queries: int, n_keys: int, dims: Any, in_parts: bool) -> int:
        if not in_parts:
            return 2 * 2 * dims.n_heads * n_queries * n_keys * dims.d_head
        # each chunk of queries meets its own keys and those of the chunks before it
        chunks = -(-n_queries // self.config.chunk)
        pairs = self.config.chunk**2 * chunks * (chunks + 1) // 2
        return 2 * dims.n_heads * (pairs - n_queries * n_keys) * (dims.d_head + dims.d_value)

    def turned(self, q: Float[Tensor, "*n d_head"], offset: int | Int[Tensor, " offset"]) -> NoReturn:
        first = offset if isinstance(offset, int) else int(offset[0])
        self._refuse(f"rotation by {first} positions")

    def placed(self, rows: Float[Tensor, "*n pos d_head"], positions: Int[Tensor, " pos"]) -> NoReturn:
        self._refuse(f"rows at position {int(positions[0])}")

    def _refuse(self, what: str) -> NoReturn:
        raise AnalysisUnavailable(
            f"{what}: with dual_chunk positions a query meets keys of its own, the last and earlier chunks turned in "
            "three ways, so an offset alone does not say how.\n"
            "    Read scores: gf.run(…, read=['blocks.*.attn.scores'])."
        )
