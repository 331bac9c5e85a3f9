"""The training loop: batch, loss, step; measures along the way; resumable at any moment to the same numbers.

Everything a step draws (its batch, its dropout) comes from the seed and the step's number, so a run that was stopped and
resumed goes through the same values as one that was not: bit for bit on the same thread count, torch and code.
"""

import hashlib
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from glassformer.config import Config, require
from glassformer.data import Batch, Data, DataConfig
from glassformer.errors import ConfigError
from glassformer.models import ModelConfig
from glassformer.training.optim import OptimConfig
from glassformer.training.record import RunFolder

Measure = Callable[[Any, Data], Mapping[str, Any]]


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
        accumulate: Split each batch into this many parts, to save memory.
        smoothing: Label smoothing.
        precision: Of the forward pass.
        compile: Compile the model; worth it only where measured faster.
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
    steps: int = 1000
    seed: int = 0
    accumulate: int = 1
    smoothing: float = 0.0
    precision: Literal["float32", "bfloat16"] = "float32"
    compile: bool = False
    log_every: int = 20
    evaluate_every: int = 200
    evaluate_batches: int = 8
    save_every: int = 200
    keep: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("steps", "accumulate", "log_every", "evaluate_every", "evaluate_batches", "save_every"):
            require(getattr(self, name) >= 1, f"train: {name} must be at least 1, found {getattr(self, name)}.")
        require(0 <= self.smoothing < 1, f"train: smoothing must be in [0, 1), found {self.smoothing}.")


@dataclass(frozen=True)
class Progress:
    """What is told after every step."""

    step: int
    steps: int
    loss: float
    tokens: int
    tokens_per_second: float
    notes: Mapping[str, Any] = field(default_factory=dict)


def train(
    config: TrainConfig,
    folder: str | Path,
    *,
    measures: Mapping[str, Measure] | None = None,
    report: Callable[[Progress], None] | None = None,
) -> Any:
    """Train, or go on training, in a run folder; return the model.

    Args:
        config: The recipe; a folder that holds another recipe's run is refused.
        folder: Where checkpoints and metrics go. If it holds checkpoints of this recipe, training goes on from the last.
        measures: Functions of (model, data) evaluated along with the held-out loss; what they return is logged, text
            goes to samples.txt.
        report: Called after every step.

    Raises:
        RunFolderError: Another process trains there, or the folder holds another recipe.
        DataError: The corpus holds no usable text.
        SaveError: A checkpoint could not be written; the last one is whole.
    """
    with RunFolder(folder, config) as run:
        data = config.data.build(run.tokenizer())
        run.keep_tokenizer(data.tokenizer)
        model = _model(config, data)
        heldout = data if config.evaluate is None else config.evaluate.build(data.tokenizer)
        optimizer = config.optim.build(model)
        facts = run.restore(model, optimizer) or _facts()
        _warn_if_different(facts)
        loop = _Loop(config, run, model, data, heldout, optimizer, measures or {}, facts)
        if facts["step"] == 0 and not run.steps():
            run.log({"step": 0, "tokens": 0} | loop.evaluate(0))
        try:
            for progress in loop.steps():
                if report is not None:
                    report(progress)
        except KeyboardInterrupt:
            loop.save()
            raise
        return model.eval()


