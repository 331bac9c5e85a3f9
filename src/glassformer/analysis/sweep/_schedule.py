"""Which rows of a sweep run together, and from where.

A row starts at an entry, a layer of a stack, and, where the past can be carried, at a position. Rows in one pass start
at the same place, so some of them start earlier than they need to. A pass costs what its tokens cost and something by
itself (weights are read once per pass); positions are merged where that makes the sum smallest.
"""

from collections import defaultdict
from collections.abc import Sequence
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


class ScheduledPass(NamedTuple):
    """One forward pass: its rows and where they all start."""

    rows: tuple[int, ...]
    entry: Entry
    position: int


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
) -> list[ScheduledPass]:
    """Return the passes that run all units, first entries first.

    Args:
        units: What has to run.
        length: Positions of a row.
        batch: Prompts per row.
        rows_at_once: Rows per pass at most, if the caller set it.
        memory: Bytes a pass may hold.
        row_bytes: Bytes one row holds over all its positions.
        most_tokens: Tokens beyond which a larger pass is no faster.
    """
    by_entry: dict[Entry, list[RowGroup]] = defaultdict(list)
    for unit in units:
        by_entry[unit.entry].append(unit)
    found: list[ScheduledPass] = []
    for entry in sorted(by_entry):
        counts: dict[int, int] = defaultdict(int)
        for unit in by_entry[entry]:
            counts[unit.position] += len(unit.rows)
        starts = _starts(sorted(counts.items()), length, batch)
        members: dict[int, list[RowGroup]] = defaultdict(list)
        for unit in by_entry[entry]:
            members[max(start for start in starts if start <= unit.position)].append(unit)
        for start in sorted(members):
            tokens = batch * (length - start)
            fit = min(memory * length // max(row_bytes * (length - start), 1), max(most_tokens // tokens, 1))
            at_most = max(1, fit if rows_at_once is None else rows_at_once)
            found += [ScheduledPass(rows, entry, start) for rows in _fill(members[start], at_most)]
    return found


def _starts(counts: Sequence[tuple[int, int]], length: int, batch: int) -> list[int]:
    """Return the positions passes start at: the cheapest way to cut the positions, in order, into groups."""
    # far apart or many, positions are told apart in 128 steps: the search is quadratic
    step = -(-length // 128)
    merged: dict[int, int] = defaultdict(int)
    lowest: dict[int, int] = {}
    for position, rows in counts:
        merged[position // step] += rows
        lowest.setdefault(position // step, position)
    keys = sorted(merged)
    best: list[tuple[float, list[int]]] = [(0.0, [])]
    for end in range(1, len(keys) + 1):
        rows, options = 0, list[tuple[float, list[int]]]()
        for begin in range(end - 1, -1, -1):
            rows += merged[keys[begin]]
            start = lowest[keys[begin]]
            cost, earlier = best[begin]
            options.append((cost + PASS + rows * batch * (length - start), [*earlier, start]))
        best.append(min(options, key=lambda option: option[0]))
    return best[-1][1]


def _fill(units: Sequence[RowGroup], at_most: int) -> list[tuple[int, ...]]:
    """Return groups of rows no larger than asked (a unit that is larger stays whole), of about one size."""
    total = sum(len(unit.rows) for unit in units)
    size = -(-total // -(-total // at_most))
    groups: list[list[int]] = []
    for unit in units:
        if unit.alone:
            continue
        if not groups or len(groups[-1]) + len(unit.rows) > size:
            groups.append([])
        groups[-1] += unit.rows
    return [tuple(group) for group in groups] + [unit.rows for unit in units if unit.alone]
