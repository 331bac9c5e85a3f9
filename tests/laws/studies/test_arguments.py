"""The six arguments: one section each, graded by numbers that are there, or said to be unavailable with the reason."""

import json
import math
from pathlib import Path

import pytest
import torch

from glassformer.analysis.learning._measures import head_measures, text_measures
from glassformer.attention import Rope, Softmax
from glassformer.data import Batch, Repeat
from glassformer.data.batch import next_token_batch
from glassformer.errors import RunFolderError
from glassformer.models import DecoderConfig, block
from glassformer.studies.induction_heads import TITLES, SixArguments, six_arguments
from glassformer.training import OptimConfig, TrainConfig, train
from glassformer.training.loop import Measure

DATA = Repeat(batch_size=16, length=32, unit_min=4, unit_max=12, vocab_size=24)
MEASURES: dict[str, Measure] = {"text": text_measures, "heads": head_measures}


def trained(path: Path, layers: tuple, steps: int, keep: tuple[int, ...]) -> Path:
    config = TrainConfig(
        DecoderConfig(24, 48, layers, max_len=64), DATA, optim=OptimConfig(lr=5e-3, warmup=20), steps=steps, keep=keep,
        evaluate_every=50, evaluate_batches=1, save_every=500,
    )  # fmt: skip
    train(config, path, measures=MEASURES)
    return path


def rows() -> Batch:
    """Sixteen random tokens twice over; all count, those of the first copy too."""
    random = torch.Generator().manual_seed(0)
    units = torch.stack([1 + torch.randperm(23, generator=random)[:16] for _ in range(40)])
    return next_token_batch(torch.cat((torch.zeros(40, 1, dtype=torch.long), units, units), 1))


# two runs are trained
pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two layers, of which the first sees the previous token only; and one layer with smeared keys."""
    root = tmp_path_factory.mktemp("runs")
    two = (block(Softmax(window=2), n_heads=2, positions=Rope()), block(n_heads=2))
    first = trained(root / "two", two, 300, (50, 100, 150, 200, 250))
    return first, trained(root / "smeared", (block(n_heads=2, smeared=True),), 200, ())


@pytest.fixture(scope="module")
def report(runs: tuple[Path, Path]) -> SixArguments:
    return six_arguments(runs[0], [runs[1]], rows())


def test_a_run_in_which_induction_forms_is_told_so(report: SixArguments) -> None:
    assert [argument.title for argument in report.arguments] == list(TITLES)
    assert report.induction_heads
    assert all(label.startswith("L1") for label in report.induction_heads)
    assert report["ablation"].grade == "strong"
    assert 0.5 < report.icl_share < 2
    assert report["mechanism"].grade == "strong"
    assert report["mechanism"].numbers["source"].startswith("L0")
    assert report["co-occurrence"].grade in ("medium", "weak")
    assert report["scale"].grade in ("weak", "none")


def test_a_report_can_be_written_down(report: SixArguments) -> None:
    data = json.loads(report.to_json())
    assert data["arguments"][2]["numbers"]["heads"] == list(report.induction_heads)
    assert data["trajectory"]["measures"]["coords"]["step"] == [0, 50, 100, 150, 200, 250, 300]


def test_one_run_alone_says_what_it_cannot_tell(runs: tuple[Path, Path]) -> None:
    found = six_arguments(runs[1], (), rows())
    assert found["co-occurrence"].grade == "not available"
    assert "1 checkpoints beside step 0" in found["co-occurrence"].finding
    assert found["co-perturbation"].grade == "not available"
    assert "smeared keys" in found["co-perturbation"].finding
    assert found["scale"].grade == "not available"
    assert found.phase is None


def test_a_run_without_induction_heads_has_nothing_to_ablate(runs: tuple[Path, Path], tmp_path: Path) -> None:
    folder = trained(tmp_path / "short", (block(n_heads=2),), 4, (1, 2, 3))
    found = six_arguments(folder, (), rows())
    assert found.induction_heads == ()
    assert math.isnan(found.icl_share)
    for title in ("ablation", "generality", "mechanism"):
        assert found[title].grade == "not available"
    assert found["co-occurrence"].grade == "none"


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="no run folder"):
        six_arguments(tmp_path)
