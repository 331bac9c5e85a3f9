"""Our names for a module we did not write: what a user says in ten lines.

    spec = Spec(
        sites={
            "blocks.{i}.resid_pre": "transformer.h.{i}.in",
            "blocks.{i}.attn.z": "transformer.h.{i}.attn.c_proj.in",
            "blocks.{i}.mlp.out": "transformer.h.{i}.mlp.out",
            "logits": "lm_head.out",
        },
        sizes={"head": 12},
    )
    model = foreign(module, spec)                # reads, edits, sweeps under our names, on the module itself

Nothing is guessed: a site that is not named is not there. A spec that also says what the module is made of (`config`,
and `weights`: a table as families of checkpoints have) opens it to analyses of weights and parts; `disagreement` tests
what it says.
"""
# torch does not type the parts of a module
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from glassformer.arguments import checked
from glassformer.attention import AttentionLayer
from glassformer.checkpoints.comparison.reference import relative
from glassformer.checkpoints.families.family import Table
from glassformer.checkpoints.foreign_modules.parts import SharedParts, derived_sites
from glassformer.data import Tokenizer
from glassformer.errors import AnalysisUnavailable, ConfigError, UnknownSite, nearest
from glassformer.models import ModelConfig
from glassformer.models.evaluation import evaluating
from glassformer.models.mlp import MlpLayer
from glassformer.trace import Foreign, Site, SiteTable, Tape
from glassformer.trace.foreign import Bound
from glassformer.trace.places import Layout, Place

_STREAM = "batch pos d_model"
_AXES: dict[str, str] = {
    **AttentionLayer.SITES, **MlpLayer.SITES, "norm": _STREAM, "token": _STREAM, "position": _STREAM,
    "resid_pre": _STREAM, "resid_mid": _STREAM, "resid_post": _STREAM,
    "logits": "batch pos vocab", "logits_raw": "batch pos vocab",
}  # fmt: skip
_ROOTS = ("embed", "blocks", "final", "logits", "logits_raw", "encoder", "decoder")
_LAYER = "{i}"


@checked
@dataclass(frozen=True)
class Spec:
    """Where a module keeps what we have names for.

    Args:
        sites: Our site, or a name of one's own, and the module boundary (`{module}.in`, `{module}.out`) or `Place` that
            carries it, in the order of the forward pass. `{i}` stands for the layer on both sides.
        sizes: Lengths of axes that cannot be told from a tensor: `head`, and `kv_head` if it differs. Those that follow
            from `config` are known.
        config: What the module is made of, as a config of ours: heads, norms, positions, activations. Weights do not
            tell these, so they have to be said.
        weights: From our tensors to the module's, as in the tables of `checkpoints.families`.
        ignored: Patterns of parameters that `weights` leaves out on purpose.
    """

    sites: Mapping[str, str | Place]
    sizes: Mapping[str, int] = field(default_factory=dict)
    config: ModelConfig | None = None
    weights: Table = field(default_factory=dict)
    ignored: Sequence[str] = ()


@checked
def foreign(module: nn.Module, spec: Spec, tokenizer: Tokenizer | None = None) -> Foreign:
    """View of a module under our names; the module itself stays as it is.

    Args:
        module: Any module.
        spec: Where it keeps our sites.
        tokenizer: If inputs are to be given as text.

    Raises:
        UnknownSite: The module has no such part, or a name is none of ours and comes without axes.
        UnknownAxis: A layout does not hold the axes of its site.
        ConfigError: A boundary ends in neither `in` nor `out`, `{i}` stands on one side only, or the table does not
            cover our tensors and the module's.
        CheckpointError: A tensor is not of the shape that the config asks for.

    Example:
        >>> model = foreign(gpt2, Spec({"blocks.{i}.attn.z": "transformer.h.{i}.attn.c_proj.in"}, {"head": 12}))
        >>> gf.run(model, ids, edit=[gf.Scale("blocks.3.attn.z", 0.0, at=gf.At(head=5))])
    """
    if spec.config is None:
        return Foreign(module, list(_bound(module, spec, SiteTable())), tokenizer=tokenizer)
    with torch.device("meta"):
        shape: Any = spec.config.build()
    bound = list(_bound(module, spec, shape.sites()))
    if not spec.weights:
        return Foreign(module, bound, tokenizer=tokenizer)
    parts = SharedParts(module, spec.config, spec.weights, spec.ignored, tokenizer)
    _check_rotation(shape, bound, parts)
    names = {one.site.name for one in bound}
    derived = [one for one in derived_sites(shape, parts) if one.source in names and one.site.name not in names]
    return Foreign(module, bound, derived, parts, tokenizer)


