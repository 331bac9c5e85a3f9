"""Parts that blocks and stacks are made of: norms, MLPs, embeddings, unembedding."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from glassformer.attention import LinearMap, SubLayerConfig, linear, sinusoids
from glassformer.config import Config, require
from glassformer.errors import TextError
from glassformer.trace import Site, Tape, declare, full_names, site, wants


class NormConfig(Config, family=True):
    """How a vector is brought to a standard size before it is read."""

    def build(self, d_model: int, path: str, layer: int | None, names: tuple[str, str] = ("norm", "scale")) -> "Norm":
        return Norm(self, d_model, path, layer, names)


@dataclass(frozen=True)
class LayerNorm(NormConfig, kind="layer_norm"):
    """(x - mean) / sqrt(variance + eps) * gain + bias.  Source: Ba et al. 2016."""

    eps: float = 1e-5
    bias: bool = True

    def __post_init__(self) -> None:
        require(self.eps >= 0, f"layer_norm: eps must not be negative, found {self.eps}.")


@dataclass(frozen=True)
class RmsNorm(NormConfig, kind="rms_norm"):
    """x / sqrt(mean of squares + eps) * gain.  Source: Zhang and Sennrich 2019."""

    eps: float = 1e-5

    def __post_init__(self) -> None:
        require(self.eps >= 0, f"rms_norm: eps must not be negative, found {self.eps}.")


@dataclass(frozen=True)
class NoNorm(NormConfig, kind="none"):
    """The identity."""


class Norm(nn.Module):
    """A norm with two sites: its output, and the scale it divides by (lazy; reading it changes the route)."""

    def __init__(self, config: NormConfig, d_model: int, path: str, layer: int | None, names: tuple[str, str]) -> None:
        super().__init__()
        self.config, self.d_model, self.path, self.layer, self.names = config, d_model, path, layer, names
        self.at_out, self.at_scale = (f"{path}.{name}" for name in names)
        self.centred = isinstance(config, LayerNorm)
        self.eps = config.eps if isinstance(config, (LayerNorm, RmsNorm)) else 0.0
        gain, bias = not isinstance(config, NoNorm), isinstance(config, LayerNorm) and config.bias
        self.weight = nn.Parameter(torch.ones(d_model)) if gain else None
        self.bias = nn.Parameter(torch.zeros(d_model)) if bias else None

    def forward(
        self, x: Float[Tensor, "batch pos d_model"], tape: Tape | None = None
    ) -> Float[Tensor, "batch pos d_model"]:
        if self.weight is not None:
            if wants(tape, self.at_scale):
                x = self.affine(x, site(tape, self.at_scale, self.scale(x)))
            elif self.centred:
                x = F.layer_norm(x, (self.d_model,), self.weight, self.bias, self.eps)
            else:
                x = F.rms_norm(x, (self.d_model,), self.weight, self.eps)
        return site(tape, self.at_out, x)

    def scale(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "..."]:
        """Return what x is divided by."""
        x = x - x.mean(-1, keepdim=True) if self.centred else x
        return (x.square().mean(-1) + self.eps).sqrt()

    def affine(self, x: Float[Tensor, "... d_model"], scale: Float[Tensor, "..."]) -> Float[Tensor, "... d_model"]:
        """Return the norm with its scale given: affine in x."""
        out = self.linear(x, scale)
        return out if self.bias is None else out + self.bias

    def linear(self, x: Float[Tensor, "... d_model"], scale: Float[Tensor, "..."]) -> Float[Tensor, "... d_model"]:
        """Return the linear part of `affine`: what becomes of one addend of the stream."""
        if self.weight is None:
            return x
        x = x - x.mean(-1, keepdim=True) if self.centred else x
        return x / scale[..., None] * self.weight

    def sites(self) -> Iterator[Site]:
        scale = {} if self.weight is None else {self.names[1]: "batch pos"}
        axes = scale | {self.names[0]: "batch pos d_model"}
        yield from declare(self.path, axes, {"d_model": self.d_model}, layer=self.layer, lazy=self.names[1:])


ACTIVATIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda u: F.gelu(u, approximate="tanh"),
    "silu": F.silu,
}


@dataclass(frozen=True)
class Mlp(SubLayerConfig, kind="mlp"):
    """A position-wise network: plain `act(x W_in) W_out`, or gated `(act(x W_gate) * x W_in) W_out`.

    Args:
        d_mlp: Neurons; 4 d_model by default.
        activation: Non-linearity; gated silu is SwiGLU, gated gelu is GEGLU.
        gated: Multiply by a second, linear branch.
        bias: Biases on all matrices.

    Source: Vaswani et al. 2017, section 3.3; Shazeer 2020, "GLU Variants".
    """

    d_mlp: int | None = None
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] = "gelu"
    gated: bool = False
    bias: bool = True

    role: ClassVar[str] = "mlp"

    def __post_init__(self) -> None:
        require(self.d_mlp is None or self.d_mlp >= 1, f"mlp: d_mlp must be at least 1, found {self.d_mlp}.")

    def build(self, d_model: int, max_len: int, layer: int, path: str) -> "MlpLayer":
        return MlpLayer(self, d_model, layer, path)


class MlpLayer(nn.Module):
    SITES: ClassVar[dict[str, str]] = {
        "pre": "batch pos neuron",
        "linear": "batch pos neuron",
        "hidden": "batch pos neuron",
        "out": "batch pos d_model",
    }

    def __init__(self, config: Mlp, d_model: int, layer: int, path: str) -> None:
        super().__init__()
        self.config, self.d_model, self.layer, self.path = config, d_model, layer, path
        self.d_mlp = config.d_mlp or 4 * d_model
        self.at = full_names(path, self.SITES)
        self.gate = LinearMap(d_model, self.d_mlp, bias=config.bias) if config.gated else None
        self.input = LinearMap(d_model, self.d_mlp, bias=config.bias)
        self.output = LinearMap(self.d_mlp, d_model, bias=config.bias)
        self.activation = ACTIVATIONS[config.activation]

    def forward(
        self, x: Float[Tensor, "batch pos d_model"], tape: Tape | None = None
    ) -> Float[Tensor, "batch pos d_model"]:
        at = self.at
        if self.gate is None:
            hidden = self.activation(site(tape, at.pre, self.input(x)))
        else:
            gate = self.activation(site(tape, at.pre, self.gate(x)))
            hidden = gate * site(tape, at.linear, self.input(x))
        return site(tape, at.out, self.output(site(tape, at.hidden, hidden)))

    def sites(self) -> Iterator[Site]:
        axes = {name: words for name, words in self.SITES.items() if self.gate is not None or name != "linear"}
        yield from declare(self.path, axes, {"neuron": self.d_mlp, "d_model": self.d_model}, layer=self.layer)


class PositionEmbedding(Config, family=True):
    """Positions that are added to the residual stream, once, at the bottom."""

    def build(self, d_model: int, max_len: int) -> "PositionTable":
        return PositionTable(self, d_model, max_len)


@dataclass(frozen=True)
class Sinusoidal(PositionEmbedding, kind="sinusoidal"):
    """Fixed sines and cosines.  Source: Vaswani et al. 2017, section 3.5."""


@dataclass(frozen=True)
class Learned(PositionEmbedding, kind="learned"):
    """A learned vector for each position up to max_len."""


class PositionTable(nn.Module):
    def __init__(self, config: PositionEmbedding, d_model: int, max_len: int) -> None:
        super().__init__()
        self.d_model, self.max_len = d_model, max_len
        self.weight = nn.Parameter(torch.empty(max_len, d_model)) if isinstance(config, Learned) else None

    def forward(self, positions: Int[Tensor, "b pos"], like: Tensor) -> Float[Tensor, "b pos d_model"]:
        if self.weight is None:
            return sinusoids(positions, self.d_model).to(like.dtype)
        return F.embedding(positions, self.weight)

    def check(self, length: int) -> None:
        """Raise `TextError` if a learned table has no row for the last position."""
        if self.weight is not None and length > self.max_len:
            raise TextError(
                f"{length} tokens, but the model has learned positions for max_len={self.max_len} only; "
                f"shorten the text to {self.max_len} tokens."
            )


class VocabularyMatrix(nn.Module):
    """A `vocab d_model` matrix: one's own parameter, or (tied) that of another module, stored once."""

    def __init__(self, vocab_size: int, d_model: int, tied: "VocabularyMatrix | None") -> None:
        super().__init__()
        # a plain attribute: registering the other module here would store its matrix twice
        self.__dict__["tied"] = tied
        self.matrix = None if tied is not None else nn.Parameter(torch.empty(vocab_size, d_model))

    @property
    def weight(self) -> Float[Tensor, "vocab d_model"]:
        return self.matrix if self.matrix is not None else self.__dict__["tied"].weight


