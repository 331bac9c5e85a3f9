"""Which values an experiment replaces one at a time: families of sites, cut along named axes.

    "z"                                                each head of each layer
    SiteGrid("z", ("layer", "head", "pos"))            each head at each position
    SiteGrid("value", only={"layer": [1]})             each value head of layer 1
    SiteGrid("blocks.*.attn.norm", ("site", "pos"))    any sites, by glob

A family becomes one grid per kind of site: the stacks of an encoder-decoder, a block's second attention part and
cross-attention have grids of their own. Keys and values are cut by `kv_head`, and along `key` where others say `pos`.
"""

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from glassformer.analysis.contrasts import Roles
from glassformer.errors import AnalysisUnavailable, NoPattern, ShapeMismatch, UnknownAxis, UnknownSite, nearest
from glassformer.labelled import Coordinate
from glassformer.models import Model, ModuleLike, Stack, SubLayer
from glassformer.numerics import indices
from glassformer.numerics.indices import Where
from glassformer.trace import At, Foreign, HasSites, Site, is_named, parts_of

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
_PLACES = ("pos", "query", "key")


@dataclass(frozen=True)
class SiteGrid:
    """A family of sites and the axes it is cut along; each combination of coordinates is one entry.

    Args:
        sites: A key of `FAMILIES` or of `BUNDLES`, or the name or glob of any sites. Family `head` is what a head
            writes: z where a head's z goes nowhere else, and `head_out` where a norm or gate comes after.
        by: Axes to cut along: `layer` (families), `site` (globs), and axes of the sites. What is left out is replaced
            as a whole. By default as the family has it; globs are cut by `site`.
        only: Coordinates chosen along an axis, negative ones counted from the end. An axis that is not in `by` is
            replaced there and nowhere else.
    """

    sites: str
    by: tuple[str, ...] | None = None
    only: Mapping[str, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class GridSite:
    """One site, the stack whose positions it counts, and whether no query there sees a later key."""

    site: Site
    stack: str = ""
    causal: bool = False


@dataclass(frozen=True)
class GridEntry:
    """What is replaced at once.

    Args:
        index: Along each axis of a grid.
        parts: Of sites, which it stands for.
        without: Prompts in which nothing plays the role.
    """

    index: tuple[int, ...]
    parts: tuple[tuple[Site, At], ...]
    without: tuple[int, ...] = ()


@dataclass(frozen=True)
class ResolvedGrid:
    """A grid on one model: its axes, and what each entry is.

    Args:
        name: `z`, `decoder cross z`, …
        axes: Coordinates by axis; position axes count from 0, or name roles.
        entries: Those that exist: layers may differ in heads, and a causal pattern has none above its diagonal.
        stacks: For each axis that counts positions, their stack.
        family: Key of `FAMILIES` it belongs to; empty for sites by glob.
    """

    name: str
    axes: Mapping[str, Sequence[Coordinate]]
    entries: Sequence[GridEntry]
    stacks: Mapping[str, str]
    family: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(labels) for labels in self.axes.values())


def resolved_grids(
    model: ModuleLike,
    asked: str | SiteGrid | Sequence[str | SiteGrid],
    lengths: Mapping[str, int],
    analysis: str,
    roles: Callable[[], Mapping[str, Roles]] = dict,
) -> list[ResolvedGrid]:
    """Return the grids that were asked for, in that order.

    Args:
        model: One of ours, a module seen through a spec (by families of sites that it names), or any other (by globs).
        asked: Families, bundles of them, globs or a `SiteGrid`; several of these.
        lengths: Positions in each stack, by name.
        analysis: Who asks, for messages.
        roles: Returns, by stack, the roles that axes of positions are cut by in place of numbers.

    Raises:
        UnknownSite: There is no such family or site.
        UnknownAxis: The sites have no such axis.
        ShapeMismatch: A coordinate in `only` is out of range, or is the number of a position where roles are cut by.
        NoPattern: Patterns are asked for, and a layer has none.
        AnalysisUnavailable: No layer, or not every attention layer, has what is asked for.
    """
    found: list[ResolvedGrid] = []
    for grid in _unbundled(model, [asked] if isinstance(asked, str | SiteGrid) else asked):
        if grid.sites in FAMILIES and isinstance(model, Model):
            by = FAMILIES[grid.sites][2] if grid.by is None else grid.by
            groups = _family(model, grid, analysis)
        elif grid.sites in FAMILIES and is_named(model):
            by = FAMILIES[grid.sites][2] if grid.by is None else grid.by
            groups = _family_by_name(model, grid, analysis)
        else:
            by = ("site",) if grid.by is None else grid.by
            groups = {grid.sites: _by_glob(model, grid, analysis)}
        for name, sites in groups.items():
            placed = {a for one in sites for a in one.site.axes} & {*_PLACES}
            cut = {_own(axis, sites[0].site, analysis) for axis in (*by, *grid.only) if axis not in ("site", "layer")}
            known = roles() if placed & cut else {}
            found.append(_resolved(name, sites, by, grid, lengths, analysis, known))
    names = [grid.name for grid in found]
    # one family cut in two ways is two tables: say how each is cut
    return [
        dataclasses.replace(grid, name=f"{grid.name} by {' '.join(grid.axes)}") if names.count(grid.name) > 1 else grid
        for grid in found
    ]


