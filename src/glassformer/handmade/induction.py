"""Induction, wired by hand: the same behaviour through K-composition and through Q-composition.

Both models complete `… A B … A` with `B`; only the wiring differs, and an analysis of composition must tell them apart.
Token 0 is `<bos>`, which stands at position 0 and nowhere else, and serves as resting place; the others are t1, t2, ….
"""

import math
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from glassformer.attention import Smeared
from glassformer.config import require
from glassformer.handmade.assemble import HeadMatrices, assemble, layout
from glassformer.models import Decoder


def induction_model(
    vocab: int = 21,
    max_len: int = 41,
    beta: float = 60.0,
    gamma: float = 30.0,
    c: float = 50.0,
    *,
    redundant: bool = False,
) -> Decoder:
    """Build the two-layer induction circuit: a previous-token head, and a head whose keys read what it wrote.

    The stream: token (V) | previous (V) | position (T) | output (V).

    L0H0 looks one position back (W_Q: position -> beta S, W_K: position -> I) and copies the token it finds there into
    the block `previous`. L1H0 compares the current token with the `previous` of every key (W_Q: token -> gamma I, W_K:
    previous -> I) and copies the token found there to the output. The key of `<bos>` is half a match for everybody:
    when nothing matches, L1H0 rests there, and the value of `<bos>` is zero. L0H1 and L1H1 are blank.

    Known in closed form, for a row of `<bos>` and different tokens, twice over:
      - L0H0's pattern is the shift, up to e^-beta; L1H0 at query q in the second copy puts
        e^gamma / (e^gamma + e^(gamma/2) + q - 1) on the token after the first copy of its own.
      - Loss: ln V in the first copy, 0 in the second, up to attention of e^-(gamma/2) that strays. With several earlier
        copies attention is shared equally, so the logits are c times the frequencies of what followed so far.
      - The logit is L1H0's alone, and wholly of order one: but without L0H0 its pattern is lost.
      - K-composition of L0H0 with L1H0 is 1 / sqrt(1.25 V), Q- and V-composition are 0. The K-composed QK circuit,
        W_E QK OV' W_E', is gamma I. The eigenvalues of L1H0's OV circuit are c (V - 1 times) and 0.

    Args:
        vocab: V, `<bos>` included.
        max_len: T.
        beta: How sharply L0H0 looks back.
        gamma: How sharply L1H0 matches; at 6 or 1 its attention is far from saturated.
        c: Size of the logits.
        redundant: Make L1H1 a second L1H0, each writing half: removing one of them changes no prediction.

    Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits" (induction heads).
    """
    place = layout(token=vocab, previous=vocab, position=max_len, output=vocab)
    d_model, d_head = 3 * vocab + max_len, max(vocab, max_len)
    token, previous, position, output = place.values()
    eye = _eye(vocab)
    looks_back = previous_token_head(d_model, d_head, position, max_len, beta, token, previous)
    match = HeadMatrices.zero(d_model, d_head)
    match.query[token, :vocab] = gamma * eye
    match.key[previous, :vocab] = eye
    # half a match on the first token: where to rest when nothing matches
    match.key[0, :vocab] = 0.5
    match.value[token, :vocab] = _without_first(vocab)
    match.output[:vocab, output] = 0.5 * eye if redundant else eye
    blank = HeadMatrices.zero(d_model, d_head)
    return assemble(
        _block(vocab, d_model, token),
        c * _block(vocab, d_model, output),
        [[looks_back, blank], [match, match if redundant else blank]],
        symbols=numbered(vocab),
        max_len=max_len,
        positions=_block(max_len, d_model, position),
    )


def pointer_model(
    vocab: int = 21, max_len: int = 41, beta: float = 60.0, gamma: float = 60.0, c: float = 50.0
) -> Decoder:
    """Build induction through a pointer: a duplicate-token head, and a head whose queries read where it pointed.

    The stream: token (V) | position (T) | pointer (T) | output (V).

    L0H0 looks at an earlier copy of the current token (W_Q: token -> gamma I, position -> -2 gamma I; W_K: token -> I,
    position -> I, so that nobody finds himself), or rests on `<bos>`; it copies the position it finds into `pointer`.
    L1H0 looks at the position after the one pointed to (W_Q: pointer -> beta times the shift by one to the right), or
    rests on `<bos>` (token -> beta/2 on position 0), and copies the token it finds to the output.

    Known in closed form, for rows in which no token stands more than twice (averaging two pointers would point
    nowhere):

      - For `<bos>` and different tokens twice over, the loss is ln V in the first copy and 0 in the second; L0H0 is a
        duplicate-token head and L1H0 an induction head by their patterns. L0H0 at query q in the second copy puts
        e^gamma / (e^gamma + e^(gamma/2) + e^-gamma + q - 2) on the first copy.
      - Q-composition of L0H0 with L1H0 is sqrt((T - 2) / ((T - 1) (T - 1 + V/4))), K- and V-composition are 0. The
        eigenvalues of L1H0's OV circuit are c (V - 1 times) and 0.

    Args:
        vocab: V, `<bos>` included.
        max_len: T.
        beta: How sharply L1H0 follows the pointer.
        gamma: How sharply L0H0 matches.
        c: Size of the logits.

    Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits" (Q-composition, pointer arithmetic).
    """
    place = layout(token=vocab, position=max_len, pointer=max_len, output=vocab)
    token, position, pointer, output = place.values()
    d_model, d_head = 2 * vocab + 2 * max_len, vocab + max_len
    first, last = slice(0, vocab), slice(vocab, d_head)
    duplicate = HeadMatrices.zero(d_model, d_head)
    duplicate.query[token, first] = gamma * _eye(vocab)
    duplicate.query[position, last] = -2 * gamma * _eye(max_len)
    duplicate.key[token, first] = _eye(vocab)
    duplicate.key[0, first] += 0.5
    duplicate.key[position, last] = _eye(max_len)
    duplicate.value[position, last] = _without_first(max_len)
    duplicate.output[last, pointer] = _eye(max_len)
    follow = HeadMatrices.zero(d_model, d_head)
    follow.query[pointer, last] = beta * torch.ones(max_len - 1, dtype=torch.float64).diag(1)
    follow.query[token, vocab] = beta / 2
    follow.key[position, last] = _eye(max_len)
    follow.value[token, first] = _without_first(vocab)
    follow.output[first, output] = _eye(vocab)
    return assemble(
        _block(vocab, d_model, token),
        c * _block(vocab, d_model, output),
        [[duplicate], [follow]],
        symbols=numbered(vocab),
        max_len=max_len,
        positions=_block(max_len, d_model, position),
    )


