"""Which values an experiment replaces one at a time: families of sites, cut along named axes.

    "z"                                             each head of each layer
    Cells("z", ("layer", "head", "pos"))            each head at each position
    Cells("value", only={"layer": [1]})             each value head of layer 1
    Cells("blocks.*.attn.norm", ("site", "pos"))    any sites, by glob

A family becomes one grid per kind of place: the stacks of an encoder-decoder, a block's second attention part and
cross-attention have grids of their own. Keys and values are cut by `kv_head`, and along `key` where others say `pos`.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from glassformer.attention import AttentionLayer
from glassformer.errors import AnalysisUnavailable, NoPattern, ShapeMismatch, UnknownAxis, UnknownSite, nearest
from glassformer.labelled import Coordinate
from glassformer.models import Stack, SubLayer
from glassformer.trace import At, Foreign, Site, SiteTable, is_named

_STREAM, _HEADS = ("layer", "pos"), ("layer", "head")

# role of the part it lies in (none: the stream), quantity, how it is cut unless asked otherwise
FAMILIES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "resid_pre": ("", "resid_pre", _STREAM),
    "resid_mid": ("", "resid_mid", _STREAM),
    "resid_post": ("", "resid_post", _STREAM),
    "attn_out": ("attn", "out", _STREAM),
    "mlp_out": ("mlp", "out", _STREAM),
    "head": ("attn", "write", _HEADS),
    "z": ("attn", "z", _HEADS),
    "query": ("attn", "query", _HEADS),
    "key": ("attn", "key", _HEADS),
    "value": ("attn", "value", _HEADS),
    "scores": ("attn", "scores", _HEADS),
    "pattern": ("attn", "pattern", _HEADS),
    "pattern_entries": ("attn", "pattern", ("layer", "head", "query", "key")),
    "neurons": ("mlp", "hidden", ("layer", "neuron")),
}
# where a block's sites of the stream are the first, those between sub-layers, the last
STREAM = {"resid_pre": slice(0, 1), "resid_mid": slice(1, -1), "resid_post": slice(-1, None)}
# of a bundle, a model gets the families it has
BUNDLES: dict[str, tuple[str, ...]] = {
    "stream": ("resid_pre", "attn_out", "mlp_out"),
    "everything": ("resid_pre", "attn_out", "mlp_out", "z", "query", "key", "value", "pattern"),
}
_LACKS = {"pattern": "pattern", "scores": "scores"}
_ALIASES = {"pos": "key", "head": "kv_head"}


@dataclass(frozen=True)
class Cells:
    """A family of places and how it is cut; each combination of coordinates is one cell.

    Args:
        sites: A key of `FAMILIES` or of `BUNDLES`, or the name or glob of any sites. Family `head` is what a head
            writes: z where a head's z goes nowhere else, and `head_out` where a norm or gate comes after.
        by: Axes to cut along: `layer` (families), `site` (globs), and axes of the sites. What is left out is replaced
            as a whole. By default as the family has it; globs are cut by `site`.
        only: Coordinates to keep along an axis, negative ones counted from the end. An axis that is not in `by` is
            replaced there and nowhere else.
    """

    sites: str
    by: tuple[str, ...] | None = None
    only: Mapping[str, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """One site and the stack whose positions it counts."""

    site: Site
    stack: str = ""


@dataclass(frozen=True)
class Cell:
    """One entry of a grid: its index along each axis, and the parts of sites it stands for."""

    index: tuple[int, ...]
    parts: tuple[tuple[Site, At], ...]


@dataclass(frozen=True)
class Grid:
    """Cells that share axes.

    Args:
        name: `z`, `decoder cross z`, …
        axes: Coordinates by axis; position axes count from 0.
        cells: Those that exist: layers may differ in heads, and a causal pattern has no entry above its diagonal.
        stacks: For each position axis, the stack whose positions it counts.
        family: Key of `FAMILIES` it belongs to; empty for sites by glob.
    """

    name: str
    axes: Mapping[str, Sequence[Coordinate]]
    cells: Sequence[Cell]
    stacks: Mapping[str, str]
    family: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(labels) for labels in self.axes.values())


def grids(
    model: Any, asked: str | Cells | Sequence[str | Cells], lengths: Mapping[str, int], analysis: str
) -> list[Grid]:
    """Return the grids that were asked for, in that order.

    Args:
        model: One of ours, a module seen through a spec (by families of sites that it names), or any other (by globs).
        asked: Families, bundles of them, globs or `Cells`.
        lengths: Positions in each stack, by name.
        analysis: Who asks, for messages.

    Raises:
        UnknownSite: There is no such family or site.
        UnknownAxis: The sites have no such axis.
        ShapeMismatch: A coordinate in `only` is out of range.
        NoPattern: Patterns are asked for, and a layer has none.
        AnalysisUnavailable: No layer, or not every attention layer, has what is asked for.
    """
    found: list[Grid] = []
    for cells in _unbundled(model, [asked] if isinstance(asked, str | Cells) else asked):
        if cells.sites in FAMILIES and hasattr(model, "stacks"):
            by = FAMILIES[cells.sites][2] if cells.by is None else cells.by
            groups = _family(model, cells, analysis)
        elif cells.sites in FAMILIES and is_named(model):
            by = FAMILIES[cells.sites][2] if cells.by is None else cells.by
            groups = _family_by_name(model, cells, analysis)
        else:
            by = ("site",) if cells.by is None else cells.by
            groups = {cells.sites: _by_glob(model, cells, analysis)}
        found += [_grid(name, places, by, cells, lengths, analysis) for name, places in groups.items()]
    names = [grid.name for grid in found]
    # one family cut in two ways is two tables: say how each is cut
    return [
        dataclasses.replace(grid, name=f"{grid.name} by {' '.join(grid.axes)}") if names.count(grid.name) > 1 else grid
        for grid in found
    ]


def _unbundled(model: Any, asked: Sequence[str | Cells]) -> Iterator[Cells]:
    for cells in asked:
        cells = cells if isinstance(cells, Cells) else Cells(cells)
        if cells.sites in BUNDLES and is_named(model):
            for family in BUNDLES[cells.sites]:
                if _named_sites(model, family):
                    yield dataclasses.replace(cells, sites=family)
            continue
        if cells.sites not in BUNDLES or not hasattr(model, "stacks"):
            yield cells
            continue
        for family in BUNDLES[cells.sites]:
            role, quantity, _ = FAMILIES[family]
            names = [name for stack in model.stacks.values() for _, name in _quantities(stack, role, quantity)]
            if names and all(name in model.sites() for name in names):
                yield dataclasses.replace(cells, sites=family)


def _family(model: Any, cells: Cells, analysis: str) -> dict[str, list[Place]]:
    role, quantity, _ = FAMILIES[cells.sites]
    table, layers = model.sites(), cells.only.get("layer")
    depth = max(len(stack.blocks) for stack in model.stacks.values())
    if layers is not None:
        _kept("layer", layers, depth, analysis)
    several, groups = len(model.stacks) > 1, dict[str, list[Place]]()
    for stack, found in model.stacks.items():
        kept = None if layers is None else [i % len(found.blocks) for i in layers]
        for layer, name in _quantities(found, role, quantity, kept):
            if layer is not None and quantity in _LACKS and name not in table:
                _refuse(layer, quantity, analysis)
            part = "" if layer is None or layer.name in ("attn", "mlp") else layer.name
            words = [stack if several else "", part, cells.sites]
            if quantity == "resid_mid":
                words[-1] = table[name].quantity
            groups.setdefault(" ".join(filter(None, words)), []).append(Place(table[name], stack))
    if not groups:
        what = {"mlp": "MLP", "attn": "attention"}.get(role, quantity)
        raise AnalysisUnavailable(f'{analysis}: no layer has "{cells.sites}": there is no {what} in it.')
    return groups


def _family_by_name(model: Foreign, cells: Cells, analysis: str) -> dict[str, list[Place]]:
    """Return the places of a family in a module seen through a spec: those that the spec names."""
    found = _named_sites(model, cells.sites)
    if not found:
        raise AnalysisUnavailable(
            f'{analysis}: the spec names no site of the family "{cells.sites}"; it names '
            f"{', '.join(_brief(model.sites()))}.\n    Add one to its sites, or give a glob of those it has."
        )
    layers = cells.only.get("layer")
    if layers is not None:
        depth = 1 + max(layer for site in found if (layer := site.layer) is not None)
        kept = _kept("layer", layers, depth, analysis)
        found = [site for site in found if site.layer in kept]
    groups: dict[str, list[Place]] = {}
    for site in found:
        words = [site.part if site.part not in ("attn", "mlp") else "", cells.sites]
        groups.setdefault(" ".join(filter(None, words)), []).append(Place(site))
    return groups


def _named_sites(model: Foreign, family: str) -> list[Site]:
    """Return the sites of a family, in a module of one stack, as a spec names them."""
    role, quantity, _ = FAMILIES[family]
    quantity = "z" if quantity == "write" else quantity
    # places of the stream between sub-layers are numbered, as sub-layers of one kind are
    known = re.compile(quantity if role else rf"{quantity}(_\d+)?")
    inside = [site for site in model.sites().values() if site.layer is not None and not site.stack]
    return [site for site in inside if site.role == role and known.fullmatch(site.quantity)]


def _brief(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(re.sub(r"\.\d+\.", ".*.", name) for name in names))


def _quantities(
    stack: Stack, role: str, quantity: str, kept: Sequence[int] | None = None
) -> Iterator[tuple[SubLayer | None, str]]:
    """Yield sub-layer (none for the stream) and site name for every place of some blocks that belongs to a family."""
    if not role:
        for block in stack.blocks:
            if kept is None or block.layer in kept:
                yield from ((None, name) for name in block.at_resid[STREAM[quantity]])
        return
    for layer in stack.sub_layers():
        attention = layer.attention
        if (attention is not None) == (role == "attn") and (kept is None or layer.layer in kept):
            named = write_site(attention) if quantity == "write" and attention is not None else quantity
            yield layer, f"{layer.path}.{named}"


def write_site(layer: AttentionLayer) -> str:
    """Return the quantity that stands for what a head writes, and for nothing else."""
    return "z" if layer.merge.linear and layer.merge.gate is None else "head_out"


def _refuse(layer: SubLayer, quantity: str, analysis: str) -> None:
    assert layer.attention is not None, "what is lacking is an attention layer's"
    kind, traits = layer.attention.config.mixer.kind, layer.attention.traits
    trait = f'linear_in_value="{traits.linear_in_value}"' if quantity == "pattern" else "has_scores=False"
    error = NoPattern if quantity == "pattern" else AnalysisUnavailable
    raise error(
        f'{analysis}: "{layer.path}" uses "{kind}" ({trait}), which has no {quantity} to replace.\n'
        f'    Take "z", or leave the layer out with Cells("{quantity}", only={{"layer": [...]}}).'
    )


def _by_glob(model: Any, cells: Cells, analysis: str) -> list[Place]:
    table: SiteTable = (model if hasattr(model, "sites") else Foreign(model)).sites()
    try:
        names = table.match(cells.sites)
    except UnknownSite as error:
        raise UnknownSite(
            f'{analysis}: no site or family "{cells.sites}".{nearest(cells.sites, [*FAMILIES, *BUNDLES, *table])}\n'
            f"    Families: {', '.join(FAMILIES)}; bundles: {', '.join(BUNDLES)}. Sites: model.sites()."
        ) from error
    stacks: list[str] = list(getattr(model, "stacks", [""]))
    sites = [table[name] for name in names]
    return [Place(site, site.stack if site.stack in stacks else stacks[-1]) for site in sites]


def _grid(
    name: str,
    places: Sequence[Place],
    by: Sequence[str],
    asked: Cells,
    lengths: Mapping[str, int],
    analysis: str,
) -> Grid:
    first, only = places[0].site, asked.only
    axes: dict[str, Sequence[Coordinate]] = {}
    stacks: dict[str, str] = {}
    for wanted in by:
        if wanted == "site":
            axes["site"] = [place.site.name for place in places]
        elif wanted == "layer":
            axes["layer"] = list(dict.fromkeys(p.site.layer for p in places if p.site.layer is not None))
        else:
            axis = _own(wanted, first, analysis)
            sizes = [_size(axis, place, lengths, analysis) for place in places]
            axes[axis] = _kept(axis, only.get(wanted, only.get(axis)), max(sizes), analysis)
            if axis in ("pos", "query", "key"):
                stacks[axis] = "encoder" if axis == "key" and places[0].site.crosses else places[0].stack
    rest = {
        _own(a, first, analysis): list(w)
        for a, w in only.items()
        if a != "layer" and _own(a, first, analysis) not in axes
    }
    cells = []
    for index in itertools.product(*(range(len(labels)) for labels in axes.values())):
        at = {axis: labels[i] for (axis, labels), i in zip(axes.items(), index)}
        parts = tuple(_parts(places, at, rest, lengths, analysis))
        if parts:
            cells.append(Cell(index, parts))
    return Grid(name, axes, cells, stacks, asked.sites if asked.sites in FAMILIES else "")


def _parts(
    places: Sequence[Place],
    at: Mapping[str, Coordinate],
    rest: Mapping[str, list[int]],
    lengths: Mapping[str, int],
    analysis: str,
) -> Iterator[tuple[Site, At]]:
    where = {axis: int(i) for axis, i in at.items() if axis not in ("site", "layer")}
    for place in places:
        if at.get("site", place.site.name) != place.site.name or at.get("layer", place.site.layer) != place.site.layer:
            continue
        if any(i >= _size(axis, place, lengths, analysis) for axis, i in where.items()):
            continue
        # what lies above the diagonal of a causal pattern is zero in every run
        causal = place.stack != "encoder" and not place.site.crosses
        if causal and "query" in where and "key" in where and where["key"] > where["query"]:
            continue
        yield place.site, At(**where, **rest)


def _own(axis: str, site: Site, analysis: str) -> str:
    """Return what a site calls an axis: keys and values have `kv_head` and `key`."""
    if axis in site.axes:
        return axis
    if _ALIASES.get(axis) in site.axes and "query" not in site.axes:
        return _ALIASES[axis]
    if not site.axes:
        raise UnknownAxis(f'{analysis}: "{site.name}" has no named axes to cut along; by="site" replaces it whole.')
    raise UnknownAxis(
        f'{analysis}: "{site.name}" has no axis "{axis}".{nearest(axis, site.axes)} '
        f"Axes: {' '.join(site.axes)}; besides them `layer` for families and `site` for globs."
    )


def _size(axis: str, place: Place, lengths: Mapping[str, int], analysis: str) -> int:
    if axis not in place.site.axes:
        raise UnknownAxis(f'{analysis}: "{place.site.name}" has no axis "{axis}", which other sites here have.')
    if axis in place.site.sizes:
        return place.site.sizes[axis]
    if axis == "batch":
        raise UnknownAxis(f"{analysis}: prompts are kept apart already; values have an axis `batch` in any case.")
    if axis not in ("pos", "query", "key"):
        raise UnknownAxis(
            f'{analysis}: nothing says how long the axis "{axis}" of "{place.site.name}" is; give it in the sizes of '
            "the spec."
        )
    return lengths["encoder" if axis == "key" and place.site.crosses else place.stack]


def _kept(axis: str, only: Sequence[int] | None, size: int, analysis: str) -> list[Coordinate]:
    if only is None:
        return list(range(size))
    if outside := [i for i in only if not -size <= i < size]:
        raise ShapeMismatch(f'{analysis}: only={{"{axis}": [{outside[0]}]}}: the axis has {size} entries.')
    return [i % size for i in only]
