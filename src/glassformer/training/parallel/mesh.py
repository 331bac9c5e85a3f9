"""How many processes share the work of a step, and how: a mesh, whose axes have names and sizes.

    dp=2     data parallel: each rank has some rows of every batch, and a share of weights, gradients and moments
    cp=2     context parallel: each rank has some positions of every text
    tp=2     tensor parallel: each rank has some heads and neurons of every layer, and some tokens of the vocabulary

Of a product, dp=2,tp=2, the ranks of one tp have the same rows, and numbers that follow each other. Weights, gradients
and moments are in shards, one for each rank of dp and cp together.
Source of the names: PyTorch's DeviceMesh, and TorchTitan.
"""

import math
from dataclasses import dataclass, fields
from typing import Self

from glassformer.arguments import Count, checked
from glassformer.config import Config
from glassformer.errors import ConfigError, nearest


@dataclass(frozen=True)
class Mesh(Config):
    """Sizes of a mesh of processes, by axis.

    Args:
        dp: Ranks that share the rows of a batch.
        cp: Ranks that share the positions of texts.
        tp: Ranks that share the heads, neurons and tokens of a model.
    """

    dp: Count = 1
    cp: Count = 1
    tp: Count = 1

    @classmethod
    @checked
    def read(cls, text: str) -> Self:
        """The mesh of a text, `dp=2` or `dp=2,tp=2`.

        Raises:
            ConfigError: An axis that there is none of, that stands twice, or whose size is no number of ranks.
        """
        axes, sizes = [field.name for field in fields(cls)], dict[str, int]()
        for part in text.split(","):
            name, _, size = (piece.strip() for piece in part.partition("="))
            if name not in axes:
                raise ConfigError(f'mesh "{text}": no axis "{name}".{nearest(name, axes)} Axes: {", ".join(axes)}.')
            if name in sizes:
                raise ConfigError(f'mesh "{text}": axis "{name}" stands twice. Give each axis one size.')
            if not (size.isascii() and size.isdigit() and int(size) > 0):
                raise ConfigError(f'mesh "{text}": axis "{name}" has a whole number of ranks, found "{size}".')
            sizes[name] = int(size)
        return cls(**sizes)

    @property
    def size(self) -> int:
        """How many processes the mesh takes."""
        return math.prod(self.axes.values())

    @property
    def axes(self) -> dict[str, int]:
        """Sizes by the names of axes, the one first whose ranks lie furthest apart."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __str__(self) -> str:
        several = {name: size for name, size in self.axes.items() if size > 1}
        return ",".join(f"{name}={size}" for name, size in (several or {"dp": 1}).items())