def _unbundled(model: ModuleLike, asked: Sequence[str | SiteGrid]) -> Iterator[SiteGrid]:
    for grid in asked:
        grid = grid if isinstance(grid, SiteGrid) else SiteGrid(grid)
        if grid.sites in BUNDLES and is_named(model):
            for family in BUNDLES[grid.sites]:
                if _named_sites(model, family):
                    yield dataclasses.replace(grid, sites=family)
            continue
        if grid.sites not in BUNDLES or not isinstance(model, Model):
            yield grid
            continue
        for family in BUNDLES[grid.sites]:
            role, quantity, _ = FAMILIES[family]
            names = [name for stack in model.stacks.values() for _, name in _quantities(stack, role, quantity)]
            if names and all(name in model.sites() for name in names):
                yield dataclasses.replace(grid, sites=family)


def _family(model: Model, grid: SiteGrid, analysis: str) -> dict[str, list[GridSite]]:
    role, quantity, _ = FAMILIES[grid.sites]
    table, layers = model.sites(), grid.only.get("layer")
    depth = max(len(stack.blocks) for stack in model.stacks.values())
    if layers is not None:
        layers = indices.entries(indices.asked(layers, "only: layer"), depth, f"{analysis}: only: layer")
    several, groups = len(model.stacks) > 1, dict[str, list[GridSite]]()
    for stack, found in model.stacks.items():
        own = None if layers is None else [i % len(found.blocks) for i in layers]
        for layer, name in _quantities(found, role, quantity, own):
            if layer is not None and quantity in _LACKS and name not in table:
                _refuse(layer, quantity, analysis)
            part = "" if layer is None or layer.name in ("attn", "mlp") else layer.name
            words = [stack if several else "", part, grid.sites]
            if quantity == "resid_mid":
                words[-1] = table[name].quantity
            groups.setdefault(" ".join(filter(None, words)), []).append(
                GridSite(table[name], stack, _is_causal(model, table[name]))
            )
    if not groups:
        what = {"mlp": "MLP", "attn": "attention"}.get(role, quantity)
        raise AnalysisUnavailable(f'{analysis}: no layer has "{grid.sites}": there is no {what} in it.')
    return groups


def _family_by_name(model: Foreign, grid: SiteGrid, analysis: str) -> dict[str, list[GridSite]]:
    """Return the sites of a family in a module seen through a spec: those that the spec names."""
    found = _named_sites(model, grid.sites)
    if not found:
        raise AnalysisUnavailable(
            f'{analysis}: the spec names no site of the family "{grid.sites}"; it names '
            f"{', '.join(_brief(model.sites()))}.\n    Add one to its sites, or give a glob of those it has."
        )
    layers = grid.only.get("layer")
    if layers is not None:
        depth = 1 + max(layer for site in found if (layer := site.layer) is not None)
        chosen = _coordinates("layer", layers, depth, analysis)
        found = [site for site in found if site.layer in chosen]
    groups, built = dict[str, list[GridSite]](), parts_of(model)
    for site in found:
        words = [site.part if site.part not in ("attn", "mlp") else "", grid.sites]
        groups.setdefault(" ".join(filter(None, words)), []).append(GridSite(site, causal=_is_causal(built, site)))
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
    stack: Stack, role: str, quantity: str, layers: Sequence[int] | None = None
) -> Iterator[tuple[SubLayer | None, str]]:
    """Yield sub-layer (none for the stream) and site name for every site of a family in some blocks."""
    if not role:
        for block in stack.blocks:
            if layers is None or block.layer in layers:
                yield from ((None, name) for name in block.at_resid[STREAM[quantity]])
        return
    for part in stack.sub_layers():
        attention = part.attention
        if (attention is not None) == (role == "attn") and (layers is None or part.layer in layers):
            heads = attention if quantity == "write" else None
            yield part, f"{part.path}.{quantity}" if heads is None else heads.at_write


