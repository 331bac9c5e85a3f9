"""Worlds side by side: the edits of many rows as one edit per site.

A world is the base batch as one row of the plan leaves it: the counterfactual in which just that row's edits are made.
The word, and the axis, are Penzai's. The batch of a pass is `world batch`, flattened: the base batch once per row. An
edit belongs to one world, and is made for the positions that the pass computes.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.errors import ShapeMismatch
from glassformer.numerics.indices import Where, true_entries
from glassformer.trace import At, Edit, Site, Take
from glassformer.trace.edits import Earlier


def positional(site: Site) -> list[str]:
    """Return the axes of a site that run over the positions of the pass."""
    axes = [axis for axis in ("pos", "query") if axis in site.axes]
    # keys of a pattern are all keys there are, earlier ones included; those of cross-attention are the source's
    return axes or (["key"] if "key" in site.axes and not site.crosses else [])


def first_position(edit: Edit, site: Site, length: int) -> int:
    """Return the first position an edit touches, in any row."""

    def first(axis: str) -> int:
        if axis in edit.at.by_row:
            return min(itertools.chain(*edit.at.by_row[axis]), default=length - 1)
        return _first(edit.at.where[axis], length) if axis in edit.at.where else 0

    return min(map(first, positional(site)), default=0)


def localised(edit: Edit, site: Site, start: int, length: int) -> Edit:
    """Return an edit as it reads in a pass that begins at position `start`: parts shifted, borrowed values taken.

    Of positions before the pass it says nothing more: there it changes nothing.
    """
    at = edit.at if not start else from_position(edit.at, site, start, length)
    value = getattr(edit, "value", None)
    value = getattr(value, "values", None) if isinstance(getattr(value, "values", None), Mapping) else value
    if isinstance(value, Mapping):
        # what is borrowed covers all positions: take it before the address changes
        edit = dataclasses.replace(edit, value=at.borrow(value, site))  # type: ignore[call-arg]
    return dataclasses.replace(edit, at=shifted(at, site, start, length)) if start else edit


def from_position(at: At, site: Site, start: int, length: int) -> At:
    """Return the part of a part that lies at or behind a position; what is elsewhere in each row has to lie there."""
    own = [axis for axis in positional(site) if axis not in at.by_row]
    return at.within(**{axis: _from(at.where.get(axis, slice(None)), start, length) for axis in own})


def shifted(at: At, site: Site, start: int, length: int) -> At:
    """Return where a part lies among the positions from `start` on."""
    own = positional(site)
    found = at.within(**{a: _shift(at.where[a], start, length) for a in own if a in at.where and a not in at.by_row})
    return found.in_rows(
        {a: [[i - start for i in row] for row in rows] if a in own else rows for a, rows in at.by_row.items()}
    )


class Lent(NamedTuple):
    """What edits read of sites that are not the pass's own, or not split by world.

    Args:
        known: Values of sites that lie before the pass, `world batch …`: one world that stands for all, or one each.
        whole: Names of sites that have one value for the whole pass.
    """

    known: Mapping[str, Tensor]
    whole: frozenset[str]


NOTHING_LENT = Lent({}, frozenset())


@dataclasses.dataclass(frozen=True, eq=False)
class Worlds(Edit):
    """The edits of several worlds at one site.

    Args:
        site: Its name.
        parts: Edits of each world that has any, in order.
        count: How many worlds there are.
        order: World of each row of the plan that is here, for rows that take from others.
        lent: What edits read of sites that lie elsewhere.
    """

    parts: Mapping[int, Sequence[Edit]]
    count: int
    order: Mapping[int, int]
    lent: Lent = NOTHING_LENT

    @property
    def reads(self) -> tuple[str, ...]:
        names = [name for edits in self.parts.values() for edit in edits for name in edit.reads]
        return tuple(dict.fromkeys(name for name in names if name not in self.lent.known))

    def entries(self, axis: str, size: int) -> list[int]:
        return sorted({entry for edits in self.parts.values() for edit in edits for entry in edit.entries(axis, size)})

    def change(self, part: Tensor, whole: Tensor, site: Site, earlier: Earlier) -> Tensor:
        # no address: the part is the site's value
        value = part
        if "batch" not in site.axes:
            # one value for the whole pass: its world is alone in it
            for edit in self.parts[0]:
                value = edit(value, site, self._earlier(edit, 0, earlier))
            return value
        worlds = value.unflatten(0, (self.count, -1))
        found: dict[int, Tensor] = {}
        written = value.clone().unflatten(0, (self.count, -1)) if not torch.is_grad_enabled() else None
        for world in self._ordered(site):
            edits = self.parts[world]
            if written is not None and len(edits) == 1 and not isinstance(edits[0], Take):
                edit, old = edits[0], worlds[world]
                part = edit.change(edit.at.take(old, site), old, site, self._earlier(edit, world, earlier))
                edit.at.write(written[world], part, site)
                continue
            new = worlds[world]
            for edit in edits:
                if isinstance(edit, Take):
                    donor = self.order[edit.row]
                    lent = written[donor] if written is not None else found.get(donor, worlds[donor])
                    new = edit.at.put(new, edit.at.take(lent, site), site)
                else:
                    new = edit(new, site, self._earlier(edit, world, earlier))
            found[world] = new
            if written is not None:
                written[world] = new
        if written is not None:
            return written.flatten(0, 1)
        return torch.stack([found.get(world, worlds[world]) for world in range(self.count)]).flatten(0, 1)

    def _earlier(self, edit: Edit, world: int, earlier: Earlier) -> Earlier:
        """Return what an edit reads in its world."""

        def own(name: str) -> Tensor:
            if name in self.lent.known:
                known = self.lent.known[name]
                return known[world if len(known) > 1 else 0]
            value = earlier[name]
            return value if name in self.lent.whole else value.unflatten(0, (self.count, -1))[world]

        return {name: own(name) for name in edit.reads}

    def _ordered(self, site: Site) -> list[int]:
        """Return the worlds so that each comes after those it takes from."""
        done: list[int] = []
        entered: set[int] = set()

        def visit(world: int) -> None:
            if world in done or world not in self.parts:
                return
            if world in entered:
                raise circle(site)
            entered.add(world)
            for edit in self.parts[world]:
                if isinstance(edit, Take):
                    visit(self.order[edit.row])
            done.append(world)

        for world in self.parts:
            visit(world)
        return done


def circle(site: Site) -> ShapeMismatch:
    return ShapeMismatch(
        f'sweep: rows take from each other in a circle at "{site.name}", so that neither comes first.\n'
        "    Let one of them take at an earlier or a later site."
    )


def _first(where: Where, length: int) -> int:
    if isinstance(where, int):
        return where % length
    if isinstance(where, slice):
        return min(range(length)[where], default=length - 1)
    # positions of a source, which may be longer, are asked too: where they lie is checked when the edit is made
    return min((int(i) % length for i in true_entries(where)), default=length - 1)


def _from(where: Where, start: int, length: int) -> Where:
    if isinstance(where, int):
        return where if where % length >= start else []
    places = range(length)[where] if isinstance(where, slice) else [int(i) % length for i in true_entries(where)]
    left = [i for i in places if i >= start]
    if len(left) == len(places):
        return where
    # a slice is a view, a list a copy
    return slice(left[0], left[-1] + 1) if left and left == list(range(left[0], left[-1] + 1)) else left


def _shift(where: Where, start: int, length: int) -> Where:
    if isinstance(where, int):
        return where % length - start
    if isinstance(where, slice):
        places = range(length)[where]
        if places.step > 0:
            return slice(places.start - start, places.stop - start, places.step)
        return [i - start for i in places]
    return [int(i) % length - start for i in true_entries(where)]
