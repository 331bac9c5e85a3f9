"""Virtual weights: how strongly one component reads, through the stream, what another one writes.

    virtual(A, B) = Out_A In_B          Out: E, P, O of a head, W_out        In: Q, K, V of a head, W_in, W_gate, U

Activations, patterns and the scales of norms are ignored. For matrices of random directions the norm of the product is
|Out| |In| / sqrt(d_model); what is well above that is wired together. The stream has no basis of its own, so a turn of
it changes nothing; values, queries and keys have none either: single coordinates mean something only where both ends
are tokens, positions or neurons.

Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits" (virtual weights).
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer import weights
from glassformer.analysis.from_weights.ports import Port, ports
from glassformer.analysis.question import question
from glassformer.arguments import Several
from glassformer.errors import AnalysisUnavailable, nearest
from glassformer.labelled import Labelled, Result
from glassformer.numerics import decompositions
from glassformer.weights import Factored, WeightsLike

BLOCK = 1 << 22  # entries of products held at a time


@dataclasses.dataclass(frozen=True, eq=False)
class VirtualWeights(Result):
    """Norms of virtual weights between components.

    Args:
        strength: `|Out In| / (|Out| |In|)`, Frobenius, `writer reader`, in [0, 1]; NaN where the reader does not come
            after the writer, or one of them is zero.
        baseline: 1 / sqrt(d_model): the strength between random directions.
        folded: Whether norms were folded into what reads.
    """

    HEADLINE = ("strength",)

    strength: Labelled
    baseline: float
    folded: bool

    def edges(self, above: float = 2.0) -> list[tuple[str, str, float]]:
        """Edges, (writer, reader, strength / baseline), of pairs so many times above the baseline, strongest first."""
        ratio = self.strength.values / self.baseline
        writers, readers = self.strength.labels("writer"), self.strength.labels("reader")
        found = [(str(writers[i]), str(readers[j]), float(ratio[i, j])) for i, j in (ratio > above).nonzero().tolist()]
        return sorted(found, key=lambda edge: -edge[2])


@question("How strongly does each component read each earlier one?", of="weights")
def virtual_weights(
    model: WeightsLike, writers: Several[str] | None = None, readers: Several[str] | None = None
) -> VirtualWeights:
    """Measure how strongly each component reads what each earlier one writes.

    Args:
        writers: Labels as in `Port`; all by default.
        readers: Labels as in `Port`; all by default.

    Raises:
        AnalysisUnavailable: There is no such component, or norms stand between components (post-norm blocks).
    """
    w = weights.matrices(model)
    outs, ins = _pick(ports(w, "write"), writers), _pick(ports(w, "read"), readers)
    # a tall matrix has the same products as its triangular part, which is d_model high at most
    product = product_norms([_thin(p.matrix) for p in outs], [_thin(p.matrix) for p in ins])
    sizes = [torch.stack([p.matrix.norm() for p in side]) for side in (outs, ins)]
    strength = product / (sizes[0][:, None] * sizes[1])
    ordered = torch.tensor([[_before(a, b) for b in ins] for a in outs], device=strength.device)
    strength = strength.masked_fill(~ordered, torch.nan)
    coords = {"writer": [p.label for p in outs], "reader": [p.label for p in ins]}
    return VirtualWeights(Labelled(strength, ("writer", "reader"), coords), 1 / math.sqrt(len(w.U)), w.folded)


@question("What is the matrix from one component to a later one?", of="weights")
def virtual(model: WeightsLike, writer: str, reader: str) -> Factored:
    """The virtual weight between two components, factored; rows as the writer's, columns as the reader's.

    `virtual(model, "token", "unembed")` is the direct path, `virtual(model, "L0 mlp", "L1 mlp in").top()` the strongest
    pairs of neurons.

    Args:
        writer: Label of the component that writes, as in `Port`.
        reader: Label of the one that reads.

    Raises:
        AnalysisUnavailable: There is no such component, or the reader does not come after the writer.
    """
    w = weights.matrices(model)
    (out,), (into,) = _pick(ports(w, "write"), [writer]), _pick(ports(w, "read"), [reader])
    if not _before(out, into):
        raise AnalysisUnavailable(
            f'virtual weights: "{reader}" does not read what "{writer}" writes: it does not come after it on one '
            "stream.\n    A reader lies in a later layer, or later in the same block unless its parts are parallel."
        )
    return Factored(out.matrix, into.matrix.mT)


def product_norms(
    left: Sequence[Float[Tensor, "_ d_model"]], right: Sequence[Float[Tensor, "_ d_model"]]
) -> Float[Tensor, "left right"]:
    """Return the norms of left_i @ right_j' for all pairs: one product in blocks, squares summed by pair."""
    rows, columns = torch.cat(list(left)), torch.cat(list(right)).mT
    of_row, of_column = (_numbered(side, rows.device) for side in (left, right))
    total = rows.new_zeros(len(left), len(right))
    step = max(1, BLOCK // max(1, columns.shape[1]))
    for start in range(0, len(rows), step):
        squares = (rows[start : start + step] @ columns).square()
        by_reader = rows.new_zeros(len(squares), len(right)).index_add_(1, of_column, squares)
        total.index_add_(0, of_row[start : start + step], by_reader)
    return total.sqrt()


def _numbered(parts: Iterable[Tensor], device: torch.device) -> Tensor:
    return torch.cat([torch.full((len(part),), i, device=device) for i, part in enumerate(parts)])


def _thin(matrix: Tensor) -> Tensor:
    return matrix if matrix.shape[0] <= matrix.shape[1] else decompositions.triangular(matrix)


def _before(writer: Port, reader: Port) -> bool:
    return writer.stack == reader.stack and writer.index < reader.entry


def _pick(found: list[Port], labels: Sequence[str] | None) -> list[Port]:
    if labels is None:
        return found
    known = {port.label: port for port in found}
    for label in labels:
        if label not in known:
            raise AnalysisUnavailable(
                f'virtual weights: no component "{label}" here.{nearest(label, known)} '
                f"Some: {', '.join(list(known)[:8])}."
            )
    return [known[label] for label in labels]
