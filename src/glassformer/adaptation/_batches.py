"""Rows of a batch with different adapters: grouped by adapter, one pass for each group, and put back in order."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.adaptation._adapter import Adapter, require_bare
from glassformer.arguments import checked
from glassformer.config import require
from glassformer.errors import AnalysisUnavailable
from glassformer.models import Model, ModelLike, require_model


@checked
def grouped_logits(
    model: ModelLike, rows: Any, adapters: Sequence[Adapter | None], *, lengths: Any = None
) -> Float[Tensor, "batch pos vocab"]:
    """Logits of rows that each have an adapter of their own: one pass for each adapter.

    Args:
        model: One of ours that reads one text, with no adapter attached.
        rows: Texts or rows of token ids, of any lengths, as `Model.read` takes them.
        adapters: That of each row; None for the model itself.
        lengths: Real tokens in each row of ids that are padded on the right.

    Raises:
        ConfigError: There are not as many adapters as rows, or one is attached.
        AnalysisUnavailable: The model reads pairs, or no token ids.
    """
    model = require_model(model, "grouped_logits")
    require_bare(model)
    if model.reads_pairs:
        raise AnalysisUnavailable(
            f'grouped_logits: "{model.name}" reads pairs. Attach each adapter in turn: with adapter.attached(model): …'
        )
    given = model.read(rows, lengths=lengths)
    ids, real = given.require_ids("grouped_logits"), given.real_lengths(False)
    require(len(adapters) == len(ids), f"grouped_logits: {len(adapters)} adapters for {len(ids)} rows; give one each.")
    made: Tensor | None = None
    for adapter, own in by_adapter(adapters).items():
        where = torch.tensor(own, device=ids.device)
        part = model.read(ids[where], lengths=None if real is None else real[where.to(real.device)])
        with adapted(model, adapter):
            found = model(*part.args, **part.kwargs)
        blank: Tensor = found.new_zeros(len(ids), *found.shape[1:]) if made is None else made
        made = blank.index_copy(0, where, found)
    assert made is not None, "there are rows"
    return made


def by_adapter(adapters: Sequence[Adapter | None]) -> dict[Adapter | None, list[int]]:
    """Return the rows of each adapter, in the order of their first ones."""
    return {adapter: [i for i, own in enumerate(adapters) if own is adapter] for adapter in dict.fromkeys(adapters)}


@contextmanager
def adapted(model: Model, adapter: Adapter | None) -> Iterator[None]:
    """Attach an adapter while a `with` lasts; None leaves the model as it is."""
    if adapter is None:
        yield
        return
    with adapter.attached(model):
        yield
