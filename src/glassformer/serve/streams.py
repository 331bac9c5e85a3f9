"""Answers that come piece by piece: sweeps, cell by cell, and texts, token by token; each an iterator of JSON data."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from glassformer.analysis import Run
from glassformer.analysis.heads import roles
from glassformer.analysis.places import text_positions
from glassformer.analysis.sweep import Metric, logit, logit_difference, sweep
from glassformer.errors import ConfigError
from glassformer.models import Model, Sampling, stream
from glassformer.models.readable import readable_outputs
from glassformer.models.sampling import Draw
from glassformer.serve.api import GenerateSpec, SweepSpec
from glassformer.serve.programs import RunCode, program
from glassformer.serve.runs import Limits, ServedRun
from glassformer.trace import At, Edit, Scale, Set

# what each cell changes: its name, a site, and the position there, if not all of them
Cell = tuple[str, str, int | None]
# what sweeps that copy read of the run they copy from
_READS = {"patch_positions": "*blocks.*.resid_pre", "patch_heads": "*.z"}
_STEP = 0.25  # seconds that other requests wait for at most, but for a few passes of a large model


@dataclass(frozen=True, eq=False)
class Donor:
    """What a sweep copies.

    Args:
        run: Of which.
        lent: What was read of it.
        value: What is measured of it.
    """

    run: ServedRun
    lent: Run
    value: float


def aimed(run: ServedRun, spec: SweepSpec) -> SweepSpec:
    """Return a sweep with the answer that is measured; on the thread of the run's model."""
    return spec if spec.answer is not None else replace(spec, answer=run.likeliest(spec.position))


def donated(donor: ServedRun, run: ServedRun, spec: SweepSpec) -> Donor:
    """Return what a sweep copies of a run, which may be of another model; on the thread of that model.

    Raises:
        ShapeMismatch: It reads another number of tokens, or the answer is another one of its model.
    """
    run.require_length(donor)
    run.require_answers(donor, [id for id in (spec.answer, spec.against) if id is not None])
    reads = _READS.get(spec.sweep)
    return Donor(donor, donor.read([] if reads is None else [reads]), _unchanged(donor, _metric(spec)))


