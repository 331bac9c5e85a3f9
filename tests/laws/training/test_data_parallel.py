"""Training shared among processes against training in one: losses, weights and moments, resumed on other meshes too."""

import os
import socket
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F

from glassformer.attention import Rope
from glassformer.data import Repeat
from glassformer.errors import ConfigError, GlassformerError
from glassformer.models import DecoderConfig, Mlp, block, repeat
from glassformer.training import Progress, TrainConfig, train
from glassformer.training.parallel import Mesh, processes
from glassformer.training.parallel.processes import own_device
from glassformer.training.parallel.rows import DropoutOfAllRows, rows_between
from mesh_runs import run, runs, same_as_one
from ranks import on_processes

DROPS = block(n_heads=2, positions=Rope(), mlp=Mlp(24, dropout=0.1), bias=True, dropout=0.1, attn_dropout=0.1)
MODEL = DecoderConfig(20, 16, repeat(DROPS, 2), max_len=32, embed_dropout=0.1)
# five rows in parts of three and two: shares are odd
DATA = Repeat(batch_size=5, length=12, unit_min=2, unit_max=4, vocab_size=20)
RECIPE = TrainConfig(
    MODEL, DATA, steps=20, log_every=1, evaluate_every=10, evaluate_batches=2, save_every=20, accumulate=2
)


@pytest.mark.parametrize("ranks", [2, pytest.param(1, marks=pytest.mark.full), pytest.param(3, marks=pytest.mark.full)])
def test_processes_train_what_one_trains_and_go_on_on_any_mesh(ranks: int, tmp_path: Path) -> None:
    # three ranks have no row each of two
    recipe = RECIPE.replace(accumulate=1) if ranks == 3 else RECIPE
    found = on_processes(ranks, runs, recipe, tmp_path, Mesh(dp=ranks))
    assert found == [(None,)] * ranks, found
    same_as_one(recipe, tmp_path)


def refused(folder: Path) -> dict[str, str]:
    """What errors say of meshes and recipes that do not fit, on this rank."""
    rank, found = int(os.environ["RANK"]), dict[str, str]()
    cases: dict[str, tuple[Mesh, dict[str, Any]]] = {
        "larger": (Mesh(dp=3), {}),
        "smaller": (Mesh(dp=1), {}),
        "apart": (Mesh(dp=2), {"seed": rank}),
        "one row": (Mesh(dp=2), {"data": DATA.replace(batch_size=1)}),
        "compiled": (Mesh(dp=2), {"compile": True}),
        "used": (Mesh(dp=2), {"seed": 3}),
        "another model": (Mesh(dp=2), {"model": MODEL.replace(d_model=24)}),
    }
    for name, (mesh, changes) in cases.items():
        begin_from = folder / "used" if name == "another model" else None
        try:
            run(
                RECIPE.replace(**changes),
                folder / "used" if name == "used" else folder / name,
                mesh,
                begin_from=begin_from,
            )
        except GlassformerError as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def test_meshes_and_recipes_that_do_not_fit_are_refused_by_all_ranks(tmp_path: Path) -> None:
    run(RECIPE.replace(steps=1), tmp_path / "used", None)
    both = [value[0] for value in on_processes(2, refused, tmp_path)]
    assert both[0] == both[1]
    said = both[0]
    assert 'mesh "dp=3" is larger than the world: it takes 3 processes, found 2.' in said["larger"]
    assert "torchrun --nproc-per-node 3 -m glassformer train RECIPE --mesh dp=3" in said["larger"]
    assert 'mesh "dp=1" is smaller than the world' in said["smaller"]
    assert 'mesh "dp=2": rank 1 has another seed in its recipe than rank 0.' in said["apart"]
    assert "1 rows cannot be shared among 2 ranks" in said["one row"]
    assert "Set compile=false" in said["compiled"]
    assert said["used"].startswith("RunFolderError: ") and "different: seed, steps" in said["used"]
    assert said["another model"].startswith("CheckpointError: ") and "holds another model" in said["another model"]
    assert not (tmp_path / "another model").exists()


