"""Ports: where components meet the stream, what each writes to it and what each reads from it, as matrices."""

import dataclasses
import math
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from glassformer.analysis.frozen.norm import FrozenNorm
from glassformer.errors import AnalysisUnavailable
from glassformer.numerics.precision import wide
from glassformer.weights import AttentionWeights, HeadWeights, head_label


@dataclasses.dataclass(frozen=True, eq=False)
class Port:
    """One end of a component at the stream.

    Args:
        label: `token`, `position`, `L0H1` or `L0 mlp` for writes; `L1H0 Q`, `L1 mlp in`, `unembed` for reads.
        matrix: `width d_model`: rows are what is written, or the transpose of what reads.
        stack: The stream it is on.
        index: Its place among the stack's sub-layers; the embedding lies before all, the unembedding after all.
        entry: How many sub-layers have written to the stream that it reads.
    """

    label: str
    matrix: Float[Tensor, "width d_model"]
    stack: str
    index: int | float
    entry: int | float = -math.inf


def ports(w: HeadWeights, side: Literal["write", "read"]) -> list[Port]:
    """Return everything that writes to a stream, or reads from one, in the order of the forward pass.

    Raises:
        AnalysisUnavailable: Post-norm blocks, whose norms stand between a write and what reads it, or a sub-layer that
            is neither attention nor an MLP.
    """
    w.require_matrices("virtual weights", "Composition of two heads: analysis.from_weights.composition(model).")
    for name in w.model.stacks:
        if any(layer.stream_norm for layer in w.model.sub_layers(name)):
            raise AnalysisUnavailable(
                f"virtual weights: {name or 'the'} stack has post-norm blocks, which normalise the stream itself "
                "between a write and what reads it.\n"
                "    Composition of two heads: analysis.from_weights.composition(model), or, of one text, "
                "analysis.paths.virtual_heads(run)."
            )
    found: list[Port] = []
    if side == "write":
        for name, rows in w.embeddings.items():
            if (patches := w.model.embeddings[name].patches) is not None:
                found.append(Port("patch", patches.map.weight.mT.detach(), name, -1))
                continue
            w.require_entry(name, "virtual weights")
            prefix, table = "enc " if name == "encoder" else "", w.tables[name]
            found.append(Port(f"{prefix}token", rows, name, -1))
            found += [] if table is None else [Port(f"{prefix}position", table, name, -1)]
    for layer in w.attention:
        found += _attention(w, layer, side)
    for mlp in w.mlps:
        where = w.sub_layers[mlp.path]
        if side == "write":
            written = FrozenNorm(where.write_norm, None).unscaled(mlp.W_out).detach()
            found.append(Port(mlp.label, written, mlp.stack, where.index))
            continue
        reads = {"in": mlp.W_in} | ({} if mlp.W_gate is None else {"gate": mlp.W_gate})
        found += [Port(f"{mlp.label} {name}", m.mT, mlp.stack, where.index, where.entry) for name, m in reads.items()]
    found.sort(key=lambda port: (port.stack == "decoder", port.index))
    linear = w.model.unembed.readout is None
    found += [] if side == "write" or not linear else [Port("unembed", w.U.mT, w.stack, math.inf, math.inf)]
    return [dataclasses.replace(port, matrix=wide(port.matrix)) for port in found]


def _attention(w: HeadWeights, layer: AttentionWeights, side: str) -> list[Port]:
    place = w.sub_layers[layer.path]
    if side == "write":
        return [Port(*pair, layer.stack, place.index) for pair in zip(layer.labels, layer.written())]
    found = []
    # what norms of queries and keys do is in their matrices, all but scales, which no share of norms has a part in
    for name, matrices in (("Q", layer.looking("query")), ("K", layer.looking("key")), ("V", layer.V)):
        # heads that share keys and values read alike: one port each, called after the first head of the group
        shared = len(layer.Q) // len(matrices)
        # keys and values of cross-attention read what the other stack ends in
        crossed = layer.crosses and name != "Q"
        where = (w.model.source or "", math.inf, math.inf) if crossed else (layer.stack, place.index, place.entry)
        for h, matrix in enumerate(matrices):
            label = f"{head_label(layer.stack, layer.part, layer.layer, h * shared)} {name}"
            # the maps of several streams are one reader
            read = matrix.mT if matrix.ndim == 2 else matrix.mT.flatten(0, 1)
            found.append(Port(label, read, *where))
    return found