def swept(run: ServedRun, donor: Donor | None, spec: SweepSpec, limits: Limits) -> Iterator[dict[str, Any]]:
    """Yield what a sweep is along, then each cell: `i` and `j`, its row and column, and its `value`, in logits.

    Rows may have fewer cells than there are columns: layers have other numbers of heads.

    Raises:
        ConfigError: A patch without a run to copy from.
        AnalysisUnavailable, ShapeMismatch: As `sweep`.
    """
    if donor is None and spec.sweep in _READS:
        raise ConfigError(f'SweepSpec: {spec.sweep} copies from another run: give its id as "donor".')
    metric, by_layer = _metric(spec), _rows(run, spec)
    cells = sum(map(len, by_layer.values()))
    limits.require("rows", cells, "changes of the sweep")
    started = time.perf_counter()
    unchanged = _unchanged(run, metric)
    # each step has a pass of the base beside its rows
    longest = max(_STEP, 4 * (time.perf_counter() - started))
    yield {
        "sweep": spec.sweep, "answer": spec.answer, "against": spec.against, "rows": list(by_layer), "cells": cells,
        "columns": max(map(len, by_layer.values()), default=0), "python": _code(run, donor, spec),
        "base": unchanged, **({} if donor is None else {"donor": donor.value}),
    }  # fmt: skip
    base, target, edits = _begun(run)
    n = 1
    for i, columns in enumerate(by_layer.values()):
        j = 0
        while j < len(columns):
            some = columns[j : j + n]
            started, rows = time.perf_counter(), [[_changed(spec, column, donor)] for column in some]
            found = sweep(run.model, base, rows, metric, target=target, base_edit=edits)
            for column, value in zip(some, found.values.values.flatten().tolist()):
                yield {"i": i, "j": j, "at": column[0], "value": value}
                j += 1
            n = max(1, 2 * n if time.perf_counter() - started < longest / 2 else n // 2)


def _metric(spec: SweepSpec) -> Metric:
    assert spec.answer is not None, "aimed before"
    if spec.against is None:
        return logit(spec.answer, pos=spec.position)
    return logit_difference(spec.answer, spec.against, pos=spec.position)


def _begun(run: ServedRun) -> tuple[Tensor | None, Tensor | None, list[Edit]]:
    """Return what a sweep of a run begins with: what it reads, its target, its edits."""
    inputs, edits = run.inputs, [edit for _, edit in run.cached.edits]
    if run.spec.image is not None:
        return inputs.args[0], None, edits
    return (inputs.ids, None, edits) if inputs.source is None else (inputs.source_ids, inputs.ids, edits)


def _unchanged(run: ServedRun, metric: Metric) -> float:
    """Return what is measured of a run as it is."""
    base, target, edits = _begun(run)
    return float(sweep(run.model, base, [[]], metric, target=target, base_edit=edits).values.values.flatten()[0])


def _rows(run: ServedRun, spec: SweepSpec) -> dict[str, list[Cell]]:
    """Return the cells of each row of the picture."""
    found: dict[str, list[Cell]] = {}
    if spec.sweep == "patch_positions":
        prefix, tokens = run.model.prefix, run.inputs.token_rows[0]
        for layer in range(len(run.model.output_stack.blocks)):
            site = f"{prefix}blocks.{layer}.resid_pre"
            found[site] = [(f"{i}:{token}", site, i) for i, token in enumerate(tokens)]
        return found
    for head in roles.heads(run.model):
        found.setdefault(head.path, []).append((head.label, f"{head.label}.z", None))
    return found


def _changed(spec: SweepSpec, cell: Cell, donor: Donor | None) -> Edit:
    _, site, position = cell
    if donor is None or spec.sweep not in _READS:
        return Scale(site, 0.0)
    return Set(site, donor.lent, at=At() if position is None else At(pos=position))


def _code(run: ServedRun, donor: Donor | None, spec: SweepSpec) -> str:
    """Return the Python that makes the whole sweep at once: `found.values` is over rows and columns."""
    answer, cells = spec.answer, [cell for columns in _rows(run, spec).values() for cell in columns]
    measure = f"logit({answer}" if spec.against is None else f"logit_difference({answer}, {spec.against}"
    runs: list[tuple[str, RunCode, list[str]]] = [("run", run.code, [])]
    if donor is not None and spec.sweep in _READS:
        runs.append(("donor", donor.run.code, [repr(_READS[spec.sweep])]))
    if spec.sweep == "patch_positions":
        layers, length = len(run.model.output_stack.blocks), len(run.inputs.token_rows[0])
        site = f"f'{run.model.prefix}blocks.{{layer}}.resid_pre'"
        rows = f"[[gf.Set({site}, donor, at=gf.At(pos=pos))] for layer in range({layers}) for pos in range({length})]"
    else:
        edit = "gf.Set(f'{head}.z', donor)" if spec.sweep == "patch_heads" else "gf.Scale(f'{head}.z', 0.0)"
        rows = f"[[{edit}] for head in {[cell[0] for cell in cells]}]"
    first, target = ("run.ids", "") if run.inputs.source is None else ("run.source_ids", ", target=run.ids")
    if run.spec.image is not None:
        first = "run.inputs.args[0]"
    edits = run.code.edits("run")
    more = target + (f", base_edit=[{edits}]" if edits else "")
    lines = program(*runs, imports=["from glassformer.analysis import sweep as engine"])
    lines.append(f"found = engine.sweep(model, {first}, {rows}, engine.{measure}, pos={spec.position}){more})")
    return "\n".join(lines)


def written(run: ServedRun, spec: GenerateSpec, limits: Limits) -> Iterator[dict[str, Any]]:
    """Yield what a text goes on from, then each new token: how it was drawn, stage by stage from logits on.

    Raises:
        ConfigError, TextError, ShapeMismatch, AnalysisUnavailable: As `stream`.
    """
    limits.require("new_tokens", spec.max_new_tokens, "new tokens")
    sampling = Sampling(spec.temperature, spec.top_k, spec.top_p, spec.min_p, spec.repetition_penalty, spec.seed)
    model, inputs = run.model, run.inputs
    inputs.require_ids("going on with a text")
    row = inputs.output.rows[0]
    (position,) = text_positions([spec.position], len(row))
    source = None if inputs.source is None else [inputs.source.rows[0]]
    steps = stream(
        model, [row[: position + 1]], sampling, max_new_tokens=spec.max_new_tokens, source=source, edit=run.edits
    )
    yield {"position": position, "seed": spec.seed, "python": _writing(run, spec, sampling, position)}
    for step in steps:
        assert step.draw is not None and step.log_probs[0] is not None, "one row, which goes on while there are steps"
        yield _drawn(model, step.draw, step.log_probs[0], spec.shown) | {"notes": [str(note) for note in step.notes]}


def _drawn(model: Model, draw: Draw, log_prob: float, shown: int) -> dict[str, Any]:
    """Return the token that was drawn, and what each stage left of the likeliest candidates; None where it has none."""
    chosen = int(draw.tokens[0])
    # a penalty may bring up others than the model's own
    best = [
        stage.logits[0].double().topk(min(shown, stage.logits.shape[-1])) for stage in (draw.stages[0], draw.stages[-1])
    ]
    there = [int(id) for one in best for id, logit in zip(one.indices, one.values) if logit.isfinite()]
    ids = torch.tensor(list(dict.fromkeys([*there, chosen])))
    names = readable_outputs(model, ids[None])[0]
    stages = [
        {
            "name": stage.name,
            "setting": stage.setting,
            "kept": int(stage.kept[0]),
            "logits": stage.logits[0, ids].double().tolist(),
            "probabilities": stage.probabilities[0, ids].tolist(),
        }
        for stage in draw.stages
    ]
    return {
        "token": {"id": chosen, "text": names[ids.tolist().index(chosen)], "log_prob": log_prob},
        "uniform": None if draw.uniform is None else float(draw.uniform[0]),
        "candidates": [{"id": id, "text": text} for id, text in zip(ids.tolist(), names)],
        "stages": stages,
    }


def _writing(run: ServedRun, spec: GenerateSpec, sampling: Sampling, position: int) -> str:
    """Return the Python that goes on likewise: `found.tokens` are the new tokens."""
    said = "".join(
        f", {name}={value!r}" for name, value in sampling.to_dict().items() if value != getattr(Sampling(), name)
    )
    given = f"[run.ids[0, : {position + 1}].tolist()]"
    source = "" if run.inputs.source is None else ", source=run.source_ids"
    edits = run.code.edits("run")
    edit = f", edit=[{edits}]" if edits else ""
    lines = program(("run", run.code, []), imports=["from glassformer.models import Sampling"])
    options = f"max_new_tokens={spec.max_new_tokens}{source}{edit}"
    return "\n".join([*lines, f"found = gf.generate(model, {given}, Sampling({said[2:]}), {options})"])
