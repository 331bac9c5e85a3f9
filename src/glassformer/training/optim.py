"""Optimiser and learning-rate schedules.

cosine    linear warm-up, then half a cosine down to `floor` of the peak
noam      factor * d_model^-0.5 * min(s^-0.5, s * warmup^-1.5)      (Vaswani et al. 2017, section 5.3)
constant  linear warm-up, then flat

With `unit_vectors`, every step ends with vectors of length 1, see `models.unit_vectors`.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from glassformer.arguments import Amount, Natural, Positive, Rate, Share
from glassformer.attention import LinearMaps
from glassformer.config import UNSAID, Config, require, require_finite
from glassformer.models.unit_vectors import normalise_vectors
from glassformer.numerics.placement import place_of

# where an update is one kernel. A CPU has that too, three times as fast, but rounds otherwise: runs of old would not go
# on to the same weights
FUSED = ("cuda", "xpu", "mps")


@dataclass(frozen=True)
class OptimConfig(Config):
    """AdamW with decoupled weight decay on matrices; embeddings, norms and biases are not decayed.

    Args:
        lr: Peak learning rate; for `noam` the factor.
        schedule: How the rate changes over steps.
        warmup: Steps until the peak.
        floor: Final rate as a share of the peak, for `cosine`.
        betas: Decay of the two moments.
        eps: Added to the root of the second moment.
        weight_decay: Per unit of learning rate.
        clip: Largest norm of the gradient; 0 for no limit.
        unit_vectors: Bring the vectors of matrices that read the stream or write to it to length 1, before the first
            step and after each; by itself it needs no weight decay.
    """

    lr: Positive = 1e-3
    schedule: Literal["cosine", "noam", "constant"] = "cosine"
    warmup: Natural = 100
    floor: Share = 0.1
    betas: tuple[Rate, Rate] = (0.9, 0.98)
    eps: Amount = 1e-9
    weight_decay: Amount = 0.01
    clip: Amount = 1.0
    unit_vectors: bool = field(default=False, metadata={UNSAID: True})

    def __post_init__(self) -> None:
        require_finite(self, "optim")
        # the first update divides the rate by 1 - beta, and weights are float32
        most = torch.finfo(torch.float32).max * (1 - self.betas[0])
        require(self.lr <= most, f"optim: lr is too large for weights in float32: at most {most:.2g}, found {self.lr}.")

    def rate(self, step: int, steps: int, d_model: int) -> float:
        """The learning rate of a step, counted from 1."""
        s = max(step, 1)
        if self.schedule == "noam":
            return self.lr * d_model**-0.5 * min(s**-0.5, s * max(self.warmup, 1) ** -1.5)
        ramp = min(1.0, s / self.warmup) if self.warmup else 1.0
        if self.schedule == "constant" or s <= self.warmup:
            return self.lr * ramp
        progress = min(1.0, (s - self.warmup) / max(steps - self.warmup, 1))
        return self.lr * (self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * progress)))

    def build(self, model: nn.Module) -> torch.optim.AdamW:
        """AdamW over two groups, what is decayed and what is not; fused on accelerators that have that.

        With `unit_vectors` the model's are brought to length 1 here too.
        """
        decayed = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear | LinearMaps)}
        parameters = [p for p in model.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in parameters if id(p) in decayed], "weight_decay": self.weight_decay},
            {"params": [p for p in parameters if id(p) not in decayed], "weight_decay": 0.0},
        ]
        settings: Any = {"lr": self.lr, "betas": self.betas, "eps": self.eps}
        fused = place_of(model).type in FUSED
        optimizer = torch.optim.AdamW(groups, **settings, fused=fused, foreach=not fused)
        if self.unit_vectors:
            normalise_vectors(model)
            optimizer.register_step_post_hook(lambda *_: normalise_vectors(model))
        return optimizer
