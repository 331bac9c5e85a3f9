"""A readout: one more layer between the stack and the unembedding, at each position by itself.

    read = norm(act(x W + b))

Masked language models predict through one. It is no part of the residual stream: what it reads, it replaces.
Source: Devlin et al. 2018, "BERT", in the authors' code (run_pretraining.py, get_masked_lm_output).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.attention import LinearMap
from glassformer.config import Config
from glassformer.models.mlp import ACTIVATIONS
from glassformer.models.norms import LayerNorm, NormConfig
from glassformer.trace import Site, Tape, declare, full_names, site


@dataclass(frozen=True)
class Readout(Config):
    """The layer before the unembedding.

    Args:
        activation: Non-linearity behind the matrix.
        norm: Norm behind that.
        bias: A bias on the matrix.
    """

    activation: Literal["relu", "gelu", "gelu_tanh", "silu", "tanh"] = "gelu"
    norm: NormConfig = field(default_factory=LayerNorm)
    bias: bool = True

    def build(self, d_model: int) -> "ReadoutLayer":
        return ReadoutLayer(self, d_model)


class ReadoutLayer(nn.Module):
    """From the stack's output to what the unembedding reads."""

    SITES = ("pre", "hidden")

    def __init__(self, config: Readout, d_model: int, path: str = "readout") -> None:
        super().__init__()
        self.config, self.d_model, self.path = config, d_model, path
        self.at = full_names(path, self.SITES)
        self.input = LinearMap(d_model, d_model, bias=config.bias)
        self.activation = ACTIVATIONS[config.activation]
        self.norm = config.norm.build(d_model, path, None)

    def forward(self, x: Float[Tensor, "*n d_model"], tape: Tape | None = None) -> Float[Tensor, "*n d_model"]:
        hidden = self.activation(site(tape, self.at.pre, self.input(x)))
        hidden = site(tape, self.at.hidden, hidden)
        # a norm takes rows by batch and position
        return self.norm(hidden, tape) if x.ndim == 3 else self.norm(hidden.reshape(1, -1, self.d_model)).view_as(x)

    def slope(self, pre: Float[Tensor, "*n d_model"]) -> Float[Tensor, "*n d_model"]:
        """Return act(u) / u: with it frozen, what follows is linear in what the readout reads."""
        # at zero every activation here is zero, so that any finite number is right
        safe = torch.where(pre == 0, torch.ones_like(pre), pre)
        return self.activation(safe) / safe

    def sites(self) -> Iterator[Site]:
        yield from declare(self.path, dict.fromkeys(self.SITES, "batch pos d_model"), {"d_model": self.d_model})
        yield from self.norm.sites()
