"""Checkpoints of shards: bit-equal on the same mesh, as good on others, whole or not at all, and never a pickle."""

import gc
import os
import weakref
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.tensor import DTensor

from glassformer.attention import Rope
from glassformer.checkpoints import config_of, load
from glassformer.data import Batch
from glassformer.errors import CheckpointError, GlassformerError, SaveError
from glassformer.models import DecoderConfig, Mlp, RmsNorm, block, repeat
from glassformer.testing import close
from glassformer.training import OptimConfig
from glassformer.training.parallel import Mesh, join_shards, load_shards, processes, save_shards
from glassformer.training.parallel.processes import joined
from glassformer.training.parallel.rows import shared_rows
from glassformer.training.parallel.sharding import shard, sharded
from glassformer.training.sharing import Trained
from ranks import on_processes

LAYER = block(n_heads=2, positions=Rope(), norm=RmsNorm(), mlp=Mlp(26, gated=True), bias=True)
MODEL = DecoderConfig(21, 10, repeat(LAYER, 2), max_len=16, final_norm=RmsNorm())
OPTIM = OptimConfig(lr=0.01)
STEPS = 2


def begun(seed: int = 0) -> Trained:
    """A model in double precision and its optimizer, whole."""
    model = MODEL.build(seed).double().train()
    return Trained(model, OPTIM.build(model))


def go_on(trained: Trained, first: int, rank: int = 0, ranks: int = 1) -> None:
    """Two steps of training, from a step on."""
    for step in range(first, first + STEPS):
        ids = torch.randint(21, (4, 8), generator=torch.Generator().manual_seed(step))
        batch = shared_rows(Batch(ids[:, :-1], ids[:, 1:], ids[:, 1:] > -1), rank, ranks)
        trained.model.loss(batch).backward()
        trained.optimizer.step()
        trained.optimizer.zero_grad()


def all_of(trained: Trained) -> dict[str, torch.Tensor]:
    """Weights and moments, whole, by name."""
    found = dict[str, torch.Tensor]()
    for name, parameter in trained.model.named_parameters():
        for key, value in {"": parameter.detach(), **trained.optimizer.state[parameter]}.items():
            # a copy: what is trained goes on
            found[f"{name} {key}"] = (value.full_tensor() if isinstance(value, DTensor) else value).clone()
    return found


