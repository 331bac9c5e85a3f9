"""The training loop: batch, loss, step; measures along the way; resumable at any moment to the same numbers.

Everything a step draws (its batch, its dropout) comes from the seed and the step's number, so a run that was stopped
and resumed goes through the same values as one that was not: bit for bit on the same thread count, torch and code.
"""

import hashlib
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from glassformer.data import Batch, Data
from glassformer.errors import ConfigError
from glassformer.models import Encoder, EncoderDecoder
from glassformer.training.config import TrainConfig
from glassformer.training.interrupts import Interrupts
from glassformer.training.record import RunFolder

Measure = Callable[[Any, Data], Mapping[str, Any]]


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
        folder: Where checkpoints and metrics go. If it holds checkpoints of this recipe, training goes on from the
            last.
        measures: Functions of (model, data) evaluated along with the held-out loss; what they return is logged, text
            goes to samples.txt.
        report: Called after every step.

    Raises:
        RunFolderError: Another process trains there, or the folder holds another recipe.
        DataError: The corpus holds no usable text.
        CheckpointError: The checkpoint to go on from is damaged.
        SaveError: A checkpoint could not be written; the last one is whole.
        KeyboardInterrupt: Ctrl-C; the step under way was finished and saved. A second Ctrl-C does not wait for that.
    """
    with RunFolder(folder, config) as run, _reproducible(config.compile):
        data = config.data.build(run.tokenizer())
        model = _model(config, data)
        heldout = data if config.evaluate is None else config.evaluate.build(data.tokenizer)
        optimizer = config.optim.build(model)
        restored = run.restore(model, optimizer)
        facts = restored or _facts()
        _warn_if_different(facts)
        loop = _Loop(config, run, model, data, heldout, optimizer, measures or {}, facts)
        # whatever is wrong with recipe or data shows here, before anything is written
        first = loop.evaluate() if restored is None else {}
        run.begin(config, data.tokenizer)
        if restored is None:
            loop.record(0.0, first)
        with Interrupts() as interrupts:
            for progress in loop.steps():
                try:
                    if report is not None:
                        report(progress)
                    interrupts.check()
                except KeyboardInterrupt:
                    # between two steps the state is that of a finished one
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
        # of the steps since the last line of metrics
        self.losses: list[float] = list(facts["losses"])
        self.loss = torch.compile(model.loss) if config.compile else model.loss
        self.started, self.seen = time.perf_counter(), self.tokens

    def steps(self) -> Iterator[Progress]:
        config = self.config
        self.started, self.seen = time.perf_counter(), self.tokens
        while self.step < config.steps:
            loss, norm, rate = self._update(self.step + 1)
            self.losses.append(loss)
            notes: dict[str, Any] = {}
            if self.step % config.log_every == 0 or self.step == config.steps:
                notes = {"loss": sum(self.losses) / len(self.losses), "lr": rate, "grad_norm": norm}
                self.losses.clear()
            if self.step % config.evaluate_every == 0 or self.step == config.steps:
                notes |= self.evaluate()
            elapsed = time.perf_counter() - self.started
            if notes:
                self.record(self.seconds + elapsed, notes)
            if self.step % config.save_every == 0 or self.step in config.keep or self.step == config.steps:
                self.save()
            rate = (self.tokens - self.seen) / max(elapsed, 1e-9)
            yield Progress(self.step, config.steps, loss, self.tokens, rate, notes)

    def record(self, seconds: float, notes: Mapping[str, Any]) -> None:
        """Log numbers to metrics.jsonl and texts to samples.txt."""
        numbers = {name: value for name, value in notes.items() if not isinstance(value, str)}
        self.run.log({"step": self.step, "tokens": self.tokens, "seconds": round(seconds, 2)} | numbers)
        for value in notes.values():
            if isinstance(value, str):
                self.run.sample(self.step, value)

    def save(self) -> None:
        seconds = self.seconds + time.perf_counter() - self.started
        facts = self.facts | {"tokens": self.tokens, "seconds": seconds, "losses": self.losses}
        keep = self.step in self.config.keep or self.step == self.config.steps
        self.run.save(self.step, self.model, self.optimizer, facts, keep)

    def evaluate(self) -> dict[str, Any]:
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
                found |= measure(self.model, self.heldout)
        self.model.train()
        return found

    def _update(self, step: int) -> tuple[float, float, float]:
        """Do one update and return (loss, gradient norm, learning rate)."""
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
            share = float(part.weight.sum()) / max(counted, 1.0)
            with torch.autocast("cpu", torch.bfloat16, enabled=config.precision == "bfloat16"):
                value = self.loss(part, config.smoothing) * share
            value.backward()
            loss += float(value.detach())
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.optim.clip or float("inf"))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step, self.tokens = step, self.tokens + int(counted)
        return loss, float(norm), rate


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
    if isinstance(model, Encoder):
        raise ConfigError(
            "train: an encoder reads both ways, so it sees each next token; training one takes masked tokens as "
            "targets, which no data here has. Encoders are loaded: glassformer.load(PATH)."
        )
    batch = data.batch(1)
    if isinstance(model, EncoderDecoder) != (batch.source is not None):
        raise ConfigError(
            f'train: data of kind "{config.data.kind}" has {"no " if batch.source is None else ""}sources, which '
            f"{'an encoder-decoder needs' if batch.source is None else 'only an encoder-decoder reads'}."
        )
    model.tokenizer = data.tokenizer
    model.trained_length = max(config.data.length, batch.tokens.shape[1])
    return model.train()


@contextmanager
def _reproducible(compiled: bool) -> Iterator[None]:
    """Ask for deterministic algorithms while compiled code runs; eager CPU code has no others."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    if compiled:
        torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _seed(seed: int, step: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {step}".encode()).digest()[:7], "big")


def _facts() -> dict[str, Any]:
    return {
        "step": 0,
        "tokens": 0,
        "seconds": 0.0,
        "losses": [],
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }


def _warn_if_different(facts: dict[str, Any]) -> None:
    for name, now in (("threads", torch.get_num_threads()), ("torch", str(torch.__version__))):
        if facts[name] != now:
            warnings.warn(
                f"this run began with {name}={facts[name]} and goes on with {name}={now}: "
                "it will be as good, but not the same bit for bit.",
                stacklevel=3,
            )