class Embedding(VocabularyMatrix):
    """Token vectors, scaled by sqrt(d_model) if asked, plus position vectors if there are any.

    With token types (which of two texts a token belongs to), the token's vector is that of the token and its type.
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        max_len: int,
        positions: PositionEmbedding | None,
        scaled: bool,
        path: str,
        tied: VocabularyMatrix | None = None,
        n_types: int = 0,
    ) -> None:
        super().__init__(vocab_size, d_model, tied)
        self.path = path
        self.at_token, self.at_position, self.at_type = f"{path}.token", f"{path}.position", f"{path}.type"
        self.types = nn.Parameter(torch.zeros(n_types, d_model)) if n_types else None
        self.positions = None if positions is None else positions.build(d_model, max_len)
        self.factor = math.sqrt(d_model) if scaled else 1.0

    def forward(
        self,
        tokens: Int[Tensor, "batch pos"],
        positions: Int[Tensor, "b pos"],
        tape: Tape | None,
        types: Int[Tensor, "batch pos"] | None = None,
    ) -> Float[Tensor, "batch pos d_model"]:
        x = F.embedding(tokens, self.weight)
        x = x if self.factor == 1.0 else x * self.factor
        if self.types is not None:
            own = self.types[:1] if types is None else F.embedding(types, self.types)
            x = x + site(tape, self.at_type, own.expand_as(x))
        x = site(tape, self.at_token, x)
        if self.positions is None:
            return x
        placed = self.positions(positions, x).expand_as(x)
        return x + site(tape, self.at_position, placed)

    def sites(self) -> Iterator[Site]:
        names = ["token"] if self.positions is None else ["token", "position"]
        names = names if self.types is None else ["type", *names]
        sizes = {"d_model": self.weight.shape[1]}
        yield from declare(self.path, dict.fromkeys(names, "batch pos d_model"), sizes)


class Unembedding(VocabularyMatrix):
    """From the stream to logits, with a soft cap on them if asked.

    logits = cap * tanh(raw / cap),  raw = x W_U + b_U

    The cap is monotone, so it changes probabilities and no rank. Only the raw logits are linear in the stream, and with
    a readout (`models.readout`), which x then stands behind, not even those.
    Source: Gemma Team 2024, "Gemma 2", section 2 (logit soft-capping).
    """

    at_raw = "logits_raw"

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        tied: VocabularyMatrix | None,
        bias: bool,
        cap: float | None = None,
        readout: nn.Module | None = None,
    ) -> None:
        super().__init__(vocab_size, d_model, tied)
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if bias else None
        self.cap = cap
        self.readout = readout

    def forward(self, x: Float[Tensor, "batch pos d_model"], tape: Tape | None) -> Float[Tensor, "batch pos vocab"]:
        logits = self.raw(x, tape)
        if self.cap is not None:
            logits = self.capped(site(tape, self.at_raw, logits))
        return site(tape, "logits", logits)

    def logits(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... vocab"]:
        """Return the logits as the model uses them: capped if it caps them."""
        return self.capped(self.raw(x))

    def raw(self, x: Float[Tensor, "... d_model"], tape: Tape | None = None) -> Float[Tensor, "... vocab"]:
        """Return the logits before the cap."""
        x = x if self.readout is None else self.readout(x, tape)
        return linear(x, self.weight, self.bias)

    def capped(self, raw: Float[Tensor, "... vocab"]) -> Float[Tensor, "... vocab"]:
        """Return what the cap leaves of raw logits; the same if there is none."""
        return raw if self.cap is None else self.cap * (raw / self.cap).tanh()

    def log_prob(self, x: Float[Tensor, "... d_model"], ids: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Return the log-probability of each id, in nats."""
        return self.logits(x).log_softmax(-1).gather(-1, ids[..., None]).squeeze(-1)

    def direction(self, ids: Int[Tensor, "..."]) -> Float[Tensor, "... d_model"]:
        """Return the direction of what the matrix reads whose dot product is the token's logit, bias and cap aside."""
        return self.weight[ids]

    def sites(self) -> Iterator[Site]:
        if self.readout is not None:
            yield from self.readout.sites()  # type: ignore[operator]
        names = ["logits"] if self.cap is None else [self.at_raw, "logits"]
        yield from declare("", dict.fromkeys(names, "batch pos vocab"), {"vocab": self.weight.shape[0]})

    def loss(
        self,
        x: Float[Tensor, "batch pos d_model"],
        ids: Int[Tensor, "batch pos"],
        weight: Bool[Tensor, "batch pos"] | None = None,
        smoothing: float = 0.0,
    ) -> Float[Tensor, ""]:
        """Return the mean cross-entropy over the positions that count, in nats (with label smoothing if asked)."""
        logits = self.logits(x)
        # float32 at least: a bfloat16 log-sum-exp is off by more than the loss differences one compares
        wide = logits if logits.dtype == torch.float64 else logits.float()
        losses = F.cross_entropy(wide.flatten(0, 1), ids.flatten(), reduction="none", label_smoothing=smoothing)
        if weight is None:
            return losses.mean()
        counted = weight.flatten().to(losses.dtype)
        return (losses * counted).sum() / counted.sum().clamp_min(1.0)


