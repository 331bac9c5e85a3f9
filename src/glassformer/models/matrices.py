"""The matrices of a model's sub-layers, by name: which rows of which parameter each of them is.

    blocks.0.attn.query  .key  .value  .output  .gate        rows of the joined map, the output matrix, an output gate
    blocks.0.mlp.input  .gate  .output                       of experts `blocks.0.mlp.input.3`, one for each

A name is where the module lies in its sub-layer, without the slots of attention and the joined map themselves. Norms,
biases, convolutions and embeddings are no matrices in this sense; what stands in a matrix's place and stores none
(`IdentityMap`, products of two) is not among them, and the two of a product are.
"""

import fnmatch
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from glassformer.attention import LinearMap, LinearMaps
from glassformer.errors import UnknownSite, nearest
from glassformer.models.sub_layer import SubLayer
from glassformer.numerics.parametrized import original

# parts of a layer that go without saying
_SLOTS = ("projection", "qkv", "merge")


@dataclass(frozen=True, eq=False)
class Matrix:
    """One matrix of a sub-layer: y = x W', as `torch.nn.Linear` stores it.

    Args:
        layer: The sub-layer.
        path: Where its module lies there: `projection.qkv`.
        within: What it is called in the module's weight, where that holds several: `query`, `3`.
        module: The module.
        rows: Its rows of that weight, where the weight is laid out as one matrix.
    """

    layer: SubLayer
    path: str
    within: str
    module: nn.Linear | LinearMaps
    rows: range

    @property
    def name(self) -> str:
        own = [part for part in self.path.split(".") if part not in _SLOTS]
        return ".".join((self.layer.path, *own, *([self.within] if self.within else [])))

    @property
    def weight(self) -> Tensor:
        """The whole weight it is of, `*some d_out d_in`, as a pass sees it."""
        return self.module.weight

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns: `d_out`, `d_in`."""
        return len(self.rows), int(original(self.module, "weight").shape[-1])

    @property
    def values(self) -> Float[Tensor, "d_out d_in"]:
        """Its numbers, as a view on the weight."""
        weight = self.weight
        return weight.reshape(-1, weight.shape[-1])[self.rows.start : self.rows.stop]

    def __repr__(self) -> str:
        return f'Matrix("{self.name}", {self.shape[0]} x {self.shape[1]})'


def matrices_of(layers: Sequence[SubLayer]) -> Iterator[Matrix]:
    """Yield the matrices of sub-layers, in their order; one that several of them share once, under the first's name."""
    seen: set[tuple[int, int]] = set()
    for layer in layers:
        for path, module in layer.part.named_modules():
            if not isinstance(module, nn.Linear | LinearMaps):
                continue
            for within, rows in _named_rows(module):
                key = id(original(module, "weight")), rows.start
                if key not in seen:
                    seen.add(key)
                    yield Matrix(layer, path, within, module, rows)


def _named_rows(module: nn.Linear | LinearMaps) -> Iterator[tuple[str, range]]:
    if isinstance(module, LinearMap | LinearMaps):
        return module.named_rows()
    # a map that is none of ours holds one matrix
    return iter([("", range(module.out_features))])


def matching(known: Sequence[Matrix], glob: str) -> tuple[Matrix, ...]:
    """Return the matrices whose names a glob covers; raises `UnknownSite` if there is none."""
    found = tuple(one for one in known if fnmatch.fnmatchcase(one.name, glob))
    if not found:
        names = [one.name for one in known]
        there = f"\n    Matrices of this model: {', '.join(names[:12])}{', …' if len(names) > 12 else ''}."
        raise UnknownSite(f'no matrix "{glob}" in this model.{nearest(glob, names)}{there if names else ""}')
    return found
