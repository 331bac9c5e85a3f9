"""Rows of a store, whichever files they lie in: no more of them is read than is asked for."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

from glassformer import files
from glassformer.analysis.activations._manifest import Shard
from glassformer.errors import CheckpointError

Range = tuple[int, int]


class Shards:
    """Files of rows of one side.

    Args:
        folder: Of the store.
        shards: Its files.
        source: Whether rows are those of the source.
    """

    def __init__(self, folder: Path, shards: Sequence[Shard], source: bool) -> None:
        self.folder, self.files = folder, [shard.file for shard in shards]
        self.starts = [0, *accumulate(shard.rows[source] for shard in shards)]

    def __len__(self) -> int:
        return self.starts[-1]

    def read(self, names: Sequence[str], ranges: Sequence[Range]) -> dict[str, list[Tensor]]:
        """Return tensors of some names, one for each range of rows; every file is opened once.

        Raises:
            CheckpointError: A file is missing or damaged.
        """
        parts: dict[str, list[list[Tensor]]] = {name: [[] for _ in ranges] for name in names}
        for shard, wanted in sorted(self._by_file(ranges).items()):
            found = self._slices(shard, names, [(low, high) for _, low, high in wanted])
            for name in names:
                for (i, _, _), part in zip(wanted, found[name]):
                    parts[name][i].append(part)
        return {name: [torch.cat(of) if len(of) > 1 else of[0] for of in parts[name]] for name in names}

    def _by_file(self, ranges: Sequence[Range]) -> dict[int, list[tuple[int, int, int]]]:
        """Return what is wanted of each file: which range it is of, and the rows within the file."""
        found: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        starts = torch.tensor(self.starts)
        for i, (low, high) in enumerate(ranges):
            # of files without rows the last begins where the next does
            first = int(torch.searchsorted(starts, low, right=True)) - 1
            for shard in range(min(first, len(self.files) - 1), len(self.files)):
                begin, end = self.starts[shard], self.starts[shard + 1]
                if begin >= high and shard > first:
                    break
                found[shard].append((i, max(low, begin) - begin, max(min(high, end), begin) - begin))
        return found

    def _slices(self, shard: int, names: Sequence[str], ranges: Sequence[Range]) -> dict[str, list[Tensor]]:
        from safetensors import SafetensorError

        path, rows = self.folder / self.files[shard], self.starts[shard + 1] - self.starts[shard]
        try:
            with files.tensors_in(path) as file:
                found: dict[str, list[Tensor]] = {}
                for name in names:
                    stored = file.get_slice(name)
                    if stored.get_shape()[0] != rows:
                        raise ValueError(f'"{name}" has {stored.get_shape()[0]} rows in place of {rows}')
                    found[name] = [stored[low:high] for low, high in ranges]
                return found
        except (OSError, SafetensorError, ValueError) as error:
            raise CheckpointError(f'cannot read activations from "{path}": {files.reason(error)}.') from error
