"""How large a vector comes from each key, beside how large its weight is.

    weighted   |A[q, k]| |v_k|
    written    |A[q, k] v_k W_O|                                one head's vector, as it enters the stream
    summed     |sum over heads of A_h[q, k] v_k^h W_O^h|        all heads together: they may cancel

|A v W_O| needs no vector of the stream: with W_O' = Q R it is |A v R'|, of width d_value. A value's bias counts.

Source: Kobayashi et al. 2020, "Attention is Not Only a Weight", section 3.
"""

import dataclasses
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis.places import position_labels
from glassformer.analysis.question import question
from glassformer.analysis.token_flow._mixing import Moves, flow_sites, token_row, units
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Labelled, Result
from glassformer.numerics import decompositions
from glassformer.numerics.precision import wide


@dataclasses.dataclass(frozen=True, eq=False)
class ValueNorms(Result):
    """Sizes of what heads move; norms behind attention in sandwich and post-norm blocks are passed, scales frozen.

    Args:
        weighted: Size of pattern times value, before any gate, `head query key`.
        written: Size of what the head adds to the stream for each key, `head query key`.
        summed: Size of what a layer's heads add together, `layer query key`; at most the sum of `written`.
    """

    HEADLINE = ("summed", "written")

    weighted: Labelled
    written: Labelled
    summed: Labelled


@question(
    "How much does each head bring from each token?",
    reads=flow_sites,
    traits=("linear_in_value",),
    holds=("patterns", "norm scales", "gates"),
)
@torch.no_grad()
def value_norms(
    run: Any,
    text: Any = None,
    target: Any = None,
    *,
    row: int = 0,
    stack: str | None = None,
    cross: bool = False,
) -> ValueNorms:
    """Measure what every head brings from every key.

    Args:
        stack: `encoder` of a model that has two.
        cross: Take the layers that read the encoder's output instead of those of self-attention.

    Raises:
        SiteNotRead: The run lacks a site.
        NoPattern: A mechanism has no pattern that multiplies values.
        AnalysisUnavailable: There is no layer of that kind.
    """
    run.require(flow_sites(run.model, stack), "value_norms")
    heads, layers = list[str](), list[str]()
    weighted, written, summed = list[Tensor](), list[Tensor](), list[Tensor]()
    for unit in units(run, "value_norms", stack=stack):
        chosen = [moves for moves in unit.moves if moves.crosses == cross]
        for moves in chosen:
            heads += moves.labels
            weighted.append((wide(moves.pattern).abs() * wide(moves.value).norm(dim=-1)[:, :, None]).sum(0))
            written.append(written_norms(moves))
        if chosen:
            n, keys = unit.kept.shape[0], chosen[0].pattern.shape[-1]
            pieces = [sum(moves.summed(q) for moves in chosen) for q in unit.pieces(keys, 2)]
            layers.append(unit.label)
            summed.append(torch.cat([piece.norm(dim=-1) for piece in pieces if isinstance(piece, Tensor)]))
            assert summed[-1].shape == (n, keys), "every query has its row"
    if not layers:
        raise AnalysisUnavailable(
            f"value_norms: this stack has no {'cross' if cross else 'self'}-attention; turn `cross` the other way."
        )
    tokens = token_row(run, stack or "")
    keys_of = position_labels(token_row(run, "encoder") if cross else tokens)
    coords = {"query": position_labels(tokens), "key": keys_of}
    per_head = coords | {"head": [*heads]}
    return ValueNorms(
        Labelled(torch.cat(weighted), ("head", "query", "key"), per_head),
        Labelled(torch.cat(written), ("head", "query", "key"), per_head),
        Labelled(torch.stack(summed), ("layer", "query", "key"), coords | {"layer": [*layers]}),
    )  # fmt: skip


def written_norms(moves: Moves) -> Float[Tensor, "head query key"]:
    """Return the size of what each head adds to the stream for each query and key."""
    # R of a QR factorisation has the same lengths as W_O and no more than d_value columns
    narrow = decompositions.triangular(moves.output.mT).mT
    weight, value = wide(moves.weight), wide(moves.value)
    if moves.gate is None and len(value) == 1:
        return weight[0].abs() * (value[0] @ narrow).norm(dim=-1)[:, None]
    # one query at a time: a gate, or several values, make every pair's vector a different one
    rows = [torch.einsum("shk,shke->hke", row, value) for row in weight.unbind(2)]
    rows = rows if moves.gate is None else [row * gate[:, None] for row, gate in zip(rows, wide(moves.gate).unbind(1))]
    return torch.stack([(row @ narrow).norm(dim=-1) for row in rows], 1)
