"""Judges of lenses: the model run with nothing behind a layer but its final norm and its unembedding."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.testing.judges._hooks import Change, hooked
from glassformer.testing.judges.judge import Asked, Judge, Pair
from glassformer.trace import Foreign


def _logit_lens(asked: Asked) -> Iterator[Pair]:
    found, n = asked.found, len(blocks_of(asked.model))
    logits = torch.stack([stopped_after(asked.model, asked.inputs, i)[0, -1] for i in range(n + 1)])
    yield Pair("logits", found.logits.values, logits)
    yield Pair("the last row", found.logits.values[-1], asked.model(*asked.inputs)[0, -1])
    yield from distributions(found, logits, int(logits[-1].argmax()))


def distributions(found: Any, logits: Tensor, answer: int) -> Iterator[Pair]:
    """Yield what is said of distributions beside sums over the vocabulary, written out."""
    p = logits.exp() / logits.exp().sum(-1, keepdim=True)
    yield Pair("answer", found.answer, answer)
    yield Pair("probability", found.probability.values, p[:, answer])
    yield Pair("entropy", found.entropy_bits.values, -(p * p.log2()).sum(-1))
    yield Pair("divergence", found.kl_bits.values, (p[-1] * (p[-1] / p).log2()).sum(-1))
    yield Pair("rank", found.rank.values, 1 + (logits > logits[:, answer, None]).sum(-1))


def blocks_of(model: Any) -> Sequence[nn.Module]:
    """Return the blocks of the stack that ends in the logits."""
    inside: Any = model.module if isinstance(model, Foreign) else model
    return inside.layers if isinstance(model, Foreign) else inside.output_stack.blocks


@torch.no_grad()
def stopped_after(model: Any, inputs: Sequence[Tensor], n: int) -> Tensor:
    """Return the logits where every block from the n-th on hands on what it is given."""
    changes: list[Change] = []
    for block in blocks_of(model)[n:]:
        kept = dict[str, Tensor]()
        changes.append(Change(block, "in", functools.partial(kept.__setitem__, "x")))
        changes.append(Change(block, "out", functools.partial(_instead, kept)))
    with hooked(changes):
        return model(*inputs)


def _instead(kept: dict[str, Tensor], _: Tensor) -> Tensor:
    return kept["x"]


JUDGES = {"logit_lens": Judge(_logit_lens, ("logits", "entropy_bits", "kl_bits", "answer", "probability", "rank"))}
