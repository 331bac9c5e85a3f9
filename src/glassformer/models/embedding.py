"""Embeddings: from ids to the stream, with positions that are added to it; unembeddings: from the stream to logits."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from glassformer.arguments import Count, Natural
from glassformer.attention import Grid, LearnedScale, LinearMap, linear, sinusoids
from glassformer.config import Config, require
from glassformer.errors import AnalysisUnavailable, ShapeMismatch, TextError, outside_vocabulary
from glassformer.models.denoiser import Condition, Denoises
from glassformer.models.evaluation import computed, drops
from glassformer.models.norms import NoNorm, NormConfig
from glassformer.models.patches import Patches, PatchVectors
from glassformer.models.readout import ReadoutLayer
from glassformer.models.smoothing import LabelSmoothing
from glassformer.numerics.precision import wide
from glassformer.trace import Site, Tape, declare, site


class PositionEmbedding(Config, family=True):
    """Positions that are added to the residual stream, once, at the bottom."""

    offset: int
    counts_padding: bool
    # whether they are of rows and columns, which the model's input has then
    of_grid: ClassVar[bool] = False

    def build(self, d_model: int, max_len: int, grid: Grid | None = None) -> "PositionTable":
        """Return the table.

        Args:
            d_model: Width of the stream.
            max_len: Longest text it is meant for.
            grid: Rows and columns of what is read, if it has any.
        """
        return PositionTable(self, d_model, max_len, grid)


@dataclass(frozen=True)
class Sinusoidal(PositionEmbedding, kind="sinusoidal"):
    """Fixed sines and cosines.

    Args:
        layout: `interleaved`, each sine before its cosine; or `halves`, all sines before all cosines.
        offset: Position of the first token.
        slowest: Let the last frequency be 1/10000, as in `sinusoids`.
        counts_padding: In a text read both ways, padding on the left takes positions as tokens do. What generation puts
            there, so that rows end together, never does.

    Source: Vaswani et al. 2017, section 3.5.
    """

    layout: Literal["interleaved", "halves"] = "interleaved"
    offset: Natural = 0
    slowest: bool = False
    counts_padding: bool = False


@dataclass(frozen=True)
class Learned(PositionEmbedding, kind="learned"):
    """A learned vector for each position up to max_len.

    Args:
        offset: Rows of the table before that of the first position; the table has `offset + max_len` rows.
        counts_padding: As of `Sinusoidal`.
    """

    offset: Natural = 0
    counts_padding: bool = False


@dataclass(frozen=True)
class Axial(PositionEmbedding, kind="axial"):
    """A learned vector for each row and for each column of a grid that positions fill row by row, side by side.

    Args:
        shape: Rows and columns; together at least max_len positions.
        widths: Of the vectors of rows and of columns.
        copies: How often both stand side by side, for a stream of several parts alike.
        offset: Position of the first token.
        counts_padding: As of `Sinusoidal`.

    Source: Ho et al. 2019, "Axial Attention in Multidimensional Transformers"; Kitaev et al. 2020, "Reformer".
    """

    shape: tuple[Count, Count] = (64, 64)
    widths: tuple[Count, Count] = (64, 192)
    copies: Count = 1

    offset: int = 0
    counts_padding: bool = False


@dataclass(frozen=True)
class LearnedGrid(PositionEmbedding, kind="learned_grid"):
    """A learned vector for each row and for each column of an image's patches, added to each other.

    What stands outside the grid, a class token, gets none. A vector for each place of the grid is `Learned`.
    """

    offset = 0
    counts_padding = False
    of_grid: ClassVar[bool] = True


@dataclass(frozen=True)
class SinusoidalGrid(PositionEmbedding, kind="sinusoidal_grid"):
    """Fixed sines and cosines of an image's patches: half of the width by rows, half by columns.

    What stands outside the grid, a class token, gets none.

    Args:
        layout: Of each half, as of `Sinusoidal`.

    Source: He et al. 2021, "Masked Autoencoders Are Scalable Vision Learners", in the authors' code.
    """

    layout: Literal["interleaved", "halves"] = "halves"

    offset = 0
    counts_padding = False
    of_grid: ClassVar[bool] = True


class PositionTable(nn.Module):
    """Vectors of positions: fixed, or looked up in one table, or in one of rows and one of columns."""

    def __init__(self, config: PositionEmbedding, d_model: int, max_len: int, grid: Grid | None = None) -> None:
        super().__init__()
        self.config, self.d_model, self.max_len = config, d_model, max_len
        self.offset, self.grid = config.offset, grid
        rows = self.offset + max_len
        self.weight = nn.Parameter(torch.empty(rows, d_model)) if isinstance(config, Learned) else None
        self.rows: nn.Parameter | None = None
        self.columns: nn.Parameter | None = None
        require(
            not config.of_grid or grid is not None,
            f'positions "{config.kind}" are of rows and columns, which a text has not; use others, or give patches.',
        )
        if isinstance(config, SinusoidalGrid):
            require(d_model % 4 == 0, f"sinusoidal_grid: d_model={d_model} does not divide into two halves of pairs.")
        if isinstance(config, LearnedGrid):
            assert grid is not None, "required above"
            self.rows, self.columns = (nn.Parameter(torch.empty(n, d_model)) for n in (grid.rows, grid.columns))
        if isinstance(config, Axial):
            require(
                grid is None or grid == (*config.shape, 0),
                f"axial positions: shape={config.shape}, and the patches are a grid of "
                f"{grid and (grid.rows, grid.columns)}, behind {grid and grid.outside} others; use learned_grid.",
            )
            width, room = config.copies * sum(config.widths), config.shape[0] * config.shape[1]
            require(
                width == d_model and room >= rows,
                f"axial positions: {config.copies} x {config.widths} numbers for {config.shape} positions; the model "
                f"has d_model={d_model} and max_len={max_len}.",
            )
            self.rows, self.columns = (
                nn.Parameter(torch.empty(n, size)) for n, size in zip(config.shape, config.widths, strict=True)
            )

    def forward(self, positions: Int[Tensor, "b pos"], like: Tensor) -> Float[Tensor, "b pos d_model"]:
        positions = positions + self.offset if self.offset else positions
        if isinstance(self.config, Sinusoidal):
            return sinusoids(positions, self.d_model, self.config.layout, self.config.slowest).to(like.dtype)
        if isinstance(self.config, Axial):
            assert self.rows is not None and self.columns is not None, "axial positions have two tables"
            n_columns = self.config.shape[1]
            both = F.embedding(positions // n_columns, self.rows), F.embedding(positions % n_columns, self.columns)
            return torch.cat(both * self.config.copies, -1)
        if self.config.of_grid:
            return self._of_grid(positions).to(like.dtype)
        assert self.weight is not None, "learned positions have a table"
        return F.embedding(positions, self.weight)

    def _of_grid(self, positions: Int[Tensor, "b pos"]) -> Float[Tensor, "b pos d_model"]:
        """Return vectors of rows and columns; nought outside the grid."""
        assert self.grid is not None, "required when it was built"
        row, column, inside = self.grid.places(positions)
        if isinstance(self.config, SinusoidalGrid):
            halves = (sinusoids(place, self.d_model // 2, self.config.layout) for place in (row, column))
            return torch.cat(tuple(halves), -1) * inside[..., None]
        assert self.rows is not None and self.columns is not None, "learned positions of a grid have two tables"
        return (F.embedding(row, self.rows) + F.embedding(column, self.columns)) * inside[..., None]

    def rows_of(self, n: int) -> Float[Tensor, "row d_model"]:
        """Return a table of so many rows that positions, from `offset` on, would be looked up in; NaN before it."""
        found = torch.full((n, self.d_model), torch.nan)
        found[self.offset :] = self(torch.arange(max(n - self.offset, 0))[None], found)[0]
        return found

    def check(self, length: int) -> None:
        """Raise `TextError` if a learned table has no row for the last position."""
        if not isinstance(self.config, Sinusoidal) and length > self.max_len:
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
        self.matrix = nn.Parameter(torch.empty(vocab_size, width)) if tied is None and vocab_size else None
        self.vocab_size, self.d_model, self.path = vocab_size, d_model, path

    @property
    def stored(self) -> Float[Tensor, "vocab d_embed"]:
        """The matrix as it is stored, one's own or the tied one; of what reads images one without rows."""
        return self.matrix if self.matrix is not None else self._not_own()

    def _not_own(self) -> Float[Tensor, "vocab d_embed"]:
        """Return what stands in the place of a matrix of one's own."""
        return self.__dict__["tied"].stored

    @property
    def weight(self) -> Float[Tensor, "vocab d_model"]:
        """The matrix as the stream meets it: a product where widths differ, then built anew at every access."""
        return self.stored


