"""Training a dictionary on rows of one site.

    minimise over the dictionary:   mean over rows of  |s x - s x'|^2 + penalty

by Adam, the rate rising over the first steps and falling to zero over the last, and what activations cost rising with
it. Where decoder rows keep norm one, the gradient along them is taken away before each step and they are brought back
behind it. A step's rows are a function of seed and step, so a training that goes on from its file goes through the same
numbers, bit for bit.
"""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer.analysis.dictionaries._attached import model_digest, provenance_of
from glassformer.analysis.dictionaries._autoencoder import AutoencoderConfig, Losses, SparseAutoencoder
from glassformer.analysis.dictionaries._rows import RowSource, row_source
from glassformer.analysis.saved import SavedWork
from glassformer.arguments import Amount, Count, Positive, Share, checked
from glassformer.errors import ShapeMismatch
from glassformer.files import json_text
from glassformer.fitting import Descent, Interrupts
from glassformer.models import ModuleLike


@dataclasses.dataclass(frozen=True)
class DictionaryStep:
    """What is told after a step.

    Args:
        step: Its number, counted from 1.
        steps: The last one.
        loss: What was descended, in units of the scaled rows.
        l0: Features that fired, mean over the step's rows.
        fvu: Squared error over the variance of all rows; 1 for a dictionary that says the mean.
        dead: Share of features that have not fired for `dead_after` rows.
    """

    step: int
    steps: int
    loss: float
    l0: float
    fvu: float
    dead: float