def _refuse(layer: SubLayer, quantity: str, analysis: str) -> None:
    assert layer.attention is not None, "what is lacking is an attention layer's"
    kind, traits = layer.attention.config.mixer.kind, layer.attention.traits
    trait = f'linear_in_value="{traits.linear_in_value}"' if quantity == "pattern" else "has_scores=False"
    error = NoPattern if quantity == "pattern" else AnalysisUnavailable
    raise error(
        f'{analysis}: "{layer.path}" uses "{kind}" ({trait}), which has no {quantity} to replace.\n'
        f'    Take "z", or leave the layer out with SiteGrid("{quantity}", only={{"layer": [...]}}).'
    )


def _by_glob(model: ModuleLike, grid: SiteGrid, analysis: str) -> list[GridSite]:
    table = (model if isinstance(model, HasSites) else Foreign(model)).sites()
    try:
        names = table.match(grid.sites)
    except UnknownSite as error:
        raise UnknownSite(
            f'{analysis}: no site or family "{grid.sites}".{nearest(grid.sites, [*FAMILIES, *BUNDLES, *table])}\n'
            f"    Families: {', '.join(FAMILIES)}; bundles: {', '.join(BUNDLES)}. Sites: model.sites()."
        ) from error
    stacks = list(model.stacks) if isinstance(model, Model) else [""]
    sites, built = [table[name] for name in names], parts_of(model)
    return [
        GridSite(site, site.stack if site.stack in stacks else stacks[-1], _is_causal(built, site)) for site in sites
    ]


def _is_causal(model: nn.Module, site: Site) -> bool:
    """Whether it is known that no query of a site sees a later key; nothing says so of a module without parts."""
    return isinstance(model, Model) and not site.crosses and not model.reads_ahead(site.stack)


def _resolved(
    name: str,
    sites: Sequence[GridSite],
    by: Sequence[str],
    asked: SiteGrid,
    lengths: Mapping[str, int],
    analysis: str,
    roles: Mapping[str, Roles],
) -> ResolvedGrid:
    first, only = sites[0].site, asked.only
    played: dict[str, Roles] = {}
    axes: dict[str, Sequence[Coordinate]] = {}
    stacks: dict[str, str] = {}
    for wanted in by:
        if wanted == "site":
            axes["site"] = [one.site.name for one in sites]
        elif wanted == "layer":
            axes["layer"] = list(dict.fromkeys(one.site.layer for one in sites if one.site.layer is not None))
        else:
            axis = _own(wanted, first, analysis)
            longest = max(_size(axis, one, lengths, analysis) for one in sites)
            stack = "encoder" if axis == "key" and first.crosses else sites[0].stack
            if axis in _PLACES and stack in roles:
                _require_no_numbers(wanted, axis, only, analysis)
                played[axis], axes[axis] = roles[stack], list(roles[stack])
                continue
            axes[axis] = _coordinates(axis, only.get(wanted, only.get(axis)), longest, analysis)
            if axis in _PLACES:
                stacks[axis] = stack
    rest = {
        _own(a, first, analysis): indices.asked(w, f"{analysis}: only: {a}")
        for a, w in only.items()
        if a != "layer" and _own(a, first, analysis) not in axes
    }
    for axis in rest:
        if axis in _PLACES and roles:
            _require_no_numbers(axis, axis, rest, analysis)
    entries: list[GridEntry] = []
    for index in itertools.product(*(range(len(labels)) for labels in axes.values())):
        at = {axis: labels[i] for (axis, labels), i in zip(axes.items(), index)}
        parts, without = [], list[int]()
        for places, rows in _played(played, at).items():
            where = at | dict(zip(played, places))
            more = list(_parts(sites, where, rest, lengths, analysis)) if all(p != () for p in places) else []
            parts += [(site, At(**part.where, batch=list(rows)) if played else part) for site, part in more]
            without += [] if more else rows
        if parts:
            entries.append(GridEntry(index, tuple(parts), tuple(without)))
    return ResolvedGrid(name, axes, entries, stacks, asked.sites if asked.sites in FAMILIES else "")