def on_two(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    """One run without a stop, one that goes on on its mesh, and one that goes on from what one process wrote."""
    with joined(Mesh(dp=2), torch.device("cpu")) as ranks:
        place = ranks.rank, ranks.size
        trained = sharded(begun(), OPTIM, ranks.devices)
        go_on(trained, 0, *place)
        save_shards(trained, folder / "two")
        go_on(trained, STEPS, *place)
        found = {"straight": all_of(trained)}
        for name in ("two", "one"):
            other = sharded(begun(seed=1), OPTIM, ranks.devices)
            load_shards(folder / name, other)
            go_on(other, STEPS, *place)
            found[name] = all_of(other)
        try:
            save_shards(trained, folder / "two")
        except SaveError as error:
            assert "something is there already" in str(error) or "rank 0 could not write" in str(error)
        else:
            raise AssertionError("what was there is written over")
        assert_nothing_is_whole(ranks.devices)
        return found


def assert_nothing_is_whole(devices: Any) -> None:
    """A model that is cut up in place leaves a rank its shards, and no tensor of before."""
    model = MODEL.build().double()
    wholes = [weakref.ref(parameter) for parameter in model.parameters()]
    bytes_before = sum(parameter.untyped_storage().nbytes() for parameter in model.parameters())
    shards: Any = shard(model, OPTIM, devices).model
    gc.collect()
    assert not any(whole() is not None for whole in wholes)
    held = sum(parameter.to_local().untyped_storage().nbytes() for parameter in shards.parameters())
    # rows that do not divide are padded
    assert held < 0.6 * bytes_before


def test_runs_go_on_bit_for_bit_on_the_same_mesh_and_as_well_on_another(tmp_path: Path) -> None:
    alone = begun()
    go_on(alone, 0)
    save_shards(alone, tmp_path / "one")
    go_on(alone, STEPS)
    wanted = all_of(alone)
    again = begun(seed=1)
    load_shards(tmp_path / "one", again)
    go_on(again, STEPS)
    assert all(torch.equal(value, wanted[name]) for name, value in all_of(again).items())
    both = on_processes(2, on_two, tmp_path)
    assert not any(isinstance(one, str) for one in both), both
    for (found,) in both:
        assert all(torch.equal(value, found["straight"][name]) for name, value in found["two"].items())
        for of_mesh in found.values():
            for name, value in wanted.items():
                close(of_mesh[name], value, 1e-9)
    join_shards(tmp_path / "two", tmp_path / "whole")
    assert sorted(path.name for path in (tmp_path / "whole").iterdir()) == [
        "config.json", "model.safetensors", "optimizer.safetensors"
    ]  # fmt: skip
    others = {name: begun(seed=1) for name in ("two", "whole")}
    for name, other in others.items():
        load_shards(tmp_path / name, other)
        # shards are a model folder too, and the single one holds the same weights to the bit
        found = load(tmp_path / name).state_dict()
        assert all(torch.equal(value, found[key]) for key, value in other.model.state_dict().items())
        go_on(other, STEPS)
    from_shards, from_one = map(all_of, others.values())
    for name, value in from_shards.items():
        assert torch.equal(value, from_one[name])
        close(value, wanted[name], 1e-9)
    shards = sorted(path.name for path in (tmp_path / "two").iterdir())
    files = (f"shard-0000{i}-model-0000{j}-of-00002.safetensors" for i in (1, 2) for j in (1, 2))
    assert shards == ["config.json", *files] and config_of(tmp_path / "two") == MODEL


def dies_while_it_saves(folder: Path) -> str:
    """What a rank says of another that dies while both write."""
    write = HuggingFaceStorageWriter.write_data

    def die(self: Any, *given: Any) -> Any:
        return os._exit(1) if os.environ["RANK"] == "1" else write(self, *given)

    with patch.object(processes, "SLACK", 2.0), patch.object(HuggingFaceStorageWriter, "write_data", die):
        try:
            with joined(Mesh(dp=2), torch.device("cpu")) as ranks:
                save_shards(sharded(begun(), OPTIM, ranks.devices), folder / "next")
        except GlassformerError as error:
            return f"{type(error).__name__}: {error}"
    return "nothing"


def test_a_rank_that_dies_while_it_saves_is_named_and_nothing_takes_the_name(tmp_path: Path) -> None:
    (said,), died = on_processes(2, dies_while_it_saves, tmp_path)
    assert died == "it died"
    assert said.startswith('RankLost: rank 1 of mesh "dp=2" did not answer within 2 seconds')
    assert [*tmp_path.iterdir()] == []


def test_shards_that_are_damaged_missing_or_of_another_model_are_refused(tmp_path: Path) -> None:
    alone = begun()
    go_on(alone, 0)
    folder = save_shards(alone, tmp_path / "one")
    with pytest.raises(SaveError, match="something is there already"):
        save_shards(alone, folder)
    other = MODEL.replace(vocab_size=22).build().double()
    with pytest.raises(CheckpointError, match="holds another model"):
        load_shards(folder, Trained(other, OPTIM.build(other)))
    with pytest.raises(SaveError, match="something is there already"):
        join_shards(folder, tmp_path)
    for path in sorted(folder.glob("*.safetensors")):
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        for refuse in (lambda: load_shards(folder, alone), lambda: join_shards(folder, tmp_path / "whole")):
            with pytest.raises(CheckpointError, match="does not match the digest"):
                refuse()
        path.write_bytes(content)
    moments = folder / "shard-00001-model-00002-of-00002.safetensors"
    moments.rename(folder / "moved.safetensors")
    with pytest.raises(CheckpointError, match="more or fewer files"):
        load_shards(folder, alone)
    (folder / "moved.safetensors").rename(moments)
    (folder / "shard-00001-model-00001-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="cannot read"):
        load(folder)
    join = join_shards(save_shards(alone, tmp_path / "again"), tmp_path / "whole")
    with pytest.raises(CheckpointError, match="holds no shards"):
        join_shards(join, tmp_path / "twice")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "one", "whole"]
