"""Linear attention whose memory decays by channel and position, with a weight of its own for what is written now.

    z_t = S_{t-1}' r_t + (r_t . (u * k_t)) v_t,   S_t = diag(w_t) S_{t-1} + k_t v_t',   0 <= w <= 1

A position reads before its own decay: what s wrote stands at t multiplied by w_{s+1} * ... * w_{t-1}. Inside a chunk
the weights of all pairs are made by halves. Two neighbouring blocks of m rows meet at the point between them: rows of
the second have decayed from there, rows of the first up to there, so their m x m weights are one product,

    (r_t * w_mid * ... * w_{t-1}) . (k_s * w_{s+1} * ... * w_{mid-1})

and the block of both has its rows and keys times what the other half keeps. Nothing is divided, no exponent is a
difference, and no factor is above one: a quotient of running products would overflow where a channel forgets at once.
What is left of rows and keys after the last halving is what they are to the memory.
Source: Peng et al. 2024, "Eagle and Finch" (2404.05892), for the recurrence; Yang et al. 2023, "Gated Linear Attention"
(2312.06635), section 4.3, for chunks within chunks, whose reference points are those of two halves here.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.attention.kernels.chunked import spans


def channel_decay_chunks(
    r: Float[Tensor, "batch head pos d_head"],
    k: Float[Tensor, "batch head pos d_head"],
    v: Float[Tensor, "batch head pos d_value"],
    log_keep: Float[Tensor, "batch head pos d_head"],
    bonus: Float[Tensor, "head d_head"],
    memory: Float[Tensor, "batch head d_head d_value"],
    size: int = 32,
    documents: Int[Tensor, "b pos_and_one"] | None = None,
) -> tuple[Float[Tensor, "batch head pos d_value"], Float[Tensor, "batch head d_head d_value"]]:
    """Return what positions read, each with its own write times the bonus, and the memory after the last.

    Args:
        r: What reads.
        k: Keys.
        v: Values.
        log_keep: Logarithm of what each channel keeps of the memory at each position; not positive.
        bonus: What a position's own key is multiplied by, in place of a decay.
        memory: What it holds before the first.
        size: Positions in a chunk, a power of two.
        documents: Which document the memory is of, and each position after it: a position knows its own alone. None if
            all is one.
    """
    keep, own = log_keep.exp(), (r * k * bonus[:, None]).sum(-1, keepdim=True) * v
    if r.shape[-2] == 1:
        if documents is not None:
            memory = memory * (documents[:, 0] == documents[:, 1])[:, None, None, None]
        return own + r @ memory, torch.addcmul(k.mT @ v, keep.mT, memory)
    pieces = []
    for start, stop, length in spans(r.shape[-2], size):
        among = None if documents is None else documents[:, start : stop + 1]
        short = power_of_two(length) - length
        rows = [x[..., start:stop, :].unflatten(-2, (-1, length)) for x in (r, k, v, keep)]
        if short:
            # rows of zeros that keep all change nothing
            rows = [F.pad(x, (0, 0, 0, short), value=float(x is rows[3])) for x in rows]
            among = None if among is None else torch.cat((among, among[:, -1:].expand(-1, short)), -1)
        z, memory = _chunks(rows[0], rows[1], rows[2], rows[3], memory, among)
        pieces.append(z[..., :length, :].flatten(-3, -2))
    return own + (torch.cat(pieces, -2) if len(pieces) > 1 else pieces[0]), memory


def channel_decay_pattern(
    r: Float[Tensor, "batch head pos d_head"],
    k: Float[Tensor, "batch head pos d_head"],
    log_keep: Float[Tensor, "batch head pos d_head"],
    bonus: Float[Tensor, "head d_head"],
    allowed: Bool[Tensor, "b h query key"] | None = None,
) -> Float[Tensor, "batch head query key"]:
    """Return the matrix that multiplies values, from an empty memory: the whole text as one chunk.

    Args:
        r: What reads.
        k: Keys.
        log_keep: As in `channel_decay_chunks`.
        bonus: As in `channel_decay_chunks`.
        allowed: Which positions know of each other, beside that none knows of a later one.
    """
    n = r.shape[-2]
    rows = [F.pad(x, (0, 0, 0, power_of_two(n) - n)) for x in (r, k, log_keep.exp())]
    weights = _halves(*rows).weights[..., :n, :n] + (r * k * bonus[:, None]).sum(-1).diag_embed()
    return weights if allowed is None else weights * allowed


def channel_decay_flops(n: int, d_head: int, d_value: int, size: int = 32) -> int:
    """Return the floating-point operations of the products of `channel_decay_chunks` for one head."""
    if n == 1:
        return 4 * d_head * d_value
    short = n % size
    total = (n - short) // size * _chunk_flops(size, d_head, d_value)
    return total + (_chunk_flops(power_of_two(short), d_head, d_value) if short else 0)


def power_of_two(n: int) -> int:
    """Return the smallest power of two that is not below a number."""
    return 1 << (n - 1).bit_length()


def _chunk_flops(size: int, d_head: int, d_value: int) -> int:
    # halves of two are multiplied element by element; then weights with values, and both products with the memory
    return size * (size - 2) * d_head + 2 * size * size * d_value + 4 * size * d_head * d_value


class _Halved(NamedTuple):
    """Rows of chunks to each other, to the memory before them, and to the one behind them.

    `read` is what rows read the memory with, `write` what they write into the one behind, `keep` what that keeps.
    """

    weights: Float[Tensor, "batch head *chunk row row"]
    read: Float[Tensor, "batch head *chunk row d_head"]
    write: Float[Tensor, "batch head *chunk row d_head"]
    keep: Float[Tensor, "batch head *chunk 1 d_head"]


def _halves(r: Tensor, k: Tensor, keep: Tensor) -> _Halved:
    """Return the weights of rows, a power of two of them, for earlier ones: zeros on the diagonal and above."""
    # batch head chunk block row d_head, blocks of one row at first
    r, k, keep = (x.unsqueeze(-2) for x in (r, k, keep))
    weights = r.new_zeros(*r.shape[:-1], 1)
    while r.shape[-3] > 1:
        (r_first, r_second), (k_first, k_second), (keep_first, keep_second), (first, second) = (
            x.unflatten(-3, (-1, 2)).unbind(-3) for x in (r, k, keep, weights)
        )
        alone = r.shape[-2] == 1
        across = (r_second * k_first).sum(-1, keepdim=True) if alone else r_second @ k_first.mT
        r = torch.cat((r_first, r_second * keep_first), -2)
        k = torch.cat((k_first * keep_second, k_second), -2)
        keep = keep_first * keep_second
        upper, lower = torch.cat((first, torch.zeros_like(first)), -1), torch.cat((across, second), -1)
        weights = torch.cat((upper, lower), -2)
    return _Halved(*(x.squeeze(-3) for x in (weights, r, k, keep)))


def _chunks(
    r: Tensor, k: Tensor, v: Tensor, keep: Tensor, memory: Tensor, documents: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Mix rows that come as batch head chunk row width."""
    weights, r, k, over = _halves(r, k, keep)
    if documents is not None:
        own = documents[:, 1:].unflatten(-1, (-1, r.shape[-2]))[:, None, :, :, None]
        before, last = documents[:, : -1 : r.shape[-2]][:, None, :, None, None], own[..., -1:, :]
        weights, r, k, over = weights * (own == own.mT), r * (own == before), k * (own == last), over * (before == last)
    writes, held = k.mT @ v, []
    for write, kept in zip(writes.unbind(2), over.mT.unbind(2), strict=True):
        held.append(memory)
        memory = torch.addcmul(write, kept, memory)
    return weights @ v + r @ torch.stack(held, 2), memory
