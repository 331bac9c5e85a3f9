"""Rows and positions of a run that an analysis looks at: how they are asked for, and what they are called."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.analysis._run import Run, text_position
from glassformer.analysis.prepare import answer_id, asked_position
from glassformer.errors import ShapeMismatch
from glassformer.labelled import Coordinate, Labelled, RowLabels
from glassformer.models import ModelLike
from glassformer.numerics.indices import asked, entries, is_mask

Positions = int | Sequence[int] | Int[Tensor, "..."] | Bool[Tensor, "..."] | None
Answers = str | int | Sequence[str | int] | Int[Tensor, "*rows"] | None


@dataclasses.dataclass(frozen=True, eq=False)
class Places:
    """Rows and positions of a run.

    Args:
        rows: Index of each row.
        positions: Indices of positions in each row, from 0.
        whole: They are all there are, in order.
        axes: Those of `batch pos` that results keep: one row or one position asked for by its index drops its axis.
    """

    rows: Int[Tensor, " row"]
    positions: Int[Tensor, "row place"]
    whole: bool = False
    axes: tuple[str, ...] = ("batch", "pos")

    def of_stream(self, values: Float[Tensor, "batch pos *rest"]) -> Float[Tensor, "row place *rest"]:
        return values if self.whole else values[self.rows[:, None], self.positions]

    def logits(self, run: Run) -> Float[Tensor, "row place vocab"]:
        """Return the logits there: the run's own or, where it has none, those of what it read behind the final norm."""
        if run.logits is None and run.model.predicts and (end := run.model.output_stack.final.at_out) in run.sites:
            return run.model.unembed(self.of_stream(run.sites[end].values), None)
        return self.of_stream(run.predictions())

    def of_heads(self, values: Float[Tensor, "batch head pos *rest"]) -> Float[Tensor, "row place head *rest"]:
        return values.transpose(1, 2) if self.whole else values[self.rows[:, None], :, self.positions]

    def fitted(self, given: Tensor, what: str, rest: int = 0) -> Tensor:
        """Return what is given for all places, or by row, or each place, as `rows places`; axes are 1 where they share.

        Args:
            given: Has the axes that results keep, or none, or `batch` alone; or all of `batch pos`.
            what: Its name, for the message.
            rest: How many axes of its own stand behind.

        Raises:
            ShapeMismatch: It fits neither the rows nor the positions.
        """
        rows, places = self.positions.shape
        lead = tuple(given.shape[: given.ndim - rest])
        fitting = {(): (1, 1), (rows, places): (rows, places)}
        if "batch" in self.axes:
            fitting[rows,] = (rows, 1)
        elif "pos" in self.axes:
            fitting[places,] = (1, places)
        if lead not in fitting:
            raise ShapeMismatch(f"{what} have shape {'x'.join(map(str, given.shape))}; give {self._fitting()}.")
        return given.reshape(*fitting[lead], *given.shape[given.ndim - rest :])

    def _fitting(self) -> str:
        rows, places = self.positions.shape
        if self.axes == ("batch", "pos"):
            return f"one, one per row (batch={rows}), or one per row and position (batch={rows} pos={places})"
        if self.axes == ("batch",):
            return f"one, or one per row (batch={rows}); position=None takes all positions"
        more = "row=None takes all rows"
        return f"one, or one per position (pos={places}); {more}" if self.axes else f"one, as for one place; {more}"


def places(run: Run, positions: Positions = None, *, single: bool = False) -> Places:
    """Return places of a run; raises `ShapeMismatch` for positions that its texts do not have.

    Args:
        run: A forward pass of one of our models.
        positions: One or several, negative ones counted from the end of each row's real tokens; a tensor `batch place`
            gives every row its own. All by default, those of padding included.
        single: The run is of one prompt, and results keep no axis for it.
    """
    batch, length = run.inputs.shape
    device = run.inputs.device
    if isinstance(positions, Sequence) and not len(positions):
        raise ShapeMismatch("positions: give one at least, or None for all of them.")
    rows = range(batch)
    one = isinstance(positions, int) or (isinstance(positions, Tensor) and positions.ndim == 0)
    axes = (*([] if single else ["batch"]), *([] if one else ["pos"]))
    if positions is None:
        every = torch.arange(length, device=device).expand(len(rows), -1)
        return Places(torch.tensor(rows, device=device), every, True, axes)
    wanted: Any = positions.tolist() if isinstance(positions, Tensor) else positions
    if isinstance(positions, Tensor) and positions.ndim > 1:
        if len(wanted) != len(rows):
            there = "row=… asks for one; row=None takes all" if single else f"the run has {batch}"
            raise ShapeMismatch(f"positions for {len(wanted)} rows were given; {there}.")
    else:
        wanted = [wanted] * len(rows)
    lengths = [len(run.token_rows[row]) for row in rows]
    chosen = [[of_row] if one else _several(of_row, length, real) for of_row, real in zip(wanted, lengths)]
    if len({len(of_row) for of_row in chosen}) > 1:
        counts = ", ".join(str(len(of_row)) for of_row in chosen)
        raise ShapeMismatch(
            f"positions: the masks or slices choose {counts} positions of the rows; results have as many for each row."
        )
    found = [[run.place(p, r) for p in of_row] for r, of_row in zip(rows, chosen)]
    return Places(torch.tensor(rows, device=device), torch.tensor(found, device=device), axes=axes)


