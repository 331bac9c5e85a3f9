"""Vectors of the stream's space that matrices are made of, and how they are kept at length 1.

    W <- W / |W|,  along the axis of the stream:  rows of a matrix that reads it, columns of one that writes to it, rows
                                                  of those of a vocabulary

Products with a stream of length 1 are cosines then. Source: Loshchilov et al. 2024, "nGPT" (2410.01131), section 2.1
and summary, where it is done before training and after each step.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.attention import LinearMap, LinearMaps
from glassformer.models.embedding import VocabularyMatrix
from glassformer.models.norms import NO_LENGTH
from glassformer.numerics.parametrized import original


def writes(path: str) -> bool:
    """Whether a linear map writes to the stream, by its path in the model; the others read it."""
    return path.endswith(".output")


def stream_vectors(model: nn.Module) -> Iterator[tuple[str, Tensor, int]]:
    """Yield the matrices of a model that read the stream or write to it: path, what is stored, and the stream's axis.

    Maps between other widths, norms, biases, factors, convolutions and position vectors are not among them.

    Args:
        model: One of ours.
    """
    config: Any = model.config
    for path, module in model.named_modules():
        if isinstance(module, LinearMap | LinearMaps):
            stored, axis = original(module, "weight"), -2 if writes(path) else -1
        elif isinstance(module, VocabularyMatrix) and module.matrix is not None:
            stored, axis = module.matrix, -1
        else:
            continue
        if stored.shape[axis] == config.d_model:
            yield path, stored, axis


@torch.no_grad()
def normalise_vectors(model: nn.Module) -> None:
    """Bring the vectors of a model's matrices along the stream to length 1, in place; vectors of zeros stay.

    Args:
        model: One of ours.
    """
    for _, stored, axis in stream_vectors(model):
        stored.div_(stored.norm(dim=axis, keepdim=True).clamp_min(NO_LENGTH))
