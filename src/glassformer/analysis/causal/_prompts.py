"""Two sets of prompts that differ in content and not in shape, as experiments on their difference need them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from glassformer.analysis.prepare import Inputs, encode, prepare
from glassformer.data import Batch
from glassformer.errors import ShapeMismatch, TextError
from glassformer.labelled import Coordinate
from glassformer.models import EncoderDecoder
from glassformer.models.generate import padded
from glassformer.trace import Foreign


@dataclass(frozen=True, eq=False)
class Prompts:
    """Prompts as the model reads them.

    Args:
        inputs: What `run` and `sweep` take.
        target: The decoder's side, for an encoder-decoder.
        given: The same, prepared.
    """

    inputs: Any
    target: Any
    given: Inputs

    @property
    def rows(self) -> int:
        return 1 if self.given.ids is None else len(self.given.ids)

    def lengths(self) -> dict[str, int]:
        """Return positions by stack; empty for a model we know nothing about."""
        if self.given.ids is None:
            return {}
        n = self.given.ids.shape[1]
        source = self.given.source_ids
        return {"": n} if source is None else {"encoder": source.shape[1], "decoder": n}

    def tokens(self, stack: str) -> Sequence[Sequence[str]]:
        return self.given.source_rows if stack == "encoder" else self.given.token_rows

    def real(self, stack: str) -> Bool[Tensor, "batch pos"]:
        """Return where a stack's rows have real tokens, not padding."""
        rows = self.tokens(stack)
        counts = torch.tensor([len(row) for row in rows])
        return torch.arange(self.lengths()[stack]) < counts[:, None]


def prompts(model: Any, inputs: Any, target: Any, analysis: str) -> Prompts:
    """Return prompts given in any way that `run` takes, or as a list of texts (padded on the right).

    Raises:
        TextError: A text cannot be read, or an encoder-decoder has no target.
        ShapeMismatch: Token ids are not in rows of one length.
    """
    inputs, target = _texts(model, inputs), target
    if isinstance(model, EncoderDecoder) and target is None and not isinstance(inputs, Batch):
        raise TextError(
            f"{analysis}: every run takes the same text of the decoder; give target=…, or a Batch with a source."
        )
    return Prompts(inputs, target, prepare(model, inputs, target))


def aligned(
    model: Any, clean: Any, corrupt: Any, target: Any, corrupt_target: Any, analysis: str
) -> tuple[Prompts, Prompts]:
    """Return two sets of prompts, checked to agree in number and, row by row, in length.

    Raises:
        ShapeMismatch: They do not; the message says where and how the texts were split.
        TextError: As in `prompts`.
    """
    first = prompts(model, clean, target, analysis)
    second = prompts(model, corrupt, target if corrupt_target is None else corrupt_target, analysis)
    for stack in first.lengths():
        ours, theirs = first.tokens(stack), second.tokens(stack)
        if len(ours) != len(theirs):
            raise ShapeMismatch(
                f"{analysis}: {len(ours)} clean prompts and {len(theirs)} corrupt ones; give as many of each, in pairs."
            )
        for row, (a, b) in enumerate(zip(ours, theirs)):
            if len(a) != len(b):
                raise ShapeMismatch(_unequal(analysis, row, a, b))
        if first.lengths()[stack] != second.lengths()[stack]:
            raise ShapeMismatch(
                f"{analysis}: clean prompts are padded to {first.lengths()[stack]} tokens and corrupt ones to "
                f"{second.lengths()[stack]}; pad both to the same length."
            )
    return first, second


def position_labels(first: Prompts, second: Prompts, stack: str, places: Sequence[Coordinate]) -> list[Coordinate]:
    """Return `3:cat`, or `3:cat/dog` where two prompts differ; indices if there are several prompts."""
    ours, theirs = first.tokens(stack), second.tokens(stack)
    if len(ours) != 1:
        return list(places)
    pairs = [(i, ours[0][i], theirs[0][i]) for i in map(int, places)]
    return [f"{i}:{a}" if a == b else f"{i}:{a}/{b}" for i, a, b in pairs]


def _ordered(value: Any, order: Int[Tensor, " batch"]) -> Any:
    return value[order] if isinstance(value, Tensor) and value.ndim and len(value) == len(order) else value


def _texts(model: Any, inputs: Any) -> Any:
    if not (isinstance(inputs, (list, tuple)) and inputs and all(isinstance(text, str) for text in inputs)):
        return inputs
    if isinstance(model, EncoderDecoder):
        raise TextError("several texts for an encoder-decoder are given as a Batch, with source and tokens.")
    rows = [encode(model, text) for text in inputs]
    if isinstance(model, Foreign):
        if len({len(row) for row in rows}) > 1:
            raise TextError(
                f"texts of {min(map(len, rows))} to {max(map(len, rows))} tokens, and how this module is told of "
                "padding is not known.\n    Give texts of one length, or the arguments it takes."
            )
        return torch.tensor(rows, device=next((p.device for p in model.parameters()), None))
    ids, lengths = padded(model, rows, left=False)
    return Batch(ids, ids, torch.ones_like(ids, dtype=torch.bool), lengths=lengths)


def _unequal(analysis: str, row: int, ours: Sequence[str], theirs: Sequence[str]) -> str:
    same = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
    shown = [" ".join(repr(token) for token in tokens[same : same + 8]) or "nothing" for tokens in (ours, theirs)]
    return (
        f"{analysis}: prompt {row} has {len(ours)} tokens clean and {len(theirs)} corrupt. "
        f"They part at position {same}:\n"
        f"    clean   {shown[0]}\n    corrupt {shown[1]}\n"
        "    Values are copied position by position: choose words that are as many tokens."
    )


def permuted(prompts: Prompts, order: Int[Tensor, " batch"]) -> tuple[Any, Any]:
    """Return (inputs, target) with the prompts in another order."""
    given, inputs = prompts.given, prompts.inputs
    if isinstance(inputs, Batch):
        return Batch(**{name: value[order] for name, value in inputs.tensors().items()}), None
    # other modules: whatever they take that has a row per prompt
    if isinstance(inputs, Mapping):
        return {name: _ordered(value, order) for name, value in inputs.items()}, None
    if isinstance(inputs, tuple):
        return tuple(_ordered(value, order) for value in inputs), None
    assert given.ids is not None, "models that take no ids are refused before"
    return (given.ids[order], None) if given.source_ids is None else (given.source_ids[order], given.ids[order])
