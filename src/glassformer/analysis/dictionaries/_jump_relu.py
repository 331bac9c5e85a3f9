"""JumpReLU autoencoder: a feature is there above a threshold of its own, as it is, and its being there costs.

    f = z 1[z > t],  t = exp(log t)        loss = mean over rows of  |s x - s x'|^2 + l0 sum_j 1[z_j > t_j]

Both steps have no slope, so thresholds learn by straight-through estimators: with K the rectangle of width and area one
and a bandwidth w,

    d f / d t = -(t / w) K((z - t) / w)        d 1[z > t] / d t = -(1 / w) K((z - t) / w)

while z gets the gradient of f where z > t, and none of the count. Decoder rows keep norm one: what of a gradient lies
along its row is taken away, and rows are brought back after each step.

Source: Rajamanoharan et al. 2024, "Jumping Ahead: Improving Reconstruction Fidelity with JumpReLU Sparse Autoencoders",
equations 9 to 12.
"""

# torch does not type what a function of its own keeps
# pyright: reportUnknownMemberType=false

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from glassformer.analysis.dictionaries._autoencoder import AutoencoderConfig, Losses, SparseAutoencoder
from glassformer.arguments import FiniteAmount, Positive


@dataclass(frozen=True)
class JumpRelu(AutoencoderConfig, kind="jumprelu"):
    """A JumpReLU autoencoder.

    Args:
        l0: What a feature that fires adds to the loss of a row.
        bandwidth: Width of the estimators' kernel.
        threshold: Where thresholds begin.
    """

    l0: FiniteAmount = 1.0
    bandwidth: Positive = 0.05
    threshold: Positive = 0.1


class JumpReluAutoencoder(SparseAutoencoder, config=JumpRelu):
    def __init__(self, config: JumpRelu) -> None:
        super().__init__(config)
        self.log_threshold = nn.Parameter(torch.full((config.n_features,), math.log(config.threshold)))

    @property
    def threshold(self) -> Float[Tensor, " feature"]:
        """Where each feature begins to be there."""
        return self.log_threshold.exp()

    @torch.no_grad()
    def draw(self, seed: int, mean: Tensor | None = None, scale: float = 1.0) -> None:
        super().draw(seed, mean, scale)
        self.log_threshold.fill_(math.log(self.config.threshold))

    def activations(self, pre: Float[Tensor, "*rows feature"]) -> Float[Tensor, "*rows feature"]:
        return _Jump.apply(pre, self.threshold, self.config.bandwidth)[0]  # type: ignore[no-any-return]

    def losses(self, rows: Float[Tensor, "row d_in"], dead: Bool[Tensor, " feature"], warm: float = 1.0) -> Losses:
        features, counts = _Jump.apply(self.pre_activations(rows), self.threshold, self.config.bandwidth)
        left = self.scaled_error(rows, features @ self.W_dec + self.b_dec)
        penalty = self.config.l0 * warm * counts.mean()
        active = features.detach().amax(0) > 0
        return Losses(left.square().sum(-1).mean(), penalty, active, counts.detach().double().mean())

    @torch.no_grad()
    def rescale(self, factors: Float[Tensor, " feature"]) -> None:
        super().rescale(factors)
        self.log_threshold += factors.log()


class _Jump(torch.autograd.Function):
    """z 1[z > t] and how many of a row are above, with the estimators of their slopes in t."""

    @staticmethod
    def forward(ctx: Any, pre: Tensor, threshold: Tensor, bandwidth: float) -> tuple[Tensor, Tensor]:
        # as numbers: products with truth values are many times slower
        above = (pre > threshold).to(pre.dtype)
        ctx.save_for_backward(pre, threshold)
        ctx.bandwidth = bandwidth
        count = above.sum(-1)
        return above.mul_(pre), count

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        (pre, threshold), w = ctx.saved_tensors, ctx.bandwidth
        # in place, since each of these is as large as all activations
        near = (pre - threshold).abs_().lt_(w / 2)
        # both slopes have the kernel in common
        each = near.mul_(torch.addcmul(grads[1][..., None], grads[0], threshold))
        to_threshold = each.sum_to_size(threshold.shape) / -w
        del near, each
        return (pre > threshold).to(pre.dtype).mul_(grads[0]), to_threshold, None
