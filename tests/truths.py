"""Models whose weights are set by hand, so that what an analysis must find is known."""

from typing import Any, cast

import torch

from glassformer.attention import Softmax
from glassformer.data.tokenizer import symbol_tokenizer
from glassformer.models import Decoder, DecoderConfig, Learned, NoNorm, block, repeat


def induction_model(
    vocab: int = 21, max_len: int = 41, beta: float = 60.0, gamma: float = 30.0, c: float = 50.0
) -> Decoder:
    """Build two layers of attention that complete repeated sequences; token 0 is `<bos>`, the others are `t1`, `t2`, ….

    L0H0 attends to the previous token and copies it into a block of its own; L1H0 attends to positions whose previous
    token is the current one, and writes what stands there to the output. L0H1 and L1H1 are zero: they look everywhere
    alike and write nothing.
    The stream is laid out as token | previous | position | output.
    """
    v, t = vocab, max_len
    width, d_head = 3 * v + t, max(v, t)
    config = DecoderConfig(
        v, width, repeat(block(Softmax(scale=1.0), n_heads=2, d_head=d_head, norm=NoNorm()), 2),
        max_len=t, positions=Learned(), final_norm=NoNorm(), tied=False,
    )  # fmt: skip
    model = config.build().double().eval()
    token, previous, position, output = (slice(0, v), slice(v, 2 * v), slice(2 * v, 2 * v + t), slice(2 * v + t, width))
    eye = torch.eye(v, dtype=torch.float64)
    without_first = eye.clone()
    without_first[0] = 0
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embed.weight[:, token] = eye
        model.embed.positions.weight[:, position] = torch.eye(t, dtype=torch.float64)  # type: ignore[union-attr]
        first, second = (cast(Any, layer).attn for layer in model.stack.blocks)
        query, key, value = (first.projection.matrix(which)[0] for which in ("query", "key", "value"))
        query[position, :t] = beta * torch.diag(torch.ones(t - 1, dtype=torch.float64), -1)
        key[position, :t] = torch.eye(t, dtype=torch.float64)
        value[token, :v] = eye
        first.merge.matrix()[0, :v, previous] = eye
        query, key, value = (second.projection.matrix(which)[0] for which in ("query", "key", "value"))
        query[token, :v] = gamma * eye
        key[previous, :v] = eye
        # half a match on the first token: where to rest when nothing matches
        key[0, :v] = 0.5
        value[token, :v] = without_first
        second.merge.matrix()[0, :v, output] = eye
        model.unembed.weight[:, output] = c * eye
    model.tokenizer = symbol_tokenizer(["<bos>", *(f"t{i}" for i in range(1, v))])
    return model


def repeated(vocab: int = 21, repeats: int = 2, seed: int = 0, batch: int = 1) -> torch.Tensor:
    """Return token 0, then all other tokens in random order, several times over."""
    generator = torch.Generator().manual_seed(seed)
    units = torch.stack([1 + torch.randperm(vocab - 1, generator=generator) for _ in range(batch)])
    return torch.cat((torch.zeros(batch, 1, dtype=torch.long), units.repeat(1, repeats)), 1)