def _played(roles: Mapping[str, Roles], at: Mapping[str, Coordinate]) -> dict[tuple[tuple[int, ...], ...], list[int]]:
    """Return where some roles lie, one for each axis that has roles, and in which prompts they do."""
    found: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    chosen = [places[str(at[axis])] for axis, places in roles.items()]
    for row, places in enumerate(zip(*chosen)):
        found.setdefault(places, []).append(row)
    return found if chosen else {(): []}


def _require_no_numbers(wanted: str, axis: str, only: Mapping[str, Any], analysis: str) -> None:
    if wanted in only or axis in only:
        raise ShapeMismatch(
            f"{analysis}: only={{{wanted!r}: …}} counts positions, which play different parts in these prompts.\n"
            "    Leave it out, and positions are told apart by role; or take the sets that "
            "pairs.groups(model, by_role=True) gives, one by one."
        )


def _parts(
    sites: Sequence[GridSite],
    at: Mapping[str, Any],
    rest: Mapping[str, Where],
    lengths: Mapping[str, int],
    analysis: str,
) -> Iterator[tuple[Site, At]]:
    where = {
        axis: list(i) if isinstance(i, tuple) else int(i) for axis, i in at.items() if axis not in ("site", "layer")
    }
    for one in sites:
        if at.get("site", one.site.name) != one.site.name or at.get("layer", one.site.layer) != one.site.layer:
            continue
        if any(_last(i) >= _size(axis, one, lengths, analysis) for axis, i in where.items()):
            continue
        # what lies above the diagonal of a causal pattern is zero in every run
        if one.causal and "query" in where and "key" in where and _first(where["key"]) > _last(where["query"]):
            continue
        asked: dict[str, Where] = {**where, **rest}
        yield one.site, At(**{axis: _columns(place, axis, one, lengths, analysis) for axis, place in asked.items()})


def _columns(where: Where, axis: str, one: GridSite, lengths: Mapping[str, int], analysis: str) -> Where:
    """Return single positions as columns of all rows, some of which may be too short to have them."""
    if axis not in ("pos", "query", "key") or isinstance(where, slice) or indices.is_mask(where):
        return where
    size = _size(axis, one, lengths, analysis)
    places = indices.entries(where, size, f"{analysis}: only: {axis}")
    if len(places) == 1:
        return slice(places[0], places[0] + 1)
    return [i in places for i in range(size)]


def _first(places: int | list[int]) -> int:
    return places if isinstance(places, int) else min(places)


def _last(places: int | list[int]) -> int:
    return places if isinstance(places, int) else max(places)


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


def _size(axis: str, found: GridSite, lengths: Mapping[str, int], analysis: str) -> int:
    if axis not in found.site.axes:
        raise UnknownAxis(f'{analysis}: "{found.site.name}" has no axis "{axis}", which other sites here have.')
    if axis in found.site.sizes:
        return found.site.sizes[axis]
    if axis == "batch":
        raise UnknownAxis(f"{analysis}: prompts are kept apart already; values have an axis `batch` in any case.")
    if axis not in ("pos", "query", "key"):
        raise UnknownAxis(
            f'{analysis}: nothing says how long the axis "{axis}" of "{found.site.name}" is; give it in the sizes of '
            "the spec."
        )
    return lengths["encoder" if axis == "key" and found.site.crosses else found.stack]


def _coordinates(axis: str, only: Sequence[int] | None, size: int, analysis: str) -> list[Coordinate]:
    if only is None:
        return list(range(size))
    of = f"{analysis}: only: {axis}"
    return list(indices.entries(indices.asked(only, of), size, of))
