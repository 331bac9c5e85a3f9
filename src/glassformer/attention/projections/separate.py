"""One linear map each for queries, keys and values, of the stream itself or of another stack's output.

One `nn.Linear` holds W_Q, W_K and W_V below each other (rows: head-major, then stream, then d_head), so the usual
forward pass is one matmul and per-head matrices are views.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.arguments import Count, Positive
from glassformer.attention.linear_map import LinearMap, linear
from glassformer.attention.mixer import Dims, Traits
from glassformer.attention.projections.projection import (
    READ_SCORES,
    TAKE_VALUES,
    Departure,
    Made,
    Of,
    Projected,
    Projection,
    ProjectionConfig,
    ProjectionInputs,
    Which,
)
from glassformer.attention.projections.query_key_norm import HeadNorm, QueryKeyNorm
from glassformer.config import UNSAID, require

# numbers of all queries, keys and values of one position
Widths = tuple[int, int, int]


@dataclass(frozen=True)
class Separate(ProjectionConfig, kind="separate"):
    """One linear map each; with fewer key/value heads than query heads the latter share them in groups (GQA, MQA).

    The other way round, `groups` of neighbouring heads share queries and keys, and each has values of its own: grouped
    values, as state spaces have them.

    Args:
        bias: Biases on all three.
        qk_norm: Norm of queries and keys; True for the root mean square of each head, with shared gains.
        clip: Every coordinate of queries, keys and values is cut off at this size, before any norm.
        groups: How many queries and keys there are, each for a group of neighbouring heads; None for one of each head.
    """

    bias: bool = False
    qk_norm: QueryKeyNorm | bool = False
    clip: Positive | None = None
    groups: Count | None = field(default=None, metadata={UNSAID: True})

    def __post_init__(self) -> None:
        if self.qk_norm is True:
            # one config for one projection, however it was asked for
            object.__setattr__(self, "qk_norm", QueryKeyNorm())

    def build(self, dims: Dims, traits: Traits, cross: bool) -> "SeparateProjection":
        return (SourceProjection if cross else SeparateProjection)(self, dims, traits)

    def free(self) -> "Separate":
        return self.replace(bias=True, groups=None)

    def joined(self, dims: Dims, widths: Widths) -> Any:
        """Return W_Q, W_K and W_V below each other, as one map of so many rows each."""
        return JoinedMap(dims.d_model, widths, self.bias)

    def multiplied(self, across: bool) -> tuple[bool, bool, bool]:
        """Return whether queries, keys and values each take a product with a matrix.

        Args:
            across: Keys and values are made of another stack's output.
        """
        return True, True, True


class JoinedMap(LinearMap):
    """Three linear maps of one vector, their rows below each other."""

    def __init__(self, d_in: int, widths: Widths, bias: bool) -> None:
        super().__init__(d_in, sum(widths), bias=bias)
        self.widths = widths

    def part(self, x: Float[Tensor, "*batch d_in"], first: int, last: int) -> Float[Tensor, "*batch d_out"]:
        """Return what the maps from the first up to before the last make of rows, side by side."""
        rows = slice(sum(self.widths[:first]), sum(self.widths[:last]))
        return linear(x, self.weight[rows], None if self.bias is None else self.bias[rows])

    def named_rows(self) -> Iterator[tuple[str, range]]:
        first = 0
        for name, width in zip(("query", "key", "value"), self.widths):
            if width:
                yield name, range(first, first + width)
            first += width

    @property
    def reads(self) -> list[nn.Linear]:
        """The maps that read the vector: this one."""
        return [self]

    def own_parameters(self) -> Iterator[tuple[str, int]]:
        """Yield (part, number), each parameter once."""
        yield from zip(("query", "key", "value"), (width * self.in_features for width in self.widths))
        yield "biases", 0 if self.bias is None else self.bias.numel()


class SeparateProjection(Projection):
    def __init__(self, config: Separate, dims: Dims, traits: Traits) -> None:
        super().__init__()
        self.set_sizes(dims, traits, config.groups)
        self.qkv = config.joined(dims, self.widths)
        self.multiplied = config.multiplied(across=self.stores_keys)
        self.clip, norm = config.clip, config.qk_norm
        self.norms = (
            norm.build(dims.n_heads, dims.n_kv_heads, dims.d_head, traits.streams)
            if isinstance(norm, QueryKeyNorm)
            else None
        )

    def set_sizes(self, dims: Dims, traits: Traits, groups: int | None = None) -> None:
        """Say how many queries, keys and values there are, and how wide all of each are together."""
        require(
            groups is None or (dims.n_heads == dims.n_kv_heads and dims.n_heads % groups == 0),
            f"attention: groups={groups} of heads share queries and keys, and each head has its own values; found "
            f"n_heads={dims.n_heads}, n_kv_heads={dims.n_kv_heads}. Use a divisor, and leave n_kv_heads out.",
        )
        self.dims, self.streams, self.value_streams = dims, traits.streams, traits.value_streams
        # queries, keys and values that are made
        self.made = groups or dims.n_heads, groups or dims.n_kv_heads, dims.n_kv_heads
        self.widths = (
            self.made[0] * traits.streams * dims.d_head,
            self.made[1] * traits.streams * dims.d_head,
            self.made[2] * traits.value_streams * dims.d_value,
        )

    def rows_by_part(self, parts: int) -> Int[Tensor, " row"]:
        """Return the rows of W_Q, W_K and W_V in another order: those of one part of the heads before the next part's.

        Args:
            parts: How many, each of as many neighbouring key heads and the query heads that read them.
        """
        of_each = [rows.chunk(parts) for rows in torch.arange(sum(self.widths)).split(self.widths)]
        return torch.cat([rows[part] for part in range(parts) for rows in of_each])

    def forward(self, inputs: ProjectionInputs, kept: Any = None) -> tuple[Projected, Any]:
        made, kept = self.before_rotation(self.heads(inputs.query, inputs.key, inputs.value), inputs, kept)
        return self.placed(made, inputs), kept

    def heads(self, x_q: Tensor, x_k: Tensor, x_v: Tensor) -> Made:
        """Return queries, keys and values as they are made, each from its own position, before any norm."""
        if x_q is x_k is x_v:
            joined = self.qkv(x_q)
            q, k, v = self.bent(joined).split(self.widths, -1)
        elif x_q is x_k:
            q, k = self._part(x_q, 0, 2).split(self.widths[:2], -1)
            v = self._part(x_v, 2, 3)
        elif x_k is x_v:
            q = self._part(x_q, 0, 1)
            k, v = self._part(x_k, 1, 3).split(self.widths[1:], -1)
        else:
            q, k, v = (self._part(x, i, i + 1) for i, x in enumerate((x_q, x_k, x_v)))
        q, k = heads_of(q, self.made[0], self.streams), heads_of(k, self.made[1], self.streams)
        return q, k, heads_of(v, self.made[2], self.value_streams)

    def by_head(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys, those that a group has in common at each of its heads."""
        return repeated(q, self.dims.n_heads, -3), repeated(k, self.dims.n_kv_heads, -3)

    def before_rotation(self, made: Made, inputs: ProjectionInputs, kept: Any = None) -> tuple[Projected, Any]:
        """Return heads as positions find them: behind their norms, and mixed along a text by kinds that do that.

        Args:
            made: Queries, keys and values, as `heads` makes them or by head.
            inputs: As in `forward`.
            kept: As in `forward`.
        """
        q, k, v = made
        return inputs.with_own(*self.normed(*self.by_head(q, k)), v), None

    def placed(self, made: Projected, inputs: ProjectionInputs) -> Projected:
        """Return heads with queries and keys turned as positions turn those that are written."""
        q, k, v = made
        return (*inputs.positions.written(q, k, inputs.context), v)

    def of_heads(
        self, which: Which, x: Float[Tensor, "copy batch pos d_model"], heads: Int[Tensor, " copy"]
    ) -> Float[Tensor, "batch *stream copy pos d_head"]:
        norm = self.norm_of(which)
        if norm is not None and norm.couples_heads:
            # the scale is of all heads
            return super().of_heads(which, x, heads)
        y = self.projected(which, x, heads)
        return y if norm is None else norm(y, heads)

    def norm_of(self, which: Which) -> HeadNorm | None:
        if which == "value" or self.norms is None:
            return None
        norm = self.norms[("query", "key").index(which)]
        return norm if isinstance(norm, HeadNorm) else None

    def by_position(self, x_q: Tensor, x_k: Tensor, x_v: Tensor) -> Projected:
        q, k, v = self.heads(x_q, x_k, x_v)
        return (*self.normed(*self.by_head(q, k)), v)

    def projected(
        self, which: Which, x: Float[Tensor, "copy batch pos d_model"], heads: Int[Tensor, " copy"]
    ) -> Float[Tensor, "batch *stream copy pos d_head"]:
        """Return what the matrices of some heads make of a stream each, before any norm."""
        y, bias = torch.einsum("cbpd,cde->bcpe", x, self.matrix(which)[heads]), self.bias(which)
        y = y if bias is None else y + bias[heads][:, None]
        y, streams = self.bent(y), self.value_streams if which == "value" else self.streams
        return y if streams == 1 else y.unflatten(-1, (streams, -1)).permute(0, 3, 1, 2, 4)

    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys behind their norms, if there are any."""
        return (q, k) if self.norms is None else (self.norms[0](q), self.norms[1](k))

    @property
    def reads(self) -> list[nn.Linear]:
        return self.qkv.reads

    def departs(self, of: Of, value: int | None = None) -> Departure | None:
        if self.clip is not None:
            what = "values" if of == "values" else "queries and keys"
            how = f"cuts its {what} off at {self.clip:g} (clip)"
            if of == "values":
                return Departure(how, "no matrix says what a head moves", TAKE_VALUES)
            return Departure(how, "its scores are not bilinear", READ_SCORES)
        return None

    def bent(self, x: Tensor) -> Tensor:
        """Return projected vectors with what is done to each coordinate by itself: cut off where the config says so."""
        return x if self.clip is None else x.clamp(-self.clip, self.clip)

    def matrix(self, which: Literal["query", "key", "value"]) -> Float[Tensor, "head d_model d_head"]:
        """Return per-head matrices (row-vector convention), streams following their head.

        They are views on the parameter, unless heads share them.
        """
        i = ("query", "key", "value").index(which)
        rows = self.qkv.weight.split(self.widths)[i].unflatten(0, (self.made[i], -1))
        return repeated(rows, self.dims.n_heads if i == 0 else self.dims.n_kv_heads, 0).mT

    def bias(self, which: Literal["query", "key", "value"]) -> Float[Tensor, "head d_head"] | None:
        """Return per-head biases, streams following their head; None without any."""
        if self.qkv.bias is None:
            return None
        i = ("query", "key", "value").index(which)
        rows = self.qkv.bias.split(self.widths)[i].unflatten(0, (self.made[i], -1))
        return repeated(rows, self.dims.n_heads if i == 0 else self.dims.n_kv_heads, 0)

    def own_parameters(self) -> Iterator[tuple[str, int]]:
        yield from self.qkv.own_parameters()

    def flops(self, n_queries: int, n_keys: int) -> dict[str, int]:
        parts = zip(("query", "key", "value"), (n_queries, n_keys, n_keys), self.widths, self.multiplied)
        return {part: 2 * n * self.dims.d_model * width * multiplied for part, n, width, multiplied in parts}

    def _part(self, x: Tensor, first: int, last: int) -> Tensor:
        return self.bent(self.qkv.part(x, first, last))


class SourceState(NamedTuple):
    """Keys (as they were written) and values of another stack's output; both None before the first step."""

    key: Float[Tensor, "batch *stream kv_head key d_head"] | None = None
    value: Float[Tensor, "batch *value_stream kv_head key d_value"] | None = None


