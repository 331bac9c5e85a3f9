"""Documents packed into one row, each mixed by itself: a mask over the whole row would be worked out to be thrown away.

Who mixes a row in one go, as chunked sums do that forget what they hold where a document begins, has no use for this.
"""

from collections.abc import Callable
from typing import Concatenate

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.attention.context import Context, Run


def documents_of(context: Context, n_queries: int, n_keys: int, batch: int) -> list[Run] | None:
    """Return the documents that may be mixed one by one; None where there are none, or rows go on from a state.

    A compiled graph is the same for all rows, and so has a mask for its documents.
    """
    documents = context.documents
    if documents is None or torch.compiler.is_compiling():
        return None
    return documents.runs(batch) if n_queries == n_keys == documents.ids.shape[1] else None


def by_document(
    mix: Callable[Concatenate[Context, ...], Tensor], context: Context, runs: list[Run], *inputs: Tensor
) -> Float[Tensor, "batch *head pos d_z"]:
    """Return what `mix` makes of each document, in its place.

    Args:
        mix: Called with the context of a document, and its part of the inputs.
        context: That of whole rows.
        runs: The documents, all of them.
        inputs: `batch … pos width` each.
    """
    if len(runs) == 1:
        return mix(context.excerpt(runs[0]), *inputs)
    sizes = [run.n_rows * run.length for run in runs]
    # one node of the graph for all pieces: as many slices would each have a gradient as large as the whole
    pieces = [rows.movedim(-2, 1).flatten(0, 1).split(sizes) for rows in inputs]
    mixed = [
        mix(context.excerpt(run), *(piece.unflatten(0, (run.n_rows, -1)).movedim(1, -2) for piece in parts))
        for run, *parts in zip(runs, *pieces, strict=True)
    ]
    rows = torch.cat([z.movedim(-2, 1).flatten(0, 1) for z in mixed])
    return rows.unflatten(0, (inputs[0].shape[0], -1)).movedim(1, -2)