def text_positions(positions: Any, length: int) -> list[int]:
    """Return positions of a text, from 0, however they were asked for; raises `ShapeMismatch` for ones it lacks."""
    return [text_position(position, length) for position in _several(positions, length, length)]


def _several(positions: Any, length: int, real: int) -> list[int]:
    """Return positions as indices: those a mask is true at, or a slice of the real ones; all others as they are."""
    found = asked(positions, "positions")
    if is_mask(found) or isinstance(found, slice):
        return entries(found, real if isinstance(found, slice) else length, "positions")
    if isinstance(found, Tensor):
        listed: list[int] = found.tolist()
        return listed
    return [found] if isinstance(found, int) else list(found)


def position_in(run: Run, position: int | None) -> int:
    """Return the position asked for.

    By default it is the last; of a complete translation the one before its end, for an encoder the first masked one.
    """
    if position is not None:
        return run.place(position)
    last = run.place(asked_position(run.model, None if run.ids is None else run.ids[0]))
    if run.source_ids is not None and last > 0 and run.logits is not None:
        ended = int(run.logits[0, last].argmax()) in run.model.stops
        return last - 1 if ended else last
    return last


def place_labels(run: Run, at: Places) -> tuple[dict[str, Sequence[Coordinate]], dict[str, RowLabels]]:
    """Return names of positions with their tokens: of all rows if there is one, else row by row, None at padding."""
    return axis_labels("pos", _named(run.token_rows, at.positions.tolist()))


def axis_labels(axis: str, by_row: RowLabels) -> tuple[dict[str, Sequence[Coordinate]], dict[str, RowLabels]]:
    """Return the labels of an axis as `Labelled` takes them: those of all rows, and those row by row."""
    whole = [label for label in by_row[0] if label is not None]
    return ({axis: whole}, {}) if len(by_row) == 1 and len(whole) == len(by_row[0]) else ({}, {axis: by_row})


def key_labels(
    rows: Sequence[Sequence[str]], keys: int
) -> tuple[dict[str, Sequence[Coordinate]], dict[str, RowLabels]]:
    """Return names of all keys of some rows, likewise."""
    return axis_labels("key", _named(rows, [range(keys)] * len(rows)))


def position_labels(tokens: list[str], before: str = "") -> list[Coordinate]:
    """Return what positions are called in results: index and token."""
    return [f"{before}{i}:{token}" for i, token in enumerate(tokens)]


def _named(rows: Sequence[Sequence[str]], positions: Sequence[Iterable[int]]) -> list[list[Coordinate | None]]:
    return [
        [f"{p}:{tokens[p]}" if p < len(tokens) else None for p in of_row] for tokens, of_row in zip(rows, positions)
    ]


def labelled_at(
    run: Run,
    at: Places,
    values: Tensor,
    coords: Mapping[str, Sequence[Coordinate] | None] | None = None,
    rows: Mapping[str, RowLabels] | None = None,
) -> Labelled:
    """Return numbers of places with those axes of places that results keep.

    Args:
        run: A forward pass.
        at: Its places.
        values: `row place` and more.
        coords: Names of the axes behind these two, with their labels; None for an axis without labels.
        rows: Labels of those of them that differ from row to row.
    """
    coords = coords or {}
    known = {axis: labels for axis, labels in coords.items() if labels is not None}
    of_all, by_row = place_labels(run, at) if "pos" in at.axes else ({}, {})
    values = values if "pos" in at.axes else values[:, 0]
    values = values if "batch" in at.axes else values[0]
    return Labelled(values, (*at.axes, *coords), of_all | known, rows=by_row | dict(rows or {}))


def tokens_at(model: ModelLike, given: Answers, at: Places) -> Int[Tensor, "row place"]:
    """Return the id of every place: one for all, one per row, or one each."""
    shape = tuple(at.positions.shape)
    device = at.positions.device
    if isinstance(given, (str, int)):
        return torch.full(shape, answer_id(model, given), device=device)
    if isinstance(given, Tensor):
        ids = given.to(device).long()
        low, high = int(ids.min()), int(ids.max())
        answer_id(model, low if low < 0 else high)
    else:
        assert given is not None
        ids = torch.tensor([answer_id(model, token) for token in given], device=device)
    return at.fitted(ids, "answers").expand(shape)
