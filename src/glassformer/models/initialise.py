"""How the weights of a new model are drawn."""

import math
from typing import Literal

from torch import Tensor, nn

from glassformer.attention import LinearMaps
from glassformer.models.denoiser import Condition
from glassformer.models.embedding import PositionTable, VocabularyMatrix
from glassformer.models.patches import PatchVectors
from glassformer.models.unit_vectors import normalise_vectors, writes

Scheme = Literal["gpt", "xavier", "unit"]


def initialise(model: nn.Module, scheme: Scheme, residual_writes: int) -> None:
    """Draw initial weights.

    `gpt`: normal of 0.02 everywhere, matrices that write to the stream divided by sqrt(residual writes), biases zero.
    `xavier`: Xavier-uniform for every matrix (each of W_Q, W_K, W_V on its own), embeddings normal of d_model^-0.5.
    `unit`: as `gpt`, then every vector of a matrix along the stream brought to length 1, see `unit_vectors`.
    """
    # without memory there is nothing to draw into, and torch would load a second of symbolic algebra to say so
    if all(parameter.is_meta for parameter in model.parameters()):
        return
    for name, module in model.named_modules():
        if isinstance(module, (nn.Linear, LinearMaps)):
            if module.bias is not None:
                nn.init.zeros_(module.bias)
            if scheme != "xavier":
                shared = math.sqrt(max(residual_writes, 1)) if writes(name) else 1.0
                nn.init.normal_(module.weight, std=0.02 / shared)
            else:
                for rows in _separate_rows(model, name, module):
                    nn.init.xavier_uniform_(rows)
        elif isinstance(module, (VocabularyMatrix, PositionTable)):
            tables = [module.matrix] if isinstance(module, VocabularyMatrix) else module.parameters()
            for own in [table for table in tables if table is not None]:
                nn.init.normal_(own, std=own.shape[1] ** -0.5 if scheme == "xavier" else 0.02)
        elif isinstance(module, Condition):
            nn.init.normal_(module.classes, std=module.classes.shape[1] ** -0.5 if scheme == "xavier" else 0.02)
        elif isinstance(module, PatchVectors) and module.first is not None:
            nn.init.normal_(module.first, std=len(module.first) ** -0.5 if scheme == "xavier" else 0.02)
    if scheme == "unit":
        normalise_vectors(model)


def _separate_rows(model: nn.Module, name: str, module: nn.Linear | LinearMaps) -> list[Tensor]:
    if isinstance(module, LinearMaps):
        return list(module.weight.detach())
    if not name.endswith(".qkv"):
        return [module.weight]
    widths = model.get_submodule(name.removesuffix(".qkv")).widths
    return list(module.weight.detach().split(list(widths)))  # type: ignore[arg-type]
