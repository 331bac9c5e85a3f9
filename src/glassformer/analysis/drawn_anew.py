"""A model with its weights drawn anew: what an analysis finds in it, it finds by chance.

The entries of each tensor are shuffled. Sizes and scales of all parts stay as training left them; what entries mean
together is gone.
"""

import copy
from collections.abc import Container
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter

from glassformer.errors import AnalysisUnavailable
from glassformer.models import ModelLike, require_model

M = TypeVar("M", bound=ModelLike)


@torch.no_grad()
def drawn_anew(model: M, seed: int = 0, *, layers: Container[int] | None = None) -> M:
    """Return a copy of a model whose tensors have their entries in another order.

    Args:
        model: The model.
        seed: Of the order.
        layers: Blocks of every stack that are drawn anew, for who reads no others, with all that stands outside of
            blocks; the others are the model's own, and take no memory. All by default.

    Raises:
        AnalysisUnavailable: Its weights are not in memory, or some blocks are asked for and it is none of ours.
    """
    if any(parameter.is_meta for parameter in model.parameters()):
        raise AnalysisUnavailable(
            "weights are drawn anew by shuffling them, and those of this model are not in memory."
        )
    generator = torch.Generator().manual_seed(seed)
    own = {} if layers is None else _of_others(model, layers)
    # what is known to have been copied is not copied
    found = copy.deepcopy(model, dict(own))
    for parameter in found.parameters():
        if id(parameter) not in own:
            order = torch.randperm(parameter.numel(), generator=generator, dtype=_places(parameter))
            order = order.to(parameter.device)
            parameter.copy_(parameter.flatten()[order].view_as(parameter))
    return found


def _places(values: Tensor) -> torch.dtype:
    """Return the smallest type that counts a tensor's entries: their order is as large as they are, or twice that."""
    return torch.int32 if values.numel() <= torch.iinfo(torch.int32).max else torch.int64


def _of_others(model: ModelLike, layers: Container[int]) -> dict[int, Parameter]:
    """Return the parameters that only blocks other than these have, by what tells them apart."""
    blocks = [(i, block) for s in require_model(model).stacks.values() for i, block in enumerate(s.blocks)]
    left_out = {id(p): p for i, block in blocks if i not in layers for p in block.parameters()}
    # blocks may share what they are made of
    for _, block in (one for one in blocks if one[0] in layers):
        for parameter in block.parameters():
            left_out.pop(id(parameter), None)
    return left_out
