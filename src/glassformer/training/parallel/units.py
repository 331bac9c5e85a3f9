"""Which weights are put together in one exchange: those of a block, and those outside of all blocks (FSDP2).

    a rank's share of a weight of r rows is ceil(r / P) of them; what is exchanged is P shares, padding included

Source: PyTorch's `fully_shard`, which cuts every weight along its first axis.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import torch

from glassformer.models import ModelConfig


class Unit(NamedTuple):
    """Weights that are gathered at once, and whose gradients are shared out at once.

    Args:
        shapes: Of the weights.
    """

    shapes: tuple[tuple[int, ...], ...]

    @property
    def numbers(self) -> int:
        """How many numbers the weights have."""
        return sum(map(math.prod, self.shapes))

    def share(self, ranks: int) -> int:
        """How many of them the first of so many ranks has, which has the most; each exchanges as many."""
        return sum(-(-shape[0] // ranks) * math.prod(shape[1:]) for shape in self.shapes)


class Units(NamedTuple):
    """All weights of a model.

    Args:
        blocks: Those of each block, in the order they run.
        outside: Those of no block: embeddings, the last norm, the unembedding.
    """

    blocks: tuple[Unit, ...]
    outside: Unit

    @property
    def all(self) -> tuple[Unit, ...]:
        """Every unit that has a weight."""
        return tuple(unit for unit in (*self.blocks, self.outside) if unit.shapes)

    @property
    def numbers(self) -> int:
        """How many numbers all weights have."""
        return sum(unit.numbers for unit in self.all)

    def share(self, ranks: int) -> int:
        """How many of them the first of so many ranks has."""
        return sum(unit.share(ranks) for unit in self.all)


@lru_cache(maxsize=16)
def units_of(config: ModelConfig) -> Units:
    """The weights of a model, by what is exchanged at once; none is allocated."""
    with torch.device("meta"):
        model = config.build()
    blocks = [block for stack in model.stacks.values() for block in stack.blocks]
    own = [{id(x): tuple(x.shape) for x in block.parameters()} for block in blocks]
    inside = {key for shapes in own for key in shapes}
    outside = {id(x): tuple(x.shape) for x in model.parameters() if id(x) not in inside}
    return Units(tuple(Unit(tuple(shapes.values())) for shapes in own), Unit(tuple(outside.values())))
