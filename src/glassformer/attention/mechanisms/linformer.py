"""Linformer: keys and values are mixed along the text into a fixed number of rows, and queries meet those.

    K' = E K,    V' = F V                                 E, F  [rank, pos]
    z_t = sum_r P_tr v'_r,    P_tr = softmax_r(q_t . k'_r / sqrt(d))

What multiplies values is A = P F: of rank `rank` at most, with signs, its rows summing to whatever those of F make of a
row of P. P itself says what a query makes of mixtures, and is no pattern over tokens.

Every row of E and F spans the whole text: there is no causal form, nor a state. Each has a column for each position up
to `max_len`, and a shorter text reads the first of them; what is padded has no column. Documents of a packed row are
mixed one by one, each by the first columns. In place of learned columns there are means over as many positions as
`max_len` has for each of the rows, and a learned kernel over as many, the same for all of them: a text has as many rows
then as it has begun.

Pattern: exact, signed; its rows do not sum to one.
State: none.
Cost: O(pos rank) time and memory.
Source: Wang et al. 2020, "Linformer: Self-Attention with Linear Complexity", section 4. E and F begin with entries of
variance 1 / rank. Dropout drops weights of A, where the authors' drops those of P.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.arguments import Count
from glassformer.attention.context import Context, Documents, Padding
from glassformer.attention.mixer import Dims, Mixer, MixerConfig, Traits, per_query_head
from glassformer.attention.places import places, rows_at
from glassformer.attention.scores import masked_softmax
from glassformer.attention.shared import Shared
from glassformer.trace import Tape


@dataclass(frozen=True)
class Linformer(MixerConfig, kind="linformer"):
    """Attention to a fixed number of mixtures of keys and values.

    Args:
        rank: How many mixtures there are: rows of E and F.
        sharing: `none`, an E and an F of every key head; `headwise`, one of each for all of a layer; `key_value`, one
            matrix for both; `layerwise`, that one for all layers of a stack, stored with the first of them.
        rows: What E and F hold: `learned` numbers, the `mean` over positions, or a learned kernel (`convolution`) over
            positions; the last two over as many positions as a text of `max_len` has for each row.
    """

    rank: Count = 128
    sharing: Literal["none", "headwise", "key_value", "layerwise"] = "headwise"
    rows: Literal["learned", "mean", "convolution"] = "learned"

    bidirectional: ClassVar[bool] = True
    traits: ClassVar[Traits] = Traits()
    variants = (
        {"rank": 3, "sharing": "none"},
        {"rank": 2, "sharing": "layerwise"},
        {"rank": 8, "rows": "mean"},
        {"rank": 8, "rows": "convolution", "sharing": "key_value"},
    )

    @property
    def crosses(self) -> bool:
        return False

    def span(self, max_len: int) -> int:
        """Return how many positions go into a row that is a mean or a convolution."""
        return -(-max_len // self.rank)


class LengthMaps(Shared, nn.Module):
    """E and F, by position."""

    def __init__(self, config: Linformer, dims: Dims) -> None:
        super().__init__()
        self.config, self.dims = config, dims
        heads = dims.n_kv_heads if config.sharing == "none" else 1
        maps = 2 if config.sharing in ("none", "headwise") else 1
        self.columns: nn.Parameter | None = None
        if config.rows == "learned":
            drawn = torch.randn(maps, heads, dims.max_len, config.rank)
            self.columns = nn.Parameter(drawn * config.rank**-0.5)
        elif config.rows == "convolution":
            span = config.span(dims.max_len)
            self.columns = nn.Parameter(torch.randn(maps, heads, span) * span**-0.5)

    @property
    def shared_as(self) -> Hashable | None:
        return (self.config, self.dims.max_len) if self.config.sharing == "layerwise" else None

    def share(self, owner: Any) -> None:
        self.columns = None
        super().share(owner)

    def forward(self, context: Context, n_keys: int, like: Tensor) -> Float[Tensor, "map b h rank key"]:
        """Return E and F for the keys of a pass, or one matrix for both; zero for what is padding."""
        if self.owner is not None:
            return self.owner(context, n_keys, like)
        where = places(context, n_keys, self.dims).key
        real = context.real_keys(n_keys, "linformer")
        if self.config.rows == "learned":
            assert self.columns is not None, "learned"
            found = torch.stack([rows_at(columns, where).mT for columns in self.columns])
        else:
            span = self.config.span(self.dims.max_len)
            rows = torch.arange(-(-n_keys // span), device=where.device)
            inside = rows[:, None] == (where // span)[:, None, None]
            if self.config.rows == "mean":
                inside = inside if real is None else inside & real[:, None, None]
                found = (inside.to(like.dtype) / inside.sum(-1, keepdim=True).clamp_min(1))[None]
            else:
                assert self.columns is not None, "a kernel"
                found = self.columns[..., where % span].transpose(1, 2)[..., None, :] * inside
        found = found if real is None else found * real[:, None, None]
        return found.to(like.dtype)

    def there(self, context: Context, n_keys: int) -> Tensor | None:
        """Return which rows have a token in them, `b 1 1 rank`; None if all have."""
        real = context.real_keys(n_keys, "linformer")
        if self.config.rows == "learned":
            return None if real is None else real.any(-1)[:, None, None, None]
        where, span = places(context, n_keys, self.dims).key, self.config.span(self.dims.max_len)
        rows = torch.arange(-(-n_keys // span), device=where.device)
        inside = rows[:, None] == (where // span)[:, None]
        return (inside if real is None else inside & real[:, None]).any(-1)[:, None, None]


class LinformerMixer(Mixer, config=Linformer):
    config: Linformer
    mixes_biased = mixes_continued = mixes_compiled = True

    def __init__(self, config: Linformer, dims: Dims, path: str) -> None:
        super().__init__(config, dims, path)
        self.maps = LengthMaps(config, dims)

    def pattern(self, q: Tensor, k: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        if (documents := context.documents) is not None:
            return self._of_documents(q, k, x, context, documents)
        of_keys, of_values = self._maps(context, k)
        scores = q @ (per_query_head(of_keys, q) @ k).mT * self.scale
        if (there := self.maps.there(context, k.shape[-2])) is not None:
            scores = scores.masked_fill(~there, float("-inf"))
        return masked_softmax(scores) @ per_query_head(of_values, q)

    def _of_documents(self, q: Tensor, k: Tensor, x: Tensor, context: Context, documents: Documents) -> Tensor:
        """Return the patterns of a row's documents side by side, zero between them."""
        pattern = q.new_zeros(*q.shape[:-1], k.shape[-2])
        for run in documents.runs(len(q)):
            rows, at = slice(run.row, run.row + run.n_rows), slice(run.start, run.stop)
            query, key, of_input = (u[rows, ..., at, :] for u in (q, k, x))
            pattern[rows, :, at, at] = self.pattern(query, key, of_input, context.excerpt(run), None)
        return pattern

    def _maps(self, context: Context, k: Tensor) -> tuple[Tensor, Tensor]:
        """Return E and F for every head of keys, `b head rank key`."""
        context.mask.only(Padding, Documents, mechanism="linformer")
        maps = self.maps(context, k.shape[-2], k).expand(2, *[-1] * 4)
        heads = k.shape[-3]
        maps = maps.expand(-1, -1, heads, -1, -1) if maps.shape[2] == 1 else per_query_head(maps, k)
        return maps[0], maps[1]

    def mixed(self, context: Context, q: Tensor, k: Tensor, v: Tensor) -> Float[Tensor, "batch head query d_value"]:
        if context.documents is not None:
            return self.dense(q, k, v, q, context, None)
        of_keys, of_values = self._maps(context, k)
        key, value = (per_query_head(u, q) for u in (of_keys @ k, of_values @ v))
        there = self.maps.there(context, k.shape[-2])
        z = F.scaled_dot_product_attention(q, key, value, attn_mask=there, scale=self.scale)
        return z if there is None else z.masked_fill(~there.any(-1, keepdim=True), 0.0)