class SourceProjection(SeparateProjection):
    """Queries of the stream, keys and values of another stack's output, which a state holds once they are made."""

    stores_keys = True

    def forward(self, inputs: ProjectionInputs, kept: Any = None) -> tuple[Projected, Any]:
        if kept is None or kept.key is None:
            (q, k, v), _ = super().forward(inputs)
            # as they are before any edit: the next step visits the same keys again, and would edit them twice
            return (q, k, v), None if kept is None else SourceState(k, v)
        q = repeated(heads_of(self._part(inputs.query, 0, 1), self.made[0], self.streams), self.dims.n_heads, -3)
        q = q if self.norms is None else self.norms[0](q)
        q = q if inputs.own is None else inputs.own("query", q)
        q, _ = inputs.positions.rotate(q, None, inputs.context)
        return (q, kept.key, kept.value), kept

    def begin(self, batch: int, like: Tensor) -> SourceState:
        return SourceState()

    def state_numbers(self, length: int, source_length: int) -> int:
        key = self.dims.n_kv_heads * self.streams * self.dims.d_head
        return source_length * (key + self.widths[2]) if length else 0


def repeated(each: Tensor, heads: int, axis: int) -> Tensor:
    """Return what neighbouring heads share at each of them; as it is if they share nothing."""
    return each if each.shape[axis] == heads else each.repeat_interleave(heads // each.shape[axis], axis)


def heads_of(x: Tensor, heads: int, streams: int) -> Float[Tensor, "batch *stream head pos width"]:
    """Return projected rows by head; the streams of a head lie side by side in a row."""
    if streams == 1:
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)
    # the streams of a head lie side by side, so a group of query heads shares all of its key streams
    return x.unflatten(-1, (heads, streams, -1)).permute(0, 3, 2, 1, 4)
