"""Answers that come piece by piece: sweeps, cell by cell, and texts, token by token; each an iterator of JSON data."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from glassformer.analysis.heads import roles
from glassformer.analysis.sweep import Metric, logit, logit_difference, sweep
from glassformer.errors import ConfigError
from glassformer.models import Sampling, stream
from glassformer.models.readable import readable_outputs
from glassformer.models.sampling import SamplingStage
from glassformer.serve.api import GenerateSpec, SweepSpec
from glassformer.serve.runs import Limits, ServedRun
from glassformer.trace import At, Edit, Scale, Set


def swept(run: ServedRun, donor: ServedRun | None, spec: SweepSpec, limits: Limits) -> Iterator[dict[str, Any]]:
    """Yield what a sweep is along, then each cell: `i` and `j`, its row and column, and its `value`, in logits.

    Raises:
        ConfigError: A patch without a run to copy from.
        AnalysisUnavailable, ShapeMismatch: As `sweep`.
    """
    if donor is None and spec.sweep != "ablate_heads":
        raise ConfigError(f'SweepSpec: {spec.sweep} copies from another run: give its id as "donor".')
    model, inputs = run.model, run.kept.inputs
    position = spec.position
    answer = int(run.kept.logits([position])[0, 0].argmax()) if spec.answer is None else spec.answer
    metric = (
        logit(answer, pos=position) if spec.against is None else logit_difference(answer, spec.against, pos=position)
    )
    by_layer = _rows(run, spec)
    limits.require("rows", sum(len(columns) for columns in by_layer.values()), "changes of the sweep")
    base = inputs.ids if inputs.source is None else inputs.source_ids
    target = None if inputs.source is None else inputs.ids
    edits = [edit for _, edit in run.kept.edits]
    names = {"patch_positions": "*blocks.*.resid_pre", "patch_heads": "*.z", "ablate_heads": ""}
    lent = None if donor is None or not names[spec.sweep] else donor.read([names[spec.sweep]])
    measured = {"base": sweep(model, base, [[]], metric, target=target, base_edit=edits)}
    if donor is not None:
        measured["donor"] = _alone(donor, metric)
    columns = next(iter(by_layer.values()), ())
    yield {
        "sweep": spec.sweep, "answer": answer, "against": spec.against, "rows": list(by_layer),
        "columns": len(columns), "python": _code(run, donor, spec, answer),
        **{name: float(found.values.values.flatten()[0]) for name, found in measured.items()},
    }  # fmt: skip
    for i, columns in enumerate(by_layer.values()):
        rows = [[_changed(spec, column, lent)] for column in columns]
        found = sweep(model, base, rows, metric, target=target, base_edit=edits)
        for j, (column, value) in enumerate(zip(columns, found.values.values.flatten().tolist())):
            yield {"i": i, "j": j, "at": column[0], "value": value}


def _alone(run: ServedRun, metric: Metric) -> Any:
    inputs = run.kept.inputs
    base = inputs.ids if inputs.source is None else inputs.source_ids
    target = None if inputs.source is None else inputs.ids
    return sweep(run.model, base, [[]], metric, target=target, base_edit=[edit for _, edit in run.kept.edits])


def _rows(run: ServedRun, spec: SweepSpec) -> dict[str, list[tuple[str, str, int | None]]]:
    """Return the cells of each row of the picture: what each is called, and the site and position it changes."""
    found: dict[str, list[tuple[str, str, int | None]]] = {}
    if spec.sweep == "patch_positions":
        prefix, tokens = run.model.prefix, run.kept.inputs.token_rows[0]
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
    lines = run.code.lines("run", ())
    lines.insert(
        next(i for i, line in enumerate(lines) if not line), "from glassformer.analysis import sweep as engine"
    )
    if donor is not None and spec.sweep != "ablate_heads":
        reads = "'*blocks.*.resid_pre'" if spec.sweep == "patch_positions" else "'*.z'"
        lines += donor.code.run("donor", [reads])
    cells = [cell for columns in _rows(run, spec).values() for cell in columns]
    if spec.sweep == "ablate_heads":
        rows = f"[[gf.Scale(f'{{head}}.z', 0.0)] for head in {[cell[0] for cell in cells]}]"
    elif spec.sweep == "patch_heads":
        rows = f"[[gf.Set(f'{{head}}.z', donor)] for head in {[cell[0] for cell in cells]}]"
    else:
        layers, length = len(run.model.output_stack.blocks), len(run.kept.inputs.token_rows[0])
        site = f"f'{run.model.prefix}blocks.{{layer}}.resid_pre'"
        rows = f"[[gf.Set({site}, donor, at=gf.At(pos=pos))] for layer in range({layers}) for pos in range({length})]"
    base = "run.ids" if run.kept.inputs.source is None else "run.source_ids, target=run.ids"
    first, _, rest = base.partition(", ")
    said = f", {rest}" if rest else ""
    edits = run.code.edits("run")
    said += f", base_edit=[{edits}]" if edits else ""
    lines.append(f"found = engine.sweep(model, {first}, {rows}, engine.{measure}, pos={spec.position}){said})")
    return "\n".join(lines)


def written(run: ServedRun, spec: GenerateSpec, limits: Limits) -> Iterator[dict[str, Any]]:
    """Yield the code that does the same, then, for each new token, the likeliest candidates before and after every
    filter, and the one that was drawn.

    Raises:
        ConfigError, TextError, ShapeMismatch, AnalysisUnavailable: As `stream`.
    """
    limits.require("new_tokens", spec.max_new_tokens, "new tokens")
    sampling = Sampling(spec.temperature, spec.top_k, spec.top_p, spec.min_p, spec.repetition_penalty, spec.seed)
    model, inputs = run.model, run.kept.inputs
    source = None if inputs.source is None else [inputs.source.rows[0]]
    steps = stream(
        model, [inputs.output.rows[0]], sampling, max_new_tokens=spec.max_new_tokens, source=source, edit=run.edits
    )
    yield {"seed": spec.seed, "python": _writing(run, spec)}
    for step in steps:
        assert step.draw is not None and step.tokens[0] is not None, "one row, which goes on while there are steps"
        chosen = step.tokens[0]
        names = readable_outputs(model, torch.tensor([[chosen]]))[0]
        uniform = None if step.draw.uniform is None else float(step.draw.uniform[0])
        yield {
            "token": {"id": chosen, "text": names[0], "log_prob": step.log_probs[0]},
            "uniform": uniform,
            "stages": [_stage(run, stage, spec.shown) for stage in step.draw.stages],
            "notes": [str(note) for note in step.notes],
        }  # fmt: skip


def _writing(run: ServedRun, spec: GenerateSpec) -> str:
    """Return the Python that draws the same tokens: `found.tokens[0]`."""
    options = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
    said = ", ".join(f"{name}={getattr(spec, name)!r}" for name in options)
    inputs, edits = run.kept.inputs, run.code.edits("run")
    given = f"[{inputs.output.rows[0]}], Sampling({said}), max_new_tokens={spec.max_new_tokens}"
    given += "" if inputs.source is None else f", source=[{inputs.source.rows[0]}]"
    given += f", edit=[{edits}]" if edits else ""
    return "\n".join(
        ["from glassformer.models import Sampling", *run.code.lines("run", ()), f"found = gf.generate(model, {given})"]
    )


def _stage(run: ServedRun, stage: SamplingStage, shown: int) -> dict[str, Any]:
    """Return one step on the way from logits to a token."""
    probabilities = stage.probabilities[0]
    best = probabilities.topk(min(shown, len(probabilities)))
    ids = best.indices
    logits = stage.logits[0, ids]
    rows: Sequence[Any] = zip(
        ids.tolist(), readable_outputs(run.model, ids[None])[0], best.values.tolist(), logits.double().tolist()
    )  # type: ignore[assignment]
    return {
        "name": stage.name,
        "setting": stage.setting,
        "kept": int(stage.kept[0]),
        "candidates": [{"id": i, "text": t, "probability": p, "logit": x} for i, t, p, x in rows],
    }
