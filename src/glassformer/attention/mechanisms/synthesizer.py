"""Synthesizer: scores that no query and key make.

    z_t = sum_s softmax_s(S_ts + bias_ts) v_s
    dense               S_ts = (relu(x_t W1 + b1) W2 + b2)_s,   W2 has a column for each of max_len places
    random, fixed       S_ts = R_ts,   trained or as it was drawn
    factorised dense    S_ts = f_t[s mod a] g_t[s div a],   f and g made of x_t as a dense row is, a and b numbers wide
    factorised random   S_ts = (R1 R2')_ts,   R1 and R2 of `rank` columns
    dot product         S_ts = q_t . k_s / sqrt(d_head)
    a mixture           S = sum_m softmax(w)_m S_m: scores are mixed, not patterns; w has a number per head and part

All parameters are each head's own. Rows and columns count within a document, padding left out, so that a document reads
the same alone and packed; a document longer than max_len has no scores, and is refused. Queries and keys are read by
the dot product alone: without one, d_head=1 (and d_value as it should be) spares nearly all of their maps.

Pattern: exact, non-negative, rows sum to one.   State: values of earlier positions, and keys for a dot product.
Cost: O(pos^2) time and memory; parameters per head d_hidden (d_model + max_len) dense, max_len^2 random.
Differs from the paper: f is tiled and g repeated, where it tiles both, which reaches lcm(a, b) different products only;
a is the least number with a^2 >= max_len and b = max_len / a rounded up, which need not divide max_len: what is beyond
it is cut off.
Source: Tay et al. 2020, "Synthesizer: Rethinking Self-Attention in Transformer Models", section 3.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.arguments import Count
from glassformer.attention.context import Context
from glassformer.attention.mixer import Dims, Mixer, MixerConfig, Traits
from glassformer.attention.places import Places, places, rows_at
from glassformer.attention.scores import masked_softmax, placed, products
from glassformer.attention.values_only import ValuesOnly
from glassformer.config import require
from glassformer.trace import Tape, changes, site

Part = Literal["dense", "random", "fixed", "factorised_dense", "factorised_random", "dot_product"]


@dataclass(frozen=True)
class Synthesizer(MixerConfig, kind="synthesizer"):
    """Attention whose scores are synthesised.

    Args:
        parts: What makes the scores; of several, the mixture.
        d_hidden: Width of the layer before a dense row; d_head by default.
        rank: Columns of each factor of a factorised random matrix.
    """

    parts: tuple[Part, ...] = ("dense",)
    d_hidden: Count | None = None
    rank: Count = 8

    traits: ClassVar[Traits] = Traits(rows_sum_to_one=True, has_scores=True, reads_input=True)
    stores_keys: ClassVar[bool] = False
    variants = (
        {"parts": ("random",)},
        {"parts": ("fixed", "dot_product")},
        {"parts": ("factorised_dense", "factorised_random"), "rank": 2},
        {"parts": ("dense", "dot_product"), "d_hidden": 3},
    )

    def __post_init__(self) -> None:
        require(len(self.parts) > 0, "synthesizer: name one part at least, of dense, random, …, dot_product.")
        require(len(set(self.parts)) == len(self.parts), f"synthesizer: {self.parts} name a part twice.")

    @property
    def crosses(self) -> bool:
        return False

    @property
    def reads_keys(self) -> bool:
        """Whether any score is made of queries and keys."""
        return "dot_product" in self.parts

    @property
    def reads_input(self) -> bool:
        """Whether any score is made of the layer's input."""
        return not {"dense", "factorised_dense"}.isdisjoint(self.parts)

    def keeps(self, length: int) -> bool:
        return True

    def state_numbers(self, length: int, dims: Dims) -> int:
        return length * dims.n_kv_heads * (dims.d_value + self.reads_keys * dims.d_head)


