"""Pooling: each position takes the mean of those near it, and nobody asks what they hold.

    z_t = mean of v_s over |s - t| < window, less v_t        s as far as the mask lets t see

Positions that are not there, before a text's beginning or behind a causal mask, are not counted. With `less_itself` a
constant text gives zeros: the residual stream has v_t already, and the mean replaces it. A window of one without it is
the identity: heads pass on their own values, which shows what a block does without any mixing.

Queries and keys are not read: `Tied(query="identity")` spares their maps.

Pattern: exact, the same for every text: 1 / count near the diagonal, less one on it; rows sum to zero, or to one.
State: values of the last (window - 1) positions.
Cost: O(pos) time and memory, by running sums; packed or padded rows, and steps, take the pattern.
Source: Yu et al. 2022, "MetaFormer Is Actually What You Need for Vision" (2111.11418), section 3.2, where positions are
those of a picture and the pool is 3 x 3; here they are those of a text, and window=2 pools three, or two if causal.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from glassformer.arguments import Count
from glassformer.attention.context import Context
from glassformer.attention.mixer import Dims, Mixer, MixerConfig, Traits, per_query_head
from glassformer.attention.values_only import ValuesOnly
from glassformer.trace import Tape


@dataclass(frozen=True)
class Pooling(MixerConfig, kind="pooling"):
    """The mean of near values.

    Args:
        window: Each position pools those less than this many positions away, itself among them.
        less_itself: Take its own value off the mean.
    """

    window: Count = 2
    less_itself: bool = True

    traits: ClassVar[Traits] = Traits()
    stores_keys: ClassVar[bool] = False
    variants = ({"window": 4}, {"window": 3, "less_itself": False}, {"window": 1, "less_itself": False})

    @property
    def reach(self) -> int:
        return self.window - 1

    def keeps(self, length: int) -> bool:
        return length <= self.reach

    def state_numbers(self, length: int, dims: Dims) -> int:
        return min(length, self.reach) * dims.n_kv_heads * dims.d_value


class PoolingMixer(ValuesOnly, Mixer, config=Pooling):
    config: Pooling

    def pattern(
        self, q: Tensor, k: Tensor, x: Tensor, context: Context, tape: Tape | None
    ) -> Float[Tensor, "batch head query key"]:
        n, m = q.shape[-2], k.shape[-2]
        allowed = context.allowed(n, m, self.config.window)
        assert allowed is not None, "a window hides something"
        weights = allowed.to(q.dtype)
        pattern = weights / weights.sum(-1, keepdim=True).clamp_min(1)
        if self.config.less_itself:
            # a query's own key, if it may see it at all
            own = torch.ones(n, m, dtype=torch.bool, device=q.device).triu(m - n).tril(m - n)
            pattern = pattern - (own & allowed).to(q.dtype)
        return pattern.expand(*q.shape[:-1], m)

    def mixed(self, context: Context, q: Tensor, k: Tensor, v: Tensor) -> Float[Tensor, "batch head query d_value"]:
        v = per_query_head(v, q)
        if (context.mask.terms and not context.is_causal) or context.rule is not None:
            return self.dense(q, k, v, q, context, None)
        n, window = v.shape[-2], self.config.window
        place = torch.arange(n, device=v.device)
        stop = place + 1 if context.is_causal else (place + window).clamp_max(n)
        start = (place - window + 1).clamp_min(0)
        # in double precision, or the sums of a long text would leave little of a difference
        sums = F.pad(v.double().cumsum(-2), (0, 0, 1, 0))
        mean = ((sums[..., stop, :] - sums[..., start, :]) / (stop - start)[:, None]).to(v.dtype)
        return mean - v if self.config.less_itself else mean
