"""A model with its weights drawn anew: what an analysis finds in it, it finds by chance.

The entries of each tensor are shuffled. Sizes and scales of all parts stay as training left them; what entries mean
together is gone.
"""

import copy
from typing import TypeVar

import torch

from glassformer.errors import AnalysisUnavailable
from glassformer.models import ModelLike

M = TypeVar("M", bound=ModelLike)


@torch.no_grad()
def drawn_anew(model: M, seed: int = 0) -> M:
    """Return a copy of a model whose tensors have their entries in another order.

    Raises:
        AnalysisUnavailable: Its weights are not in memory.
    """
    if any(parameter.is_meta for parameter in model.parameters()):
        raise AnalysisUnavailable(
            "weights are drawn anew by shuffling them, and those of this model are not in memory."
        )
    generator = torch.Generator().manual_seed(seed)
    found = copy.deepcopy(model)
    for parameter in found.parameters():
        order = torch.randperm(parameter.numel(), generator=generator).to(parameter.device)
        parameter.copy_(parameter.flatten()[order].view_as(parameter))
    return found
