"""Sweeps whose rows ranks share, against sweeps of one process: same numbers, uneven shares, files, what goes wrong."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

import glassformer as gf
from glassformer.analysis.causal import patch as patched
from glassformer.analysis.circuits import acdc
from glassformer.analysis.sweep import Metric, Sweep, grid, logit_difference, sweep, token_loss
from glassformer.analysis.sweep.shared_rows import SharedRows, owners
from glassformer.errors import ConfigError, GlassformerError, RankLost
from glassformer.models.row_ranks import ONE_RANK
from glassformer.testing import close
from glassformer.testing.models import subject
from glassformer.trace import Add, At, Scale, Set, Take
from glassformer.training.parallel import processes, shared_sweeps, tensor_parallel
from ranks import on_processes

CASE = subject("llama")
(IDS,) = CASE.inputs
(OTHERS,) = CASE.others(torch.Generator().manual_seed(1))
METRIC = logit_difference(1, 2)
PLACES = grid(
    lambda layer, pos: [Scale(f"blocks.{layer}.resid_pre", 0.5, at=At(pos=pos))], layer=range(2), pos=range(7)
)
MODULE = nn.Sequential(nn.Embedding(11, 4), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 11)).double()
SITES = gf.Spec(sites={"embed.token": "0.out", "blocks.0.mlp.out": "1.out", "blocks.0.resid_post": "2.out"})
IN_MODULE = [[Scale("1.out", factor)] for factor in (0.0, 0.5, 2.0, 3.0, -1.0)]
BY_NAME = [[Scale("blocks.0.mlp.out", factor)] for factor in (0.0, 0.5, 2.0, 3.0, -1.0)]
TAKING = [
    [Add("blocks.0.resid_pre", 0.5, at=At(pos=1))],
    [Scale("blocks.0.mlp.out", 0.0)],
    [],
    [Take("blocks.1.attn.out", 0, at=At(pos=3)), Take("blocks.0.mlp.out", 1)],
    [Set("blocks.1.attn.z", 0.0, at=At(head=2))],
]


def swept() -> dict[str, Sweep]:
    """Sweeps of our model, of a module by names of ours, and of one by its own, which runs row by row."""
    model, own = CASE.model, seeded(MODULE)
    return {
        "places": sweep(model, IDS, PLACES, METRIC),
        "one at once": sweep(model, IDS, PLACES, METRIC, rows=1),
        "one row": sweep(model, IDS, TAKING[:1], METRIC),
        "taking": sweep(model, IDS, TAKING, token_loss(IDS.roll(-1, 1)), base_edit=[Scale("blocks.1.mlp.out", 0.5)]),
        "by name": sweep(gf.foreign(own, SITES), IDS, BY_NAME, METRIC),
        "module": sweep(own, IDS, IN_MODULE, METRIC),
        "with a graph": sweep(model, IDS, TAKING, METRIC, grad=True),
    }


def seeded(module: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, generator=generator)
    return module


def tables() -> list[Tensor]:
    """What two analyses make of sweeps and of cut edges."""
    found = patched(CASE.model, (IDS, OTHERS), METRIC, ["resid_pre", "z"])
    circuit = acdc(CASE.model, (IDS, OTHERS), METRIC, threshold=0.05, candidates=12)
    changes = torch.tensor([decision.change for decision in circuit.log], dtype=torch.float64)
    return [found["resid_pre"].values.values, found["z"].values.values, circuit.in_circuit.values.double(), changes]


def asked_by_all(folder: Path) -> dict[str, Any]:
    """What this rank finds of sweeps that all share, once it has found the same by itself."""
    alone, own = swept(), tables()
    told, runs = list[tuple[int, int]](), list[int]()
    with shared_sweeps() as device:
        assert device == torch.device("cpu")
        found = swept()
        for name, one in found.items():
            close(one.values.values, alone[name].values.values)
            close(one.base.values, alone[name].base.values)
            assert (one.values.axes, one.how) == (alone[name].values.axes, alone[name].how)
        # where rows have passes of their own, neighbours change nothing
        assert torch.equal(found["module"].values.values, alone["module"].values.values)
        assert found["with a graph"].values.values.requires_grad
        for ours, theirs in zip(tables(), own, strict=True):
            close(ours, theirs)
        with CASE.model.stack.blocks[1].register_forward_hook(lambda *_: runs.append(0)):
            ask = partial(sweep, CASE.model, IDS, PLACES, METRIC, rows=2, save_to=folder / "rows.safetensors")
            first, before = ask(report=lambda done, total: told.append((done, total))), len(runs)
            again, after = ask(), len(runs) - before
        assert torch.equal(first.values.values, again.values.values)
    values = {name: one.values.values.detach() for name, one in found.items()}
    return values | {"told": told, "before": before, "after": after, "passes": again.passes}


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.full), pytest.param(1, marks=pytest.mark.full)])
def test_ranks_that_share_rows_find_what_one_process_finds(ranks: int, tmp_path: Path) -> None:
    found = on_processes(ranks, asked_by_all, tmp_path)
    assert not any(isinstance(one, str) for one in found), found
    each: list[dict[str, Any]] = [one for (one,) in found]
    for one in each[1:]:
        for name in swept():
            # gathered as they are
            assert torch.equal(one[name], each[0][name]), name
        assert one["told"] == []
    assert each[0]["told"][-1] == (14, 14) and sorted(each[0]["told"]) == each[0]["told"]
    # no rank runs what another does; of what the file holds nobody runs more than the base
    assert sum(one["before"] - one["after"] for one in each) == each[0]["passes"]
    assert all(one["after"] <= 2 < one["before"] for one in each)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.safetensors"]


def test_units_are_shared_in_their_order_and_by_what_they_cost() -> None:
    assert owners([1] * 7, 3) == [0, 0, 1, 1, 1, 2, 2]
    assert owners([8, 1, 1, 1, 1, 1, 1, 1, 1], 2) == [0] + [1] * 8
    assert owners([5], 3) == [1] and owners([], 2) == []
    generator = torch.Generator().manual_seed(0)
    for ranks in range(1, 6):
        costs = torch.randint(1, 50, (30,), generator=generator).tolist()
        found = owners(costs, ranks)
        assert found == sorted(found) and set(found) <= set(range(ranks))
        shares = [sum(cost for cost, owner in zip(costs, found, strict=True) if owner == rank) for rank in range(ranks)]
        # a middle may lie just within
        assert max(shares) <= sum(costs) / ranks + max(costs)
    shared = SharedRows(ONE_RANK, [(2,), (0, 3), (1,)], [1, 2, 1])
    assert shared.own == shared.rows == [2, 0, 3, 1] and shared.totals(3, 4) == [3, 4]
    assert owners([1] * 2, 4) == [1, 3]


def refused() -> dict[str, str]:
    """What errors say of what ranks cannot share."""
    rank, said = int(os.environ["RANK"]), dict[str, str]()
    model = CASE.model

    def other_plan() -> Any:
        return sweep(model, IDS, TAKING[: 1 + rank], METRIC)

    def other_text() -> Any:
        return sweep(model, IDS if rank else OTHERS, TAKING, METRIC)

    def parts() -> Any:
        return sweep(tensor_parallel(model, init_device_mesh("cpu", (2,))), IDS, TAKING, METRIC)

    def twice() -> Any:
        with shared_sweeps():
            raise AssertionError("a group in a group")

    asked: dict[str, Callable[[], Any]] = {
        "another plan": other_plan, "another text": other_text, "parts": parts, "twice": twice,
    }  # fmt: skip
    with shared_sweeps():
        for name, ask in asked.items():
            try:
                ask()
            except GlassformerError as error:
                said[name] = f"{type(error).__name__}: {error}"
    # one block after another
    with shared_sweeps():
        sweep(model, IDS, TAKING, METRIC)
    return said


def test_what_ranks_cannot_share_is_refused_by_all() -> None:
    both = on_processes(2, refused)
    assert not any(isinstance(one, str) for one in both), both
    (said,), (same,) = both
    assert said == same
    assert said["another plan"].startswith("ConfigError: rank 1 has another plan, or other metrics or prompts, than")
    assert said["another text"].startswith("ConfigError: rank 1 has other numbers of the base run")
    assert said["parts"].startswith("AnalysisUnavailable: sweep: ranks hold parts of this model")
    assert "in a group of processes already" in said["twice"]


def test_a_world_size_that_is_none_is_named_and_one_process_is_alone() -> None:
    told = patch.dict(os.environ, WORLD_SIZE="two")
    with told, pytest.raises(ConfigError, match='WORLD_SIZE is "two"'), shared_sweeps():
        pass
    with patch.dict(os.environ):
        os.environ.pop("WORLD_SIZE", None)
        with shared_sweeps() as device:
            assert device == torch.device("cpu")
            close(sweep(CASE.model, IDS, TAKING, METRIC).values.values, swept_alone())


def swept_alone() -> Tensor:
    return sweep(CASE.model, IDS, TAKING, METRIC).values.values


def fading(logits: Tensor) -> Tensor:
    """A metric in which rank 1 dies, once it has measured the base and a pass."""
    global _measured
    _measured += 1
    if os.environ.get("RANK") == "1" and _measured == 3:
        os._exit(1)
    return logits[:, :, -1, 0]


_measured = 0


def dies(path: Path) -> str:
    """What the other says of a rank that dies in the middle of a sweep."""
    with patch.object(processes, "SLACK", 2.0):
        try:
            with shared_sweeps():
                sweep(CASE.model, IDS, PLACES, Metric("first", fading, pos=None), rows=1, save_to=path)
        except RankLost as error:
            return str(error)
    return "nothing"


def test_a_rank_that_dies_is_named_and_one_process_goes_on_with_the_rows_that_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "rows.safetensors"
    (said,), died = on_processes(2, dies, path)
    assert died == "it died"
    assert said.startswith('rank 1 of mesh "dp=2" did not answer within 2 seconds')
    assert "a sweep goes on with the rows that save_to has kept" in said
    assert [one.name for one in tmp_path.iterdir()] == ["rows.safetensors.rank-0"]
    before, metric = _measured, Metric("first", fading, pos=None)
    found = sweep(CASE.model, IDS, PLACES, metric, rows=1, save_to=path)
    # the base, and half of the rows, more or less
    assert 4 < _measured - before < 12 and [one.name for one in tmp_path.iterdir()] == ["rows.safetensors"]
    close(found.values.values, sweep(CASE.model, IDS, PLACES, metric).values.values)
