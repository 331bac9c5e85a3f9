"""Contrast: prompts, others that differ from them where it matters, and what is asked about both.

    Contrast("When Mary and John went out, John gave a drink to", "When Mary and John went out, Mary gave a drink to",
             answer=" Mary", wrong=" John")

Experiments on the difference of two runs take this one value. It is written by hand, or made of `Pairs` by `encode`,
which checks that prompts align and answers are one token.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from glassformer.data.batch import Batch
from glassformer.errors import DataError

Side = Literal["clean", "corrupt"]
SIDES: tuple[Side, ...] = ("clean", "corrupt")


@dataclasses.dataclass(frozen=True, eq=False)
class Contrast:
    """Two sets of prompts that differ in content and not in shape, and the answers that tell them apart.

    Args:
        clean: Prompts as `run` takes them: a text, texts, ids `batch pos`, a `Batch`, arguments of any module.
        corrupt: As many prompts of the same numbers of tokens.
        answer: The next token of the clean prompts, as text or id; one for all, or a list or tensor with one each.
        wrong: The token it is compared with.
        target: What the decoder of an encoder-decoder reads beside the clean prompts.
        corrupt_target: The same beside the corrupt ones, if it differs.
        pos: The position whose next token is asked about, negative ones counted from the end of each prompt; an
            encoder's masked one.
        labels: Names of positions, for prompts whose tokens play the same parts.
        roles: Positions of each role, one tuple per pair; empty where a pair does not have it.
        lengths: Real tokens per pair if rows of ids were padded, else None.
        padding: Where: `right` goes with `lengths` alone, `left` with `lengths` and an empty state.
    """

    clean: Any
    corrupt: Any
    answer: Any = None
    wrong: Any = None
    target: Any = None
    corrupt_target: Any = None
    pos: int = -1
    labels: Sequence[str] | None = None
    roles: Mapping[str, tuple[tuple[int, ...], ...]] = dataclasses.field(default_factory=dict)
    lengths: Int[Tensor, " batch"] | None = None
    padding: Literal["none", "left", "right"] = "none"

    def __len__(self) -> int:
        """Return how many pairs of prompts there are."""
        if isinstance(self.clean, str):
            return 1
        rows = self.clean.tokens if isinstance(self.clean, Batch) else self.clean
        if isinstance(rows, Mapping):
            rows = next(iter(rows.values()))
        elif isinstance(rows, tuple):
            rows = rows[0]
        single = (isinstance(rows, Tensor) and rows.ndim == 1) or (isinstance(rows, list) and isinstance(rows[0], int))
        return 1 if single else len(rows)

    @property
    def last(self) -> Int[Tensor, " batch"]:
        """The last position of each row of ids, whose next token is the answer."""
        ids = self._ids("clean")
        ends = torch.full((len(ids),), ids.shape[1], device=ids.device)
        return (ends if self.lengths is None or self.padding == "left" else self.lengths) - 1

    @property
    def differs(self) -> Bool[Tensor, "batch pos"]:
        """Where the two prompts have different tokens."""
        return self._ids("clean") != self._ids("corrupt")

    def side(self, side: Side) -> Any:
        """The clean or the corrupt prompts as `run` takes them: a `Batch` if they were padded.

        Raises:
            DataError: Rows are padded on the left.
        """
        if self.lengths is None:
            return getattr(self, side)
        self._require_no_left_padding()
        ids = self._ids(side)
        # no target is asked for, and outputs may be other tokens than these
        return Batch(ids, torch.zeros_like(ids), torch.ones_like(ids, dtype=torch.bool), lengths=self.lengths)

    def batch(self, side: Side = "clean") -> Batch:
        """Batch of one side, whose only targets are the answers.

        Raises:
            DataError: Rows are padded on the left, which needs a state to begin with and no batch has; or prompts or
                answers are no ids.
        """
        self._require_no_left_padding()
        tokens = self._ids(side)
        if not isinstance(self.answer, Tensor):
            raise DataError("a batch needs the ids of the answers, one per row: Pairs(…).encode(model) finds them.")
        rows = torch.arange(len(tokens), device=tokens.device)
        targets = tokens.roll(-1, 1)
        targets[rows, self.last] = self.answer
        weight = torch.zeros_like(tokens, dtype=torch.bool)
        weight[rows, self.last] = True
        return Batch(tokens, targets, weight, lengths=self.lengths)

    def _ids(self, side: Side) -> Int[Tensor, "batch pos"]:
        value = getattr(self, side)
        if not isinstance(value, Tensor) or value.ndim != 2:
            raise DataError(f"the {side} prompts are no ids `batch pos`: Pairs(…).encode(model) makes them of texts.")
        return value

    def _require_no_left_padding(self) -> None:
        if self.padding == "left":
            raise DataError('these pairs are padded on the left, and batches are on the right: encode(…, pad="right").')
