"""Pairs of prompts for tests of circuits: random ones for every architecture, and planted ones with a known wiring."""

from typing import Any

import torch
from torch import Tensor

from glassformer.analysis.circuits._circuit_runs import CircuitRuns
from glassformer.analysis.sweep import Metric, logit, logit_difference
from glassformer.data import Contrast
from glassformer.handmade import repeated
from glassformer.testing.models import Subject, subject


class Compared:
    """A model, a clean and a corrupt prompt, and a metric linear in the logits."""

    def __init__(self, found: Subject, metric: Metric | None = None, seed: int = 9) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.model, self.clean = found.model, found.inputs
        self.corrupt = found.others(generator)
        self.metric = metric or logit_difference(1, 2)

    @property
    def args(self) -> tuple[Any, Contrast, Metric]:
        """What every analysis of circuits takes first."""
        return *self.prompts, self.metric

    @property
    def prompts(self) -> tuple[Any, Contrast]:
        """The model and its two prompts."""
        return self.model, Contrast(self.clean[0], self.corrupt[0], **self.targets)

    @property
    def targets(self) -> dict[str, Any]:
        """What a contrast has besides of an encoder-decoder."""
        return {"target": self.clean[1], "corrupt_target": self.corrupt[1]} if len(self.clean) > 1 else {}

    def runs(self, **kwargs: Any) -> CircuitRuns:
        return CircuitRuns(self.model, self.clean[0], self.corrupt[0], self.metric, **self.targets, **kwargs)

    def value(self, logits: Tensor) -> Tensor:
        """Return the metric of logits `batch pos vocab`."""
        ids = self.metric.ids(self.model, len(logits), logits.device)
        return self.metric.function(logits[None, :, -1], *ids)[0].detach()


def pair(name: str, seed: int = 0) -> Compared:
    """Return an architecture by name with two random prompts."""
    return Compared(subject(name, seed=seed), seed=seed + 9)


def repetition(vocab: int = 21, batch: int = 4) -> tuple[Contrast, Metric]:
    """Return rows that repeat themselves, rows that repeat something else, and the logit of the former's next token."""
    clean, corrupt = repeated(vocab, 2, 0, batch), repeated(vocab, 2, 77, batch)
    stop = vocab + 9
    answer = clean[:, stop].tolist()
    return Contrast(clean[:, :stop], corrupt[:, :stop], answer), logit(answer)


def novelty(vocab: int = 25, length: int = 10, batch: int = 3) -> tuple[Contrast, Metric]:
    """Return rows whose last token stood there before, rows of other tokens, each once, and the logit of the next."""
    rows = torch.stack(
        [1 + torch.randperm(vocab - 1, generator=torch.Generator().manual_seed(i)) for i in range(batch)]
    )
    first = torch.zeros(batch, 1, dtype=torch.long)
    clean = torch.cat((first, rows[:, :length], rows[:, 3:4]), 1)
    corrupt = torch.cat((first, rows[:, length : 2 * length + 1]), 1)
    answer = rows[:, 4].tolist()
    return Contrast(clean, corrupt, answer), logit(answer)