@dataclasses.dataclass(frozen=True)
class _Settings:
    steps: int
    batch_size: int
    lr: float
    warm_up: float
    decay: float
    clip: float
    dead_after: int
    seed: int

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 1."""
        rising = min(1.0, step / max(self.warm_up * self.steps, 1.0))
        falling = min(1.0, (self.steps - step + 1) / max(self.decay * self.steps, 1.0))
        return self.lr * rising * falling

    def warm(self, step: int) -> float:
        """Return which share of the penalty counts."""
        return min(1.0, step / max(self.warm_up * self.steps, 1.0))


@checked
def train_dictionary(
    rows: Any,
    config: AutoencoderConfig,
    *,
    steps: Count = 2000,
    batch_size: Count = 1024,
    lr: Positive = 1e-3,
    warm_up: Share = 0.05,
    decay: Share = 0.2,
    clip: Amount = 1.0,
    dead_after: Count = 100_000,
    seed: int = 0,
    model: ModuleLike | None = None,
    site: str | None = None,
    report: Callable[[DictionaryStep], None] | None = None,
    save_to: str | Path | None = None,
) -> SparseAutoencoder:
    """A sparse autoencoder, trained on rows of one site.

    Args:
        rows: A site of a store of activations, `store.site("blocks.2.resid_post")`, or a tensor `row width`.
        config: Kind and sizes: `Relu(d_in, n_features)`, `TopK(…)`, `JumpRelu(…)`.
        steps: Steps of Adam.
        batch_size: Rows in each.
        lr: Highest learning rate.
        warm_up: Share of the steps over which rate and penalty rise.
        decay: Share of the steps over which the rate falls to zero.
        clip: Largest norm of the gradient; 0 for no limit.
        dead_after: Rows after which a feature that did not fire counts as dead.
        seed: Source of the first directions and of the order of rows.
        model: The model that the rows are of, which the dictionary remembers; a store says it.
        site: The site that they are of; a store says it.
        report: Called with a `DictionaryStep` after each step.
        save_to: File that keeps where training is; it goes on from what is there.

    Raises:
        ShapeMismatch: The rows are no matrix, or of another width than the config says.
        AnalysisUnavailable: There are no rows.
        CheckpointError: `save_to` holds another training, or is damaged.
        TrainingDiverged: A loss or its gradient is not finite.
    """
    source = row_source(rows, "train_dictionary")
    if source.width != config.d_in:
        raise ShapeMismatch(f"train_dictionary: rows have {source.width} numbers, and the config says {config.d_in}.")
    settings = _Settings(
        steps=steps, batch_size=batch_size, lr=lr, warm_up=warm_up, decay=decay, clip=clip, dead_after=dead_after,
        seed=seed,
    )  # fmt: skip
    training = _Training(source, config, settings, _facts(rows, model, site), save_to)
    with Interrupts() as interrupts:
        try:
            for told in training.run():
                if report is not None:
                    report(told)
                interrupts.check()
        finally:
            training.save()
    return training.dictionary.eval()


class _Training:
    """One training: the dictionary, Adam's memory and how long each feature has been quiet."""

    def __init__(
        self, source: RowSource, config: AutoencoderConfig, settings: _Settings, facts: dict[str, Any], save_to: Any
    ) -> None:
        self.settings, self.batches = settings, source.shuffled(settings.batch_size, seed=settings.seed)
        first = self.batches.batch(0).values
        self.dictionary = config.build(settings.seed).to(first.device, torch.promote_types(first.dtype, torch.float32))
        mean, scale = source.mean, 1 / max(source.scale, torch.finfo(torch.float32).tiny)
        self.dictionary.draw(settings.seed, mean.to(first.device), scale)
        said = dataclasses.asdict(settings) | {"rows": len(source)}
        self.dictionary.facts = {**facts, **said}
        self.variance = float(source.variance.sum()) * scale**2
        self.parameters = list(self.dictionary.parameters())
        # one pass, with nothing of a parameter's size on the way
        self.optimizer = torch.optim.Adam(self.parameters, settings.lr, fused=True)
        self.quiet = torch.zeros(config.n_features, dtype=torch.long, device=first.device)
        self.step = 0
        identity = json_text({"config": config.to_dict(), **self.dictionary.facts}).encode() + _bytes(mean)
        other = "the training of another dictionary: other rows, another config or other settings"
        path = None if save_to is None else Path(save_to)
        self.work = SavedWork(
            path, "dictionary", identity, other, provenance_of(facts, "train_dictionary", settings.seed)
        )
        if self.work.tensors:
            self._restore(self.work.tensors)

    def run(self) -> Iterator[DictionaryStep]:
        """Yield what is told of each step; when it is, the step is made."""
        seen: list[tuple[Losses, int]] = []

        def losses(step: int) -> Iterator[Tensor]:
            values = self.batches.batch(step - 1).values
            dead = self.quiet >= self.settings.dead_after
            found = self.dictionary.losses(values, dead, self.settings.warm(step))
            seen[:] = [(found, len(values))]
            yield found.error + found.penalty

        descent = Descent(
            self.parameters, self.optimizer, losses, rate=self.settings.rate, steps=self.settings.steps,
            step=self.step, clip=self.settings.clip, name="train_dictionary",
            way_on=lambda: f"Train it with a smaller lr (now {self.settings.lr:g}).",
        )  # fmt: skip
        updates = iter(descent)
        while descent.step < descent.steps:
            descent.gradient()
            self.dictionary.project_gradient()
            update = next(updates)
            self.dictionary.normalise()
            ((found, count),) = seen
            self.quiet = (self.quiet + count).masked_fill(found.active, 0)
            self.step = update.step
            dead = float((self.quiet >= self.settings.dead_after).double().mean())
            fvu = float(found.error.detach()) / max(self.variance, 1e-30)
            yield DictionaryStep(update.step, descent.steps, update.loss, float(found.l0), fvu, dead)
            if self.work.is_due():
                self.save()

    def save(self) -> None:
        """Write where training is."""
        tensors = {"quiet": self.quiet, "step": torch.tensor(self.step)}
        for i, parameter in enumerate(self.parameters):
            tensors[f"parameter.{i}"] = parameter.detach()
            tensors |= {f"{name}.{i}": value for name, value in self.optimizer.state[parameter].items()}
        self.work.save({name: value.cpu().contiguous() for name, value in tensors.items()})

    @torch.no_grad()
    def _restore(self, tensors: dict[str, Tensor]) -> None:
        self.step, self.quiet = int(tensors["step"]), tensors["quiet"].to(self.quiet.device)
        for i, parameter in enumerate(self.parameters):
            parameter.copy_(tensors[f"parameter.{i}"])
            names = [name for name in ("step", "exp_avg", "exp_avg_sq") if f"{name}.{i}" in tensors]
            self.optimizer.state[parameter] = {name: tensors[f"{name}.{i}"].to(parameter.device) for name in names}


def _bytes(mean: Tensor) -> bytes:
    return mean.double().cpu().numpy().tobytes()


def _facts(rows: Any, model: Any, site: str | None) -> dict[str, Any]:
    """Return what the rows are of: as it was said, or as a store says it."""
    said: Any = getattr(getattr(rows, "store", None), "provenance", None)
    found = {} if said is None else {"model": said.model, "digest": said.digest}
    if model is not None:
        found = {"model": str(getattr(model, "name", "") or type(model).__name__), "digest": model_digest(model)}
    site = getattr(rows, "name", None) if site is None else site
    return found if site is None else {**found, "site": site}
