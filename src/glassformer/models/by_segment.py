"""A text read segment by segment, where what one segment reads depends on what those before it have left.

A segment is so many positions of a text, counted from where it begins, so that how a text is cut into passes changes
nothing. The new positions of a pass are gone through in pieces, none of which reaches into a second segment of any row.

Within a segment each token has a read before it: a vector that was found for it elsewhere. Both stand in a row, read
and token by turns; what attends along that row meets each segment as a text of its own.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from glassformer.attention import Context, causal, documents
from glassformer.attention.kernels.chunk_layout import text_positions
from glassformer.trace import Tape


def pieces(context: Context, n: int, segment: int, name: str) -> list[tuple[int, int]]:
    """Return from where to where the last positions of a pass are gone through.

    Args:
        context: Facts of the pass.
        n: How many positions are new.
        segment: Positions of a segment.
        name: What asks, for errors.
    """
    if context.first is not None and context.documents is None:
        cuts = range((-context.first) % segment, n, segment)
    elif torch.compiler.is_compiling():
        # a graph is the same for all rows
        cuts = range(n)
    else:
        begins, real = text_positions(context, n) % segment == 0, context.real_keys(n, name)
        cuts = (begins if real is None else begins & real).any(0).nonzero()[:, 0].tolist()
    return list(pairwise(sorted({0, *cuts, n})))


def beside_reads(context: Context, n: int, segment: int, name: str) -> tuple[Context, int]:
    """Return the context of reads and tokens by turns, and how many of the last rows of earlier ones it counts.

    Args:
        context: Facts of a pass whose positions are of one segment in each row.
        n: How many positions are new.
        segment: Positions of a segment.
        name: What asks, for errors.
    """
    if context.first is not None and context.documents is None:
        earlier, device = context.first % segment, context.positions.device
        # padding on the right lies behind what may be seen
        at = torch.arange(2 * (earlier + n), device=device)[None]
        return _of_text(context, at, 2 * earlier), 2 * earlier
    if ("beside reads", segment) not in context.memo:
        context.memo["beside reads", segment] = _of_rows(context, n, segment, name)
    return context.memo["beside reads", segment], 2 * (segment - 1)


def _of_text(context: Context, at: Tensor, first: int) -> Context:
    return Context(causal(), at[:, first:], at, seed=context.seed, drops=context.drops, first=first)


def _of_rows(context: Context, n: int, segment: int, name: str) -> Context:
    """Return the context where rows are in different places of their segments: a segment is a document."""
    batch, total = len(context.key_positions), context.key_positions.shape[-1]
    real = context.real_keys(total, name)
    batch = batch if real is None else max(batch, len(real))
    at = context.key_positions.expand(batch, -1)
    ids = at // segment
    if (packed := context.documents) is not None:
        ids = ids + packed.number[:, :total] * (total + 1)
    ids = ids if real is None else ids.masked_fill(~real, -1)
    kept, lacking = segment - 1 + n, max(segment - 1 + n - total, 0)
    at, ids = (F.pad(x[:, -kept:], (lacking, 0), value=value) for x, value in ((at % segment, 0), (ids, -1)))
    both = torch.stack((2 * at, 2 * at + 1), -1).flatten(-2)
    mask = causal() & documents(ids.repeat_interleave(2, -1))
    return Context(mask, both[:, -2 * n :], both, seed=context.seed, drops=context.drops)


def by_turns(
    reads: Float[Tensor, "batch pos d_model"], tokens: Float[Tensor, "batch pos d_model"]
) -> Float[Tensor, "batch both d_model"]:
    """Return reads and tokens in a row, each read before its token."""
    return torch.stack((reads, tokens), 2).flatten(1, 2)


class Pieces(Tape):
    """A tape for pieces of a pass: it reads what that of the pass wants, for it to be told when all are through.

    Args:
        tape: That of the pass.
        names: Sites that are visited in pieces.
    """

    def __init__(self, tape: Tape, names: Iterable[str]) -> None:
        self.found: dict[str, list[Tensor]] = {name: [] for name in names if tape.wants(name)}
        self.wanted, self.edits, self.table = set(self.found), {}, tape.table

    def visit(self, name: str, value: Tensor) -> Tensor:
        if name in self.found:
            self.found[name].append(value)
        return value


def along(axes: Sequence[str]) -> int:
    """Return which of a site's axes counts positions, from the right."""
    return next(i for i, axis in enumerate(axes) if axis in ("pos", "query", "key")) - len(axes)


def at_tokens(values: Tensor, axis: int) -> Tensor:
    """Return values of reads and tokens by turns at tokens alone; the axis is counted from the right."""
    return values.unflatten(axis, (-1, 2)).select(axis, 1)


def placed(
    patterns: list[Tensor], spans: list[tuple[int, int]], before: int
) -> Float[Tensor, "batch 2 head query key"]:
    """Return the weights that the tokens of all pieces have for tokens and for reads, of the keys of a whole pass.

    Args:
        patterns: Of each piece, `batch head both both`; keys are those up to its last.
        spans: From where to where each piece goes.
        before: How many keys of earlier passes are columns too.
    """
    rows: list[Any] = []
    for pattern, (_, stop) in zip(patterns, spans, strict=True):
        by_kind = pattern[..., 1::2, :].unflatten(-1, (-1, 2)).movedim(-1, 1).flip(1)
        lacking = before + stop - by_kind.shape[-1]
        rows.append(F.pad(by_kind, (lacking, spans[-1][1] - stop)))
    return torch.cat(rows, -2)
