"""Receivers that read what they are given: what path patching runs.

What a receiver reads along its direct paths is worked out in the clean run; then the model runs on from the first of
them, with everything behind live.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.analysis.circuits._circuit_runs import CircuitRuns
from glassformer.analysis.circuits._cut_edges import Mask
from glassformer.models.norms import Norm
from glassformer.trace import Apply, At, Edit, Set, Tape


class Given(NamedTuple):
    """What receivers of one site read, `world batch` flattened."""

    rows: list[int]
    streams: Float[Tensor, "row receiver pos d_model"]


def received(runs: CircuitRuns, cut: Mask, rows: Sequence[int], *, frozen: bool = False) -> list[Given]:
    """Return what receivers read in the clean run, each with its own edges cut.

    Args:
        runs: The model and its prompts.
        cut: Which edges.
        rows: The receivers.
        frozen: Norms behind sub-layers divide by the scales of the clean run.
    """
    exchange, found = runs.exchange(runs.clean, len(runs.steps), frozen), list[Given]()
    for group in runs.groups.values():
        own = [r for r in group if r in rows]
        if not own:
            continue
        receiver = runs.graph.receivers[own[0]]
        x = runs.clean.source if receiver.source else runs.clean.sites[runs.read_at(receiver.step)]
        assert x is not None, "a receiver of a source is there if the source is"
        streams = x.repeat(len(cut), 1, 1)[:, None].expand(-1, len(own), -1, -1)
        edit = runs.cut_edges(own, cut[:, own], exchange)
        changed = [own[i] for i in edit.receivers]
        if changed == own:
            streams = edit.streams(streams.clone(), {})
        elif changed:
            streams = streams.clone()
            streams[:, edit.receivers] = edit.streams(streams[:, edit.receivers], {})
        found.append(Given(own, streams))
    return found


def through_mlps(
    runs: CircuitRuns, patched: Bool[Tensor, "world sender"], given: Sequence[Given], *, frozen: bool = False
) -> list[Given]:
    """Return what receivers read if some senders write what they write on cut edges, and heads what they always do.

    MLPs write what they make of what reaches them.

    Args:
        runs: The model and its prompts.
        patched: Those senders, in each world.
        given: Receivers of the stream, and what they read along direct paths.
        frozen: Norms on the stream itself divide by the scales of the clean run; those that MLPs read through are
            theirs, and live.
    """
    worlds, edits, clean = len(patched), list[Edit](), runs.clean
    chosen = patched.to(clean.writes).repeat_interleave(runs.batch, 0)
    change = runs.instead - clean.writes

    def swap(step: int) -> Float[Tensor, "row pos d_model"]:
        columns = runs.columns[step]
        weight = chosen[:, columns].unflatten(0, (worlds, -1))
        return torch.einsum("wbu,bupd->wbpd", weight, change[:, columns]).flatten(0, 1)

    def written(step: int) -> Float[Tensor, "row pos d_model"]:
        return swap(step) + clean.sites[runs.out(step)].repeat(worlds, 1, 1)

    def of_mlp(step: int, found: Tensor) -> Tensor:
        return torch.where(chosen[:, runs.columns[step], None] > 0, written(step), found)

    for i in range(max(runs.depth(each.rows[0]) for each in given)):
        if runs.steps[i].attention is not None:
            edits.append(Set(runs.out(i), written(i)))
        elif patched[:, runs.columns[i]].any():
            edits.append(Apply(runs.out(i), partial(of_mlp, i)))
        for norm in runs.steps[i].behind:
            if frozen and not norm.identity:
                edits.append(Set(norm.at_scale, runs.scales[norm.at_scale].repeat(worlds, 1)))
    names = [runs.read_at(runs.graph.receivers[each.rows[0]].step) for each in given]
    tape = Tape(runs.model, list(dict.fromkeys(names)), edits, logits=False)
    runs.passed(0, clean.sites[runs.read_at(0)].repeat(worlds, 1, 1) + swap(-1), clean.source, worlds, tape)
    return [
        Given(each.rows, tape.values[name][:, None].expand_as(each.streams)) for each, name in zip(given, names)
    ]  # fmt: skip


def run_given(
    runs: CircuitRuns, given: Sequence[Given], *, frozen: bool = False
) -> Float[Tensor, "world batch *pos vocab"]:
    """Return the logits if some receivers read what they are given, and all others what reaches them.

    Args:
        runs: The model and its prompts.
        given: The receivers and their streams.
        frozen: They divide by the scales of the clean run.
    """
    worlds = len(given[0].streams) // runs.batch
    first = min(runs.graph.receivers[each.rows[0]].step for each in given)
    edits: list[Edit] = []
    for each in given:
        at = _at(runs, each.rows)
        edits.append(
            Set(runs.site_of(each.rows[0]), each.streams if _per_head(runs, each.rows) else each.streams[:, 0], at=at)
        )
    if frozen:
        rows = {r for each in given for r in each.rows if not runs.graph.receivers[r].source}
        edits += [
            edit for step in range(first, len(runs.steps) + 1) for edit in _scales(runs, step, rows, first, worlds)
        ]
    return runs.resumed(runs.clean, first, worlds, edits)


def _per_head(runs: CircuitRuns, rows: Sequence[int]) -> bool:
    return runs.graph.receivers[rows[0]].slot in ("q", "k", "v", "gate")


def _at(runs: CircuitRuns, rows: Sequence[int]) -> At:
    """Return where receivers of one site lie in it."""
    receivers = [runs.graph.receivers[r] for r in rows]
    group = runs.groups[receivers[0].step, receivers[0].slot]
    if len(rows) == len(group):
        return At()
    axis = "head" if receivers[0].slot in ("q", "gate") else "kv_head"
    return At(**{axis: [receiver.index for receiver in receivers]})


def _scales(runs: CircuitRuns, step: int, rows: set[int], first: int, worlds: int) -> list[Edit]:
    """Return edits by which those of a sub-layer's receivers divide by the clean scale, and others by their own."""
    norm = runs.read_norm(step)
    here = [r for r in rows if runs.graph.receivers[r].step == step]
    if norm is None or norm.identity or not here:
        return []
    scale = runs.scales[norm.at_scale].repeat(worlds, 1)
    found: list[Edit] = [Set(norm.at_scale, scale)]
    for (i, _), group in runs.groups.items():
        others = [r for r in group if r not in rows and not runs.graph.receivers[r].source]
        # in front of the first of them the stream is the clean one, and so is its scale
        if i == step > first and others:
            found.append(Apply(runs.site_of(others[0]), _at_own_scale(norm, scale), at=_at(runs, others)))
    return found


def _at_own_scale(norm: Norm, scale: Float[Tensor, "row pos"]) -> Callable[[Tensor], Tensor]:
    """Return what makes streams come out of a norm with a given scale as they do with their own."""

    def stretched(x: Tensor) -> Tensor:
        given = scale[:, None] if x.ndim == 4 else scale
        return x * (given / norm.scale(x))[..., None]

    return stretched