class Embedding(VocabularyMatrix):
    """Token vectors, scaled by sqrt(d_model) or a number, plus position vectors if there are any, normed if asked.

    In training, dropout on their sum behind its norm, before the first block's `resid_pre`.

    x = norm(token * factor + position),  token = E[id] or, with vectors of width d_embed, E[id] map

    With token types (which of two texts a token belongs to), the token's vector is that of the token and its type. Of
    an image, patches are the tokens, and there is no vocabulary: `models.patches` makes their vectors. Of one with
    noise in it, time and class are part of them, see `models.denoiser`.
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        max_len: int,
        positions: PositionEmbedding | None,
        scaled: bool | float,
        path: str,
        tied: VocabularyMatrix | None = None,
        norm: NormConfig | None = None,
        d_embed: int | None = None,
        n_types: int = 0,
        dropout: float = 0.0,
        patches: Patches | None = None,
        denoises: Denoises | None = None,
    ) -> None:
        super().__init__(vocab_size, d_model, tied, d_embed, path)
        self.patches = None if patches is None else PatchVectors(patches, d_model)
        grid = None if patches is None else Grid(*patches.grid, patches.outside)
        self.at_token, self.at_position, self.at_type = f"{path}.token", f"{path}.position", f"{path}.type"
        self.condition = None if denoises is None else Condition(denoises, d_model)
        self.at_time, self.at_class = f"{path}.time", f"{path}.class"
        self.map = None if d_embed is None else LinearMap(d_embed, d_model, bias=False)
        self.types = nn.Parameter(torch.zeros(n_types, d_model)) if n_types else None
        self.positions = None if positions is None else positions.build(d_model, max_len, grid)
        self.norm = None if norm is None or isinstance(norm, NoNorm) else norm.build(d_model, path, None)
        self.dropout = dropout
        # true and false are no factors, though they are numbers too
        self.factor = float(scaled) if not isinstance(scaled, bool) else math.sqrt(d_model) if scaled else 1.0

    def _not_own(self) -> Float[Tensor, "vocab d_embed"]:
        return super()._not_own() if self.patches is None else self.patches.map.weight.new_empty(0, self.d_model)

    @property
    def weight(self) -> Float[Tensor, "vocab d_model"]:
        return self.stored if self.map is None else self.map(self.stored)

    def size(self, tokens: Tensor) -> tuple[int, int]:
        """Return how many rows are read, and how many positions each has: ids, or patches of images."""
        return len(tokens), tokens.shape[1] if self.patches is None else self.patches.config.n_tokens

    def forward(
        self,
        tokens: Int[Tensor, "batch pos"] | Float[Tensor, "batch channel row column"],
        positions: Int[Tensor, "b pos"],
        tape: Tape | None,
        types: Int[Tensor, "batch pos"] | None = None,
        times: Float[Tensor, " batch"] | None = None,
        classes: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch pos d_model"]:
        x = self.rows(tokens) if self.patches is None else self.patches(tokens)
        x = x if self.map is None else self.map(x)
        x = x if self.factor == 1.0 else x * self.factor
        if self.types is not None:
            own = self.types[:1] if types is None else F.embedding(types, self.types)
            x = x + site(tape, self.at_type, own.expand_as(x))
        if self.condition is not None:
            time, own = self.condition(times, classes, len(x))
            x = x + site(tape, self.at_time, time.expand_as(x)) + site(tape, self.at_class, own.expand_as(x))
        x = site(tape, self.at_token, x)
        if self.positions is not None:
            placed = self.positions(positions, x).expand_as(x)
            x = x + site(tape, self.at_position, placed)
        x = x if self.norm is None else self.norm(x, tape)
        return F.dropout(x, self.dropout) if self.training and self.dropout > 0 and drops(self) else x

    def rows(self, ids: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_embed"]:
        """Return the row of the stored matrix of each id."""
        return F.embedding(ids, self.stored)

    def places(self, positions: Int[Tensor, "b pos"], start: Int[Tensor, " batch"] | None) -> Int[Tensor, "b pos"]:
        """Return the positions whose vectors are added, from those that count no padding.

        Args:
            positions: Counted from each row's first real token.
            start: Where that is, if padding is on the left.
        """
        if start is None or self.positions is None or not self.positions.config.counts_padding:
            return positions
        return positions + start[:, None]

    def sites(self) -> Iterator[Site]:
        names = ["token"] if self.positions is None else ["token", "position"]
        names = names if self.types is None else ["type", *names]
        names = names if self.condition is None else ["time", "class", *names]
        yield from declare(self.path, dict.fromkeys(names, "batch pos d_model"), {"d_model": self.d_model})
        if self.norm is not None:
            yield from self.norm.sites()


class Unembedding(VocabularyMatrix):
    """From the stream to logits, with a soft cap on them if asked.

    logits = cap * tanh(raw / cap),  raw = x W_U * scale + b_U

    The scale is a number, times a learned one of each token where there is `by_token`: without it, logits of vectors of
    length 1 lie between -1 and 1. The cap is monotone, so it changes probabilities and no rank. Only the raw logits are
    linear in the stream, and with a readout (`models.readout`), behind which x then stands, not even those. `weight`
    includes the scale.
    Source: Gemma Team 2024, "Gemma 2", section 2 (logit soft-capping); Loshchilov et al. 2024, "nGPT", section 2.1 (a
    scale of each token).
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
        readout: ReadoutLayer | None = None,
        by_token: LearnedScale | None = None,
    ) -> None:
        super().__init__(vocab_size, d_model, tied, d_embed, "unembed")
        self.map = None if d_embed is None else LinearMap(d_model, d_embed, bias=False)
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if bias else None
        self.cap, self.scale, self.readout, self.by_token = cap, scale, readout, by_token
        self.token_scale = None if by_token is None else by_token.stored(vocab_size)

    # whether each token has a direction of the stream that its raw logit is the product with
    has_directions: ClassVar[bool] = True

    @property
    def weight(self) -> Float[Tensor, "vocab d_model"]:
        return self._met(self.stored, self.factors)

    @property
    def factors(self) -> Float[Tensor, " vocab"] | None:
        """What each token's product with its row is multiplied by, where that is learned; None for ones."""
        return None if self.by_token is None or self.token_scale is None else self.by_token.factors(self.token_scale)

    @property
    def inner(self) -> Float[Tensor, "inner d_model"]:
        """The matrix that makes the raw logits: `weight`, a row per token."""
        return self.weight

    @property
    def at_linear(self) -> str:
        """Site of the raw logits: that of the logits themselves, where nothing bends them."""
        return "logits" if self.cap is None else self.at_raw

    def forward(self, x: Float[Tensor, "batch pos d_model"], tape: Tape | None) -> Float[Tensor, "batch pos vocab"]:
        logits = self.raw(x, tape)
        if self.at_linear != "logits":
            logits = self.capped(site(tape, self.at_linear, logits))
        return site(tape, "logits", computed(logits, "logits", tape))

    def logits(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... vocab"]:
        """Return the logits as the model uses them: capped if it caps them."""
        return computed(self.capped(self.raw(x)), "logits")

    def raw(self, x: Float[Tensor, "... d_model"], tape: Tape | None = None) -> Float[Tensor, "... vocab"]:
        """Return the logits before the cap."""
        return self.products(self.read(x, tape))

    def read(self, x: Float[Tensor, "... d_model"], tape: Tape | None = None) -> Float[Tensor, "... d_embed"]:
        """Return what rows of the stored matrix are multiplied by."""
        x = x if self.readout is None else self.readout(x, tape)
        x = x if self.scale == 1.0 else x * self.scale
        return x if self.map is None else self.map(x)

    def products(self, read: Float[Tensor, "... d_embed"]) -> Float[Tensor, "... vocab"]:
        """Return the raw logits of what `read` gives."""
        factors = self.factors
        if factors is None:
            return linear(read, self.stored, self.bias)
        raw = linear(read, self.stored) * factors
        return raw if self.bias is None else raw + self.bias

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
        factors = self.factors
        return self._met(self.stored[ids], None if factors is None else factors[ids])

    def require_matrix(self, analysis: str) -> None:
        """Raise `AnalysisUnavailable` if tokens have no directions that their logits are products with."""

    def require_linear(self, analysis: str) -> None:
        """Raise `AnalysisUnavailable` if no matrix leads from the stream to raw logits, a row per token."""
        self.require_matrix(analysis)
        if self.readout is not None:
            raise AnalysisUnavailable(
                f"{analysis}: this model has a layer with a non-linearity between the stream and the unembedding "
                "(readout), so no matrix leads from one to the other.\n"
                "    Frozen at one text it does: analysis.attribution.direct_logit_attribution(run)."
            )

    def _met(
        self, rows: Float[Tensor, "*n d_embed"], factors: Float[Tensor, "*n"] | None
    ) -> Float[Tensor, "*n d_model"]:
        """Return rows of the stored matrix as the stream meets them."""
        rows = rows if self.map is None else rows @ self.map.weight
        rows = rows if factors is None else rows * factors[..., None]
        return rows if self.scale == 1.0 else rows * self.scale

    def sites(self) -> Iterator[Site]:
        if self.readout is not None:
            yield from self.readout.sites()
        names = ["logits"] if self.cap is None else [self.at_raw, "logits"]
        yield from declare("", dict.fromkeys(names, "batch pos vocab"), {"vocab": self.vocab_size})

    def loss(
        self,
        x: Float[Tensor, "batch pos d_model"],
        ids: Int[Tensor, "batch pos"],
        weight: Bool[Tensor, "batch pos"] | None = None,
        smoothing: float | LabelSmoothing = 0.0,
    ) -> Float[Tensor, ""]:
        """Return the mean cross-entropy over the positions that count, in nats (with label smoothing if asked)."""
        form = smoothing if isinstance(smoothing, LabelSmoothing) else LabelSmoothing(smoothing)
        losses = self.losses(x.flatten(0, 1), ids.flatten(), form)
        if weight is None:
            return losses.mean()
        counted = weight.flatten().to(losses.dtype)
        return (losses * counted).sum() / counted.sum().clamp_min(1.0)

    def losses(
        self, x: Float[Tensor, "position d_model"], ids: Int[Tensor, " position"], form: LabelSmoothing
    ) -> Float[Tensor, " position"]:
        """Return the cross-entropy of each position, in nats."""
        # float32 at least: a bfloat16 log-sum-exp is off by more than the loss differences one compares
        return form.losses(wide(self.logits(x)), ids)


def require_ids(ids: Tensor, vocab_size: int) -> Int[Tensor, "batch pos"]:
    """Return ids as the integers that tables are looked up by, whatever integers they are kept as.

    Raises:
        ShapeMismatch: They are no ids `batch pos`.
        TokenOutOfRange: The vocabulary lacks one.
    """
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool or ids.ndim != 2:
        kind = f"{str(ids.dtype).removeprefix('torch.')} with {ids.ndim} axes"
        raise ShapeMismatch(f"token ids are integers with axes `pos` or `batch pos`; found {kind}.")
    ids = ids.long()
    low, high = (int(ids.min()), int(ids.max())) if ids.numel() else (0, 0)
    if low < 0 or high >= vocab_size:
        raise outside_vocabulary(low if low < 0 else high, vocab_size)
    return ids
