"""Label smoothing: some of the target's probability goes to other tokens, so that no logit gains from growing forever.

all      q_j = (1 - rate) [j = y] + rate / V                    every token shares, the right one included (torch)
others   q_j = (1 - rate) [j = y] + rate / (V - 1 - m) [j != y] the right one and m excluded tokens have no share

The loss is the cross-entropy to q in nats. "The Annotated Transformer" uses the second form, its padding token
excluded, and the divergence from q instead, which is less by the entropy of q: a constant, so gradients are the same.
Source: Szegedy et al. 2016, "Rethinking the Inception Architecture", section 7; Vaswani et al. 2017, section 5.4.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.arguments import Rate
from glassformer.config import Config, require


@dataclass(frozen=True)
class LabelSmoothing(Config):
    """Label smoothing.

    Args:
        rate: Probability that is taken from the right token.
        over: Who shares it: `all` tokens, or the `others`.
        excluded: Ids that have no share, in the form `others`: padding, most often.
    """

    rate: Rate
    over: Literal["all", "others"] = "all"
    excluded: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        require(
            not self.excluded or self.over == "others",
            f'smoothing: excluded={self.excluded} belongs to over="others"; found over="{self.over}".',
        )

    def losses(
        self, logits: Float[Tensor, "position vocab"], ids: Int[Tensor, " position"]
    ) -> Float[Tensor, " position"]:
        """Return the cross-entropy of each position, in nats.

        Raises:
            ConfigError: An excluded id is outside the vocabulary, or nobody is left to share.
        """
        if self.over == "all":
            return F.cross_entropy(logits, ids, reduction="none", label_smoothing=self.rate)
        vocab, excluded = logits.shape[-1], list(self.excluded)
        require(
            all(0 <= i < vocab for i in excluded) and len(set(excluded)) < vocab - 1,
            f"smoothing: excluded={self.excluded} leaves no other of {vocab} tokens, or names one outside of them.",
        )
        log_prob = logits.log_softmax(-1)
        right = log_prob.gather(-1, ids[:, None])[:, 0]
        sharing = torch.ones_like(logits, dtype=torch.bool)
        sharing[:, excluded] = False
        sharing.scatter_(-1, ids[:, None], False)
        # by position: where the right token is an excluded one itself, one more has a share
        share = self.rate / sharing.sum(-1, dtype=logits.dtype)
        return -(1 - self.rate) * right - share * (log_prob * sharing).sum(-1)
