"""Sum-normalised attention: weights are a function of the score over the sum of its sizes, with no exponential.

    z_t = sum_s f(score_ts) v_s / sum_s abs(f(score_ts)),    score_ts = q_t . k_s * scale + bias_ts

What softmax is for shows where it is missing. With f the score itself, weights are signed, and the pattern of a head
that sees everything has a rank of d_head at most. The ReLU makes weights non-negative; the square too, which cannot
tell a score from its opposite. Without a bias no scale matters, as f(c score) is a power of c times f(score). A row
whose sum is zero has no weights by the formula: its keys share it evenly, as equal scores do however small they are.

Differs from f(score) / sum f(score) where f has signs: such a sum comes near zero, and weights have no bound.

Pattern: exact; non-negative with rows that sum to one for the square and the ReLU, signed for the score itself, whose
sizes sum to one; an all-zero row where nothing may be attended to.
State: keys and values of earlier positions, the last window - 1 of them if there is a window.
Cost: O(pos^2) time, O(pos) memory without the pattern.
Source: Zhang et al. 2021, "Sparse Attention with Linear Units", for the ReLU, there normed instead of divided by a sum;
Katharopoulos et al. 2020, "Transformers are RNNs", section 3.2, for other similarities than the exponential.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.arguments import Count
from glassformer.attention.context import Context
from glassformer.attention.kernels.summed import summed
from glassformer.attention.mixer import Dims, Mixer, MixerConfig, Traits, per_query_head
from glassformer.attention.scores import scaled_scores
from glassformer.trace import Tape, site

# each is zero at zero, which is where hidden keys are put
FUNCTIONS = {"identity": lambda scores: scores, "relu": torch.relu, "square": torch.square}


@dataclass(frozen=True)
class SumNormalised(MixerConfig, kind="sum_normalised"):
    """Attention whose weights are made of scores without a softmax.

    Args:
        function: What is made of a score: `square`, `relu`, or the score itself (`identity`).
        window: Each query sees keys less than this many positions away; None for all.
    """

    function: Literal["square", "relu", "identity"] = "square"
    window: Count | None = None

    traits: ClassVar[Traits] = Traits(rows_sum_to_one=True, has_scores=True, bilinear_scores=True)
    variants = ({"function": "relu"}, {"function": "identity"}, {"window": 3})

    def flops(self, n_queries: int, n_keys: int, dims: Dims, causal: bool = True) -> int:
        """Both products over all pairs, in a closed form: whether a row has no weights is read from its numbers."""
        return self.all_pairs_flops(n_queries, n_keys, dims)

    @property
    def reach(self) -> int | None:
        return None if self.window is None else self.window - 1


class SumNormalisedMixer(Mixer, config=SumNormalised):
    config: SumNormalised
    # whether a row has no weights at all is not known to a compiled graph
    mixes_continued = True

    def __init__(self, config: SumNormalised, dims: Dims, path: str) -> None:
        super().__init__(config, dims, path)
        self.traits = replace(config.traits, rows_sum_to_one=config.function != "identity")

    def pattern(self, q: Tensor, k: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        # in float32 at least: a score near zero has few digits left, and here its sign counts
        wide = torch.promote_types(q.dtype, torch.float32)
        scores = scaled_scores(q.to(wide), k.to(wide), self.scale, context, self.config.window)
        return self.normalised(site(tape, self.at.scores, scores)).to(q.dtype)

    def visible(self, context: Context, n_queries: int, n_keys: int) -> Bool[Tensor, "b h query key"] | None:
        return context.allowed(n_queries, n_keys, self.config.window)

    def mixed(self, context: Context, q: Tensor, k: Tensor, v: Tensor) -> Float[Tensor, "batch head query d_value"]:
        wide = torch.promote_types(q.dtype, torch.float32)
        query, key, value = (u.to(wide) for u in (q, per_query_head(k, q), per_query_head(v, q)))
        z = summed(query, key, value, self.scale, self.config.function, context, self.config.window)
        return z.to(q.dtype)

    def normalised(self, scores: Tensor, *, empty_rows: bool = True, heads: slice = slice(None)) -> Tensor:
        hidden = scores == float("-inf")
        weight = FUNCTIONS[self.config.function](scores.masked_fill(hidden, 0.0))
        weight = torch.where((weight == 0).all(-1, keepdim=True), (~hidden).to(weight.dtype), weight)
        total = weight.abs().sum(-1, keepdim=True)
        return weight / total.masked_fill(total == 0, 1.0)
