"""The delta rule in chunks: a memory whose every write replaces what it holds for a key, in linear time.

    S <- keep_t S,    u_t = beta_t (v_t - S' k_t),    S <- S + k_t u_t',    z_t = S' q_t

Inside a chunk the u solve a triangular system. With B = diag(beta), g_t the logarithm of keep_t, G its running sum and
Gamma_ts = exp(G_t - G_s) where s <= t, else 0:

    (I + tril(B (K K' * Gamma), -1)) [U W] = B [V  exp(G) K]            the WY form
    U~ = U - W S,   Z = exp(G) Q S + (Q K' * Gamma) U~,   S <- exp(G_end) S + (exp(G_end - G) K)' U~

Only the last line goes from chunk to chunk. `kernels.decay` has the powers, and lets the memory go where a document
begins.
Source: Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule over Sequence Length" (2406.06484),
section 3; Yang, Kautz, Hatamizadeh 2024, "Gated Delta Networks" (2412.06464), section 3.3.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.attention.kernels.chunked import by_span, spans
from glassformer.attention.kernels.decay import gates_decay
from glassformer.numerics.decompositions import unit_lower_solution


def delta_chunks(
    q: Float[Tensor, "batch head pos d_head"],
    k: Float[Tensor, "batch head pos d_head"],
    v: Float[Tensor, "batch head pos d_value"],
    beta: Float[Tensor, "batch head pos"],
    log_keep: Float[Tensor, "batch head pos"] | None,
    memory: Float[Tensor, "batch head d_head d_value"],
    size: int = 64,
    documents: Int[Tensor, "b pos_and_one"] | None = None,
) -> tuple[Float[Tensor, "batch head pos d_value"], Float[Tensor, "batch head d_head d_value"]]:
    """Return what positions read, each after its own write, and the memory after the last.

    Args:
        q: Queries.
        k: Keys; with beta k . k above 2 the recurrence grows without bound.
        v: Values.
        beta: Share of what is held for a key that a write replaces; 0 leaves the memory as it is.
        log_keep: Logarithm of what stays of the memory at each position, before its write; not positive. None: all.
        memory: What it holds before the first.
        size: Positions in a chunk.
        documents: Which document the memory is of, and each position after it: a position knows its own alone. None if
            all is one.
    """
    if q.shape[-2] == 1:
        return _step(q, k, v, beta, log_keep, memory, documents)
    pieces, found = [], spans(q.shape[-2], size)
    gates = [None] * len(found) if log_keep is None else by_span(log_keep, found, -1)
    rows = zip(found, *(by_span(x, found) for x in (q, k, v)), by_span(beta, found, -1), gates, strict=True)
    for (start, stop, _), q_span, k_span, v_span, share, gate in rows:
        own = None if documents is None else documents[:, start : stop + 1]
        z, memory = _chunks(q_span, k_span, v_span, share, gate, memory, own)
        pieces.append(z.flatten(-3, -2))
    return torch.cat(pieces, -2) if len(pieces) > 1 else pieces[0], memory


def delta_flops(n: int, d_head: int, d_value: int, size: int = 64) -> int:
    """Return the floating-point operations of `delta_chunks` for one head; a triangular system is half a product."""
    if n == 1:
        return 6 * d_head * d_value
    short = n % size
    pairs = (n - short) * size + short * short
    return pairs * (4 * d_head + d_head + d_value + 2 * d_value) + 6 * n * d_head * d_value


def delta_pattern(
    q: Float[Tensor, "batch head pos d_head"],
    k: Float[Tensor, "batch head pos d_head"],
    beta: Float[Tensor, "batch head pos"],
    log_keep: Float[Tensor, "batch head pos"] | None,
    allowed: Bool[Tensor, "b h query key"] | None = None,
) -> Float[Tensor, "batch head query key"]:
    """Return the matrix that multiplies values, from an empty memory: the whole text as one chunk.

    (Q K' * Gamma) (I + tril(B (K K' * Gamma), -1))^-1 B

    Args:
        q: Queries.
        k: Keys.
        beta: As in `delta_chunks`.
        log_keep: As in `delta_chunks`.
        allowed: Which positions know of each other, beside that no position knows of a later one.
    """
    decay = gates_decay(None if log_keep is None else log_keep[:, :, None], None, q[:, :, None])
    among_keys, seen = (products.tril() for products in (beta[..., None] * k @ k.mT, q @ k.mT))
    if decay is not None:
        among_keys, seen = among_keys * decay.between[:, :, 0], seen * decay.between[:, :, 0]
    if allowed is not None:
        among_keys, seen = among_keys * allowed, seen * allowed
    read = unit_lower_solution(among_keys, seen, left=False)
    return read * beta[..., None, :]


def _chunks(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_keep: Tensor | None, memory: Tensor, documents: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Mix rows that come as batch head chunk row width."""
    decay = gates_decay(log_keep, documents, q)
    # what lies on and above the diagonal is not read
    among_keys = beta[..., None] * (k @ k.mT)
    among_keys = among_keys if decay is None else decay.within(among_keys)
    same = torch.eye(q.shape[-2], dtype=q.dtype, device=q.device).expand_as(among_keys)
    inverse = unit_lower_solution(among_keys, same) * beta[..., None, :]
    seen = (q @ k.mT).tril() if decay is None else decay.within(q @ k.mT)
    # what is row by row has fewer columns than keys have
    known = (inverse if decay is None else inverse * decay.from_start.mT) @ k
    k = k if decay is None else decay.to_end * k
    u, w, k, memory = (x.flatten(0, 1) for x in (inverse @ v, known, k, memory))
    over = None if decay is None else decay.over.expand(*q.shape[:3], 1, 1).flatten(0, 1)
    before, replaced = [], []
    for i, (u_c, w_c, k_c) in enumerate(zip(u.unbind(1), w.unbind(1), k.mT.unbind(1), strict=True)):
        before.append(memory)
        replaced.append(torch.baddbmm(u_c, w_c, memory, alpha=-1))
        memory = torch.baddbmm(memory if over is None else over[:, i] * memory, k_c, replaced[-1])
    replaced_all, before_all = (torch.stack(x, 1).unflatten(0, q.shape[:2]) for x in (replaced, before))
    own, earlier = seen @ replaced_all, q @ before_all
    z = own + earlier if decay is None else torch.addcmul(own, decay.from_start, earlier)
    return z, memory.unflatten(0, q.shape[:2])


def _step(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_keep: Tensor | None, memory: Tensor, documents: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Mix one position: the equation as it stands."""
    if log_keep is not None:
        memory = log_keep[..., None].exp() * memory
    if documents is not None:
        memory = memory * (documents[:, 0] == documents[:, 1])[:, None, None, None]
    memory = memory + k.mT @ (beta[..., None] * (v - k @ memory))
    return q @ memory, memory