def smeared_induction_model(
    vocab: int = 22, max_len: int = 64, share: float = 0.01, gamma: float = 40.0, c: float = 50.0
) -> Decoder:
    """Build induction in one layer, with keys that know the token before them: each is mixed with its predecessor.

    The stream: token (V) | output (V). Nobody knows positions. L0H0 compares the current token with every key's token
    (W_Q: token -> gamma I, W_K: token -> I). As keys are almost wholly those of the token before (share s in the key
    itself, 1 - s in the one before it), it finds what followed the current token earlier, and copies it to the output.
    The key of `<bos>` is half a match for everybody, a place to rest. It smears into the next key too, so that `<gap>`
    (token 1) stands behind `<bos>` in every row, and the values of both are zero.

    Known in closed form, for `<bos> <gap>` and different tokens twice over (`repeated(…, gap=True)`): the loss is ln V
    in the first copy, 0 in the second. L0H0 at query q in the second copy has the scores gamma (1 - s) on the token
    after the first copy of its own, gamma s on that copy and on itself, gamma/2 on `<bos>` and (1 - s) gamma/2 on
    `<gap>`. With s = 1 it finds its own token instead, and the loss in the second copy is c.

    Args:
        vocab: V, `<bos>` and `<gap>` included.
        max_len: Longest context.
        share: s, above 0 and at most 1, where keys are not mixed; matches outdo the resting place below 1/2.
        gamma: How sharply it matches.
        c: Size of the logits.

    Source: Olsson et al. 2022, "In-context Learning and Induction Heads", argument 2 (smeared keys).
    """
    require(0 < share <= 1, f"smeared_induction_model: share={share} must be above 0 and at most 1.")
    token, output = layout(token=vocab, output=vocab).values()
    eye = _eye(vocab)
    head = HeadMatrices.zero(2 * vocab, vocab)
    head.query[token] = gamma * eye
    head.key[token] = eye
    head.key[0] = 0.5
    head.value[token] = eye
    head.value[:2] = 0
    head.output[:, output] = eye
    model = assemble(
        _block(vocab, 2 * vocab, token),
        c * _block(vocab, 2 * vocab, output),
        [[head]],
        symbols=["<bos>", "<gap>", *numbered(vocab)[2:]],
        max_len=max_len,
        projection=Smeared(),
    )
    attn: Any = model.stack.blocks[0].attn
    with torch.no_grad():
        # the share is a sigmoid, which is 1 at no finite number, but in float64 from 40 on
        attn.projection.smear.alpha.fill_(math.log(share / (1 - share)) if share < 1 else 60.0)
    return model


def repeated(
    vocab: int = 21, repeats: int = 2, seed: int = 0, batch: int = 1, *, gap: bool = False
) -> Int[Tensor, "batch pos"]:
    """Rows of token 0 (with `gap`, tokens 0 and 1), then all other tokens in random order, several times over."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.arange(1 + gap).expand(batch, -1)
    units = [1 + gap + torch.randperm(vocab - 1 - gap, generator=generator) for _ in range(batch)]
    return torch.cat((first, torch.stack(units).repeat(1, repeats)), 1)


def previous_token_head(
    d_model: int, d_head: int, position: slice, max_len: int, beta: float, read: slice, write: slice
) -> HeadMatrices:
    """Return a head that looks one position back and copies one block of the stream there into another here."""
    size = read.stop - read.start
    shift = torch.ones(max_len - 1, dtype=torch.float64).diag(-1)
    shift[0, 0] = 1
    head = HeadMatrices.zero(d_model, d_head)
    head.query[position, :max_len] = beta * shift
    head.key[position, :max_len] = _eye(max_len)
    head.value[read, :size] = _eye(size)
    head.output[:size, write] = _eye(size)
    return head


def numbered(vocab: int) -> list[str]:
    """Return `<bos>`, t1, t2, …"""
    return ["<bos>", *(f"t{i}" for i in range(1, vocab))]


def _eye(n: int) -> Tensor:
    return torch.eye(n, dtype=torch.float64)


def _without_first(n: int) -> Tensor:
    eye = _eye(n)
    eye[0] = 0
    return eye


def _block(rows: int, d_model: int, place: slice) -> Tensor:
    """Return one row per token or position, with its own coordinate of the block set."""
    matrix = torch.zeros(rows, d_model, dtype=torch.float64)
    matrix[:, place] = _eye(rows)
    return matrix
