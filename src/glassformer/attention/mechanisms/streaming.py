"""Streaming attention: the first tokens of a text and the last ones, with positions counted among those that are left.

    z_t = sum_s softmax_s(score_ts) v_s      over s < first, and over t - window < s <= t
    score_ts = q_t . k_s * scale                                   for the last ones
    score_ts = (q as it stands at min(t, first + window - 1)) . k_s * scale      for the first ones

Models put what weight they need nowhere on the first tokens; a window that loses them breaks. Kept, they are met as if
nothing lay between them and the window: however long a text grows, no distance is larger than first + window - 1, so a
model that was trained on as many tokens reads on for ever, without what it has let go.

A text of up to first + window tokens is read as by softmax attention. Rotary positions turn a query back by as much as
the text is longer; biases by distance are those of the shorter one. Positions that are part of the input of queries
and keys stay as they are.

Pattern: exact, non-negative, rows sum to one; zero on what lies between.
State: keys and values of the first tokens, and of the last window - 1 others.
Cost: O(pos (first + window)) time and memory; per step and for the state O(first + window).
Differs from the authors' code: a query sees window keys besides the first ones, itself included, in every form; theirs
has that many in one script and one more in another.
Source: Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks", section 3.2.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.arguments import Count, Natural
from glassformer.attention.context import Causal, Context, Padding
from glassformer.attention.kernels.blocked import in_blocks, is_blocked, joined, window_pieces
from glassformer.attention.kernels.fused import fused_softmax
from glassformer.attention.kernels.growing import append
from glassformer.attention.kernels.parts import Part, in_parts
from glassformer.attention.mixer import Dims, Mixer, MixerConfig, Traits, no_pattern, per_query_head
from glassformer.attention.scores import masked_softmax, product
from glassformer.trace import Tape, changes, site


@dataclass(frozen=True)
class Streaming(MixerConfig, kind="streaming"):
    """Attention to the first tokens of a text and the last ones.

    Args:
        first: Tokens at the beginning of a text, or of a packed document, that every query sees.
        window: Tokens that it sees besides, the last ones up to its own.
        scale: Factor on the scores; 1 / sqrt(d_head) by default.
    """

    first: Natural = 4
    window: Count = 1020
    scale: float | None = None

    traits: ClassVar[Traits] = Traits(rows_sum_to_one=True, has_scores=True)
    stores_keys: ClassVar[bool] = False
    variants = ({"first": 1, "window": 2}, {"first": 2, "window": 1}, {"first": 0, "window": 3, "scale": 1.0})

    @property
    def crosses(self) -> bool:
        return False

    @property
    def furthest(self) -> int:
        """The largest distance of a query and a key."""
        return self.first + self.window - 1

    def state_numbers(self, length: int, dims: Dims) -> int:
        kept = self.first + min(max(length, 0), self.window - 1)
        return kept * dims.n_kv_heads * (dims.d_head + dims.d_value)


class StreamingState(NamedTuple):
    """Keys and values of the first tokens, zero until they come, and of the last ones."""

    first_key: Float[Tensor, "batch kv_head first d_head"]
    first_value: Float[Tensor, "batch kv_head first d_value"]
    key: Float[Tensor, "batch kv_head key d_head"]
    value: Float[Tensor, "batch kv_head key d_value"]


class StreamingMixer(Mixer, config=Streaming):
    config: Streaming
    mixes_biased = mixes_continued = mixes_compiled = True

    @property
    def scale(self) -> float:
        return self.dims.d_head**-0.5 if self.config.scale is None else self.config.scale

    def pattern(self, q: Tensor, k: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        given, is_first = q.dtype, (context.key_positions < self.config.first)[:, None, None, :]
        q, k = _widened(q), _widened(k)
        scores = torch.where(is_first, self._of_first(q, k, context), self._scores(q, k, context))
        near = context.allowed(q.shape[-2], k.shape[-2], self.config.window)
        allowed = context.allowed(q.shape[-2], k.shape[-2])
        assert near is not None, "a window hides something"
        seen = near | (is_first if allowed is None else is_first & allowed)
        scores = site(tape, self.at.scores, scores.masked_fill(~seen, float("-inf")))
        pattern = masked_softmax(scores, empty_rows=not context.sees_itself or changes(tape, self.at.scores))
        return pattern.to(given)

    def _scores(self, q: Tensor, k: Tensor, context: Context) -> Float[Tensor, "batch head query key"]:
        scores = context.scores(product, q * self.scale, k)
        return scores if (bias := context.bias) is None else scores + bias[..., -k.shape[-2] :].to(scores.dtype)

    def _of_first(
        self, q: Tensor, k: Tensor, context: Context, keys: Int[Tensor, "b key"] | None = None
    ) -> Float[Tensor, "batch head query key"]:
        """Return scores of the first tokens, or of others that stand at `keys`, without what lies between."""
        nearer = replace(
            context,
            positions=context.positions.clamp_max(self.config.furthest),
            key_positions=context.key_positions if keys is None else keys, first=None, memo={},
        )  # fmt: skip
        return self._scores(self._earlier(q, context), k, nearer)

    def _earlier(self, q: Tensor, context: Context) -> Tensor:
        """Return queries as they are no further than `furthest` from the beginning."""
        if context.encoding is None:
            return q
        return context.encoding.earlier(q, (context.positions - self.config.furthest).clamp_min(0))

    def mixed(self, context: Context, q: Tensor, k: Tensor, v: Tensor) -> Float[Tensor, "batch head query d_value"]:
        plain = context.looks_back and context.rule is None
        # padding hides keys and moves no position, as long as positions are counted from the first
        counted = plain and all(isinstance(term, Causal | Padding) for term in context.mask.terms)
        counted = counted and context.first == 0 and not context.makes_scores
        if counted and q.shape[-2] <= self.config.furthest + 1:
            return fused_softmax(q, k, v, self.scale, context)
        if not counted or context.biased or not is_blocked(context, q.shape[-2], k.shape[-2], self.config.window):
            return self.dense(q, k, v, q, context, None)
        return self._in_blocks(q, per_query_head(k, q), per_query_head(v, q), context)

    def _in_blocks(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        first, size, batch = self.config.first, self.config.window, len(q)
        query = in_blocks(self._earlier(q, context), size)
        blocks, rows = len(query) // batch, query.shape[-2]
        # who has one of the first tokens in the window meets it there
        place = torch.arange(blocks * rows, device=q.device).view(blocks, 1, rows, 1)
        begins = torch.arange(first, device=q.device)
        allowed = context.mask.allows(
            torch.arange(context.mask.batch, device=q.device)[:, None, None], place.clamp_max(q.shape[-2] - 1), begins
        )
        behind = ((place - begins >= size) & allowed).expand(-1, batch, -1, -1).flatten(0, 1)[:, None]
        key, value = (x[..., :first, :].repeat(blocks, 1, 1, 1) for x in (k, v))
        parts = [Part(0, query, key, value, behind)] if first else []
        at = 0
        for query, key, value, mask in window_pieces(q, k, v, context, size):
            parts.append(Part(at, query, key, value, mask))
            at += len(query)
        return joined(in_parts(parts, self.scale), batch, q.shape[-2])

    def scan(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, state: StreamingState, tape: Tape | None
    ) -> tuple[Tensor, StreamingState]:
        if self.wants_dense(tape):
            raise no_pattern(self)
        (keys, key), (values, value) = (append(old, new, self.config.window - 1) for old, new in zip(state[2:], (k, v)))
        after = StreamingState(*self._beginning(k, v, context, state), key, value)
        if k.shape[-2] == context.key_positions.shape[-1]:
            return self.parallel(q, k, v, x, context, tape), after
        first_key, key, first_value, value = (
            per_query_head(rows, q) for rows in (after.first_key, keys, after.first_value, values)
        )
        places = torch.arange(self.config.first, device=q.device)
        # who has one of the first tokens in the window meets it there
        behind = (context.positions[..., None] - places >= self.config.window)[:, None]
        q, first_key, key = _widened(q), _widened(first_key), _widened(key)
        of_first = self._of_first(q, first_key, context, places.expand(len(context.positions), -1)).masked_fill(
            ~behind, float("-inf")
        )
        near = context.allowed(q.shape[-2], keys.shape[-2], self.config.window)
        assert near is not None, "a window hides something"
        of_last = self._scores(q, key, context).masked_fill(~near, float("-inf"))
        pattern = masked_softmax(torch.cat((of_first, of_last), -1), empty_rows=not context.sees_itself)
        return pattern.to(value.dtype) @ torch.cat((first_value, value), -2), after

    def _beginning(
        self, k: Tensor, v: Tensor, context: Context, state: StreamingState
    ) -> tuple[Float[Tensor, "batch kv_head first d_head"], Float[Tensor, "batch kv_head first d_value"]]:
        """Return keys and values of the first tokens: those that are among the new ones, and what the state has."""
        places = torch.arange(self.config.first, device=k.device)[:, None]
        counted = torch.arange(1, k.shape[-2] + 1, device=k.device)
        # padding on the left stands at position 0 too, before the token that does
        found = ((context.positions[:, None] == places) * counted).amax(-1)
        new, there = (found - 1).clamp_min(0)[:, None, :, None], (found > 0)[:, None, :, None]
        first_key, first_value = (
            torch.where(there, rows.gather(-2, new.expand(*rows.shape[:2], -1, rows.shape[-1])), old)
            for rows, old in ((k, state.first_key), (v, state.first_value))
        )
        return first_key, first_value

    def begin(self, batch: int, like: Tensor) -> StreamingState:
        dims, first = self.dims, self.config.first
        return StreamingState(
            like.new_zeros(batch, dims.n_kv_heads, first, dims.d_head),
            like.new_zeros(batch, dims.n_kv_heads, first, dims.d_value),
            like.new_zeros(batch, dims.n_kv_heads, 0, dims.d_head),
            like.new_zeros(batch, dims.n_kv_heads, 0, dims.d_value),
        )


def _widened(x: Tensor) -> Tensor:
    """Return queries or keys as their products are made: large scores rounded to eight bits would say little."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
