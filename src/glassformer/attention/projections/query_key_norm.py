"""Norms of queries and keys: scores then compare directions, and no length can make them grow without bound.

    q <- q / sqrt(mean(q^2) + eps) * g                    or, centred,  (q - mean q) / sqrt(var q + eps) * g + b

They act on what was projected, before keys are smeared and positions rotate. Scores are then bilinear in what query and
key read only with both scales held fixed.

Without gains nothing but direction is left: every normed vector has length sqrt(d_head), so that under the usual scale
1 / sqrt(d_head), and under any rotation of queries and keys,

    of="keys"       score = q . k / |k|           key-normalised attention: of one query's keys, angles alone rank
    of="queries"    score = q / |q| . k           its twin
    of="both"       score = sqrt(d_head) cos(q, k)

and `Softmax(scale=lambda / d_head)` makes the last lambda cos(q, k), with which no weight among M keys exceeds
e^(2 lambda) / (e^(2 lambda) + M - 1). Key-normalised attention is that with the query's length for lambda
in each row.

Source: Henry et al. 2020, "Query-Key Normalization for Transformers"; Dehghani et al. 2023, "Scaling Vision
Transformers to 22 Billion Parameters", section 2, for a norm with learned gains; Su 2023, "Transformer Upgrade Road 15:
Key Normalization Helps Length Extrapolation", for norms of one side.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.arguments import Amount
from glassformer.config import Config, require


@dataclass(frozen=True)
class QueryKeyNorm(Config):
    """A norm of the queries, and another of the keys, or one of the two.

    Args:
        over: What one scale is taken over: each head (`head`), or all heads of a position together (`all`).
        gains: With `over="head"`: heads share one gain per dimension (`shared`), or each has its own (`own`). `none`:
            no parameters.
        centred: Subtract the mean (LayerNorm); else only divide by the root mean square.
        bias: Learned bias behind the gain.
        eps: Added to the mean square; the machine epsilon of the dtype by default, and 0 without gains, so that no
            length is felt, however small. With 0, a vector of zeros stays one.
        offset: Constant added to the stored gain: 1 where a checkpoint holds gains less one.
        of: Which of the two have a norm.
    """

    over: Literal["head", "all"] = "head"
    gains: Literal["shared", "own", "none"] = "shared"
    centred: bool = False
    bias: bool = False
    eps: Amount | None = None
    offset: float = 0.0
    of: Literal["both", "queries", "keys"] = "both"

    def __post_init__(self) -> None:
        if self.gains == "none" and self.eps is None:
            # one config for one norm, however it was asked for
            object.__setattr__(self, "eps", 0.0)
        require(
            self.over == "head" or self.gains != "own",
            'query-key norm: over="all" has a gain for each dimension of each head anyway; gains="own" says so of '
            'over="head" only.',
        )
        require(
            not (self.offset and self.centred),
            f"query-key norm: gains of a centred norm are stored as they are; found offset={self.offset}.",
        )

        require(
            self.gains != "none" or not (self.offset or self.bias),
            f'query-key norm: gains="none" has no parameters; found offset={self.offset}, bias={self.bias}.',
        )

    def build(self, n_heads: int, n_kv_heads: int, d_head: int, streams: int = 1) -> nn.ModuleList:
        """Return the norm of the queries and that of the keys."""
        return nn.ModuleList([
            HeadNorm(self, n, d_head, streams) if self.of in ("both", which) else NoHeadNorm()
            for which, n in (("queries", n_heads), ("keys", n_kv_heads))
        ])  # fmt: skip


class HeadNorm(nn.Module):
    """The norm of queries, or of keys, cut into heads."""

    def __init__(self, config: QueryKeyNorm, n_heads: int, d_head: int, streams: int = 1) -> None:
        super().__init__()
        self.config, self.streams, self.d_head = config, streams, d_head
        own = (n_heads, d_head) if config.gains == "own" else (d_head,)
        # over all heads the order is that of the projection's rows: head, stream, dimension
        shape = own if config.over == "head" else (n_heads * streams * d_head,)
        self.weight = None if config.gains == "none" else nn.Parameter(torch.full(shape, 1.0 - config.offset))
        self.bias = nn.Parameter(torch.zeros(shape)) if config.bias else None

    @property
    def couples_heads(self) -> bool:
        """Whether one head's queries depend on what other heads project."""
        return self.config.over == "all"

    @property
    def gain(self) -> Tensor | None:
        """What is multiplied by, the offset included; then in float32 at least. None for ones."""
        if self.weight is None or not self.config.offset:
            return self.weight
        return _widened(self.weight) + self.config.offset

    def forward(
        self, x: Float[Tensor, "batch *stream head pos d_head"], which: Int[Tensor, " head"] | None = None
    ) -> Float[Tensor, "batch *stream head pos d_head"]:
        """Return the normed heads; `which` says which they are, unless they are all there are, in order."""
        if self.config.offset:
            # 1 + weight has fewer digits in half precision than weight has
            return self._heads(_widened(x), which).to(x.dtype)
        return self._heads(x, which)

    def _heads(self, x: Tensor, which: Tensor | None) -> Tensor:
        if self.couples_heads:
            assert which is None, "the scale is that of all heads"
            return self._apart(self._normed(self._together(x), self.gain, self.bias))
        gain, bias = self.gain, self.bias
        if gain is None or self.config.gains == "shared":
            return self._normed(x, gain, bias)
        if which is not None:
            gain, bias = gain[which], None if bias is None else bias[which]
        x = self._normed(x, None, None) * gain[:, None]
        return x if bias is None else x + bias[:, None]

    def linear(
        self,
        addends: Float[Tensor, "component *stream head pos d_head"],
        whole: Float[Tensor, "one *stream head pos d_head"],
    ) -> Float[Tensor, "component *stream head pos d_head"]:
        """Return addends of a row through the norm, each divided by the scale of the whole; the bias left out."""
        return self.unscaled(addends) / self.scale(whole)[..., None]

    def unscaled(
        self, x: Float[Tensor, "batch *stream head pos d_head"], which: Int[Tensor, " head"] | None = None
    ) -> Float[Tensor, "batch *stream head pos d_head"]:
        """Return what the norm makes of rows up to its scale, the bias left out: centred, and times the gain.

        This is linear, so that it may be done to the matrix the rows are made by. `which` says which heads they are,
        as in `forward`; a norm over all heads takes all of them.
        """
        assert which is None or not self.couples_heads, "the mean and the gain are of all heads"
        x = self._centred(self._together(x) if self.couples_heads else x)
        if (gain := self.gain) is not None:
            if self.config.gains == "own":
                gain = (gain if which is None else gain[which])[:, None]
            x = x * gain.to(x.dtype)
        return self._apart(x) if self.couples_heads else x

    def scale(self, x: Float[Tensor, "batch *stream head pos d_head"]) -> Float[Tensor, "batch *stream head pos"]:
        """Return what queries or keys are divided by; with `over="all"` the heads of a position share it."""
        rows = self._centred(self._together(x) if self.couples_heads else x)
        found = self._scale(rows)
        return self._apart(found.expand_as(rows))[..., 0] if self.couples_heads else found[..., 0]

    def shift(
        self, like: Float[Tensor, "component *stream head pos d_head"]
    ) -> Float[Tensor, "one *stream head pos d_head"]:
        """Return the bias as a component of its own, shaped as others are; zeros if there is none."""
        zero = torch.zeros_like(like[:1])
        if self.bias is None:
            return zero
        if self.couples_heads:
            return self._apart(self._together(zero) + self.bias)
        return zero + (self.bias[:, None] if self.config.gains == "own" else self.bias)

    def _centred(self, x: Tensor) -> Tensor:
        return x - x.mean(-1, keepdim=True) if self.config.centred else x

    def _normed(self, x: Tensor, gain: Tensor | None, bias: Tensor | None) -> Tensor:
        if self.config.eps == 0:
            # the library's norms make zeros NaN then
            wide = _widened(x)
            wide = wide - wide.mean(-1, keepdim=True) if self.config.centred else wide
            x = (wide / self._scale(wide)).to(x.dtype)
            x = x if gain is None else x * gain
            return x if bias is None else x + bias
        if self.config.centred:
            return F.layer_norm(x, x.shape[-1:], gain, bias, self._eps(x))
        x = F.rms_norm(x, x.shape[-1:], gain, self.config.eps)
        return x if bias is None else x + bias

    def _scale(self, x: Float[Tensor, "*n width"]) -> Float[Tensor, "*n 1"]:
        """Return what x, centred already if it is, is divided by: 1 where nothing is left of it."""
        square = x.square().mean(-1, keepdim=True) + self._eps(x)
        return torch.where(square > 0, square, 1.0).sqrt()

    def _eps(self, x: Tensor) -> float:
        return torch.finfo(x.dtype).eps if self.config.eps is None else self.config.eps

    def _together(self, x: Tensor) -> Tensor:
        """Return `batch pos d`, the order of the projection's rows."""
        return (x.transpose(1, 2) if self.streams == 1 else x.permute(0, 3, 2, 1, 4)).flatten(2)

    def _apart(self, x: Tensor) -> Tensor:
        if self.streams == 1:
            return x.unflatten(-1, (-1, self.d_head)).transpose(1, 2)
        return x.unflatten(-1, (-1, self.streams, self.d_head)).permute(0, 3, 2, 1, 4)


class NoHeadNorm(nn.Module):
    """The norm of the one of the two that has none: heads as they are."""

    bias: None = None
    couples_heads: bool = False

    def forward(self, x: Tensor, which: Tensor | None = None) -> Tensor:
        return x

    def linear(self, addends: Tensor, whole: Tensor) -> Tensor:
        """Return addends as they are."""
        return addends

    def shift(self, like: Tensor) -> Tensor:
        """Return zeros, as a component of its own."""
        return torch.zeros_like(like[:1])


def _widened(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
