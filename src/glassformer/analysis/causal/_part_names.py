"""Parts of a model by name, as one takes them away: `L1H6`, `enc L0H2`, `L0 attn`, `L0 mlp`, `L0N12`, `position 3`."""

import dataclasses
import re
from collections.abc import Mapping, Sequence

from glassformer.analysis.causal._site_grid import GridEntry, ResolvedGrid, SiteGrid, resolved_grids
from glassformer.errors import AnalysisUnavailable, ShapeMismatch, nearest
from glassformer.models import Model, ModuleLike
from glassformer.trace import At, Site, is_named
from glassformer.weights import head_label

POSITIONS = ("pos", "query", "key")

# names of families of parts; a part is replaced at all positions, except in the last
PARTS: dict[str, SiteGrid] = {
    "heads": SiteGrid("head"),
    "attentions": SiteGrid("attn_out", ("layer",)),
    "mlps": SiteGrid("mlp_out", ("layer",)),
    "neurons": SiteGrid("neurons"),
    "positions": SiteGrid("resid_pre", ("layer", "pos"), only={"layer": [0]}),
}

Parts = str | SiteGrid | Sequence[str | SiteGrid] | Mapping[str, Sequence[str]]


@dataclasses.dataclass(frozen=True)
class AblatedPart:
    """What is replaced together.

    Args:
        label: Its name.
        places: Sites and what of them.
        stacks: For each position axis of its sites, the stack whose positions it counts.
    """

    label: str
    places: tuple[tuple[Site, At], ...]
    stacks: Mapping[str, str]


def named_parts(
    model: ModuleLike, asked: Parts, positions: Sequence[int] | None, lengths: Mapping[str, int]
) -> list[AblatedPart]:
    """Return the parts that were asked for, each once.

    Args:
        model: One of ours, or any module (then by a `SiteGrid` with a glob).
        asked: Families of parts, labels, a `SiteGrid`, several of these, or sets of labels by name.
        positions: Where they are replaced; everywhere by default.
        lengths: Positions in each stack, by name.

    Raises:
        AnalysisUnavailable: There is no such part.
    """
    if isinstance(asked, Mapping):
        found = []
        for name, labels in asked.items():
            members = [_labelled(model, label, positions, lengths) for label in labels]
            if not members:
                raise AnalysisUnavailable(f'ablation_table: the set "{name}" is empty.')
            stacks = {axis: stack for member in members for axis, stack in member.stacks.items()}
            found.append(AblatedPart(name, tuple(place for member in members for place in member.places), stacks))
        return found
    found = []
    for one in [asked] if isinstance(asked, str | SiteGrid) else asked:
        if isinstance(one, str) and one not in PARTS:
            found.append(_labelled(model, one, positions, lengths))
        else:
            found += _of_grid(model, PARTS[one] if isinstance(one, str) else one, positions, lengths)
    return list({part.label: part for part in found}.values())


def _of_grid(
    model: ModuleLike, grid: SiteGrid, positions: Sequence[int] | None, lengths: Mapping[str, int]
) -> list[AblatedPart]:
    if positions is not None:
        grid = dataclasses.replace(grid, only={"pos": positions} | dict(grid.only))
    return [
        AblatedPart(_label(found, entry), entry.parts, _stacks(model, entry.parts[0][0]))
        for found in resolved_grids(model, grid, lengths, "ablation_table")
        for entry in found.entries
    ]


def _stacks(model: ModuleLike, site: Site) -> dict[str, str]:
    """Return whose positions the position axes of a site count."""
    known = list(model.stacks) if isinstance(model, Model) else [""]
    own = site.stack if site.stack in known else known[-1]
    return {axis: "encoder" if axis == "key" and site.crosses else own for axis in site.axes if axis in POSITIONS}


def _label(grid: ResolvedGrid, entry: GridEntry) -> str:
    at = {axis: labels[i] for (axis, labels), i in zip(grid.axes.items(), entry.index)}
    if set(at) == {"site"}:
        return str(at["site"])
    site, family, axes = entry.parts[0][0], grid.family, set(at)
    encoder = "enc " if site.stack == "encoder" else ""
    if family == "resid_pre" and axes == {"layer", "pos"} and grid.axes["layer"] == [0]:
        return f"{encoder}position {at['pos']}"
    if family in ("head", "z") and axes == {"layer", "head"}:
        return head_label(site.stack, site.part, int(at["layer"]), int(at["head"]))
    if family == "neurons" and axes == {"layer", "neuron"}:
        return f"{encoder}L{at['layer']}N{at['neuron']}" + (f" {site.part}" if site.part != "mlp" else "")
    if family in ("attn_out", "mlp_out") and axes == {"layer"}:
        return f"{encoder}L{at['layer']} {site.part}"
    return " ".join([grid.name, *(f"{axis}={place}" for axis, place in at.items())])


def _labelled(
    model: ModuleLike, label: str, positions: Sequence[int] | None, lengths: Mapping[str, int]
) -> AblatedPart:
    if not isinstance(model, Model) and not is_named(model):
        raise AnalysisUnavailable(
            f'ablation_table: "{label}": parts of {type(model).__name__} have no labels; give a SiteGrid with a glob, '
            "or name its sites by a spec (foreign)."
        )
    layer, neuron = re.search(r"L(\d+)", label), re.fullmatch(r"(?:enc )?L\d+N(\d+)(?: .*)?", label)
    only = {"layer": [int(layer[1])]} if layer else {}
    families = {name: SiteGrid(PARTS[name].sites, PARTS[name].by, only) for name in ("heads", "attentions", "mlps")}
    if neuron:
        families["neurons"] = SiteGrid("neurons", only=only | {"neuron": [int(neuron[1])]})
    known: dict[str, AblatedPart] = {}
    for grid in families.values():
        try:
            known |= {part.label: part for part in _of_grid(model, grid, positions, lengths)}
        except (AnalysisUnavailable, ShapeMismatch):
            # a family, a layer or a neuron that is not there: the label is looked up among what is
            continue
    if label not in known:
        raise AnalysisUnavailable(
            f'ablation_table: no part "{label}".{nearest(label, [*known, *PARTS])}\n'
            f"    Parts are called like L1H6, L0 attn, L0 mlp, L0N12; all of a kind: {', '.join(PARTS)}."
        )
    return known[label]
