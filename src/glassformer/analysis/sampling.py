"""The steps of sampling, one distribution after the other."""

import dataclasses

import torch
from jaxtyping import Float
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Sampling:
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0


def sampling_steps(
    logits: Float[Tensor, " vocab"], sampling: Sampling
) -> list[tuple[str, float | None, Float[Tensor, " vocab"]]]:
    """Return (name, setting, logits) after each step; tokens that are out are -inf."""
    steps: list[tuple[str, float | None, Tensor]] = [("logits", None, logits)]
    if sampling.temperature > 0:
        logits = logits / sampling.temperature
    steps.append(("temperature", sampling.temperature, logits))
    if sampling.temperature == 0:
        logits = torch.where(logits == logits.max(), 0.0, -torch.inf)
    if sampling.top_k is not None:
        least = logits.topk(min(sampling.top_k, len(logits))).values[-1]
        logits = logits.masked_fill(logits < least, -torch.inf)
        steps.append(("top_k", float(sampling.top_k), logits))
    if sampling.top_p is not None:
        ordered, order = logits.softmax(-1).sort(descending=True)
        out = order[ordered.cumsum(-1) - ordered >= sampling.top_p]
        logits = logits.index_fill(0, out, -torch.inf)
        steps.append(("top_p", sampling.top_p, logits))
    return steps
