"""Parts that blocks and stacks are made of: norms, MLPs, embeddings, unembedding."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from glassformer.attention import ByPosition, LinearMap, LinearMaps, SubLayerConfig, linear, sinusoids
from glassformer.attention.linear_map import parameters_of
from glassformer.config import Config, require
from glassformer.errors import AnalysisUnavailable, TextError
from glassformer.trace import Site, Tape, declare, full_names, site, wants


class NormConfig(Config, family=True):
    """How a vector is brought to a standard size before it is read."""

    def build(
        self,
        d_model: int,
        path: str,
        layer: int | None,
        names: tuple[str, str] = ("norm", "scale"),
        tied: "Norm | None" = None,
    ) -> "Norm":
        return Norm(self, d_model, path, layer, names, tied)


@dataclass(frozen=True)
class LayerNorm(NormConfig, kind="layer_norm"):
    """(x - mean) / sqrt(variance + eps) * gain + bias.

    Args:
        eps: Added to the variance.
        bias: Whether there is a bias.
        gain: Whether there is a gain; without gain and bias the norm has no parameters.

    Source: Ba et al. 2016; Groeneveld et al. 2024, "OLMo", section 2.1 (without parameters).
    """

    eps: float = 1e-5
    bias: bool = True
    gain: bool = True

    def __post_init__(self) -> None:
        require(self.eps >= 0, f"layer_norm: eps must not be negative, found {self.eps}.")


@dataclass(frozen=True)
class RmsNorm(NormConfig, kind="rms_norm"):
    """x / sqrt(mean of squares + eps) * gain,  gain = offset + weight.

    Args:
        eps: Added to the mean of squares.
        offset: What is added to the stored weight; with 1, weights near 0 are near the identity, where half precision
            has the most digits.
        gain: Whether there is a gain; without it the norm has no parameters.

    Source: Zhang and Sennrich 2019; Gemma Team 2024, "Gemma" (stored around 0).
    """

    eps: float = 1e-5
    offset: float = 0.0
    gain: bool = True

    def __post_init__(self) -> None:
        require(self.eps >= 0, f"rms_norm: eps must not be negative, found {self.eps}.")
        require(math.isfinite(self.offset), f"rms_norm: offset must be a finite number, found {self.offset}.")
        require(self.gain or not self.offset, f"rms_norm: offset={self.offset} is part of a gain, and there is none.")


@dataclass(frozen=True)
class NoNorm(NormConfig, kind="none"):
    """The identity."""


class Norm(nn.Module):
    """A norm with two sites: its output, and the scale it divides by (lazy; reading it changes the route).

    With `tied` it has the parameters of another norm, stored there, and sites of its own. `weight` is the parameter;
    what the norm multiplies by and adds are `gain` and `shift`.
    """

    tied: "Norm | None"

    def __init__(
        self,
        config: NormConfig,
        d_model: int,
        path: str,
        layer: int | None,
        names: tuple[str, str],
        tied: "Norm | None" = None,
    ) -> None:
        super().__init__()
        self.config, self.d_model, self.path, self.layer, self.names = config, d_model, path, layer, names
        self.at_out, self.at_scale = (f"{path}.{name}" for name in names)
        self.identity, self.centred = isinstance(config, NoNorm), isinstance(config, LayerNorm)
        self.eps = config.eps if isinstance(config, (LayerNorm, RmsNorm)) else 0.0
        self.offset = config.offset if isinstance(config, RmsNorm) else 0.0
        gain = isinstance(config, (LayerNorm, RmsNorm)) and config.gain
        bias = isinstance(config, LayerNorm) and config.bias
        # a plain attribute: registering the other norm here would store its parameters twice
        self.__dict__["tied"] = tied
        own = tied is None
        self.weight = nn.Parameter(torch.full((d_model,), 1.0 - self.offset)) if gain and own else None
        self.bias = nn.Parameter(torch.zeros(d_model)) if bias and own else None

    @property
    def gain(self) -> Float[Tensor, " d_model"] | None:
        """What is multiplied by; None for ones. Half-precision weights with an offset give it in float32."""
        weight = self.weight if self.tied is None else self.tied.weight
        return weight if weight is None or not self.offset else self.offset + _widened(weight)

    @property
    def shift(self) -> Float[Tensor, " d_model"] | None:
        """What is added; None for zeros."""
        return self.bias if self.tied is None else self.tied.bias

    def forward(
        self, x: Float[Tensor, "batch pos d_model"], tape: Tape | None = None
    ) -> Float[Tensor, "batch pos d_model"]:
        if not self.identity:
            if wants(tape, self.at_scale):
                x = self.affine(x, site(tape, self.at_scale, self.scale(x)))
            elif self.centred:
                x = F.layer_norm(x, (self.d_model,), self.gain, self.shift, self.eps)
            elif not self.offset:
                x = F.rms_norm(x, (self.d_model,), self.gain, self.eps)
            else:
                # 1 + weight has fewer digits in half precision than weight has
                x = F.rms_norm(_widened(x), (self.d_model,), self.gain, self.eps).to(x.dtype)
        return site(tape, self.at_out, x)

    def scale(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "..."]:
        """Return what x is divided by."""
        x = x - x.mean(-1, keepdim=True) if self.centred else x
        return (x.square().mean(-1) + self.eps).sqrt()

    def affine(self, x: Float[Tensor, "... d_model"], scale: Float[Tensor, "..."]) -> Float[Tensor, "... d_model"]:
        """Return the norm with its scale given: affine in x."""
        out, shift = self.linear(x, scale), self.shift
        return out if shift is None else out + shift

    def linear(self, x: Float[Tensor, "... d_model"], scale: Float[Tensor, "..."]) -> Float[Tensor, "... d_model"]:
        """Return the linear part of `affine`: what becomes of one addend of the stream."""
        if self.identity:
            return x
        x = x - x.mean(-1, keepdim=True) if self.centred else x
        out, gain = x / scale[..., None], self.gain
        return out if gain is None else (out * gain).to(out.dtype)

    def transposed(self, u: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        """Return a direction behind the norm as one before it: x . transposed(u) = linear(x) . u at a scale of 1."""
        gain = self.gain
        u = u if gain is None else (u * gain.detach()).to(u.dtype)
        return u - u.mean(-1, keepdim=True) if self.centred else u

    def sites(self) -> Iterator[Site]:
        scale = {} if self.identity else {self.names[1]: "batch pos"}
        axes = scale | {self.names[0]: "batch pos d_model"}
        yield from declare(self.path, axes, {"d_model": self.d_model}, layer=self.layer, lazy=self.names[1:])


def _widened(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


ACTIVATIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda u: F.gelu(u, approximate="tanh"),
    "gelu_sigmoid": lambda u: u * torch.sigmoid(1.702 * u),
    "silu": F.silu,
    "relu_squared": lambda u: F.relu(u).square(),
    "tanh": torch.tanh,
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
    activation: Literal["relu", "gelu", "gelu_tanh", "gelu_sigmoid", "silu", "relu_squared", "tanh"] = "gelu"
    gated: bool = False
    bias: bool = True

    role: ClassVar[str] = "mlp"

    def __post_init__(self) -> None:
        require(self.d_mlp is None or self.d_mlp >= 1, f"mlp: d_mlp must be at least 1, found {self.d_mlp}.")

    def build(self, d_model: int, max_len: int, layer: int, path: str) -> "MlpLayer":
        return MlpLayer(self, d_model, layer, path)


class MlpLayer(ByPosition):
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

    def write(
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

    def flops(self, length: int, source_length: int, causal: bool) -> dict[str, int]:
        product = 2 * length * self.d_model * self.d_mlp
        return {"mlp in": product, "mlp gate": product * self.config.gated, "mlp out": product}

    def own_parameters(self) -> Iterator[tuple[str, int]]:
        yield from parameters_of("mlp in", self.input)
        yield from parameters_of("mlp gate", self.gate)
        yield from parameters_of("mlp out", self.output)


class PositionEmbedding(Config, family=True):
    """Positions that are added to the residual stream, once, at the bottom."""

    def build(self, d_model: int, max_len: int) -> "PositionTable":
        return PositionTable(self, d_model, max_len)


@dataclass(frozen=True)
class Sinusoidal(PositionEmbedding, kind="sinusoidal"):
    """Fixed sines and cosines.

    Args:
        layout: `interleaved`, each sine before its cosine; or `halves`, all sines before all cosines.

    Source: Vaswani et al. 2017, section 3.5.
    """

    layout: Literal["interleaved", "halves"] = "interleaved"


@dataclass(frozen=True)
class Learned(PositionEmbedding, kind="learned"):
    """A learned vector for each position up to max_len.

    Args:
        offset: Rows of the table before that of the first position; the table has `offset + max_len` rows.
    """

    offset: int = 0

    def __post_init__(self) -> None:
        require(self.offset >= 0, f"learned positions: offset must not be negative, found {self.offset}.")


class PositionTable(nn.Module):
    def __init__(self, config: PositionEmbedding, d_model: int, max_len: int) -> None:
        super().__init__()
        self.config, self.d_model, self.max_len = config, d_model, max_len
        self.offset = config.offset if isinstance(config, Learned) else 0
        rows = self.offset + max_len
        self.weight = nn.Parameter(torch.empty(rows, d_model)) if isinstance(config, Learned) else None

    def forward(self, positions: Int[Tensor, "b pos"], like: Tensor) -> Float[Tensor, "b pos d_model"]:
        if isinstance(self.config, Sinusoidal):
            return sinusoids(positions, self.d_model, self.config.layout).to(like.dtype)
        assert self.weight is not None, "learned positions have a table"
        return F.embedding(positions + self.offset if self.offset else positions, self.weight)

    def check(self, length: int) -> None:
        """Raise `TextError` if a learned table has no row for the last position."""
        if self.weight is not None and length > self.max_len:
            raise TextError(
                f"{length} tokens, but the model has learned positions for max_len={self.max_len} only; "
                f"shorten the text to {self.max_len} tokens."
            )


class VocabularyMatrix(nn.Module):
    """A `vocab d_model` matrix: one's own parameter, or (tied) that of another module, stored once.

    Token vectors narrower than the stream are stored as such, `vocab d_embed`, with a map between the two widths.
    """

    def __init__(
        self, vocab_size: int, d_model: int, tied: "VocabularyMatrix | None", d_embed: int | None, path: str
    ) -> None:
        super().__init__()
        # a plain attribute: registering the other module here would store its matrix twice
        self.__dict__["tied"] = tied
        width = d_embed or d_model
        self.matrix = None if tied is not None else nn.Parameter(torch.empty(vocab_size, width))
        self.vocab_size, self.d_model, self.path = vocab_size, d_model, path

    @property
    def stored(self) -> Float[Tensor, "vocab d_embed"]:
        """The matrix as it is stored, one's own or the tied one."""
        return self.matrix if self.matrix is not None else self.__dict__["tied"].stored

    @property
    def weight(self) -> Float[Tensor, "vocab d_model"]:
        """The matrix as the stream meets it: a product where widths differ, then built anew at every access."""
        return self.stored


