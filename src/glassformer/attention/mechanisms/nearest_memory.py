"""Nearest-neighbour memory: a window, and of all that has left it the few keys that score highest.

    near_t   keys less than `window` positions before t
    far_t    of the `memory` keys before those, the `nearest` with the largest q_t . k_s * scale + bias_ts
    z_t = g_t sum over far of softmax(score) v  +  (1 - g_t) sum over near of softmax(score) v

    gate     g_t = sigmoid(b), a number per head;  0 where nothing has left the window yet
    joint    g_t = sigmoid(log sum exp of far scores - the same of near ones):  one softmax over both

The search is exact. With as many `nearest` as the memory holds, the joint form is softmax attention over both; else
what a row of the far softmax is off by, in sum of sizes, is twice the mass of what it leaves out.

A key enters the memory when it leaves the window: so it is there once, no later token is, and how a text is cut into
segments changes nothing. The oldest make room for the newest. Memory is state like any other: carried from segment to
segment and through generation, saved and restored; a packed document finds nothing of others.
In training what is stored is a constant: no gradient goes into its keys and values, and the loss of a query trains what
asks, not what is found. In evaluation gradients are those of the function.

Pattern: exact given which keys are found, non-negative, rows sum to one; zero on what is not found. Columns up to
`window` places before a query's own are the memory's. Which are found goes by scores, and jumps at ties.
State: keys and values of the last (window - 1 + memory) positions.
Cost: O(pos (memory + window)) time in blocks of queries whose scores are made and let go. Positions that add to scores,
and texts read both ways, take the pattern; what lies behind a position is then seen as far as the window.
Source: Wu et al. 2022, "Memorizing Transformers" (2203.08913), section 3, for the gate; lucidrains'
memorizing-transformers-pytorch for one softmax. Differs from both: theirs write segment by segment, so that what a
query finds depends on where segments begin; empty places of a store take no part, where those of google-research/meliad
score 0; its search finds the best of each of `nearest` interleaved groups. Queries and keys of one length are the
projection's, `QueryKeyNorm`, whose gains are the learned scale.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from glassformer.arguments import Count
from glassformer.attention.context import Causal, Context, Padding
from glassformer.attention.kernels.nearest import largest
from glassformer.attention.mixer import Dims, Mixer, MixerConfig, Traits, per_query_head
from glassformer.attention.projections import QueryKeyNorm, Separate
from glassformer.attention.scores import scaled_scores
from glassformer.attention.stored import weighed_stored
from glassformer.trace import Tape, site

SCORES = 1 << 22  # made at a time, of queries with the memory


@dataclass(frozen=True)
class NearestMemory(MixerConfig, kind="nearest_memory"):
    """A window, and the nearest neighbours among what has left it.

    Args:
        window: Each query sees keys less than this many positions away.
        memory: How many keys are kept behind the window.
        nearest: How many of those a query finds.
        joined: How both are put together: by a `gate` per head, or by one softmax (`joint`).
        scale: Factor on the scores; 1 / sqrt(d_head) by default.
    """

    window: Count = 512
    memory: Count = 8192
    nearest: Count = 32
    joined: Literal["gate", "joint"] = "gate"
    scale: float | None = None

    traits: ClassVar[Traits] = Traits(
        rows_sum_to_one=True, has_scores=True, bilinear_scores=True, searches=True, by_products=True
    )
    variants = (
        {"window": 2, "memory": 3, "nearest": 1},
        {"window": 1, "memory": 4, "nearest": 2, "joined": "joint"},
        {"window": 3, "memory": 2, "nearest": 5, "scale": 1.0},
    )

    @property
    def reach(self) -> int:
        return self.window - 1 + self.memory

    def as_published(self, layer: int = 0) -> dict[str, Any]:
        return {"mixer": self, "projection": Separate(qk_norm=QueryKeyNorm())}


class NearestMemoryMixer(Mixer, config=NearestMemory):
    config: NearestMemory
    SITES = MappingProxyType({"memory_share": "batch head pos"})
    LAZY = ("memory_share",)
    mixes_continued = True

    def __init__(self, config: NearestMemory, dims: Dims, path: str) -> None:
        super().__init__(config, dims, path)
        self.gate = nn.Parameter(torch.zeros(dims.n_heads)) if config.joined == "gate" else None

    @property
    def scale(self) -> float:
        return self.dims.d_head**-0.5 if self.config.scale is None else self.config.scale

    def pattern(self, q: Tensor, k: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        given, q, k = q.dtype, _widened(q), _widened(k)
        scores = scaled_scores(q, k, self.scale, context)
        if self.training:
            stored, _ = self.places(scores)
            scores = torch.where(stored, scaled_scores(q, k.detach(), self.scale, context), scores)
        scores = site(tape, self.at.scores, scores)
        far, near, share = self._parts(scores, slice(None))
        share = site(tape, self.at.memory_share, share)
        return (share[..., None] * far + (1 - share[..., None]) * near).to(given)

    def normalised(
        self, scores: Float[Tensor, "*lead head query key"], *, empty_rows: bool = True, heads: slice = slice(None)
    ) -> Float[Tensor, "*lead head query key"]:
        far, near, share = self._parts(scores, heads)
        return (share[..., None] * far + (1 - share[..., None]) * near).to(scores.dtype)

    def places(self, scores: Tensor) -> tuple[Bool[Tensor, "query key"], Bool[Tensor, "query key"]]:
        """Return which keys are the memory's to each of the last queries, and which are in its window."""
        n, m = scores.shape[-2:]
        place = torch.arange(m, device=scores.device)
        apart = place[m - n :, None] - place
        window = self.config.window
        return (apart >= window) & (apart < window + self.config.memory), apart.abs() < window

    def _parts(self, scores: Tensor, heads: slice) -> tuple[Tensor, Tensor, Float[Tensor, "*lead head query"]]:
        """Return the pattern of what is found, that of the window, and how much of the row is the former's."""
        wide = scores if scores.dtype == torch.float64 else scores.float()
        stored, near = self.places(scores)
        of_memory = wide.masked_fill(~stored, float("-inf"))
        found = torch.zeros_like(wide, dtype=torch.bool).scatter(-1, largest(of_memory, self.config.nearest), True)
        far, far_sum, any_far = _softmax(of_memory.masked_fill(~found, float("-inf")))
        near, near_sum, any_near = _softmax(wide.masked_fill(~near, float("-inf")))
        return far, near, self.share(far_sum, near_sum, any_far, any_near, heads)

    def share(
        self, far_sum: Tensor, near_sum: Tensor, any_far: Tensor, any_near: Tensor, heads: slice = slice(None)
    ) -> Float[Tensor, "*lead head query"]:
        """Return how much of each query's row is the memory's: all or nothing where there is but one of the two."""
        logit = far_sum - near_sum if self.gate is None else self.gate[heads, None].to(far_sum.dtype).expand_as(far_sum)
        return torch.where(any_near, logit.sigmoid() * any_far, any_far.to(far_sum.dtype))

    def weighed(self, pattern: Tensor, v: Tensor, q: Tensor, context: Context, tape: Tape | None) -> Tensor:
        if not self.training:
            return super().weighed(pattern, v, q, context, tape)
        pattern = site(tape, self.at.pattern, pattern)
        pattern = nn.functional.dropout(pattern, context.dropout) if context.dropout > 0 else pattern
        return weighed_stored(pattern, per_query_head(v, q), self.places(pattern)[0])

    def mixes(self, context: Context, q: Tensor, k: Tensor) -> bool:
        # both ways, what lies behind a position is seen by the window alone
        return super().mixes(context, q, k) and context.looks_back and context.rule is None

    def mixed(self, context: Context, q: Tensor, k: Tensor, v: Tensor) -> Float[Tensor, "batch head query d_value"]:
        if not all(isinstance(term, Causal | Padding) for term in context.mask.terms):
            return self.dense(q, k, v, q, context, None)
        q, k, v = _widened(q), _widened(per_query_head(k, q)), per_query_head(v, q)
        real = context.real_keys(k.shape[-2], self.config.kind or "")
        return torch.cat([self._rows(q, k, v, real, *rows) for rows in self._blocks(q, k)], -2)

    def _blocks(self, q: Tensor, k: Tensor) -> Iterator[tuple[int, int]]:
        """Yield from which to before which query scores are made at a time."""
        n, m = q.shape[-2], k.shape[-2]
        size = max(16, SCORES // max(1, q.shape[0] * q.shape[1] * min(m, self.config.memory)))
        yield from ((start, min(start + size, n)) for start in range(0, n, size))

    def _rows(
        self, q: Tensor, k: Tensor, v: Tensor, real: Bool[Tensor, "b key"] | None, start: int, stop: int
    ) -> Float[Tensor, "batch head query d_value"]:
        """Return z of some queries, by the scores of no others."""
        before, window = k.shape[-2] - q.shape[-2], self.config.window
        first, last = before + start, before + stop
        q, place = q[..., start:stop, :] * self.scale, torch.arange(first, last, device=q.device)[:, None]
        near, far = max(first - window + 1, 0), max(first - self.config.reach, 0)
        key = torch.arange(near, last, device=q.device)
        seen = (key <= place) & (place - key < window)
        seen = seen if real is None else seen & real[:, None, None, near:last]
        near_rows, near_sum, any_near = _softmax((q @ k[..., near:last, :].mT).masked_fill_(~seen, float("-inf")))
        z_near = near_rows.to(v.dtype) @ v[..., near:last, :]
        if last - window <= far:
            return z_near
        k, v = (rows[..., far : last - window, :] for rows in (k, v))
        k, v = (k.detach(), v.detach()) if self.training else (k, v)
        real = None if real is None else real[:, None, None, far : last - window]
        found = self._found(q, k, place - far, real)
        scores, values = _of_found(q, k, found), _taken(v, found)
        scores = scores.masked_fill(~self._stored(place - far, found, real), float("-inf"))
        far_rows, far_sum, any_far = _softmax(scores)
        share = self.share(far_sum, near_sum, any_far, any_near)[..., None].to(v.dtype)
        return share * (far_rows.to(v.dtype)[..., None, :] @ values).squeeze(-2) + (1 - share) * z_near

    @torch.no_grad()
    def _found(
        self, q: Tensor, k: Tensor, place: Int[Tensor, "query 1"], real: Bool[Tensor, "b 1 1 key"] | None
    ) -> Int[Tensor, "batch head query found"]:
        """Return where the best keys of some queries are, which stand at `place` as these keys are counted."""
        scores, (n, m) = q @ k.mT, (q.shape[-2], k.shape[-2])
        # what lies between is in the memory of all of them
        for columns in [slice(0, m)] if m <= 2 * n else [slice(0, n), slice(m - n, m)]:
            key = torch.arange(columns.start, columns.stop, device=q.device)
            scores[..., columns].masked_fill_(~self._stored(place, key, None), float("-inf"))
        if real is not None:
            scores.masked_fill_(~real, float("-inf"))
        return largest(scores, self.config.nearest)

    def _stored(self, place: Tensor, key: Tensor, real: Bool[Tensor, "b 1 1 key"] | None) -> Tensor:
        """Return which keys are in the memory of a query, `key` being the same for all or some of each."""
        apart = place - key
        stored = (apart >= self.config.window) & (apart <= self.config.reach)
        if real is None:
            return stored
        return stored & real.expand(*key.shape[:-1], -1).gather(-1, key)


def _of_found(
    q: Float[Tensor, "batch head query d"],
    k: Float[Tensor, "batch head key d"],
    found: Int[Tensor, "batch head query n"],
) -> Float[Tensor, "batch head query n"]:
    """Return scores of queries with the keys that each has found."""
    return (q[..., None, :] @ _taken(k, found).mT).squeeze(-2)


def _taken(
    rows: Float[Tensor, "batch head key d"], found: Int[Tensor, "batch head query n"]
) -> Float[Tensor, "batch head query n d"]:
    """Return the rows that each query has found."""
    batch, head = (torch.arange(n, device=rows.device) for n in rows.shape[:2])
    return rows[batch[:, None, None, None], head[:, None, None], found]


def _widened(rows: Tensor) -> Tensor:
    """Return rows in single precision at least: by fewer digits other keys would be nearest."""
    return rows.to(torch.promote_types(rows.dtype, torch.float32))


def _softmax(scores: Float[Tensor, "*lead key"]) -> tuple[Tensor, Float[Tensor, "*lead"], Bool[Tensor, "*lead"]]:
    """Return softmax, the log of the sum of exponentials, and whether there is anything; all zeros where not."""
    wide = scores if scores.dtype == torch.float64 else scores.float()
    nothing = (wide == float("-inf")).all(-1, keepdim=True)
    wide = wide.masked_fill(nothing, 0.0)
    rows = wide.softmax(-1).masked_fill(nothing, 0.0)
    return rows, wide.logsumexp(-1), ~nothing[..., 0]
