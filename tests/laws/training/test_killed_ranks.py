"""Runs that keep shards: what one process trains, and what they go on from when a rank is killed at any moment."""

import itertools
import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from glassformer.attention import AttentionLayer, Rope
from glassformer.checkpoints import load
from glassformer.data import Repeat
from glassformer.errors import ConfigError, GlassformerError
from glassformer.models import GREEDY, DecoderConfig, Mlp, block, generate, repeat
from glassformer.testing import close
from glassformer.training import TrainConfig, read_metrics, train
from glassformer.training.parallel import Mesh, processes
from mesh_runs import run, runs, same, same_as_one, tensors
from ranks import on_processes

# tokens that no mesh shares evenly, and maps whose rows ranks of a layer have in an order of their own
MODEL = DecoderConfig(21, 16, repeat(block(n_heads=2, positions=Rope(), mlp=Mlp(24), bias=True), 2), max_len=32)
DATA = Repeat(batch_size=4, length=12, unit_min=2, unit_max=4, vocab_size=21)
RECIPE = TrainConfig(MODEL, DATA, steps=6, log_every=1, evaluate_every=3, evaluate_batches=1, save_every=2, keep=(2,))
MESH = Mesh(dp=2)
# seconds that a rank waits for one that should be near
SLACK = 2.0


class Moment(NamedTuple):
    """When a rank is killed: just before it does something for the n-th time, or seconds after its first pass."""

    rank: int
    before: str
    n: float

    def __str__(self) -> str:
        return f"rank {self.rank} {self.before} {self.n:g}"


def killed(folder: Path, moment: Moment) -> str:
    """What a rank says whose neighbour is killed."""
    if os.environ["RANK"] == str(moment.rank):
        _prepare(moment, str(folder))
    with patch.object(processes, "SLACK", SLACK):
        try:
            run(RECIPE, folder, MESH, checkpoints="shards")
        except GlassformerError as error:
            return f"{type(error).__name__}: {error}"
    return "nothing"


def _prepare(moment: Moment, folder: str) -> None:
    """Let this process be killed at a moment."""
    met = itertools.count(1)

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def meet() -> None:
        number = next(met)
        if moment.before == "seconds" and number == 1:
            threading.Timer(moment.n, die).start()
        elif moment.before != "seconds" and number == moment.n:
            die()

    def counted(original: Any) -> Any:
        def one(*given: Any, **named: Any) -> Any:
            meet()
            return original(*given, **named)

        return one

    def acts(event: str, given: tuple[Any, ...]) -> None:
        # of files that are opened, those that are written
        of_the_run = event == moment.before and folder in str(given[0])
        if of_the_run and (event != "open" or given[2] & (os.O_WRONLY | os.O_RDWR)):
            meet()

    if moment.before in ("computes", "seconds"):
        patch.object(AttentionLayer, "forward", counted(AttentionLayer.forward)).start()
    elif moment.before == "exchanges":
        patch.object(dist, "all_reduce", counted(dist.all_reduce)).start()
    else:
        sys.addaudithook(acts)


def go_on(folder: Path, mesh: Mesh, straight: bool) -> None:
    """Go on with the run of a folder, and make the one that nobody disturbs."""
    run(RECIPE, folder / "run", mesh, checkpoints="shards")
    if straight:
        run(RECIPE, folder / "straight", mesh, checkpoints="shards")


def assert_named(found: list[Any], moment: Moment) -> None:
    """The other rank has said who is gone."""
    assert found[moment.rank] == "it died", found
    (said,) = found[1 - moment.rank]
    assert said.startswith(f'RankLost: rank {moment.rank} of mesh "dp=2" did not answer within {SLACK:g} seconds'), said


def assert_bit_equal(folder: Path, other: Path) -> None:
    ours, theirs = tensors(folder), tensors(other)
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], value) for key, value in theirs.items())
    assert [one["step"] for one in read_metrics(folder)] == [one["step"] for one in read_metrics(other)]