def disagreement(model: Foreign, ids: Int[Tensor, "batch pos"], **arguments: Any) -> dict[str, float]:
    """Disagreement of a module with what its spec says it is made of, site by site.

    Both run on the same tokens: the module, and the parts that analyses of weights take it for. A wrong pairing of
    rotary dimensions, a wrong eps or a query read before its rotation shows here, and nowhere else.

    Args:
        model: A module seen through a spec with `config` and `weights`.
        ids: Token ids, given to the module as its first argument.
        arguments: Others that the module takes.

    Returns:
        Largest absolute difference over the root mean square of the module's value, in the order of the spec.

    Raises:
        AnalysisUnavailable: The spec does not say what the module is made of.
    """
    if not model.has_parts:
        raise AnalysisUnavailable(
            "disagreement: the spec names sites only; say what the module is made of: Spec(…, config=…, weights=…)."
        )
    ours = model.parts()
    names = [name for name in model.sites() if name in ours.sites() and name not in model.derived]
    theirs, mine = Tape(model, names), Tape(ours, names)
    with evaluating(model), torch.no_grad():
        model(ids, **arguments, tape=theirs)
        ours(ids, tape=mine)
    theirs.check_visited()
    return {name: relative(mine.values[name], theirs.values[name]) for name in names}


def _bound(module: nn.Module, spec: Spec, known: SiteTable) -> Iterator[Bound]:
    """Yield every site of every layer: what comes before the layers, layer by layer, what comes after."""
    modules = dict(module.named_modules())
    places = {name: Place(place) if isinstance(place, str) else place for name, place in spec.sites.items()}
    layered = [name for name in places if _LAYER in name]
    layers = {name: _layers(name, places[name], modules) for name in layered}
    names = list(places)
    first = names.index(layered[0]) if layered else len(names)
    for name in names[:first]:
        yield _one(module, name, places[name], None, spec, known)
    for i in sorted({i for found in layers.values() for i in found}):
        for name in layered:
            if i in layers[name]:
                yield _one(module, name, places[name], i, spec, known)
    for name in names[first:]:
        if name not in layers:
            yield _one(module, name, places[name], None, spec, known)


def _layers(name: str, place: Place, modules: Mapping[str, nn.Module]) -> list[int]:
    if _LAYER not in place.boundary:
        raise ConfigError(f'spec: "{name}" has one site per layer, but "{place.boundary}" has no {{i}}.')
    pattern = re.compile(re.escape(place.module).replace(r"\{i\}", r"(\d+)", 1).replace(r"\{i\}", r"\1"))
    found = sorted(int(match[1]) for path in modules if (match := pattern.fullmatch(path)))
    if not found:
        raise _no_module(name, place, place.module.replace(_LAYER, "0"), modules)
    return found


