"""Heads that go by position alone: a virtual head made of two, and a rotary one."""

import torch

from glassformer.attention import Rope
from glassformer.config import require
from glassformer.handmade.assemble import HeadMatrices, assemble, layout
from glassformer.handmade.induction import numbered, previous_token_head
from glassformer.models import Decoder


def virtual_head_model(vocab: int = 10, max_len: int = 24, beta: float = 60.0, c: float = 30.0) -> Decoder:
    """Build two previous-token heads in a row, which act as one head that looks two back.

    The stream: token (V) | previous (V) | position (T) | output (V). L0H0 copies the token one back into `previous`;
    L1H0 copies the `previous` of one back to the output.

    Known in closed form: from position 2 on, the logits are c for the token two back and 0 for all others (up to
    e^-beta); the product of the two patterns has all its weight on offset 2. Paths of order zero and one give no logits
    at all, the virtual head gives everything. V-composition is 1 / sqrt(V), Q- and K-composition are 0; the composed OV
    circuit W_E OV OV' W_U is c I.

    Args:
        vocab: V, `<bos>` included.
        max_len: T.
        beta: How sharply both look back.
        c: Size of the logits.

    Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits" (virtual attention heads).
    """
    token, previous, position, output = layout(token=vocab, previous=vocab, position=max_len, output=vocab).values()
    d_model, d_head = 3 * vocab + max_len, max(vocab, max_len)
    embed, unembed = (torch.zeros(vocab, d_model, dtype=torch.float64) for _ in range(2))
    embed[:, token] = torch.eye(vocab, dtype=torch.float64)
    unembed[:, output] = c * torch.eye(vocab, dtype=torch.float64)
    positions = torch.zeros(max_len, d_model, dtype=torch.float64)
    positions[:, position] = torch.eye(max_len, dtype=torch.float64)
    layers = [
        [previous_token_head(d_model, d_head, position, max_len, beta, read, write)]
        for read, write in ((token, previous), (previous, output))
    ]
    return assemble(embed, unembed, layers, symbols=numbered(vocab), max_len=max_len, positions=positions)


def rope_model(
    vocab: int = 21,
    max_len: int = 128,
    *,
    offset: int = 1,
    gain: float = 60.0,
    n_pairs: int = 4,
    d_head: int = 32,
    rope: Rope | None = None,
    c: float = 50.0,
) -> Decoder:
    """Build one head that looks a fixed number of positions back, by rotary positions and nothing else.

    The stream: token (V) | one (1) | output (V); every embedding has a 1 in `one`, which is all that queries and keys
    read. In each of the `n_pairs` fastest pairs the key is (sqrt(gain), 0) and the query the same, turned back by
    `offset`; the others are zero. What stands at the place found is copied to the output.

    Known in closed form: the score depends on the distance alone and is gain times the sum of cos((distance - offset)
    w) over the pairs' frequencies w; at the offset that is gain times `n_pairs`. By default no other distance within
    128 positions comes closer than 38, so that from position 1 on attention is on the token before, up to 1e-15.

    Args:
        vocab: V, `<bos>` included.
        max_len: Longest context.
        offset: How far back to look; 1 is a previous-token head.
        gain: Score of each pair at the offset.
        n_pairs: How many pairs take part.
        d_head: Width of queries and keys; with the base it sets the frequencies.
        rope: Rotary positions, in whole or in part, in either pairing.
        c: Size of the logits.

    Raises:
        ConfigError: Fewer pairs turn than are asked for.

    Source: Su et al. 2021, "RoFormer"; Elhage et al. 2021 (shifts as rotations of sinusoids).
    """
    rope = rope or Rope()
    frequencies = rope.frequencies(d_head)[:n_pairs]
    require(
        1 <= n_pairs == len(frequencies),
        f"rope_model: n_pairs={n_pairs}, but of d_head={d_head} only {len(rope.frequencies(d_head))} pairs turn.",
    )
    token, one, output = layout(token=vocab, one=1, output=vocab).values()
    d_model = 2 * vocab + 1
    pairs = torch.arange(n_pairs)
    turned = len(rope.frequencies(d_head))
    first, second = (pairs, pairs + turned) if rope.pairing == "half" else (2 * pairs, 2 * pairs + 1)
    head = HeadMatrices.zero(d_model, d_head, vocab)
    head.key[one, first] = gain**0.5
    # turning a query back by the offset makes it point where the key that far behind does
    head.query[one, first] = gain**0.5 * (offset * frequencies).cos()
    head.query[one, second] = -(gain**0.5) * (offset * frequencies).sin()
    head.value[token] = torch.eye(vocab, dtype=torch.float64)
    head.output[:, output] = torch.eye(vocab, dtype=torch.float64)
    embed, unembed = (torch.zeros(vocab, d_model, dtype=torch.float64) for _ in range(2))
    embed[:, token] = torch.eye(vocab, dtype=torch.float64)
    embed[:, one] = 1.0
    unembed[:, output] = c * torch.eye(vocab, dtype=torch.float64)
    return assemble(embed, unembed, [[head]], symbols=numbered(vocab), max_len=max_len, attention_positions=rope)
