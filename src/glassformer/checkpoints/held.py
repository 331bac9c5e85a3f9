"""Tensors in memory in the place of files: what a reader has turned into numbers already."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from torch import Tensor

from glassformer.checkpoints.tensors import StoredTensor, Tensors


class HeldTensors(Tensors):
    """Tensors that lie in memory, asked for as those in files are.

    Args:
        folder: Where they came from.
        tensors: By their names there.
    """

    def __init__(self, folder: Path, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(folder)
        self.tensors = tensors

    def __getitem__(self, name: str) -> StoredTensor:
        value = self.tensors[name]
        return StoredTensor(self.folder, tuple(value.shape), value.dtype, str(value.dtype), 0, value.nbytes)

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def read(self, name: str) -> Tensor:
        """Return a tensor as it is held."""
        return self.tensors[name]
