"""Texts as the passes that read them: which rows each gives, of which token, document and position.

Rows go pass by pass, in a pass row of the batch by row of the batch, and along it; padding is none. A document is a
text of those given, counted from 0 in the order given; of a packed row each document counts. A position is that within
its document, from 0. Of a model that reads pairs a source and its target are one document.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from glassformer.analysis.labelled_rows import as_read
from glassformer.analysis.prepare import prepare
from glassformer.arguments import shown
from glassformer.data import Batch
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.models import Model, ModuleLike
from glassformer.models.reading import Inputs, Side, tokenizer_of

# of an image's patches, which are no tokens
NO_TOKEN = -1


class SideRows(NamedTuple):
    """Rows that one side of a pass gives.

    Args:
        mask: Which places of the batch they come from.
        tokens: Token of each row, -1 where there is none.
        documents: Document of each.
        positions: Place of each within its document.
    """

    mask: Bool[Tensor, "batch pos"]
    tokens: Int[Tensor, " row"]
    documents: Int[Tensor, " row"]
    positions: Int[Tensor, " row"]

    def only(self, among: Bool[Tensor, " row"]) -> "SideRows":
        """Return a part of the rows."""
        mask = self.mask.clone()
        mask[self.mask] = among
        return SideRows(mask, *(values[among] for values in self[1:]))


def in_passes(model: ModuleLike, texts: Any, rows: int) -> list[Any]:
    """Return what each pass reads: texts, and rows of ids, so many together; all else is a pass by itself.

    Labelled text is read as its rows of ids.

    Raises:
        AnalysisUnavailable: There is none.
        ShapeMismatch: They are no sequence, which can be gone through again.
    """
    texts = as_read(model, texts)
    if isinstance(texts, Tensor):
        found = list(torch.atleast_2d(texts).split(rows))
    else:
        given = [texts] if isinstance(texts, str | Batch) else texts
        if not isinstance(given, Sequence):
            raise ShapeMismatch(
                f"record_activations: texts= takes a list of texts, of rows of ids or of batches; found {shown(texts)}."
            )
        found = list(_together(given, rows)) if isinstance(model, Model) and not model.reads_pairs else list(given)
    if not found:
        raise AnalysisUnavailable("record_activations: there are no texts to read.")
    return found


def _together(given: Sequence[Any], rows: int) -> Iterator[Any]:
    """Yield texts and rows of ids several at a time, in order, and batches as they are."""
    held: list[Any] = []
    for one in given:
        if _is_one_row(one):
            held.append(one)
        if held and (len(held) == rows or not _is_one_row(one)):
            yield held
            held = []
        if not _is_one_row(one):
            yield one
    if held:
        yield held


def _is_one_row(given: Any) -> bool:
    if isinstance(given, Tensor):
        return given.ndim == 1
    return isinstance(given, str) or (isinstance(given, list | tuple) and all(isinstance(i, int) for i in given))


def read_pass(model: ModuleLike, given: Any) -> Inputs:
    """Return what a pass reads.

    Raises:
        AnalysisUnavailable: Of a model that reads pairs the target is missing, or of a module that is not ours it is
            not known which of its inputs are tokens.
        ShapeMismatch: Real tokens do not stand together.
    """
    if isinstance(model, Model) and model.reads_pairs and not isinstance(given, Batch):
        if not (isinstance(given, tuple) and len(given) == 2):
            raise AnalysisUnavailable(
                "record_activations: a model that reads pairs is given both sides, (source, target) or a Batch."
            )
        inputs = prepare(model, *given)
    else:
        inputs = prepare(model, given)
    if not inputs.shape[0]:
        raise AnalysisUnavailable(
            "record_activations: which of its inputs are tokens is not known of this module, so rows have no document "
            "and no position.\n    Give ids, batch pos; or a mapping with input_ids and attention_mask."
        )
    told, ids = inputs.kwargs.get("attention_mask"), inputs.ids
    if ids is not None and isinstance(told, Tensor) and told.shape == ids.shape:
        _require_together(told.bool(), inputs.output.padding.real(ids))
    return inputs


def _require_together(told: Bool[Tensor, "batch pos"], real: Bool[Tensor, "batch pos"]) -> None:
    """Raise `ShapeMismatch` for a mask with holes, of which it is not known what the module makes."""
    if not torch.equal(told, real):
        raise ShapeMismatch(
            "record_activations: attention_mask has holes. The real tokens of each row stand together, with padding on "
            "one side, the same for all rows."
        )


def rows_of(inputs: Inputs, first: int) -> dict[bool, SideRows]:
    """Return the rows of each side of a pass, by whether it is the source.

    Args:
        inputs: What it reads.
        first: Documents in the passes before.
    """
    packed = inputs.kwargs.get("documents")
    return {
        source: _side_rows(side, inputs.shape, None if source else packed, first)
        for source, side in inputs.sides.items()
    }


def documents_in(rows: Mapping[bool, SideRows], first: int) -> int:
    """Return how many documents a pass has."""
    return 1 + max(int(side.documents.max()) for side in rows.values()) - first


def without_begin(rows: SideRows, side: Side, tokenizer: Any) -> SideRows:
    """Return rows but for the special tokens that open texts, at the front of each document."""
    roles = getattr(tokenizer, "roles", None)
    if side.ids is None or roles is None:
        return rows
    opens = torch.tensor([*roles.begin, *([] if roles.bos is None else [roles.bos])], dtype=torch.int64)
    special = torch.isin(rows.tokens, opens)
    # a row is of the opening if all before it in its document are
    place, begins = torch.arange(len(special)), rows.positions == 0
    broken = torch.where(special, -1, place).cummax(0).values
    start = torch.where(begins, place, -1).cummax(0).values
    return rows.only(broken >= start)


def digest_of_pass(inputs: Inputs) -> bytes:
    """Return a digest of all that a pass reads: ids, padding, documents, images."""
    found = hashlib.sha256()
    named = {str(i): value for i, value in enumerate(inputs.args)} | dict(inputs.kwargs)
    for side in inputs.sides.values():
        if side.ids is not None:
            named[f"real {len(named)}"] = side.padding.real(side.ids)
    for name, value in named.items():
        if not isinstance(value, Tensor):
            found.update(f"{name} {value!r}".encode())
            continue
        found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        found.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.digest()


def tokenizers_of(model: ModuleLike) -> dict[bool, Any]:
    """Return what reads each side's texts, by whether it is the source."""
    return {source: tokenizer_of(model, source) for source in (False, True)}


def _side_rows(side: Side, shape: tuple[int, int], packed: Tensor | None, first: int) -> SideRows:
    if side.ids is None:
        tokens, mask = torch.full(shape, NO_TOKEN), torch.ones(shape, dtype=torch.bool)
    else:
        tokens, mask = side.ids.cpu(), side.padding.real(side.ids).cpu()
    place = torch.arange(tokens.shape[1]).expand(tokens.shape)
    inside = torch.zeros_like(tokens) if packed is None else packed.cpu()
    # where a document begins: at a row's first real token, and where the number changes
    begins = torch.ones_like(mask)
    begins[:, 1:] = (inside[:, 1:] != inside[:, :-1]) | (mask[:, 1:] & ~mask[:, :-1])
    begins &= mask
    positions = place - torch.where(begins, place, -1).cummax(1).values
    documents = first - 1 + begins.flatten().cumsum(0).view_as(tokens)
    return SideRows(mask, tokens[mask], documents[mask], positions[mask])
