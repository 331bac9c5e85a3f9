"""Answers that come piece by piece: sweeps, cell by cell, and texts, token by token; each an iterator of JSON data."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from glassformer.analysis.heads import roles
from glassformer.analysis.places import text_positions
from glassformer.analysis.sweep import Metric, logit, logit_difference, sweep
from glassformer.errors import ConfigError
from glassformer.models import Model, Sampling, stream
from glassformer.models.readable import readable_outputs
from glassformer.models.sampling import Draw
from glassformer.serve.api import GenerateSpec, SweepSpec
from glassformer.serve.runs import Limits, ServedRun
from glassformer.trace import At, Edit, Scale, Set

_STEP = 0.25  # seconds that other requests wait for at most, but for a few passes of a large model


def swept(run: ServedRun, donor: ServedRun | None, spec: SweepSpec, limits: Limits) -> Iterator[dict[str, Any]]:
    """Yield what a sweep is along, then each cell: `i` and `j`, its row and column, and its `value`, in logits.

    Raises:
        ConfigError: A patch without a run to copy from.
        AnalysisUnavailable, ShapeMismatch: As `sweep`.
    """
    if donor is None and spec.sweep != "ablate_heads":
        raise ConfigError(f'SweepSpec: {spec.sweep} copies from another run: give its id as "donor".')
    model, inputs = run.model, run.cached.inputs
    position = spec.position
    answer = int(run.cached.logits([position])[0, 0].argmax()) if spec.answer is None else spec.answer
    metric = (
        logit(answer, pos=position) if spec.against is None else logit_difference(answer, spec.against, pos=position)
    )
    by_layer = _rows(run, spec)
    limits.require("rows", sum(len(columns) for columns in by_layer.values()), "changes of the sweep")
    base = inputs.ids if inputs.source is None else inputs.source_ids
    target = None if inputs.source is None else inputs.ids
    edits = [edit for _, edit in run.cached.edits]
    names = {"patch_positions": "*blocks.*.resid_pre", "patch_heads": "*.z", "ablate_heads": ""}
    lent = None if donor is None or not names[spec.sweep] else donor.read([names[spec.sweep]])
    started = time.perf_counter()
    measured = {"base": sweep(model, base, [[]], metric, target=target, base_edit=edits)}
    # each step has a pass of the base beside its rows
    longest = max(_STEP, 4 * (time.perf_counter() - started))
    if donor is not None:
        measured["donor"] = _alone(donor, metric)
    columns = next(iter(by_layer.values()), ())
    yield {
        "sweep": spec.sweep, "answer": answer, "against": spec.against, "rows": list(by_layer),
        "columns": len(columns), "python": _code(run, donor, spec, answer),
        **{name: float(found.values.values.flatten()[0]) for name, found in measured.items()},
    }  # fmt: skip
    n = 1
    for i, columns in enumerate(by_layer.values()):
        j = 0
        while j < len(columns):
            some = columns[j : j + n]
            started, rows = time.perf_counter(), [[_changed(spec, column, lent)] for column in some]
            found = sweep(model, base, rows, metric, target=target, base_edit=edits)
            for column, value in zip(some, found.values.values.flatten().tolist()):
                yield {"i": i, "j": j, "at": column[0], "value": value}
                j += 1
            n = max(1, 2 * n if time.perf_counter() - started < longest / 2 else n // 2)


def _alone(run: ServedRun, metric: Metric) -> Any:
    inputs = run.cached.inputs
    base = inputs.ids if inputs.source is None else inputs.source_ids
    target = None if inputs.source is None else inputs.ids
    return sweep(run.model, base, [[]], metric, target=target, base_edit=[edit for _, edit in run.cached.edits])


def _rows(run: ServedRun, spec: SweepSpec) -> dict[str, list[tuple[str, str, int | None]]]:
    """Return the cells of each row of the picture: what each is called, and the site and position it changes."""
    found: dict[str, list[tuple[str, str, int | None]]] = {}
    if spec.sweep == "patch_positions":
        prefix, tokens = run.model.prefix, run.cached.inputs.token_rows[0]
        for layer in range(len(run.model.output_stack.blocks)):
            site = f"{prefix}blocks.{layer}.resid_pre"
            found[site] = [(f"{i}:{token}", site, i) for i, token in enumerate(tokens)]
        return found
    for head in roles.heads(run.model):
        found.setdefault(head.path, []).append((head.label, f"{head.label}.z", None))
    return found


def _changed(spec: SweepSpec, cell: tuple[str, str, int | None], lent: Any) -> Edit:
    _, site, position = cell
    if spec.sweep == "ablate_heads":
        return Scale(site, 0.0)
    return Set(site, lent, at=At() if position is None else At(pos=position))


def _code(run: ServedRun, donor: ServedRun | None, spec: SweepSpec, answer: int) -> str:
    """Return the Python that makes the whole sweep at once: `found.values` is over rows and columns."""
    measure = f"logit({answer}" if spec.against is None else f"logit_difference({answer}, {spec.against}"
    lines = _with_import("from glassformer.analysis import sweep as engine", run.code.lines("run", ()))
    if donor is not None and spec.sweep != "ablate_heads":
        reads = "'*blocks.*.resid_pre'" if spec.sweep == "patch_positions" else "'*.z'"
        lines += donor.code.run("donor", [reads])
    cells = [cell for columns in _rows(run, spec).values() for cell in columns]
    if spec.sweep == "ablate_heads":
        rows = f"[[gf.Scale(f'{{head}}.z', 0.0)] for head in {[cell[0] for cell in cells]}]"
    elif spec.sweep == "patch_heads":
        rows = f"[[gf.Set(f'{{head}}.z', donor)] for head in {[cell[0] for cell in cells]}]"
    else:
        layers, length = len(run.model.output_stack.blocks), len(run.cached.inputs.token_rows[0])
        site = f"f'{run.model.prefix}blocks.{{layer}}.resid_pre'"
        rows = f"[[gf.Set({site}, donor, at=gf.At(pos=pos))] for layer in range({layers}) for pos in range({length})]"
    base = "run.ids" if run.cached.inputs.source is None else "run.source_ids, target=run.ids"
    first, _, rest = base.partition(", ")
    said = f", {rest}" if rest else ""
    edits = run.code.edits("run")
    said += f", base_edit=[{edits}]" if edits else ""
    lines.append(f"found = engine.sweep(model, {first}, {rows}, engine.{measure}, pos={spec.position}){said})")
    return "\n".join(lines)


def written(run: ServedRun, spec: GenerateSpec, limits: Limits) -> Iterator[dict[str, Any]]:
    """Yield what a text goes on from, then each new token: how it was drawn, stage by stage from logits on.

    Raises:
        ConfigError, TextError, ShapeMismatch, AnalysisUnavailable: As `stream`.
    """
    limits.require("new_tokens", spec.max_new_tokens, "new tokens")
    sampling = Sampling(spec.temperature, spec.top_k, spec.top_p, spec.min_p, spec.repetition_penalty, spec.seed)
    model, inputs = run.model, run.cached.inputs
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
    inputs = run.cached.inputs
    said = "".join(
        f", {name}={value!r}" for name, value in sampling.to_dict().items() if value != getattr(Sampling(), name)
    )
    given = f"[run.ids[0, : {position + 1}].tolist()]"
    source = "" if inputs.source is None else ", source=run.source_ids"
    edits = run.code.edits("run")
    edit = f", edit=[{edits}]" if edits else ""
    lines = _with_import("from glassformer.models import Sampling", run.code.lines("run", ()))
    options = f"max_new_tokens={spec.max_new_tokens}{source}{edit}"
    return "\n".join([*lines, f"found = gf.generate(model, {given}, Sampling({said[2:]}), {options})"])


def _with_import(line: str, lines: Sequence[str]) -> list[str]:
    """Return lines of code with one more import at the end of those there are."""
    blank = next(i for i, one in enumerate(lines) if not one)
    return [*lines[:blank], line, *lines[blank:]]
