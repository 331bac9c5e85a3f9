"""A run folder as data: its recipe, what was logged, the weights that were kept, its held-out text.

Folders are read as plain files; nothing here trains or changes them.
"""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from glassformer import checkpoints, files
from glassformer.arguments import checked
from glassformer.checkpoints import run_steps
from glassformer.data import Batch, Data, DataConfig, Tokenizer
from glassformer.data.batch import vocabularies_of
from glassformer.errors import ConfigError, RunFolderError
from glassformer.models import ModelConfig


@dataclasses.dataclass(frozen=True)
class History:
    """One run.

    Args:
        folder: Where it lies.
        config: The recipe, as JSON data.
        metrics: One entry per logged step.
        steps: Steps whose weights can be had: those kept, and 0, whose weights follow from the recipe's seed.
    """

    folder: Path
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    steps: tuple[int, ...]

    @property
    def name(self) -> str:
        return self.folder.name

    def model(self, step: int) -> Any:
        """The model as it was after a step, in evaluation mode; raises `RunFolderError` if it was not kept."""
        if step not in self.steps:
            raise RunFolderError(
                f'"{self.folder}" holds no weights of step {step}; it has {_few(self.steps)}.\n'
                "    Train with keep=[…] to keep the weights of more steps."
            )
        if step > 0:
            return checkpoints.load(self.at(step))
        model = ModelConfig.from_dict(self.config["model"]).build(self.config["seed"])
        model.tokenizer = self.tokenizer
        if not model.one_vocabulary():
            model.output_tokenizer = vocabularies_of(self.heldout())["output"]
        return model.eval()

    def models(self) -> Iterator[tuple[int, Any]]:
        """Yield every step's model, one in memory at a time."""
        for step in self.steps:
            yield step, self.model(step)

    def at(self, step: int) -> Path:
        return run_steps.at(self.folder, step)

    @property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self.folder)

    def tokens(self, step: int) -> int:
        """Tokens trained on after a step.

        Raises:
            CheckpointError: The facts of its checkpoint are damaged.
        """
        if step == 0:
            return 0
        return int(run_steps.read_facts(self.at(step))["tokens"])

    def logged(self, name: str) -> dict[int, Any]:
        """Logged values of a name, by step; empty if nothing was."""
        return {line["step"]: line[name] for line in self.metrics if line.get(name) is not None}

    def heldout(self) -> Data:
        """The data that the run's held-out loss was measured on."""
        config = self.config.get("evaluate") or self.config["data"]
        return DataConfig.from_dict(config).build(self.tokenizer)

    def batches(self, count: int = 8) -> list[Batch]:
        """Held-out batches, the same ones each time."""
        data = self.heldout()
        return [data.batch(i, "heldout") for i in range(count)]


def history_of(given: Any) -> History:
    """Return a run as it is given, or read its folder; raises `RunFolderError` as `read_history` does."""
    if isinstance(given, History):
        return given
    if not isinstance(given, str | Path):
        raise RunFolderError(
            f"a run is given by its folder, what glassformer train wrote; found {type(given).__name__}."
        )
    return read_history(given)


@checked
def read_history(folder: str | Path) -> History:
    """Read a run folder.

    Args:
        folder: What training wrote.

    Raises:
        RunFolderError: It is none, or damaged.
    """
    folder = Path(folder)
    try:
        config = files.read_json(folder / "config.json")
        lines = files.read_text(folder / "metrics.jsonl", files.MOST_METRICS).splitlines()
        metrics = [json.loads(line) for line in lines]
        if not isinstance(config["seed"], int) or not all(isinstance(line, dict) for line in metrics):
            raise ValueError("a seed or a line of metrics is not what training writes")
        ModelConfig.from_dict(config["model"])
        DataConfig.from_dict(config["data"])
    except OSError as error:
        raise RunFolderError(
            f'"{folder}" is no run folder ({error.strerror or error}: {error.filename}). Give what glassformer train '
            "wrote: a folder with config.json and metrics.jsonl."
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError, ConfigError) as error:
        raise RunFolderError(f'"{folder}" is damaged, or no run folder ({type(error).__name__}: {error}).') from error
    return History(folder, config, metrics, (0, *(step for step in run_steps.steps(folder) if step > 0)))


def _few(steps: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, steps[:6]))
    return shown if len(steps) <= 6 else f"{shown}, …, {steps[-1]}"
