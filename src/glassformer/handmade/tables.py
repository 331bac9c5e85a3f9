"""Models that are tables: a bigram table without layers, and skip-trigrams with one."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.config import require
from glassformer.data.tasks.chains import Markov, stationary
from glassformer.handmade.assemble import HeadMatrices, assemble, layout
from glassformer.models import Decoder
from glassformer.numerics import decompositions


def bigram_model(
    probabilities: Float[Tensor, "vocab vocab"],
    *,
    d_model: int | None = None,
    floor: float = -60.0,
    symbols: Sequence[str] | None = None,
    max_len: int = 64,
) -> Decoder:
    """Build the model without layers whose next-token distribution is a given table.

    The stream: one coordinate per token (W_E = I, W_U' = log P), or with `d_model` the leading singular directions of
    log P with its row means taken out, each shared evenly between W_E and W_U. Softmax does not see row means, so vocab
    - 1 directions reproduce the table exactly; fewer give the best approximation of log P in least squares, which is
    not the best in KL divergence.

    Known in closed form: softmax of the logits is P; the loss on a chain drawn from P is the chain's entropy rate.

    Args:
        probabilities: P, a row per current token; rows sum to one.
        d_model: Width of the stream for the factored form; None for one coordinate per token.
        floor: What log P is where P is smaller still, in nats.
        symbols: Names of the tokens; s0, s1, … by default.
        max_len: Longest context.

    Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits" (zero-layer transformers).
    """
    vocab = len(probabilities)
    sums = probabilities.double().sum(-1)
    require(
        bool((probabilities >= 0).all()) and bool((sums - 1).abs().max() < 1e-6),
        f"bigram_model: rows must be probabilities, not negative and of sum one; sums are "
        f"{sums.min():.6g} to {sums.max():.6g}.",
    )
    logits = probabilities.double().log().clamp_min(floor)
    embed, unembed = torch.eye(vocab, dtype=torch.float64), logits.T
    if d_model is not None:
        require(
            1 <= d_model <= vocab, f"bigram_model: d_model={d_model} must be in 1 to {vocab}, the size of the table."
        )
        embed, unembed = _factors(logits - logits.mean(-1, keepdim=True), d_model)
    return assemble(embed, unembed, symbols=symbols or [f"s{i}" for i in range(vocab)], max_len=max_len)


def markov_model(chain: Markov, *, d_model: int | None = None) -> Decoder:
    """Build the model without layers that knows a Markov chain of order one perfectly.

    Its loss is the chain's `optimal_loss()`, up to the sampling error of the batch. After `<bos>` it predicts the
    stationary distribution, in which rows start.

    Args:
        chain: The data it is for; its symbols are the model's tokens.
        d_model: As for `bigram_model`.
    """
    require(
        chain.order == 1, f"markov_model: a bigram table looks one symbol back, the chain looks {chain.order} back."
    )
    table = chain.table()
    rows = torch.cat([stationary(table)[None], table])
    never_bos = torch.cat([torch.zeros(len(rows), 1, dtype=rows.dtype), rows], 1)
    return bigram_model(never_bos, d_model=d_model, symbols=chain.symbols(), max_len=chain.length)


class SkipTrigramTables(NamedTuple):
    """The tables of a one-layer model: where each head looks, and what it then makes likelier."""

    symbols: list[str]
    attention: Float[Tensor, "head dst src"]
    effect: Float[Tensor, "head src out"]


def keep_in_mind(n_heads: int = 1) -> SkipTrigramTables:
    """The tables of `keep … in -> mind` and `keep … at -> bay`, for one head or for two.

    One head looks from `in` and from `at` back to `keep` (score 40), and from everywhere else to `<bos>` (score 20),
    which has no effect; having found `keep` it adds 6 to `mind` and to `bay`. It cannot do otherwise: what it adds is
    the product of a number per destination and a row per source. So `keep … in bay` and `keep … at mind` come for free:
    the bug. Two heads, one per destination, add 6 to the right word only.

    Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits" (skip-trigram bugs).
    """
    require(n_heads in (1, 2), f"keep_in_mind: one head has the bug, two have not; found n_heads={n_heads}.")
    symbols = ["<bos>", "keep", "in", "mind", "at", "bay"]
    bos, keep, into, mind, at, bay = range(6)
    attention = torch.zeros(n_heads, 6, 6, dtype=torch.float64)
    effect = torch.zeros_like(attention)
    attention[:, :, bos] = 20.0
    for i, (destination, answer) in enumerate([(into, mind), (at, bay)]):
        attention[i % n_heads, destination, keep] = 40.0
        effect[i % n_heads, keep, answer] = 6.0
    return SkipTrigramTables(symbols, attention, effect)


def skip_trigram_model(
    tables: SkipTrigramTables | None = None,
    bigram: Float[Tensor, "vocab vocab"] | None = None,
    *,
    d_head: int | None = None,
    max_len: int = 64,
) -> Decoder:
    """Build a one-layer model whose circuits are given tables.

    The stream: token (V) | output (V). Each head compares tokens by its attention table (W_Q W_K' = table in the block
    `token`) and writes its effect table's row of what it finds to the output. The unembedding reads the output as it
    is, and the token through the bigram table. Nobody knows positions.

    Known in closed form, exactly: the full QK circuit W_E QK W_E' is the attention table, the full OV circuit W_E OV
    W_U the effect table, the direct path W_E W_U the bigram table. With the default tables, after `<bos> keep … in` the
    logits of `mind` and `bay` are both 6 / (1 + e^-20 + n e^-40) for n other tokens, and so after `<bos> keep … at`.

    Args:
        tables: Symbols, attention and effect; `keep_in_mind()` by default.
        bigram: Logits of the next token given the current one alone; zero by default.
        d_head: Width of the heads, at least the ranks of the tables; V by default.
        max_len: Longest context.

    Raises:
        ConfigError: A table has a rank that d_head cannot carry, or a shape that does not fit the others.

    Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits" (one-layer transformers).
    """
    symbols, attention, effect = tables or keep_in_mind()
    vocab = len(symbols)
    bigram = torch.zeros(vocab, vocab, dtype=torch.float64) if bigram is None else bigram
    shapes = [tuple(table.shape[-2:]) for table in (attention, effect, bigram)]
    require(
        shapes == [(vocab, vocab)] * 3 and len(attention) == len(effect),
        f"skip_trigram_model: attention, effect and bigram tables are {shapes}; {vocab} symbols need {vocab} by "
        f"{vocab}, and as many heads in one ({len(attention)}) as in the other ({len(effect)}).",
    )
    place = layout(token=vocab, output=vocab)
    token, output = place.values()
    heads = []
    for looks, writes in zip(attention.double(), effect.double()):
        head = HeadMatrices.zero(2 * vocab, d_head or vocab)
        query, key = _split(looks, d_head, "attention")
        value, out = _split(writes, d_head, "effect")
        head.query[token], head.key[token], head.value[token], head.output[:, output] = query, key, value, out.T
        heads.append(head)
    embed, unembed = (torch.zeros(vocab, 2 * vocab, dtype=torch.float64) for _ in range(2))
    embed[:, token] = unembed[:, output] = torch.eye(vocab, dtype=torch.float64)
    unembed[:, token] = bigram.double().T
    return assemble(embed, unembed, [heads], symbols=symbols, max_len=max_len)


def _split(table: Tensor, width: int | None, name: str) -> tuple[Tensor, Tensor]:
    """Return A and B of a table = A B', with so many columns each."""
    if width is None:
        return table, torch.eye(len(table), dtype=table.dtype)
    rank = decompositions.rank(table)
    require(rank <= width, f"skip_trigram_model: an {name} table has rank {rank}, which d_head={width} cannot carry.")
    return _factors(table, width)


def _factors(table: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return A and B of the best approximation A B' with so many columns; zeros beyond the rank there is."""
    u, s, vh = decompositions.svd(table)
    a, b = u * s.sqrt(), vh.T * s.sqrt()
    missing = max(0, width - len(s))
    a, b = (torch.nn.functional.pad(x[:, :width], (0, missing)) for x in (a, b))
    return a, b