def initialise(model: nn.Module, scheme: Literal["gpt", "xavier"], residual_writes: int) -> None:
    """Draw initial weights.

    `gpt`: normal of 0.02 everywhere, matrices that write to the stream divided by sqrt(residual writes), biases zero.
    `xavier`: Xavier-uniform for every matrix (each of W_Q, W_K, W_V on its own), embeddings normal of d_model^-0.5.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            if module.bias is not None:
                nn.init.zeros_(module.bias)
            if scheme == "gpt":
                writes = name.endswith(".output")
                nn.init.normal_(module.weight, std=0.02 / (math.sqrt(max(residual_writes, 1)) if writes else 1.0))
            else:
                for rows in _separate_rows(model, name, module):
                    nn.init.xavier_uniform_(rows)
        elif isinstance(module, (VocabularyMatrix, PositionTable)):
            own = module.matrix if isinstance(module, VocabularyMatrix) else module.weight
            if own is not None:
                nn.init.normal_(own, std=0.02 if scheme == "gpt" else own.shape[1] ** -0.5)


def _separate_rows(model: nn.Module, name: str, module: nn.Linear) -> list[Tensor]:
    if not name.endswith(".qkv"):
        return [module.weight]
    widths = model.get_submodule(name.removesuffix(".qkv")).widths
    return list(module.weight.detach().split(list(widths)))  # type: ignore[arg-type]