class _Loop:
    def __init__(
        self,
        config: TrainConfig,
        run: RunFolder,
        model: Any,
        data: Data,
        heldout: Data,
        optimizer: torch.optim.Optimizer,
        measures: Mapping[str, Measure],
        facts: dict[str, Any],
    ) -> None:
        self.config, self.run, self.model, self.optimizer = config, run, model, optimizer
        self.data, self.heldout, self.measures, self.facts = data, heldout, measures, facts
        self.step, self.tokens = facts["step"], facts["tokens"]
        self.seconds = facts["seconds"]
        self.loss = torch.compile(model.loss) if config.compile else model.loss
        self.done = self.step

    def steps(self) -> Iterator[Progress]:
        config = self.config
        losses: list[float] = []
        started, seen = time.perf_counter(), self.tokens
        while self.step < config.steps:
            # up to here the state is that of a finished step: an interrupt between two steps may save it
            loss, norm, rate, tokens = self._update(self.step + 1)
            losses.append(loss)
            notes: dict[str, Any] = {}
            if self.step % config.log_every == 0 or self.step == config.steps:
                notes = {"loss": sum(losses) / len(losses), "lr": rate, "grad_norm": norm}
                losses.clear()
            if self.step % config.evaluate_every == 0 or self.step == config.steps:
                notes |= self.evaluate(self.step)
            elapsed = time.perf_counter() - started
            if notes:
                self.run.log({"step": self.step, "tokens": self.tokens, "seconds": round(self.seconds + elapsed, 2)} | notes)
            if self.step % config.save_every == 0 or self.step in config.keep or self.step == config.steps:
                self.save(elapsed)
            yield Progress(
                self.step, config.steps, loss, self.tokens, (self.tokens - seen) / max(elapsed, 1e-9), notes
            )

    def save(self, elapsed: float = 0.0) -> None:
        facts = self.facts | {"tokens": self.tokens, "seconds": self.seconds + elapsed}
        keep = self.step in self.config.keep or self.step == self.config.steps
        self.run.save(self.step, self.model, self.optimizer, facts, keep)

    def evaluate(self, step: int) -> dict[str, Any]:
        """Return the held-out loss in nats per token, and every measure."""
        self.model.eval()
        found: dict[str, Any] = {}
        with torch.no_grad():
            total = count = 0.0
            for i in range(self.config.evaluate_batches):
                batch = self.heldout.batch(i, "heldout")
                weight = float(batch.weight.sum())
                total += float(self.model.loss(batch)) * weight
                count += weight
            found["heldout_loss"] = total / max(count, 1.0)
            for measure in self.measures.values():
                for name, value in measure(self.model, self.heldout).items():
                    if isinstance(value, str):
                        self.run.sample(step, value)
                    else:
                        found[name] = value
        self.model.train()
        return found

    def _update(self, step: int) -> tuple[float, float, float, int]:
        """Do one update and return (loss, gradient norm, learning rate, tokens)."""
        config = self.config
        torch.manual_seed(_seed(config.seed, step))
        batch = self.data.batch(step)
        rate = config.optim.rate(step, config.steps, config.model.d_model)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = 0.0
        counted = float(batch.weight.sum())
        for part in _parts(batch, config.accumulate):
            # parts are weighted by the tokens that count, so that accumulation changes nothing but memory
            share = float(part.weight.sum()) / counted
            with torch.autocast("cpu", torch.bfloat16, enabled=config.precision == "bfloat16"):
                value = self.loss(part, config.smoothing) * share
            value.backward()
            loss += float(value.detach())
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.optim.clip or float("inf"))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step, self.tokens = step, self.tokens + int(counted)
        return loss, float(norm), rate, int(counted)


def _parts(batch: Batch, count: int) -> list[Batch]:
    if count == 1:
        return [batch]
    size = -(-len(batch.tokens) // count)
    pieces = {name: value.split(size) for name, value in batch.tensors().items()}
    return [Batch(**{name: value[i] for name, value in pieces.items()}) for i in range(len(pieces["tokens"]))]


def _model(config: TrainConfig, data: Data) -> Any:
    if config.model.vocab_size < data.vocab_size:
        raise ConfigError(
            f"train: the model has vocab_size={config.model.vocab_size}, the data's tokenizer {data.vocab_size}."
        )
    model = config.model.build(config.seed)
    model.tokenizer = data.tokenizer
    return model.train()


def _seed(seed: int, step: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {step}".encode()).digest()[:7], "big")


def _facts() -> dict[str, Any]:
    return {
        "step": 0,
        "tokens": 0,
        "seconds": 0.0,
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }


def _warn_if_different(facts: dict[str, Any]) -> None:
    import warnings

    for name, now in (("threads", torch.get_num_threads()), ("torch", str(torch.__version__))):
        if facts[name] != now:
            warnings.warn(
                f"this run began with {name}={facts[name]} and goes on with {name}={now}: "
                "it will be as good, but not the same bit for bit.",
                stacklevel=3,
            )
