"""Packed sequences shared among ranks, each cut in another way."""

import torch
from torch import Tensor

from glassformer.training.parallel import SequenceShards


def cut(*pieces: int) -> Tensor:
    """Ids of documents of these lengths."""
    return torch.repeat_interleave(torch.arange(len(pieces)), torch.tensor(pieces))[None]


def packed_cases(ranks: int) -> dict[str, tuple[SequenceShards, Tensor | None]]:
    """Shards and documents, each another way to cut a sequence."""
    long, disorder = 6 * ranks, (*range(ranks), 4, 6, 9)
    return {
        "one document": (SequenceShards.zigzag(long, ranks), None),
        "odd length": (SequenceShards.zigzag(long - 1, ranks), None),
        "contiguous": (SequenceShards.contiguous(long + 1, ranks), cut(2, long - 2, 1)),
        "cut inside documents": (SequenceShards.zigzag(long + 1, ranks), cut(2, 1, long - 4, 2)),
        "rows of their own": (SequenceShards.zigzag(7, ranks), torch.cat([cut(7), cut(3, 4), cut(3, 4), cut(1, 5, 1)])),
        "documents of one": (SequenceShards.zigzag(long, ranks), cut(*[1] * long)),
        "fewer positions than chunks": (SequenceShards.zigzag(ranks, ranks), None),
        "one rank holds all": (SequenceShards((0,) * ranks + (3, 7), (*range(ranks), 0), ranks), cut(2, 5)),
        "owners in disorder": (SequenceShards(disorder, (*reversed(range(ranks)), 0, ranks - 1), ranks), cut(2, 6, 1)),
    }
