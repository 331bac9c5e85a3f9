"""Measures of distributions over a vocabulary: entropy and divergence in bits, and the rank of a token."""

import math

from jaxtyping import Float, Int
from torch import Tensor


def entropy_bits(log_probs: Float[Tensor, "... vocab"]) -> Float[Tensor, "..."]:
    """Return the entropy of distributions given by natural log-probabilities, in bits."""
    # 0 log 0 is 0: a probability that underflows must not turn into NaN
    return -(log_probs.exp() * log_probs).nan_to_num(0.0).sum(-1) / math.log(2)


def kl_bits(p: Float[Tensor, "... vocab"], q: Float[Tensor, "... vocab"]) -> Float[Tensor, "..."]:
    """Return KL(p || q) of distributions given by natural log-probabilities, in bits."""
    return (p.exp() * (p - q)).nan_to_num(0.0).sum(-1).clamp_min(0.0) / math.log(2)


def rank(logits: Float[Tensor, "... vocab"], token: int | Int[Tensor, "..."]) -> Tensor:
    """Return how many tokens are at least as likely as this one, itself included but ties with it left out."""
    one = logits[..., token : token + 1] if isinstance(token, int) else logits.gather(-1, token[..., None])
    return (logits > one).sum(-1) + 1
