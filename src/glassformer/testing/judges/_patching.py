"""The judge of patching: one plain pass for each entry, the value put in by a hook on the module that makes it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from glassformer.models import SubLayer
from glassformer.testing.judges._hooks import Change, hooked
from glassformer.testing.judges.judge import Asked, Judge, Pair
from glassformer.testing.plain import HEADS, spec
from glassformer.trace import Foreign


@dataclass(frozen=True)
class _Place:
    """Where the values of one layer lie: a module, one of its ends, which argument or result, and which axis is cut."""

    module: nn.Module
    end: str
    index: int
    axis: int
    pieces: int = 0


def _patch(asked: Asked) -> Iterator[Pair]:
    yield from _tables(asked, asked.found)
    # with what heads have, as far as the model has it
    every = asked.call(sites="everything")
    yield from _tables(asked, {name: table for name, table in every.items() if name not in asked.found})


def _tables(asked: Asked, found: Mapping[str, Any]) -> Iterator[Pair]:
    model, pairs = asked.model, asked.given["pairs"]
    clean, corrupt = (pairs.clean,), (pairs.corrupt,)
    if pairs.target is not None:
        clean, corrupt = (*clean, pairs.target), (*corrupt, pairs.corrupt_target)

    def measured(inputs: tuple[Tensor, ...], *changes: Change) -> Tensor:
        with torch.no_grad(), hooked(changes):
            logits = model(*inputs)[:, -1]
        rows = torch.arange(len(logits))
        return logits[rows, torch.tensor(pairs.answer)] - logits[rows, torch.tensor(pairs.wrong)]

    for name, table in found.items():
        yield Pair(f"{name}: clean", table.clean.values[0], measured(clean))
        yield Pair(f"{name}: corrupt", table.corrupt.values[0], measured(corrupt))
        family, places = _places(model, name)
        expected = torch.full_like(table.values.values[0], torch.nan)
        for i, layer in enumerate(table.values.labels("layer")):
            if layer not in places:
                continue
            donor = _donor(model, family, places[layer], clean, measured)
            for j in range(expected.shape[1]):
                if j < donor.size:
                    expected[i, j] = measured(corrupt, *donor.changes(j))
        yield Pair(name, table.values.values[0], expected)
        base = table.corrupt.values[0]
        gap = torch.where(expected.isnan(), torch.nan, table.clean.values[0] - base)
        mean, size = gap.nanmean(-1), gap.square().nanmean(-1).sqrt()
        # gaps of different sign, which leave next to none, are no whole to be a share of
        mean = torch.where(mean.abs() <= table.least_gap * size, torch.nan, mean)
        yield Pair(f"{name}: carried", table.carried.values[0], (expected - base).nanmean(-1) / mean)


@dataclass(frozen=True)
class _Donor:
    """What another run had in one layer, to be put in piece by piece."""

    size: int
    changes: Callable[[int], list[Change]]


def _donor(model: Any, family: str, place: _Place, clean: Any, measured: Callable[..., Tensor]) -> _Donor:
    if family == "pattern":
        return _donor_of_pattern(place.module, clean, measured)
    kept: list[Tensor] = []
    measured(clean, Change(place.module, place.end, kept.append, place.index))
    (whole,) = kept
    size = place.pieces or whole.shape[place.axis]

    def put(piece: int, x: Tensor) -> Tensor:
        x = x.clone()
        if place.pieces:
            # heads lie side by side
            x.unflatten(-1, (size, -1))[..., piece, :] = whole.unflatten(-1, (size, -1))[..., piece, :]
        else:
            x.select(place.axis, piece).copy_(whole.select(place.axis, piece))
        return x

    return _Donor(size, lambda j: [Change(place.module, place.end, lambda x: put(j, x), place.index)])


def _donor_of_pattern(mixer: nn.Module, clean: Any, measured: Callable[..., Tensor]) -> _Donor:
    """Return a donor of patterns: queries and keys of the other run, which mix the values of this one.

    What a mechanism returns of no values at all is of its own queries, whatever its pattern is: this run's stays.
    """
    kept: list[Any] = []
    measured(clean, Change(mixer, "in", kept.append, None))
    ((q, k, _, x, *rest),) = kept

    def changes(head: int) -> list[Change]:
        own: list[Any] = []

        def put(z: Tensor) -> Tensor:
            # `forward` runs no hooks, of which this is one
            instead = mixer.forward(q, k, own[-1][2], x, *rest)[0]
            if cast(Any, mixer).traits.linear_in_value == "affine":
                # what no pattern multiplies stays as it was
                own_q, own_k, v, *more = own[-1]
                nothing = torch.zeros_like(v)
                instead = instead - mixer.forward(q, k, nothing, x, *rest)[0]
                instead = instead + mixer.forward(own_q, own_k, nothing, *more)[0]
            z = z.clone()
            z[:, head] = instead[:, head]
            return z

        return [Change(mixer, "in", own.append, None), Change(mixer, "out", put)]

    return _Donor(q.shape[-3], changes)


def _places(model: Any, name: str) -> tuple[str, Mapping[int, _Place]]:
    """Return the family of a table, and by layer where its values lie."""
    *words, family = name.split(" ")
    if isinstance(model, Foreign):
        return family, _places_of_spec(model, family)
    several = len(model.stacks) > 1
    stack = words.pop(0) if several else model.output
    if family == "resid_pre":
        return family, {block.layer: _Place(block, "in", 0, 1) for block in model.stacks[stack].blocks}
    wanted = words[0] if words else "mlp" if family == "mlp_out" else "attn"
    layers = [layer for layer in model.sub_layers(stack) if layer.name == wanted]
    return family, {layer.layer: _place(layer, family) for layer in layers}


def _place(layer: SubLayer, family: str) -> _Place:
    if family in ("attn_out", "mlp_out"):
        return _Place(layer.part, "out", 0, 1)
    assert layer.attention is not None, "heads are those of attention"
    mixer = layer.attention.mixer
    if family in ("z", "pattern"):
        return _Place(mixer, "out", 0, -3)
    return _Place(mixer, "in", ("query", "key", "value").index(family), -3)


def _places_of_spec(model: Foreign, family: str) -> dict[int, _Place]:
    quantity = {"attn_out": "attn.out", "mlp_out": "mlp.out", "z": "attn.z"}.get(family, family)
    path, _, end = str(spec().sites[f"blocks.{{i}}.{quantity}"]).rpartition(".")
    modules = [model.module.get_submodule(path.format(i=i)) for i in range(2)]
    return {i: _Place(part, end, 0, 1, HEADS if family == "z" else 0) for i, part in enumerate(modules)}


JUDGES = {"patch": Judge(_patch, ("tables.values", "tables.clean", "tables.corrupt"))}
