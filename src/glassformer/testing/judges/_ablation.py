"""Judges of ablations: losses of plain passes in which what a head hands to the output matrix is set to zero."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from glassformer.data import Batch
from glassformer.testing.judges._direct_paths import labels_of_heads
from glassformer.testing.judges._hooks import Change, hooked
from glassformer.testing.judges.judge import Asked, Judge, Pair


@torch.no_grad()
def losses_without(model: Any, batch: Batch, heads: Sequence[str] = ()) -> Tensor:
    """Return the loss of every target, `row pos`, without some heads."""
    changes: list[Change] = []
    for layer in (layer for stack in model.stacks for layer in model.sub_layers(stack)):
        if layer.attention is None:
            continue
        removed = [h for h, label in enumerate(labels_of_heads(layer)) if label in heads]
        changes.append(Change(layer.attention.merge.output, "in", _without(layer.attention.dims.n_heads, removed)))
    inputs = (batch.tokens,) if batch.source is None else (batch.source, batch.tokens)
    with hooked(changes):
        logits = model(*inputs)
    if model.patches is not None:
        logits = model.class_logits(logits)[:, None]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="none").view(
        batch.targets.shape
    )


def changes_without(model: Any, batch: Batch, sets: Mapping[str, Sequence[str]]) -> dict[str, tuple[float, float]]:
    """Return what is lost without each set of heads, and by how much the in-context-learning score changes."""
    whole, found = losses_without(model, batch), dict[str, tuple[float, float]]()
    for name, heads in sets.items():
        without = losses_without(model, batch, heads)
        change = float((without - whole)[batch.weight].mean())
        found[name] = change, _icl(model, without, batch) - _icl(model, whole, batch)
    return found


def _without(n: int, removed: Sequence[int]) -> Any:
    def cut(flat: Tensor) -> Tensor:
        heads = flat.clone().unflatten(-1, (n, -1))
        heads[..., removed, :] = 0
        return heads.flatten(-2)

    return cut


def _icl(model: Any, losses: Tensor, batch: Batch) -> float:
    """Return the loss in the last tenth of the positions less that around one in ten; NaN where rows are too short."""
    if not model.predicts_next:
        return math.nan
    n = losses.shape[1]
    by_position = [float(losses[:, i][batch.weight[:, i]].mean()) for i in range(n)]
    early = by_position[math.ceil(0.08 * n) : math.ceil(0.12 * n)]
    late = by_position[math.ceil(0.9 * n) :]
    return sum(late) / len(late) - sum(early) / len(early) if early and late else math.nan


def _ablated(asked: Asked) -> Iterator[Pair]:
    found, model, (batch,) = asked.found, asked.model, asked.given["inputs"]
    names = [str(name) for name in found.loss_change.labels("heads")]
    sets = {name: [name] for name in names} if "chosen" not in asked.given else {names[0]: list(asked.given["chosen"])}
    if "chosen" not in asked.given:
        every = [layer for stack in model.stacks for layer in model.sub_layers(stack) if layer.attention is not None]
        assert names == [label for layer in every for label in labels_of_heads(layer)]
    changes = changes_without(model, batch, sets)
    whole = losses_without(model, batch)
    yield Pair("loss", found.loss, whole[batch.weight].mean())
    yield Pair("its score", found.icl, _icl(model, whole, batch))
    yield Pair("losses", found.loss_change.values, [changes[name][0] for name in names], 1e-7)
    yield Pair("scores", found.icl_change.values, [changes[name][1] for name in names], 1e-7)
    by_position = torch.stack([losses_without(model, batch, heads) for heads in sets.values()])
    counted = torch.where(batch.weight, by_position, torch.nan).nanmean(1)
    yield Pair("losses by position", found.loss_by_position.values, counted)


_COVERS = ("loss_change", "icl_change", "loss_by_position", "loss", "icl")
JUDGES = {"ablate": Judge(_ablated, _COVERS), "ablate_each": Judge(_ablated, _COVERS)}