def test_a_rank_killed_while_it_saves_is_named_and_the_run_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    # between its two files of the second checkpoint
    moment = Moment(1, "open", 4)
    assert_named(on_processes(2, killed, tmp_path / "run", moment), moment)
    assert [path.name for path in sorted((tmp_path / "run").glob("step-*"))] == ["step-00000002"]
    # what ranks wrote is a model folder
    model = load(tmp_path / "run")
    assert model.config == MODEL and generate(model, [[1, 2]], GREEDY, max_new_tokens=2).ids[0][:2] == (1, 2)
    shutil.copytree(tmp_path / "run", tmp_path / "alone")
    assert on_processes(2, go_on, tmp_path, MESH, True) == [(None,)] * 2
    assert_bit_equal(tmp_path / "run", tmp_path / "straight")
    run(RECIPE, tmp_path / "alone", None)
    for name, value in tensors(tmp_path / "alone").items():
        close(value, tensors(tmp_path / "run")[name], 1e-9)
    kept, last = tmp_path / "run" / "step-00000002", tmp_path / "run" / "step-00000006"
    assert not [path for path in kept.iterdir() if "00002-of" in path.name] and load(kept).config == MODEL
    assert sorted(path.name for path in last.glob("*.safetensors")) == ["model.safetensors", "optimizer.safetensors"]
    assert not [*tmp_path.rglob(".building-*")] and not [*tmp_path.rglob("*.distcp")]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nobody disturbs, on two ranks."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert on_processes(2, go_on, folder, MESH, False) == [(None,)] * 2
    return folder / "run"


@pytest.mark.full
@pytest.mark.parametrize(
    "moment",
    [
        Moment(1, "computes", 5),
        Moment(0, "computes", 11),
        Moment(1, "exchanges", 9),
        Moment(0, "exchanges", 17),
        Moment(1, "open", 5),
        # the leader: between its shards, as it joins them, as they take their name, as older ones lose state or go
        Moment(0, "open", 15),
        Moment(0, "open", 26),
        Moment(0, "os.rename", 12),
        Moment(0, "os.remove", 2),
        Moment(0, "os.rename", 21),
        Moment(0, "seconds", 0.1),
        Moment(1, "seconds", 0.3),
    ],
    ids=str,
)
def test_a_rank_killed_at_any_moment_costs_no_more_than_the_steps_since_a_checkpoint(
    moment: Moment, undisturbed: Path, tmp_path: Path
) -> None:
    found = on_processes(2, killed, tmp_path / "run", moment)
    # by the clock, it may have been through before
    if moment.before != "seconds" or not (tmp_path / "run" / "step-00000006").exists():
        assert_named(found, moment)
    for place in ("alone", "layers"):
        shutil.copytree(tmp_path / "run", tmp_path / place / "run")
    assert on_processes(2, go_on, tmp_path, MESH, False) == [(None,)] * 2
    assert_bit_equal(tmp_path / "run", undisturbed)
    run(RECIPE, tmp_path / "alone" / "run", None)
    assert on_processes(2, go_on, tmp_path / "layers", Mesh(tp=2), False) == [(None,)] * 2
    for place in ("alone", "layers"):
        same(tmp_path / place / "run", undisturbed)


@pytest.mark.full
@pytest.mark.parametrize("mesh", [Mesh(tp=2), Mesh(cp=2), Mesh(dp=2, tp=2)], ids=str)
def test_ranks_that_keep_shards_train_what_one_process_does(mesh: Mesh, tmp_path: Path) -> None:
    recipe = RECIPE.replace(steps=20, save_every=20, keep=())
    assert on_processes(mesh.size, runs, recipe, tmp_path, mesh, True, "shards") == [(None,)] * mesh.size
    same_as_one(recipe, tmp_path)


def test_shards_of_one_process_and_measures_of_what_is_whole_nowhere_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="written by the ranks of a mesh"):
        train(RECIPE, tmp_path / "run", checkpoints="shards")
    with pytest.raises(ConfigError, match="icl measure the whole model, which no rank has"):
        train(RECIPE, tmp_path / "run", checkpoints="shards", mesh=MESH, measures={"icl": lambda model, data: {}})
    assert not (tmp_path / "run").exists()
