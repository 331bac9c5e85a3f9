"""Labelled text as a model reads it: rows of ids with what is put around a text, and labels where their tokens stand.

    labelled     t0 t1 t2 …            label of token i
    read   <bos> t0 t1 t2 …            label of position i + 1

Which tokens stand before is not assumed: the tokens that were read say where those that have labels are.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from glassformer.data.labels import Column, LabelledDocument, LabelledText
from glassformer.data.tokenizer import Reading, Tokenizer
from glassformer.errors import AnalysisUnavailable, ShapeMismatch, TextError
from glassformer.models import Model, ModuleLike
from glassformer.models.reading import tokenizer_of


def is_labelled(texts: Any) -> bool:
    """Whether texts have labels: one `LabelledText`, or one of the source and one of the target."""
    return isinstance(texts, LabelledText) or (
        isinstance(texts, tuple) and len(texts) == 2 and all(isinstance(one, LabelledText) for one in texts)
    )


def as_read(model: ModuleLike, texts: Any) -> Any:
    """Return labelled texts as what a model reads, all else as it is.

    Args:
        model: What reads them.
        texts: `LabelledText`; of a model that reads pairs that of sources and that of targets, `(source, target)`.

    Returns:
        Rows of ids, with the special tokens that stand around texts; of a module that is not ours tensors of one row
        each; pairs of rows.

    Raises:
        AnalysisUnavailable: A model that reads pairs was not given both sides, or another one was; or it reads images.
        ShapeMismatch: Labels are of other tokens than the model's tokenizer makes of a text, or one side has more
            documents.
        TextError: A document has more tokens than the context.
    """
    if not is_labelled(texts):
        return texts
    if isinstance(model, Model) and model.patches is not None:
        raise AnalysisUnavailable("labels are of tokens of a text, and this model reads images.")
    pairs = isinstance(model, Model) and model.reads_pairs
    if pairs != (not isinstance(texts, LabelledText)):
        raise AnalysisUnavailable(
            "a model that reads pairs takes the labelled text of both sides, (source, target); others take one."
        )
    if isinstance(texts, LabelledText):
        rows = [_row(model, document, place, "prompt") for place, document in enumerate(texts)]
        return rows if isinstance(model, Model) else [torch.tensor([row]) for row in rows]
    source, target = texts
    if len(source) != len(target):
        raise ShapeMismatch(f"{len(source):,} labelled sources and {len(target):,} targets: give as many of both.")
    return [
        (_row(model, one, place, "source"), _row(model, other, place, "target"))
        for place, (one, other) in enumerate(zip(source, target))
    ]


def room_for(model: Model, reading: Reading) -> int:
    """Return how many tokens of a text the context holds beside those that are put around it."""
    before, behind = _around(model, reading)
    return model.config.max_len - len(before) - len(behind)


def labels_of_rows(
    tokens: Int[Tensor, " row"], documents: Int[Tensor, " row"], positions: Int[Tensor, " row"], column: Column
) -> Int[Tensor, " row"]:
    """Return the class of each row that was read, -1 where it has none.

    Args:
        tokens: Token of each row.
        documents: Its document, in ascending order.
        positions: Its place within that.
        column: Labels, of as many documents.

    Raises:
        ShapeMismatch: Documents hold other tokens than those that have labels.
    """
    found = torch.full_like(documents, -1)
    ends = torch.searchsorted(documents, torch.arange(len(column.text) + 1)).tolist()
    labelled = torch.searchsorted(column.document, torch.arange(len(column.text) + 1)).tolist()
    for place, ((low, high), (first, end)) in enumerate(zip(pairwise(ends), pairwise(labelled))):
        if first == end or low == high:
            continue
        ids = torch.tensor(column.text[place].ids)
        offset = _offset(ids, tokens[low:high], positions[low:high], place)
        classes = torch.full((offset + len(ids),), -1)
        classes[offset + column.token[first:end]] = column.label[first:end]
        here = positions[low:high]
        inside = here < len(classes)
        found[low:high][inside] = classes[here[inside]]
    return found


def _offset(ids: Tensor, tokens: Tensor, positions: Tensor, place: int) -> int:
    """Return how many tokens stand before those that have labels; rows may be missing, where some were dropped."""
    best, offset = 0, 0
    for before in range(int(positions.max()) + 1):
        inside = (positions >= before) & (positions < before + len(ids))
        if int(inside.sum()) > best and torch.equal(tokens[inside], ids[positions[inside] - before]):
            best, offset = int(inside.sum()), before
        if best == len(ids):
            break
    # what was dropped is missing between rows or before them; what is missing behind was never read
    read = int(positions.max()) + 1 - offset
    if not best or read < len(ids):
        raise ShapeMismatch(
            f"document {place} was read as other tokens than those that have labels, which begin with "
            f"{ids[:5].tolist()}: found {tokens[:6].tolist()}.\n"
            "    Label with the model's own tokenizer, and let it read the labelled text itself."
        )
    return offset


def _row(model: ModuleLike, document: LabelledDocument, place: int, reading: Reading) -> list[int]:
    # rows of ids are read as they are
    before, behind = ((), ()) if document.ids and not document.text else _around(model, reading)
    tokenizer = _tokenizer(model, reading)
    if document.text and tokenizer is not None:
        own = tokenizer.encode(document.text)[: len(document.ids)]
        if own != list(document.ids):
            raise ShapeMismatch(
                f"labels of document {place} are of {len(document.ids):,} tokens that begin with "
                f"{list(document.ids[:5])}, and the model's tokenizer makes {own[:5]} of it.\n"
                "    Label the text with the model's own tokenizer: python_labels(code, model.tokenizer)."
            )
    limit = model.config.max_len - len(before) - len(behind) if isinstance(model, Model) else len(document.ids)
    if len(document.ids) > limit:
        raise TextError(
            f"document {place} has {len(document.ids):,} tokens, and the context has room for {limit:,}: give "
            f"labelled.cut({limit}), the first tokens of each document."
        )
    return [*before, *document.ids, *behind]


def _around(model: ModuleLike, reading: Reading) -> tuple[Sequence[int], Sequence[int]]:
    """Return the tokens that a model reads before a text and behind it."""
    tokenizer = _tokenizer(model, reading)
    before, behind = ((), ()) if tokenizer is None else tokenizer.around(reading)
    started = model.start if isinstance(model, Model) and reading == "target" else ()
    return (*started, *before), behind


def _tokenizer(model: ModuleLike, reading: Reading) -> Tokenizer | None:
    found = tokenizer_of(model, reading == "source")
    return found if isinstance(found, Tokenizer) else None