def dies(folder: Path) -> str:
    """What the others say of a rank that dies in the middle of a run."""

    def report(progress: Progress) -> None:
        if progress.step == 3 and os.environ["RANK"] == "1":
            os._exit(1)

    with patch.object(processes, "SLACK", 2.0):
        try:
            train(RECIPE, folder, mesh=Mesh(dp=2), report=report)
        except GlassformerError as error:
            return f"{type(error).__name__}: {error}"
    return "nothing"


def test_a_rank_that_dies_is_named_by_those_that_wait_for_it(tmp_path: Path) -> None:
    (said,), died = on_processes(2, dies, tmp_path / "run")
    assert died == "it died"
    assert said.startswith('RankLost: rank 1 of mesh "dp=2" did not answer within 2 seconds')
    assert "Start all ranks again by the same command" in said


def at_a_port_in_use(folder: Path) -> str:
    with socket.socket() as other:
        other.bind(("", int(os.environ["MASTER_PORT"])))
        other.listen()
        try:
            train(RECIPE, folder, mesh=Mesh(dp=1))
        except ConfigError as error:
            return str(error)
    return "nothing"


@pytest.mark.full
def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    ((said,),) = on_processes(1, at_a_port_in_use, tmp_path / "run")
    assert "is in use" in said and "another --master-port" in said


def test_a_process_that_was_not_told_its_rank_is_told_how_to_start(tmp_path: Path) -> None:
    with (
        patch.dict(os.environ),
        pytest.raises(ConfigError, match=r"was not told its rank\. Start with: torchrun --nproc"),
    ):
        os.environ.pop("RANK", None)
        train(RECIPE, tmp_path / "run", mesh=Mesh(dp=2))


def test_a_rank_computes_on_the_device_of_its_number_on_the_machine() -> None:
    with patch.dict(os.environ, LOCAL_RANK="3"):
        assert own_device(torch.device("cuda")) == torch.device("cuda", 3)
        assert own_device(torch.device("cuda", 1)) == torch.device("cuda", 1)
        assert own_device(torch.device("cpu")) == torch.device("cpu")


def test_a_mesh_is_read_from_a_text() -> None:
    assert Mesh.read("dp=2") == Mesh(dp=2) and str(Mesh.read(" dp = 4")) == "dp=4" and str(Mesh()) == "dp=1"
    assert (
        Mesh.read("tp=3, dp=2") == Mesh(dp=2, tp=3)
        and str(Mesh(dp=2, tp=3)) == "dp=2,tp=3"
        and Mesh(2, 3, 2).size == 12
    )
    for text, message in {
        "pd=2": 'no axis "pd". Nearest: "tp". Axes: dp, cp, tp.',
        "dp=2,dp=2": 'axis "dp" stands twice',
        "dp=two": 'a whole number of ranks, found "two"',
        "dp=0": 'a whole number of ranks, found "0"',
        "dp": 'a whole number of ranks, found ""',
    }.items():
        with pytest.raises(ConfigError) as refusal:
            Mesh.read(text)
        assert message in str(refusal.value)


def test_dropout_of_shared_rows_is_that_of_all_rows() -> None:
    whole = torch.randn(5, 3, 4, 2, dtype=torch.float64)
    # as it lies in memory, too: masks are drawn in that order
    for x in (whole, whole.transpose(1, 2), whole.permute(1, 0, 2, 3).contiguous().permute(1, 0, 2, 3)):
        torch.manual_seed(1)
        wanted = F.dropout(x, 0.3)
        for rank in range(2):
            start, stop = rows_between(5, rank, 2)
            torch.manual_seed(1)
            with DropoutOfAllRows(5, start, stop):
                assert torch.equal(F.dropout(x[start:stop], 0.3), wanted[start:stop])
