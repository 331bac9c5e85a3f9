"""Rows and positions of a run that an analysis looks at: how they are asked for, and what they are called."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.analysis._run import Run
from glassformer.analysis.prepare import token_id
from glassformer.errors import ShapeMismatch
from glassformer.models import ModelLike

Positions = int | Sequence[int] | Int[Tensor, "batch place"] | None
Answers = str | int | Sequence[str | int] | Int[Tensor, "*rows"] | None


@dataclasses.dataclass(frozen=True, eq=False)
class Places:
    """Rows and positions of a run.

    Args:
        rows: Index of each row.
        positions: Indices of positions in each row, from 0.
        whole: They are all there are, in order.
    """

    rows: Int[Tensor, " row"]
    positions: Int[Tensor, "row place"]
    whole: bool = False

    def of_stream(self, values: Float[Tensor, "batch pos *rest"]) -> Float[Tensor, "row place *rest"]:
        return values if self.whole else values[self.rows[:, None], self.positions]

    def of_heads(self, values: Float[Tensor, "batch head pos *rest"]) -> Float[Tensor, "row place head *rest"]:
        return values.transpose(1, 2) if self.whole else values[self.rows[:, None], :, self.positions]

    def of_rows(self, values: Tensor) -> Tensor:
        return values if self.whole else values[self.rows]


def places(run: Run, positions: Positions = None, row: int | None = None) -> Places:
    """Return places of a run; raises `ShapeMismatch` for positions that its text does not have.

    Args:
        run: A forward pass of one of our models.
        positions: One or several, negative ones counted from the end of each row's real tokens; a tensor gives every
            row its own. All by default, those of padding included.
        row: Only this row of the batch.
    """
    assert run.ids is not None, "a run of one of our models has ids"
    batch, length = run.ids.shape
    device = run.ids.device
    rows = range(batch) if row is None else [row]
    if positions is None:
        every = torch.arange(length, device=device).expand(len(rows), -1)
        return Places(torch.tensor(rows, device=device), every, whole=len(rows) == batch)
    if isinstance(positions, Tensor) and positions.ndim > 1:
        given: Any = positions.tolist()
        if len(given) != len(rows):
            raise ShapeMismatch(f"positions for {len(given)} rows were given; the run has {len(rows)}.")
    else:
        one = [positions] if isinstance(positions, int) else [int(p) for p in positions]
        given = [one] * len(rows)
    found = [[run.place(p, r) for p in of_row] for r, of_row in zip(rows, given)]
    return Places(torch.tensor(rows, device=device), torch.tensor(found, device=device))


def place_labels(run: Run, at: Places) -> dict[str, Sequence[str]]:
    """Return names of positions, with their tokens if there is one row."""
    if len(at.rows) != 1:
        same = bool((at.positions == at.positions[:1]).all())
        return {"pos": [str(p) for p in at.positions[0].tolist()]} if same and not at.whole else {}
    tokens = run.token_rows[int(at.rows[0])]
    known = [p for p in at.positions[0].tolist() if p < len(tokens)]
    return {"pos": [f"{p}:{tokens[p]}" for p in known]} if len(known) == at.positions.shape[1] else {}


def tokens_at(model: ModelLike, given: Answers, at: Places) -> Int[Tensor, "row place"]:
    """Return the id of every place: one for all, one per row, or one each."""
    shape = tuple(at.positions.shape)
    device = at.positions.device
    if isinstance(given, (str, int)):
        return torch.full(shape, token_id(model, given), device=device)
    if isinstance(given, Tensor):
        ids = given.to(device).long()
        low, high = int(ids.min()), int(ids.max())
        token_id(model, low if low < 0 else high)
    else:
        assert given is not None
        ids = torch.tensor([token_id(model, token) for token in given], device=device)
    if tuple(ids.shape) == shape[:1]:
        return ids[:, None].expand(shape)
    if tuple(ids.shape) != shape:
        raise ShapeMismatch(
            f"answers have shape {'x'.join(map(str, ids.shape))}; give one token, one per row (batch={shape[0]}), or "
            f"one per row and position (batch={shape[0]} pos={shape[1]})."
        )
    return ids
