"""Token mixing: positions are mixed by matrices that belong to places, the same for every text.

    token_mixing   z_t = sum_s W_ts v_s
    token_mlp      z_t = sum_s sum_r W2_rts gelu(sum_u W1_rsu v_u + b_rs)         r over `hidden` layers of places

s runs over what the mask lets t see, u over what it lets s see: in a causal text all matrices are lower-triangular.
Each head has its own, shared by the channels of its values. Rows and columns count within a document, padding left out;
a document longer than max_len is refused. Queries and keys are not read: `Tied(query="identity")` spares their maps.

Pattern: of `token_mixing` exact, signed, the same for every text; of `token_mlp` none, for gelu bends what it reads.
State: values of earlier positions.
Cost: O(pos^2) time and memory, `hidden` times for an MLP, whose steps make all hidden units anew and take as long as a
pass; max_len^2 parameters per matrix and head.
Source: Tolstikhin et al. 2021, "MLP-Mixer" (2105.01601), section 2, for the MLP; Touvron et al. 2021, "ResMLP"
(2105.03404), for one linear map. Differs from the former in that hidden units lie at places, so that they can be
causal: `hidden` at each, where the paper has a number of them in all; and in no bias behind the second matrix, which
would be one of places.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.arguments import Count
from glassformer.attention.context import Context
from glassformer.attention.mixer import Dims, Mixer, MixerConfig, Traits, per_query_head
from glassformer.attention.places import places, rows_at
from glassformer.attention.values_only import ValuesOnly
from glassformer.trace import Tape


@dataclass(frozen=True)
class TokenMixing(MixerConfig, kind="token_mixing"):
    """One matrix of places per head; it has no settings."""

    traits: ClassVar[Traits] = Traits()
    stores_keys: ClassVar[bool] = False

    @property
    def crosses(self) -> bool:
        return False

    def keeps(self, length: int) -> bool:
        return True

    def state_numbers(self, length: int, dims: Dims) -> int:
        return length * dims.n_kv_heads * dims.d_value


@dataclass(frozen=True)
class TokenMlp(TokenMixing, kind="token_mlp"):
    """An MLP over places per head.

    Args:
        hidden: Hidden units at each place.
    """

    hidden: Count = 1

    traits: ClassVar[Traits] = Traits("no")
    variants = ({"hidden": 2},)


class TokenMixingMixer(ValuesOnly, Mixer, config=TokenMixing):
    config: TokenMixing

    def __init__(self, config: TokenMixing, dims: Dims, path: str) -> None:
        super().__init__(config, dims, path)
        self.weight = nn.Parameter(torch.randn(dims.n_heads, dims.max_len, dims.max_len) * dims.max_len**-0.5)

    def pattern(self, q: Tensor, k: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        where = places(context, k.shape[-2], self.dims)
        found = _among(self.weight, where.query, where.key)
        return _seen(found, context.allowed(*found.shape[-2:])).expand(*q.shape[:-1], -1)


class TokenMlpMixer(ValuesOnly, Mixer, config=TokenMlp):
    config: TokenMlp

    def __init__(self, config: TokenMlp, dims: Dims, path: str) -> None:
        super().__init__(config, dims, path)
        n, hidden, length = dims.n_heads, config.hidden, dims.max_len
        self.inwards = nn.Parameter(torch.randn(hidden, n, length, length) * length**-0.5)
        self.bias = nn.Parameter(torch.zeros(hidden, n, length))
        self.outwards = nn.Parameter(torch.randn(hidden, n, length, length) * (hidden * length) ** -0.5)

    def fast(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        return self.text_by_text(context, q, k, v)

    def mixed(self, context: Context, q: Tensor, k: Tensor, v: Tensor) -> Float[Tensor, "batch head query d_value"]:
        v, n, m = per_query_head(v, q), q.shape[-2], v.shape[-2]
        where, allowed = places(context, m, self.dims), context.allowed(m, m)
        z = v.new_zeros(*q.shape[:-1], v.shape[-1])
        # hidden units of earlier positions too, in a step: a new position reads them all
        for inwards, bias, outwards in zip(self.inwards, self.bias, self.outwards):
            read = _seen(_among(inwards, where.key, where.key), allowed) @ v
            hidden = F.gelu(read + rows_at(bias, where.key)[..., None])
            rows = None if allowed is None else allowed[..., m - n :, :]
            z = z + _seen(_among(outwards, where.query, where.key), rows) @ hidden
        return z


def _among(
    matrix: Float[Tensor, "head place place"], rows: Tensor, columns: Tensor
) -> Float[Tensor, "b head query key"]:
    """Return what the matrix has at some rows and columns."""
    return matrix[:, rows[:, :, None], columns[:, None, :]].transpose(0, 1)


def _seen(
    weights: Float[Tensor, "b head query key"], allowed: Tensor | None
) -> Float[Tensor, "b_or_batch head query key"]:
    """Return weights with zeros where nothing may be seen."""
    return weights if allowed is None else weights.masked_fill(~allowed, 0.0)
