"""Heads as addresses: the label that results print for a head, and a quantity, name a site and a part of it.

L1H6.pattern       blocks.1.attn.pattern, head 6
L1X6.z             head 6 of cross-attention
enc L1H6.z         of the encoder, in a model that has two stacks
L1H6#2.z           of a block's second attention of that kind
L1H6.key           the key head that head 6 reads, which it may share with others
L1H6.*             every quantity that is kept by head
"""

import fnmatch
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from glassformer.errors import UnknownAxis, UnknownSite, nearest
from glassformer.trace.edits import At
from glassformer.trace.sites import Site

_LABEL = re.compile(
    r"(?P<side>enc )?L(?P<layer>\d+)(?P<kind>[HX])(?P<head>\d+)(#(?P<number>\d+))?(\.(?P<quantity>.+))?"
)
_ROLES = ("attn", "cross")
_AXES = ("head", "kv_head")


def head_label(stack: str, part: str, layer: int, head: int) -> str:
    """Label of a head in results: `L3H5`, `L3X5` in cross-attention, `enc L3H5` in an encoder.

    A block's second attention part of a kind (`attn_1`) appends `#2`.
    """
    kind, _, number = part.partition("_")
    again = f"#{int(number) + 1}" if number else ""
    return f"{'enc ' if stack == 'encoder' else ''}L{layer}{'X' if kind == 'cross' else 'H'}{head}{again}"


def key_head_label(stack: str, part: str, layer: int, heads: range) -> str:
    """Label of a key head in results: by its readers, `L3H5`, or `L3H4, L3H5` if two share it."""
    return ", ".join(head_label(stack, part, layer, head) for head in heads)


class Located(NamedTuple):
    """A part of a site that was asked for.

    Args:
        name: What it is called: the site's name, or a head's label and a quantity.
        site: The site.
        at: The part of it.
        of: Label of the head it is of, or of all heads that share it; empty for what was asked for by site.
    """

    name: str
    site: Site
    at: At
    of: str = ""