class SynthesizerMixer(ValuesOnly, Mixer, config=Synthesizer):
    config: Synthesizer

    def __init__(self, config: Synthesizer, dims: Dims, path: str) -> None:
        super().__init__(config, dims, path)
        self.traits = replace(config.traits, reads_input=config.reads_input)
        self.made_by = nn.ModuleDict({part: _PARTS[part](config, dims) for part in config.parts})
        self.weights = nn.Parameter(torch.zeros(dims.n_heads, len(config.parts))) if len(config.parts) > 1 else None

    def pattern(self, q: Tensor, k: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        scores = site(tape, self.at.scores, placed(self._mixed(q, k, x, context), context))
        return masked_softmax(scores, empty_rows=not context.sees_itself or changes(tape, self.at.scores))

    def _mixed(self, q: Tensor, k: Tensor, x: Tensor, context: Context) -> Float[Tensor, "batch head query key"]:
        where = places(context, k.shape[-2], self.dims)
        parts = [make(q, k, x, where, context) for make in self.made_by.values()]
        if self.weights is None:
            # one tensor for each row of the batch: scores are written into
            return parts[0].expand(len(q), -1, -1, -1).contiguous()
        shares = self.weights.softmax(-1).to(q.dtype)[:, :, None, None].unbind(1)
        mixed = torch.stack([share * part.expand(len(q), -1, -1, -1) for share, part in zip(shares, parts)])
        return mixed.sum(0)

    def begin(self, batch: int, like: Tensor) -> Any:
        return Mixer.begin(self, batch, like) if self.config.reads_keys else super().begin(batch, like)

    def scan(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, state: Any, tape: Tape | None
    ) -> tuple[Tensor, Any]:
        if self.config.reads_keys:
            return Mixer.scan(self, q, k, v, x, context, state, tape)
        return super().scan(q, k, v, x, context, state, tape)


class _Dense(nn.Module):
    """Numbers made of each row of the input by a layer between, relu, and a map: of all heads at once."""

    def __init__(self, dims: Dims, hidden: int, width: int) -> None:
        super().__init__()
        self.w1 = nn.Parameter(_drawn(dims.n_heads, dims.d_model, hidden))
        self.b1 = nn.Parameter(torch.zeros(dims.n_heads, 1, hidden))
        # columns lie as rows, one for each number that is made
        self.w2 = nn.Parameter(_drawn(dims.n_heads, width, hidden))
        self.b2 = nn.Parameter(torch.zeros(dims.n_heads, width))

    def hidden(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch head pos hidden"]:
        return (x[:, None] @ self.w1 + self.b1).relu()

    def forward(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch head pos width"]:
        return self.hidden(x) @ self.w2.mT + self.b2[:, None]


class _DenseScores(_Dense):
    def __init__(self, config: Synthesizer, dims: Dims) -> None:
        super().__init__(dims, config.d_hidden or dims.d_head, dims.max_len)

    def forward(self, q: Tensor, k: Tensor, x: Tensor, where: Places, context: Context) -> Tensor:  # type: ignore[override]
        # only the columns of keys that are there
        return self.hidden(x) @ rows_at(self.w2, where.key).mT + rows_at(self.b2, where.key)[:, :, None]


class _RandomScores(nn.Module):
    def __init__(self, config: Synthesizer, dims: Dims, trained: bool = True) -> None:
        super().__init__()
        drawn = torch.randn(dims.n_heads, dims.max_len, dims.max_len)
        if trained:
            self.matrix = nn.Parameter(drawn)
        else:
            # kept with the weights
            self.register_buffer("matrix", drawn)

    def forward(self, q: Tensor, k: Tensor, x: Tensor, where: Places, context: Context) -> Tensor:
        return self.matrix[:, where.query[:, :, None], where.key[:, None, :]].transpose(0, 1)


class _FactorisedDenseScores(nn.Module):
    def __init__(self, config: Synthesizer, dims: Dims) -> None:
        super().__init__()
        hidden, self.sizes = config.d_hidden or dims.d_head, _factors(dims.max_len)
        self.tiled, self.repeated = (_Dense(dims, hidden, size) for size in self.sizes)

    def forward(self, q: Tensor, k: Tensor, x: Tensor, where: Places, context: Context) -> Tensor:
        columns, a = where.key[:, None, None], self.sizes[0]
        tiled = torch.take_along_dim(self.tiled(x), columns % a, -1)
        return tiled * torch.take_along_dim(self.repeated(x), columns // a, -1)


class _FactorisedRandomScores(nn.Module):
    def __init__(self, config: Synthesizer, dims: Dims) -> None:
        super().__init__()
        # entries of the product have variance one, as those of the random matrix have
        factors = torch.randn(2, dims.n_heads, dims.max_len, config.rank) * config.rank**-0.25
        self.rows, self.columns = (nn.Parameter(factor.clone()) for factor in factors)

    def forward(self, q: Tensor, k: Tensor, x: Tensor, where: Places, context: Context) -> Tensor:
        return rows_at(self.rows, where.query) @ rows_at(self.columns, where.key).mT


class _DotProducts(nn.Module):
    def __init__(self, config: Synthesizer, dims: Dims) -> None:
        super().__init__()
        self.scale = dims.d_head**-0.5

    def forward(self, q: Tensor, k: Tensor, x: Tensor, where: Places, context: Context) -> Tensor:
        return products(q * self.scale, k, context)


_PARTS: dict[Part, Any] = {
    "dense": _DenseScores,
    "random": _RandomScores,
    "fixed": partial(_RandomScores, trained=False),
    "factorised_dense": _FactorisedDenseScores,
    "factorised_random": _FactorisedRandomScores,
    "dot_product": _DotProducts,
}


def _factors(max_len: int) -> tuple[int, int]:
    """Return a and b, as near to each other as they can be, whose product is max_len or next above it."""
    a = math.isqrt(max_len - 1) + 1
    return a, -(-max_len // a)


def _drawn(*shape: int) -> Tensor:
    """Return matrices drawn after Glorot, one after the other."""
    rows = torch.empty(shape)
    for matrix in rows:
        nn.init.xavier_uniform_(matrix)
    return rows
