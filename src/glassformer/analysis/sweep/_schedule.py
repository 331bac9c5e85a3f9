"""Which rows of a sweep run together, and from where.

A row starts at an entry, a layer of a stack, and, where the past can be carried, at a position. Rows of one pass start
at the same position, so some of them start earlier than they need to, and each comes in at its own layer: a pass begins
with the rows of its first entry, and the others join it on the way. A pass costs what its tokens cost and, in every
layer, something by itself (weights are read once per pass); positions are merged where that makes the sum smallest.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from glassformer.numerics.placement import is_accelerator

# tokens beyond which a larger pass is no faster
WORTHWHILE_ON_CPU, WORTHWHILE = 1 << 10, 1 << 16
# what a pass costs by itself, in tokens: on a CPU the time to read a block's weights from memory
PASS = 24


class Entry(NamedTuple):
    """Where a pass begins: a layer of a stack, or (layer -1) the tokens."""

    stack: int
    layer: int


class RowGroup(NamedTuple):
    """Rows that have to run in one pass, because they read each other; `alone` if no others may be in it."""

    rows: tuple[int, ...]
    entry: Entry
    position: int
    alone: bool = False


class Joining(NamedTuple):
    """Rows that come into a pass at one entry."""

    entry: Entry
    rows: tuple[int, ...]


class ScheduledPass(NamedTuple):
    """One forward pass: its rows by where they come in, first entries first, and the position where they all start."""

    joining: tuple[Joining, ...]
    position: int

    @property
    def rows(self) -> tuple[int, ...]:
        return tuple(row for each in self.joining for row in each.rows)


def worthwhile(device: torch.device) -> int:
    """Return the tokens of a pass beyond which a larger one is no faster."""
    return WORTHWHILE if is_accelerator(device) else WORTHWHILE_ON_CPU


def passes(
    units: Sequence[RowGroup],
    length: int,
    batch: int,
    rows_at_once: int | None,
    memory: int,
    row_bytes: int,
    most_tokens: int,
    joins: Callable[[Entry], bool],
    layers_from: Callable[[Entry], int],
) -> list[ScheduledPass]:
    """Return the passes that run all units.

    Args:
        units: What has to run.
        length: Positions of a row.
        batch: Prompts per row.
        rows_at_once: Rows per pass at most, if the caller set it.
        memory: Bytes a pass may hold.
        row_bytes: Bytes one row holds over all its positions.
        most_tokens: Tokens beyond which a larger pass is no faster.
        joins: Whether rows of an entry can come into a pass that is under way.
        layers_from: How many blocks run from an entry on.
    """
    together: dict[Entry | None, list[RowGroup]] = defaultdict(list)
    for unit in sorted(units, key=lambda unit: unit.entry):
        together[None if joins(unit.entry) else unit.entry].append(unit)
    found: list[ScheduledPass] = []
    for members in together.values():
        # what follows the last block costs something too
        costs = [_Cost(unit.position, len(unit.rows) * batch, layers_from(unit.entry) + 1) for unit in members]
        starts = _starts(costs, length)
        by_start: dict[int, list[RowGroup]] = defaultdict(list)
        for unit in members:
            by_start[max(start for start in starts if start <= unit.position)].append(unit)
        for start in sorted(by_start):
            tokens = batch * (length - start)
            fit = min(memory * length // max(row_bytes * (length - start), 1), max(most_tokens // tokens, 1))
            at_most = max(1, fit if rows_at_once is None else rows_at_once)
            found += [ScheduledPass(_by_entry(group), start) for group in _fill(by_start[start], at_most)]
    return found


class _Cost(NamedTuple):
    """What rows cost: tokens at every position from theirs on, in so many layers."""

    position: int
    tokens: int
    layers: int


def _starts(costs: Sequence[_Cost], length: int) -> list[int]:
    """Return the positions passes start at: the cheapest way to cut the positions, in order, into groups."""
    # far apart or many, positions are told apart in 128 steps: the search is quadratic
    step = -(-length // 128)
    merged: dict[int, int] = defaultdict(int)
    deepest: dict[int, int] = defaultdict(int)
    lowest: dict[int, int] = {}
    for position, tokens, layers in sorted(costs):
        merged[position // step] += tokens * layers
        deepest[position // step] = max(deepest[position // step], layers)
        lowest.setdefault(position // step, position)
    keys = sorted(merged)
    best: list[tuple[float, list[int]]] = [(0.0, [])]
    for end in range(1, len(keys) + 1):
        work = layers = 0
        options: list[tuple[float, list[int]]] = []
        for begin in range(end - 1, -1, -1):
            work, layers = work + merged[keys[begin]], max(layers, deepest[keys[begin]])
            start = lowest[keys[begin]]
            cost, earlier = best[begin]
            options.append((cost + PASS * layers + work * (length - start), [*earlier, start]))
        best.append(min(options, key=lambda option: option[0]))
    return best[-1][1]


def _fill(units: Sequence[RowGroup], at_most: int) -> list[list[RowGroup]]:
    """Return units in groups no larger than asked (one that is larger stays whole), of about one size."""
    total = sum(len(unit.rows) for unit in units)
    size = -(-total // -(-total // at_most))
    groups: list[list[RowGroup]] = []
    rows = 0
    for unit in units:
        if unit.alone:
            continue
        if not groups or rows + len(unit.rows) > size:
            groups.append([])
            rows = 0
        groups[-1].append(unit)
        rows += len(unit.rows)
    return groups + [[unit] for unit in units if unit.alone]


def _by_entry(units: Sequence[RowGroup]) -> tuple[Joining, ...]:
    """Return the rows of a pass by where they come in."""
    rows: dict[Entry, list[int]] = defaultdict(list)
    for unit in units:
        rows[unit.entry] += unit.rows
    return tuple(Joining(entry, tuple(rows[entry])) for entry in sorted(rows))
