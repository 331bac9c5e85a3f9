"""Tensors of which ranks wrote a part each: whole when they are read, and the same file when they are joined."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save, save_file
from torch import Tensor

from glassformer.checkpoints.rank_files import RankFiles, holds_state, holds_weights, write_joined
from glassformer.errors import CheckpointError

WHOLE = {
    "rows": torch.arange(15.0).view(5, 3),
    "grid": torch.arange(24.0, dtype=torch.float64).view(4, 6),
    "half": torch.arange(4).to(torch.bfloat16),
    "one": torch.tensor(7.0),
}
# by rank: where parts begin, and how far they go; the last rank has no row of one tensor
PARTS = (
    {"rows": ((0, 0), (3, 3)), "grid": ((0, 0), (2, 4)), "one": ((), ())},
    {"rows": ((3, 0), (2, 3)), "grid": ((2, 0), (2, 4)), "half": ((0,), (4,))},
    {"rows": ((5, 0), (0, 3)), "grid": ((0, 4), (4, 2))},
)


def part(name: str, begin: tuple[int, ...], shape: tuple[int, ...]) -> Tensor:
    """What a rank has of a tensor."""
    return WHOLE[name][tuple(slice(b, b + n) for b, n in zip(begin, shape, strict=True))].contiguous()


def written(folder: Path) -> list[str]:
    """Files of three ranks, laid out as torch.distributed.checkpoint does."""
    names = list[str]()
    for rank, parts in enumerate(PARTS):
        names.append(f"shard-{rank + 1:05d}-model-00001-of-00002.safetensors")
        said = json.dumps({name: {"saved_offsets": begin} for name, (begin, _) in parts.items()})
        tensors = {name: part(name, begin, shape) for name, (begin, shape) in parts.items()}
        save_file(tensors, folder / names[-1], {"DCP_SHARDING_INFO": said})
    return names


def test_parts_of_ranks_are_read_as_whole_tensors_and_joined_as_one_process_writes_them(tmp_path: Path) -> None:
    found = RankFiles(tmp_path, written(tmp_path))
    assert set(found) == WHOLE.keys() and len(found) == len(WHOLE)
    for name, value in WHOLE.items():
        assert (found[name].shape, found[name].dtype) == (tuple(value.shape), value.dtype)
        assert torch.equal(found.read(name), value)
    digest = write_joined(tmp_path / "joined.safetensors", found)
    assert all(torch.equal(value, WHOLE[name]) for name, value in load_file(tmp_path / "joined.safetensors").items())
    assert (tmp_path / "joined.safetensors").read_bytes() == save(WHOLE)
    assert len(digest) == 64


def test_parts_that_are_missing_or_say_nothing_are_refused(tmp_path: Path) -> None:
    names = written(tmp_path)
    with pytest.raises(CheckpointError, match='has no whole "'):
        RankFiles(tmp_path, [names[0], names[2]])
    with pytest.raises(CheckpointError, match="cannot read"):
        RankFiles(tmp_path, [*names, "shard-00004-model-00001-of-00002.safetensors"])
    save_file(WHOLE, tmp_path / names[0])
    with pytest.raises(CheckpointError, match="does not say where parts"):
        RankFiles(tmp_path, names)


def test_files_of_ranks_are_told_by_their_names() -> None:
    for name, weights, state in (
        ("shard-00001-model-00001-of-00001.safetensors", True, False),
        ("shard-00012-model-00001-of-00002.safetensors", True, False),
        ("shard-00012-model-00002-of-00002.safetensors", False, True),
        ("model-00001-of-00002.safetensors", False, False),
        ("shard-00000.safetensors", False, False),
    ):
        assert (holds_weights(name), holds_state(name)) == (weights, state)