def _one(module: nn.Module, name: str, place: Place, layer: int | None, spec: Spec, known: SiteTable) -> Bound:
    i = "" if layer is None else str(layer)
    site_name, path = name.replace(_LAYER, i), place.module.replace(_LAYER, i)
    if place.end not in ("in", "out"):
        raise ConfigError(
            f'spec: "{name}" at "{place.boundary}": a boundary is a module and one of its sides, '
            f'"{place.boundary}.in" or "{place.boundary}.out".'
        )
    if layer is None and _LAYER in place.boundary:
        raise ConfigError(f'spec: "{place.boundary}" has one boundary per layer, but "{name}" has no {{i}}.')
    modules = dict(module.named_modules())
    if path not in modules:
        raise _no_module(name, place, path, modules)
    ours = known.get(site_name)
    if known and ours is None and place.axes is None:
        raise UnknownSite(
            f'spec: a model of this config has no site "{site_name}".{nearest(site_name, known)}\n'
            "    A name of your own needs axes: Place(boundary, axes='batch pos …')."
        )
    axes = _axes(name, place) if ours is None else ours.axes
    sizes = {axis: size for axis, size in spec.sizes.items() if axis in axes} | dict(ours.sizes if ours else {})
    if "kv_head" in axes and "kv_head" not in sizes and "head" in spec.sizes:
        sizes["kv_head"] = spec.sizes["head"]
    layout = Layout.of(site_name, axes, place, {**spec.sizes, **sizes})
    reason = _read_only(site_name, place, modules[path])
    return Bound(Site.named(site_name, axes, sizes, layer, read_only=reason), path, place.end, layout, place.tensor)


def _check_rotation(shape: Any, bound: Sequence[Bound], parts: SharedParts) -> None:
    """Raise `ConfigError` if queries or keys are read where they are made, and turned or normed only after that."""
    made: dict[str, set[tuple[str, str]]] = {}
    for path, layer in shape.named_modules():
        if isinstance(layer, AttentionLayer) and (layer.positions.rotates or layer.projection.norms is not None):
            pieces = parts.sources[f"{path}.projection.qkv.weight"].pieces
            where = {(piece.name.rpartition(".")[0], "out") for piece in pieces}
            made |= {layer.at.query: where, layer.at.key: where}
    for one in bound:
        if (one.module, one.end) in made.get(one.site.name, ()):
            raise ConfigError(
                f'spec: "{one.site.name}" is what scores are made of, and "{one.module}.out" is what it was before its '
                "rotation or its norm.\n    Leave it out, or give the place a name of your own and axes: "
                f'"{one.site.name}_raw": Place(…, axes=…).'
            )


def _axes(name: str, place: Place) -> tuple[str, ...]:
    if place.axes is not None:
        return tuple(place.axes.split())
    quantity = re.sub(r"^(resid_mid)_\d+$", r"\1", name.rpartition(".")[2])
    if name.partition(".")[0] not in _ROOTS or quantity not in _AXES:
        known = [name.rpartition(".")[0] + "." + known for known in _AXES] if "." in name else list(_ROOTS)
        raise UnknownSite(
            f'spec: "{name}" is no site of ours.{nearest(name, known)}\n'
            "    A name of your own needs axes: Place(boundary, axes='batch pos …')."
        )
    return tuple(_AXES[quantity].split())


def _read_only(name: str, place: Place, module: nn.Module) -> str:
    """Return why a value cannot be edited where it is read."""
    if place.editable is not None:
        return "" if place.editable else f'the spec says that "{place.boundary}" can only be read.'
    if place.tensor:
        return (
            f'it is tensor {place.tensor} of "{place.boundary}", and nothing says that the module goes on with it.\n'
            "    Edit a first tensor, or say Place(…, editable=True) if it does."
        )
    leaf = next(module.children(), None) is None
    if Site.named(name).quantity.startswith("resid") and place.end == "in" and leaf:
        return (
            f'"{place.boundary}" is where one part reads the stream, and the stream goes on beside it unchanged.\n'
            "    Add to what is written instead, or say Place(…, editable=True) if nothing goes beside it."
        )
    return ""


def _no_module(name: str, place: Place, path: str, modules: Mapping[str, nn.Module]) -> UnknownSite:
    return UnknownSite(
        f'spec: "{name}" is at "{place.boundary}", but there is no module "{path}".{nearest(path, modules)}\n'
        "    List them with [name for name, _ in module.named_modules()]."
    )