@dataclass(frozen=True)
class HeadAddress:
    """A head's label and a quantity, read.

    Args:
        stack: `encoder` if the label says so; empty for a model's only stack, or the decoder of two.
        layer: Index of the block.
        part: `attn` or `cross`, with its number if the block has several: `attn_1`.
        head: Index of the head.
        quantity: What of it, or a glob; empty if the label stands alone.
    """

    stack: str
    layer: int
    part: str
    head: int
    quantity: str

    @classmethod
    def parse(cls, text: str) -> "HeadAddress | None":
        """Address that a text stands for; None if it is no head's label."""
        found = _LABEL.fullmatch(text)
        if found is None:
            return None
        number = int(found["number"] or 1) - 1
        part = ("cross" if found["kind"] == "X" else "attn") + (f"_{number}" if number else "")
        side = "encoder" if found["side"] else ""
        return cls(side, int(found["layer"]), part, int(found["head"]), found["quantity"] or "")

    @property
    def label(self) -> str:
        return head_label(self.stack, self.part, self.layer, self.head)

    def locate(self, table: Mapping[str, Site], at: At) -> list[Located]:
        """The sites and parts this stands for, in the order of the forward pass.

        Args:
            table: Sites by name.
            at: More of the address: other axes of the part.

        Raises:
            UnknownSite: There is no such head, or it has no such quantity.
            UnknownAxis: `at` names a head too.
        """
        own = self._by_head(table)
        names = [name for name in own if fnmatch.fnmatchcase(name, self.quantity)]
        if not names:
            raise self._unknown(table, own)
        for axis in _AXES:
            if axis in at.where:
                raise UnknownAxis(
                    f'"{self.label}.{self.quantity}" is of one head already, and {at} asks for another.\n'
                    f'    Name the site for parts of its heads: "{own[names[0]].path}.{self.quantity}".'
                )
        heads = next((s.sizes["head"] for s in own.values() if "head" in s.sizes), None)
        if heads is not None and self.head >= heads:
            raise self._unknown(table, own)
        return [self._part(name, own[name], heads, at) for name in names]

    def _part(self, quantity: str, site: Site, heads: int | None, at: At) -> Located:
        name = f"{self.label}.{quantity}"
        if "head" in site.axes:
            return Located(name, site, At(**{"head": self.head, **at.where}), self.label)
        groups = site.sizes.get("kv_head")
        if heads is None or groups is None:
            raise UnknownSite(
                f'"{name}": how many heads share a key head of "{site.name}" is not known here.\n'
                "    Address the key head: at=At(kv_head=…), or give the spec sizes of head and kv_head."
            )
        shared = heads // groups
        group = self.head // shared
        of = key_head_label(self.stack, self.part, self.layer, range(group * shared, (group + 1) * shared))
        return Located(name, site, At(**{"kv_head": group, **at.where}), of)

    def sites(self, table: Mapping[str, Site]) -> dict[str, Site]:
        """The sites of its sub-layer that have an axis of heads, by quantity; raises `UnknownSite` of no head."""
        own = self._by_head(table)
        if self.label not in head_labels(table):
            raise self._unknown(table, own)
        return own

    def _by_head(self, table: Mapping[str, Site]) -> dict[str, Site]:
        stack = self.stack or ("decoder" if any(site.stack == "decoder" for site in table.values()) else "")
        inside = [s for s in table.values() if (s.stack, s.layer, s.part) == (stack, self.layer, self.part)]
        return _with_heads(inside)

    def _unknown(self, table: Mapping[str, Site], own: Mapping[str, Site]) -> UnknownSite:
        asked = f"{self.label}.{self.quantity}" if self.quantity else self.label
        there = head_labels(table)
        if self.label in there or (own and not there):
            whole = f"{next(iter(own.values())).path}.{self.quantity}"
            close = nearest(asked, [f"{self.label}.{name}" for name in own])
            kept = f' "{whole}" is not kept by head.' if whole in table else ""
            return UnknownSite(
                f'no site "{asked}" in this model.{kept}{close}\n    Of a head there are: {", ".join(own)}.'
            )
        if not there:
            return UnknownSite(
                f'no site "{asked}": this model names no sites of heads.\n'
                "    A module we did not write has them where a spec names them: gf.foreign(module, gf.Spec(…))."
            )
        quantity = f".{self.quantity}" if self.quantity else ""
        return _no_head(self.label, f' Nearest: "{self._nearest(there)}{quantity}".', there)

    def _nearest(self, there: list[str]) -> str:
        """Return the label that differs least: in the kind of head, then in the layer, then in the head."""

        def distance(label: str) -> tuple[bool, bool, int, int]:
            other = HeadAddress.parse(label)
            assert other is not None, "labels were made by head_label"
            kinds = other.stack != self.stack, other.part != self.part
            return (*kinds, abs(other.layer - self.layer), abs(other.head - self.head))

        return min(there, key=distance)


def sites_of_heads(table: Mapping[str, Site], of: str) -> dict[str, Site]:
    """The sites that have an axis of heads, by quantity, of the sub-layer that a head is in.

    Args:
        table: Sites by name.
        of: Label of a head, without a quantity, or path of the sub-layer (`blocks.1.attn`) for all its heads.

    Raises:
        UnknownSite: There is no such head; the message names the nearest.
    """
    head = HeadAddress.parse(of)
    if head is not None and not head.quantity:
        return head.sites(table)
    found = _with_heads(site for site in table.values() if site.path == of and site.role in _ROLES)
    if not found:
        there = head_labels(table)
        raise _no_head(of, nearest(of, there), there)
    return found


def head_labels(table: Mapping[str, Site]) -> list[str]:
    """The labels of all heads that a site table has values of, in the order of the forward pass."""
    found: dict[str, None] = {}
    for site in table.values():
        if site.layer is not None and site.role in _ROLES and "head" in site.sizes:
            where = site.stack, site.part, site.layer
            found |= {head_label(*where, head): None for head in range(site.sizes["head"])}
    return list(found)


def _with_heads(sites: Iterable[Site]) -> dict[str, Site]:
    return {site.quantity: site for site in sites if any(axis in site.axes for axis in _AXES)}


def _no_head(asked: str, close: str, there: list[str]) -> UnknownSite:
    return UnknownSite(f'no head "{asked}" in this model.{close}\n    Its heads: {_ranges(there) or "none"}.')


def _ranges(labels: list[str]) -> str:
    """Return labels as text, those of a layer as a range."""
    layers: dict[str, list[str]] = {}
    for label in labels:
        layers.setdefault(re.sub(r"(?<=[HX])\d+", "*", label), []).append(label)
    spans = [found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}" for found in layers.values()]
    return ", ".join(spans if len(spans) <= 6 else [*spans[:3], "…", spans[-1]])
