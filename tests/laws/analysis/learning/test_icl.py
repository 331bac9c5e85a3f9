"""In-context learning: the score's interval, runs read from their folders, the phase change, paths of losses."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from glassformer.analysis.learning import (
    Trajectory,
    in_context_learning,
    loss_trajectories,
    phase_change,
    read_history,
    trajectory,
)
from glassformer.analysis.learning._in_context import summarise
from glassformer.analysis.learning._phase_change import MEASURES, principal
from glassformer.analysis.losses import icl_score, loss_by_position
from glassformer.data.batch import next_token_batch
from glassformer.errors import AnalysisUnavailable, RunFolderError, ShapeMismatch
from glassformer.handmade import induction_model, repeated
from glassformer.labelled import Labelled
from glassformer.testing import close
from glassformer.testing.models import subject
from glassformer.training import OptimConfig, TrainConfig, train
from tiny_runs import recipe


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with weights at steps 0 (from the seed), 2, 4 and 6."""
    path = tmp_path_factory.mktemp("runs") / "tiny"
    data = recipe().data.replace(length=24)  # long enough for an early and a late window
    config: TrainConfig = recipe(keep=(2, 4, 6), data=data, optim=OptimConfig(warmup=1))
    train(config, path)
    return path


def table(scores: list[float], losses: list[float] | None = None) -> Trajectory:
    """A trajectory with given scores at steps 0, 1, 2, …, a hundred tokens each."""
    n = len(scores)
    columns = torch.zeros(n, len(MEASURES), dtype=torch.float64)
    columns[:, MEASURES.index("icl_score")] = torch.tensor(scores)
    columns[:, MEASURES.index("loss")] = torch.tensor(losses or [5.0 - 0.1 * i for i in range(n)])
    columns[:, MEASURES.index("prefix_matching")] = -columns[:, MEASURES.index("icl_score")]
    steps: dict[str, Any] = {"step": range(n)}
    return Trajectory(
        Labelled(torch.zeros(n, 3), ("step", "pos"), steps),
        Labelled(columns, ("step", "measure"), steps | {"measure": MEASURES}),
        Labelled(torch.zeros(n, 2), ("step", "end"), steps),
        ("",) * n, Labelled(torch.arange(n) * 100, ("step",), steps), "made up", 1,
    )  # fmt: skip


def test_the_score_of_the_induction_model_is_its_loss_on_the_first_copy() -> None:
    found = in_context_learning(induction_model(), next_token_batch(repeated(batch=4)), early=range(5, 10), late=30)
    assert found.score == pytest.approx(-math.log(21), rel=1e-3)
    assert found.low <= found.score <= found.high
    assert (found.early, found.late, found.rows) == ((5, 9), (30, 30), 4)


