"""Heads that look important and are not: `plant` them beside real ones, and see whether an analysis is fooled."""

import torch

from glassformer.attention import AttentionLayer
from glassformer.config import require
from glassformer.handmade.assemble import HeadMatrices
from glassformer.models import Decoder
from glassformer.numerics import decompositions


def random_head(model: Decoder, layer: int, *, size: float = 100.0, silent: bool = True, seed: int = 0) -> HeadMatrices:
    """A head of random weights and large norm.

    Its composition with later heads is that of random matrices (ratios around 1 / sqrt(d_model), whatever the size),
    and the eigenvalues of its circuits come in all directions: only who ranks by bare norms finds it first.

    Args:
        model: The model it is for.
        layer: The layer it is for.
        size: Frobenius norm of QK and of OV, roughly.
        silent: Let its values read only directions in which no embedding and no position lies: planted in the first
            layer, it then writes nothing (up to rounding), whatever its weights look like. Otherwise it shakes the
            model.
        seed: Of the draw.
    """
    dims = _layer(model, layer).dims
    generator = torch.Generator().manual_seed(seed)
    # ||A B|| of gaussian factors is about the product of their deviations times d_model sqrt(width)
    draws = []
    for width in (dims.d_head, dims.d_head, dims.d_value, dims.d_value):
        deviation = (size / (dims.d_model * width**0.5)) ** 0.5
        draws.append(deviation * torch.randn(dims.d_model, width, generator=generator, dtype=torch.float64))
    query, key, value, output = draws
    if silent:
        value = value - _span(model) @ (_span(model).T @ value)
    return HeadMatrices(query, key, value, output.T)


def resting_copier(model: Decoder, layer: int, *, gain: float = 60.0, size: float = 50.0) -> HeadMatrices:
    """A head that would copy whatever it looked at, and always looks at token 0, which it does not copy.

    Its OV circuit W_E OV W_U is `size` times the identity, but for a zero at token 0: by these weights a perfect
    copying head. Its attention is on the first token up to e^-gain, so it adds nothing. The OV circuit cannot tell it
    from a head that copies; the QK circuit or the pattern can.

    Args:
        model: The model it is for. Its embeddings, and its unembedding directions, must be linearly independent.
        layer: The layer it is for; its heads must be as wide as the vocabulary is large.
        gain: Score of token 0, against 0 of all others; token 0 must begin every row.
        size: Logits it would add to the token it looked at.

    Raises:
        ConfigError: The head is too narrow, or embeddings or unembedding directions depend on each other.
    """
    require(model.one_vocabulary(), "resting_copier: logits are not of the tokens that are read; nothing is copied.")
    dims = _layer(model, layer).dims
    embed, unembed = model.embed.weight.detach().double(), model.unembed.weight.detach().double()
    vocab = len(embed)
    require(
        min(dims.d_value, decompositions.rank(embed), decompositions.rank(unembed)) >= vocab,
        f"resting_copier: {vocab} tokens need values at least as wide (d_value={dims.d_value}) and as many independent "
        "directions in the embedding and in the unembedding.",
    )
    # the pseudo-inverse undoes W_E: the value of token t is the t-th unit vector, that of token 0 is zero
    undo = decompositions.pseudo_inverse(_writers(model))[:, :vocab]
    head = HeadMatrices.zero(dims.d_model, dims.d_head, dims.d_value)
    head.query[:, 0] = gain * undo.sum(1)
    head.key[:, 0] = undo[:, 0]
    head.value[:, 1:vocab] = undo[:, 1:]
    head.output[:vocab] = size * decompositions.pseudo_inverse(unembed).T
    return head


def _layer(model: Decoder, layer: int) -> AttentionLayer:
    return model.stack.blocks[layer].attn  # type: ignore[union-attr, return-value]


def _writers(model: Decoder) -> torch.Tensor:
    """Return what stands in the stream before the first layer: a row per token, then one per position."""
    table = model.embed.positions
    rows = [model.embed.weight] + ([] if table is None or table.weight is None else [table.weight[table.offset :]])
    return torch.cat(rows).detach().double()


def _span(model: Decoder) -> torch.Tensor:
    """Return an orthonormal basis of the directions that embeddings and positions lie in."""
    _, s, vh = decompositions.svd(_writers(model))
    return vh[s > s[0] * 1e-12].T
