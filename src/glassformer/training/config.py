"""A recipe as data: everything that decides the final weights."""

from dataclasses import dataclass, field
from typing import Literal, Self

from glassformer.arguments import Count, Rate
from glassformer.config import FORMAT_VERSION, Config, require, require_finite
from glassformer.data import DataConfig
from glassformer.errors import ConfigError
from glassformer.files import json_text
from glassformer.models import LabelSmoothing, ModelConfig
from glassformer.training.optim import OptimConfig


@dataclass(frozen=True)
class TrainConfig(Config):
    """A recipe: everything that decides the final weights.

    Args:
        model: What is trained.
        data: What it is trained on.
        evaluate: Held-out data for the loss that is reported; the training data's held-out split by default.
        optim: How weights change.
        steps: Number of updates.
        seed: Of initial weights and dropout.
        weights: A trained model whose weights training begins with, a shipped one's name or a folder; None to draw all.
            It may have another vocabulary: what is new of it begins as the mean of its pieces.
        accumulate: Split each batch into this many parts, to save memory.
        smoothing: Label smoothing: the rate of the form that all tokens share, or another form.
        precision: Of the forward pass.
        compile: Compile the model; worth it only where measured faster.
        device: Where to train: `"auto"`, this machine's accelerator if it has one and the CPU otherwise, or a device by
            its name. A run may go on elsewhere, so this is no part of what tells recipes apart.
        log_every: Steps between lines of metrics.
        evaluate_every: Steps between held-out losses and measures.
        evaluate_batches: Batches per held-out loss, always the same ones.
        save_every: Steps between checkpoints to resume from.
        keep: Steps whose weights are kept for good.
    """

    model: ModelConfig
    data: DataConfig
    evaluate: DataConfig | None = None
    optim: OptimConfig = field(default_factory=OptimConfig)
    steps: Count = 1000
    seed: int = 0
    weights: str | None = None
    accumulate: Count = 1
    smoothing: Rate | LabelSmoothing = 0.0
    precision: Literal["float32", "bfloat16"] = "float32"
    compile: bool = False
    device: str = "auto"
    log_every: Count = 20
    evaluate_every: Count = 200
    evaluate_batches: Count = 8
    save_every: Count = 200
    keep: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        require_finite(self, "train")
        require(-(2**63) <= self.seed < 2**63, f"train: seed must fit in 64 bits, found {self.seed}.")

    def identity(self) -> str:
        """Identity of a recipe, as JSON: all of it but where it runs."""
        told = {"format": FORMAT_VERSION} | self.to_dict()
        del told["device"]
        return json_text(told, indent=2)

    def on_text(self, *sources: str) -> Self:
        """The recipe on other text, for training and for the held-out loss alike.

        Args:
            sources: Files, folders, globs or named corpora, as in `TextConfig`.

        Raises:
            ConfigError: The recipe reads no text.
        """
        data = self.data.on_text(sources)
        if not set(sources) <= set(data.origins()):
            raise ConfigError(f"this recipe reads no text: its data are {', '.join(data.origins())}.")
        return self.replace(data=data, evaluate=None if self.evaluate is None else self.evaluate.on_text(sources))