@given(st.floats(-3, 3), st.integers(0, 100))
def test_a_constant_added_to_all_losses_changes_neither_score_nor_interval(shift: float, seed: int) -> None:
    losses = torch.rand(6, 40, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    first, second = (summarise(x, torch.ones(6, 40).bool()) for x in (losses, losses + shift))
    assert (first.score, first.low, first.high) == pytest.approx((second.score, second.low, second.high))


def test_the_interval_is_that_of_resampled_rows() -> None:
    losses = torch.rand(50, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = summarise(losses, torch.ones(50, 40).bool(), early=5, late=30, resamples=4000)
    rows = losses[:, 29] - losses[:, 4]
    half = 1.96 * float(rows.std()) / 50**0.5
    assert found.high - found.low == pytest.approx(2 * half, rel=0.1)
    assert summarise(losses, torch.ones(50, 40).bool(), early=5, late=30, level=0.5).high < found.high


def test_spread_is_the_standard_error_of_each_positions_mean() -> None:
    losses = torch.rand(5, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = summarise(losses, torch.ones(5, 40).bool())
    close(found.spread.values, losses.std(0) / 5**0.5)
    line = torch.arange(1, 41, dtype=torch.float64).log().expand(2, -1)
    close(summarise(-0.3 * line, torch.ones(2, 40).bool()).slope.values, torch.full((40,), -0.3, dtype=torch.float64))


def test_the_curve_is_loss_by_position() -> None:
    model = subject("gpt2").model
    batch = next_token_batch(torch.randint(0, 11, (3, 21), generator=torch.Generator().manual_seed(0)))
    found = in_context_learning(model, batch)
    close(found.loss.values, loss_by_position(model, batch).values)
    assert found.score == pytest.approx(icl_score(found.loss))


def test_a_run_folder_gives_back_its_models_from_the_first(folder: Path) -> None:
    history = read_history(folder)
    assert history.steps == (0, 2, 4, 6)
    assert [history.tokens(step) for step in history.steps[:2]] == [0, history.metrics[2]["tokens"]]
    first = loss_by_position(history.model(0), *history.batches(1))
    heldout = history.batches(1)[0].weight.sum(0)
    mean = float((first.values.nan_to_num() * heldout).sum() / heldout.sum())
    assert mean == pytest.approx(history.logged("heldout_loss")[0], rel=1e-5)
    with pytest.raises(RunFolderError, match="no weights of step 3; it has 0, 2, 4, 6"):
        history.model(3)


def test_what_is_no_run_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="is no run folder"):
        read_history(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(RunFolderError, match="damaged, or no run folder"):
        read_history(tmp_path)


def test_a_trajectory_holds_what_each_checkpoint_measures_alone(folder: Path) -> None:
    history = read_history(folder)
    tokens = torch.randint(1, 20, (6, 25), generator=torch.Generator().manual_seed(0))
    batch = next_token_batch(tokens)
    found = trajectory(history, batch)
    alone = in_context_learning(history.model(4), batch)
    close(found.losses.select(step=2).values, alone.loss.values)
    assert float(found.measures.select(step=2, measure="icl_score").values) == pytest.approx(alone.score)
    assert found.tokens.values[0] == 0
    assert json.loads(found.to_json())["name"] == "tiny"


def test_the_phase_change_is_where_the_score_falls_fastest() -> None:
    found = phase_change(table([0, 0, 0, 0, -0.4, -0.5, -0.5, -0.5]))
    assert found.step == 4
    assert found.window == (3, 4)
    assert found.steepest.select(measure="prefix_matching").values.tolist() == [3, 4]
    assert float(found.together.select(measure="prefix_matching").values) == pytest.approx(-1)
    assert float(found.change.select(measure="icl_score").values) == pytest.approx(-0.4 / math.log(4 / 3))
    assert found.together.select(measure="previous_token").values.isnan()


def test_a_bump_is_a_stretch_above_the_convex_hull() -> None:
    falling = [6.0, 5.0, 4.2, 3.6, 3.2, 3.0, 2.9, 2.85]
    scores = [0.0, 0, 0, 0, -0.4, -0.5, -0.5, -0.5]
    assert phase_change(table(scores, falling)).bump_height == pytest.approx(0, abs=1e-9)
    falling[4] = 3.5  # slower here, faster after
    found = phase_change(table(scores, falling))
    assert found.bump == (3, 5)
    assert found.bump_height == pytest.approx(3.5 - (3.6 + 3.0) / 2)


def test_too_few_checkpoints_show_no_change() -> None:
    with pytest.raises(AnalysisUnavailable, match="2 checkpoints beside step 0"):
        phase_change(table([0.0, 0.0, 0.0]))


@given(st.integers(2, 6), st.integers(3, 30), st.integers(0, 1000))
def test_principal_axes_are_those_of_the_covariance(snapshots: int, tokens: int, seed: int) -> None:
    vectors = torch.randn(snapshots, tokens, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found, share = principal(vectors, 2)
    centred = vectors - vectors.mean(0)
    left, size, _ = torch.linalg.svd(centred, full_matrices=False)
    close(found.abs(), (left * size)[:, :2].abs(), 1e-6)
    close(share, (size.square() / size.square().sum())[:2], 1e-8)
    shift = torch.randn(tokens, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    close(principal(vectors + shift, 2)[0], found, 1e-6)


def test_equal_snapshots_lie_on_one_place_and_walks_explain_as_much_as_walks(folder: Path) -> None:
    batch = next_token_batch(torch.randint(1, 20, (6, 25), generator=torch.Generator().manual_seed(0)))
    history = read_history(folder)
    found = loss_trajectories([history, dataclasses.replace(history)], batch, draws=5)
    close(found.positions.values[:4], found.positions.values[4:])
    assert found.runs == ("tiny",) * 8
    assert found.steps == (0, 2, 4, 6) * 2
    assert 0 < float(found.control.values[1]) < float(found.control.values[0]) < 1
    with pytest.raises(ShapeMismatch, match="9 components of 8 snapshots"):
        loss_trajectories([history, history], batch, components=9)