class Embedding(VocabularyMatrix):
    """Token vectors, scaled by sqrt(d_model) if asked, plus position vectors if there are any, normed if asked.

    x = norm(token * factor + position),  token = E[id] or, with vectors of width d_embed, E[id] map

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
        norm: NormConfig | None = None,
        d_embed: int | None = None,
        n_types: int = 0,
    ) -> None:
        super().__init__(vocab_size, d_model, tied, d_embed, path)
        self.at_token, self.at_position, self.at_type = f"{path}.token", f"{path}.position", f"{path}.type"
        self.map = None if d_embed is None else LinearMap(d_embed, d_model, bias=False)
        self.types = nn.Parameter(torch.zeros(n_types, d_model)) if n_types else None
        self.positions = None if positions is None else positions.build(d_model, max_len)
        self.norm = None if norm is None or isinstance(norm, NoNorm) else norm.build(d_model, path, None)
        self.factor = math.sqrt(d_model) if scaled else 1.0

    @property
    def weight(self) -> Float[Tensor, "vocab d_model"]:
        return self.stored if self.map is None else self.map(self.stored)

    def forward(
        self,
        tokens: Int[Tensor, "batch pos"],
        positions: Int[Tensor, "b pos"],
        tape: Tape | None,
        types: Int[Tensor, "batch pos"] | None = None,
    ) -> Float[Tensor, "batch pos d_model"]:
        x = F.embedding(tokens, self.stored)
        x = x if self.map is None else self.map(x)
        x = x if self.factor == 1.0 else x * self.factor
        if self.types is not None:
            own = self.types[:1] if types is None else F.embedding(types, self.types)
            x = x + site(tape, self.at_type, own.expand_as(x))
        x = site(tape, self.at_token, x)
        if self.positions is not None:
            placed = self.positions(positions, x).expand_as(x)
            x = x + site(tape, self.at_position, placed)
        return x if self.norm is None else self.norm(x, tape)

    def sites(self) -> Iterator[Site]:
        names = ["token"] if self.positions is None else ["token", "position"]
        names = names if self.types is None else ["type", *names]
        yield from declare(self.path, dict.fromkeys(names, "batch pos d_model"), {"d_model": self.d_model})
        if self.norm is not None:
            yield from self.norm.sites()


class Unembedding(VocabularyMatrix):
    """From the stream to logits, with a soft cap on them if asked.

    logits = cap * tanh(raw / cap),  raw = x W_U * scale + b_U

    The cap is monotone, so it changes probabilities and no rank. Only the raw logits are linear in the stream, and with
    a readout (`models.readout`), behind which x then stands, not even those. `weight` includes the scale.
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
        scale: float = 1.0,
        d_embed: int | None = None,
        readout: nn.Module | None = None,
    ) -> None:
        super().__init__(vocab_size, d_model, tied, d_embed, "unembed")
        self.map = None if d_embed is None else LinearMap(d_model, d_embed, bias=False)
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if bias else None
        self.cap, self.scale, self.readout = cap, scale, readout

    @property
    def weight(self) -> Float[Tensor, "vocab d_model"]:
        return self._met(self.stored)

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
        x = x if self.scale == 1.0 else x * self.scale
        return linear(x if self.map is None else self.map(x), self.stored, self.bias)

    def capped(self, raw: Float[Tensor, "... vocab"]) -> Float[Tensor, "... vocab"]:
        """Return what the cap leaves of raw logits; the same if there is none."""
        return raw if self.cap is None else self.cap * (raw / self.cap).tanh()

    def log_prob(self, x: Float[Tensor, "... d_model"], ids: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Return the log-probability of each id, in nats."""
        return self.logits(x).log_softmax(-1).gather(-1, ids[..., None]).squeeze(-1)

    def direction(self, ids: Int[Tensor, "..."]) -> Float[Tensor, "... d_model"]:
        """Return the direction of the stream whose dot product is the token's logit, bias and cap aside.

        With a readout it is a direction of what the readout gives.
        """
        return self._met(self.stored[ids])

    def require_linear(self, analysis: str) -> None:
        """Raise `AnalysisUnavailable` if a readout stands between the stream and the matrix."""
        if self.readout is not None:
            raise AnalysisUnavailable(
                f"{analysis}: this model has a layer with a non-linearity between the stream and the unembedding "
                "(readout), so no matrix leads from one to the other.\n"
                "    Frozen at one text it does: analysis.direct_effects(run), analysis.attribution(run)."
            )

    def _met(self, rows: Float[Tensor, "*n d_embed"]) -> Float[Tensor, "*n d_model"]:
        """Return rows of the stored matrix as the stream meets them."""
        rows = rows if self.map is None else rows @ self.map.weight
        return rows if self.scale == 1.0 else rows * self.scale

    def sites(self) -> Iterator[Site]:
        if self.readout is not None:
            yield from self.readout.sites()  # type: ignore[operator]
        names = ["logits"] if self.cap is None else [self.at_raw, "logits"]
        yield from declare("", dict.fromkeys(names, "batch pos vocab"), {"vocab": self.vocab_size})

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
    # without memory there is nothing to draw into, and torch would load a second of symbolic algebra to say so
    if all(parameter.is_meta for parameter in model.parameters()):
        return
    for name, module in model.named_modules():
        if isinstance(module, (nn.Linear, LinearMaps)):
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


def _separate_rows(model: nn.Module, name: str, module: nn.Linear | LinearMaps) -> list[Tensor]:
    if isinstance(module, LinearMaps):
        return list(module.weight.detach())
    if not name.endswith(".qkv"):
        return [module.weight]
    widths = model.get_submodule(name.removesuffix(".qkv")).widths
    return list(module.weight.detach().split(list(widths)))  # type: ignore[arg-type]
