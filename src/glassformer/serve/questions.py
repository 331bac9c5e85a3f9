"""Questions: what may be asked of a run, of a head of it, or of weights, and the library call that answers each.

An answer is labelled arrays, further facts, and the Python that gives the same numbers; it is sent as JSON or as a
frame, whole or less the answer of another run. What a mechanism does not define is the library's own refusal.
"""

import csv
import dataclasses
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from glassformer import analysis
from glassformer.analysis import Run
from glassformer.analysis.cards import card_of
from glassformer.analysis.heads import roles
from glassformer.errors import AnalysisUnavailable, GlassformerError, ShapeMismatch
from glassformer.files import json_text
from glassformer.labelled import Labelled, Result
from glassformer.models import Model
from glassformer.numerics.precision import wide
from glassformer.serve import api
from glassformer.serve.frames import encoded, frame, reduced
from glassformer.serve.runs import Limits, ServedModel, ServedRun
from glassformer.trace import HeadAddress

Of = Literal["run", "head", "row", "model", "head of a model"]
STAGES = ("products", "scores", "weights", "value_weighted")


@dataclass(frozen=True, eq=False)
class Answer:
    """What a question is answered with.

    Args:
        question: Its name.
        arrays: Numbers with their axes.
        facts: What else was found, as JSON data.
        python: Code that ends in `found`, which has each array by its name.
    """

    question: str
    arrays: Mapping[str, Labelled]
    facts: Mapping[str, Any]
    python: str

    def less(self, other: "Answer") -> "Answer":
        """Return the difference to the answer of another run, array by array; ids and ranks are left out."""
        arrays: dict[str, Labelled] = {}
        for name, value in self.arrays.items():
            theirs = other.arrays.get(name)
            if theirs is None or not (value.values.is_floating_point() and theirs.values.is_floating_point()):
                continue
            if value.shape != theirs.shape:
                sizes = " and ".join("x".join(map(str, one.shape)) for one in (value, theirs))
                raise ShapeMismatch(
                    f'the difference of two runs: "{name}" is {sizes}.\n    '
                    "Give texts of as many tokens, or look at each."
                )
            arrays[name] = dataclasses.replace(value, values=wide(value.values) - wide(theirs.values))
        return dataclasses.replace(self, arrays=arrays, facts={**self.facts, "minus": dict(other.facts)})

    def sent(self, view: api.View, limits: Limits) -> tuple[bytes, str]:
        """Return the bytes of the answer, and their media type."""
        facts = {"question": self.question, "facts": self.facts, "python": self.python}
        limits.require("answer", sum(4 * one.values.numel() for one in self.arrays.values()), "bytes of the answer")
        if view.form == "json":
            told = {name: value.to_dict() for name, value in self.arrays.items()}
            return json_text(facts | {"arrays": told}, ascii_only=False).encode(), "application/json"
        labels, sent = dict[str, Any](), {}
        for name, value in self.arrays.items():
            values, axes = value.values, list(value.axes)
            if values.is_complex():
                values, axes = torch.view_as_real(values.resolve_conj()), [*axes, "part"]
            square = view.packing == "tril" and values.ndim >= 2 and values.shape[-1] == values.shape[-2]
            encoding = view.encoding if values.is_floating_point() else "f32"
            sent[name] = encoded(values, encoding, "tril" if square else "full")
            labels[name] = {"axes": axes, "coords": {axis: list(of) for axis, of in value.coords.items()}}
        return frame(sent, facts | {"arrays": labels}), "application/vnd.safetensors"


@dataclass(frozen=True)
class Question:
    """One question.

    Args:
        of: What it is asked of, and so its address.
        view: What can be said about it.
        about: What it answers.
        answer: The function that does.
    """

    of: Of
    view: type[api.View]
    about: str
    answer: Callable[..., Answer]


# ------------------------------------------------------------------------------------------------------- of a pass


def _asked(name: str, run: ServedRun, analysis_of: Callable[..., Any], path: str, options: Mapping[str, Any]) -> Answer:
    """Return what an analysis of one pass says of a run."""
    chosen = {option: value for option, value in options.items() if value is not None}
    found = analysis_of(run.read(card_of(analysis_of).reads(run.model), logits=True), **chosen)
    said = "".join(f", {option}={value!r}" for option, value in chosen.items())
    called = f"gf.analysis.{path}"
    code = [*run.code.lines("run", [called]), f"found = {called}(run{said})"]
    return Answer(name, *_taken_apart(found), "\n".join(code))


def _taken_apart(found: Result) -> tuple[dict[str, Labelled], dict[str, Any]]:
    """Return the arrays of a result, and all else it says, as JSON data."""
    told = found.to_dict()
    arrays = {
        field.name: value
        for field in dataclasses.fields(found)  # type: ignore[arg-type]
        if isinstance(value := getattr(found, field.name), Labelled)
    }
    return arrays, {name: value for name, value in told.items() if name not in arrays}


def lens(run: ServedRun, view: api.LensView) -> Answer:
    positions = None if view.positions is None else list(view.positions)
    options = {"answer": view.answer, "positions": positions, "k": view.k}
    return _asked("lens", run, analysis.lens.lens_grid, "lens.lens_grid", options)


def attribution(run: ServedRun, view: api.Attribution) -> Answer:
    options = {"answer": view.answer, "against": view.against, "position": view.position, "norm": view.norm}
    call = analysis.attribution.direct_logit_attribution
    return _asked("attribution", run, call, "attribution.direct_logit_attribution", options)


def sources(run: ServedRun, view: api.OfLayers) -> Answer:
    return _of_layers("sources", run, view, analysis.attribution.source_effects, "attribution.source_effects")


def neurons(run: ServedRun, view: api.OfLayers) -> Answer:
    return _of_layers("neurons", run, view, analysis.attribution.neuron_effects, "attribution.neuron_effects")


def _of_layers(name: str, run: ServedRun, view: api.OfLayers, call: Callable[..., Any], path: str) -> Answer:
    layers = None if view.layers is None else list(view.layers)
    options = {"answer": view.answer, "against": view.against, "position": view.position, "layers": layers}
    return _asked(name, run, call, path, options)


def run_roles(run: ServedRun, view: api.OfStack) -> Answer:
    return _asked("roles", run, analysis.heads.head_roles, "heads.head_roles", {"stack": view.stack})


# ------------------------------------------------------------------------------------------------------- of a head


@dataclass(frozen=True, eq=False)
class _Looking:
    """What one head looks at in a run: each stage from products to weighted values, as far as its mechanism has it.

    Args:
        run: The run.
        label: Of the head.
    """

    run: ServedRun
    label: str

    def __post_init__(self) -> None:
        # raises of what is no head, with the nearest
        self.run.model.sites().locate(f"{self.label}.z")

    @property
    def address(self) -> HeadAddress:
        found = HeadAddress.parse(self.label)
        assert found is not None, "located"
        return found

    @property
    def part(self) -> Any:
        """The attention layer that the head is of."""
        site = self.run.model.sites().locate(f"{self.label}.z")[0].site
        return self.run.model.sub_layer(site.path).attention

    def sites(self, stage: str) -> list[str]:
        """Return the sites that a stage is made of; raises `AnalysisUnavailable` where the mechanism has no such."""
        traits, kind = self.part.traits, self.part.config.mixer.kind
        if stage in ("weights", "value_weighted"):
            analysis.components.require_pattern(self.part, f"the pattern of {self.label}")
        if stage == "scores" and not traits.has_scores:
            raise AnalysisUnavailable(f'{self.label}: "{kind}" makes its pattern without scores. Look at its weights.')
        if stage == "products" and not traits.bilinear_raw_scores:
            raise AnalysisUnavailable(
                f'{self.label}: scores of "{kind}" are no products of queries and keys. Look at its scores or weights.'
            )
        names = {
            "products": ("query", "key"), "scores": ("scores",), "weights": ("pattern",),
            "value_weighted": ("pattern", "value"),
        }[stage]  # fmt: skip
        return [f"{self.label}.{name}" for name in names]

    def code(self, stage: str) -> str:
        """Return the expression that a stage is of a run."""
        return {
            "products": f'gf.Labelled(run["{self.label}.query"].values @ run["{self.label}.key"].values.mT, '
            f'(*run["{self.label}.query"].axes[:-2], "query", "key"))',
            "scores": f'run["{self.label}.scores"]',
            "weights": f'run["{self.label}.pattern"]',
            "value_weighted": f'gf.Labelled(run["{self.label}.pattern"].values.abs() * '
            f'run["{self.label}.value"].values.norm(dim=-1)[..., None, :], run["{self.label}.pattern"].axes)',
        }[stage] + ".select(batch=0)"

    def stage(self, stage: str) -> Labelled:
        """Return a stage, `query key`; what the mask hides has no number."""
        run = self.run.read([*self.sites(stage), *self._scores])
        found = {name.rpartition(".")[2]: run[name] for name in self.sites(stage)}
        if stage == "products":
            query, key = found["query"], found["key"]
            # `pos` of a query are the queries
            coords = {"query": query.labels("pos"), "key": key.labels(key.axes[-2])}
            value = Labelled(query.values @ key.values.mT, (*query.axes[:-2], "query", "key"), coords)
        elif stage == "value_weighted":
            pattern, size = found["pattern"], found["value"].values.norm(dim=-1)
            value = dataclasses.replace(pattern, values=pattern.values.abs() * size[..., None, :])
        else:
            (value,) = found.values()
        value = value.select(batch=0)
        hidden = None if stage == "products" else self._hidden(run, value)
        return (
            value if hidden is None else dataclasses.replace(value, values=value.values.masked_fill(hidden, torch.nan))
        )

    @property
    def _scores(self) -> list[str]:
        return [f"{self.label}.scores"] if self.part.traits.has_scores else []

    def _hidden(self, run: Run, value: Labelled) -> Tensor | None:
        """Return which pairs the mask hides: those without a score, or behind the query."""
        if self._scores:
            seen = run[self._scores[0]].select(batch=0).values.isfinite()
            while seen.ndim > 2:
                seen = seen.any(0)
            return None if seen.shape != value.values.shape[-2:] else ~seen
        rows, keys = value.size("query"), value.size("key")
        if rows != keys or self.part.config.cross or self.run.model.reads_ahead(self.address.stack or None):
            return None
        return torch.ones(rows, keys, dtype=torch.bool, device=value.values.device).triu(1)


def pattern(run: ServedRun, head: str, view: api.PatternView) -> Answer:
    looking = _Looking(run, head)
    value, code = looking.stage(view.stage), looking.code(view.stage)
    if view.window is not None:
        first, last, left, right = view.window
        value = value.select(query=slice(first, last), key=slice(left, right))
        code += f".select(query=slice({first}, {last}), key=slice({left}, {right}))"
    facts = {"head": head, "stage": view.stage, "size": list(value.shape)}
    if view.size is not None:
        coords = {axis: labels for axis, labels in value.coords.items() if axis not in ("query", "key")}
        values = reduced(value.values, view.size, view.size)
        value = value if values.shape == value.values.shape else Labelled(values, value.axes, coords)
    return Answer("pattern", {view.stage: value}, facts, _found(run, looking.sites(view.stage), {view.stage: code}))


def thumbs(run: ServedRun, view: api.Thumbs) -> Answer:
    first, last = view.layers or (0, len(run.model.output_stack.blocks))
    arrays, left_out, code, reads = dict[str, Labelled](), dict[str, str](), dict[str, str](), list[str]()
    for path, heads in _layers(run.model).items():
        if not first <= heads[0].layer <= last:
            continue
        labels = [head.label for head in heads]
        try:
            looking = [_Looking(run, label) for label in labels]
            small = [reduced(one.stage(view.stage).values, view.size, view.size) for one in looking]
        except GlassformerError as error:
            left_out[path] = str(error)
            continue
        axes = ("head", *["stream"] * (small[0].ndim - 2), "query", "key")
        arrays[path] = Labelled(torch.stack(small), axes, {"head": labels})
        quantity = {"weights": "pattern", "scores": "scores"}[view.stage]
        reads.append(f"{path}.{quantity}")
        code[path] = f'run["{path}.{quantity}"].select(batch=0)'
    return Answer("thumbs", arrays, {"stage": view.stage, "left_out": left_out}, _found(run, reads, code))


def _layers(model: Model) -> dict[str, list[roles.Head]]:
    found: dict[str, list[roles.Head]] = {}
    for head in roles.heads(model):
        found.setdefault(head.path, []).append(head)
    return found


def row(run: ServedRun, head: str, index: int, view: api.View) -> Answer:
    return _line(run, head, index, "query")


def rows(run: ServedRun, view: api.Rows) -> Answer:
    arrays, left_out, code, reads = dict[str, Labelled](), dict[str, str](), dict[str, str](), list[str]()
    for path, heads in _layers(run.model).items():
        labels = [head.label for head in heads]
        try:
            lines = [_Looking(run, label).stage("weights").select(query=view.position) for label in labels]
        except GlassformerError as error:
            left_out[path] = str(error)
            continue
        values = torch.stack([line.values for line in lines])
        arrays[path] = Labelled(values, ("head", *lines[0].axes), {"head": labels, "key": lines[0].labels("key")})
        reads.append(f"{path}.pattern")
        code[path] = f'run["{path}.pattern"].select(batch=0, query={view.position})'
    return Answer("rows", arrays, {"position": view.position, "left_out": left_out}, _found(run, reads, code))


def column(run: ServedRun, head: str, index: int, view: api.View) -> Answer:
    return _line(run, head, index, "key")


def _line(run: ServedRun, head: str, index: int, axis: Literal["query", "key"]) -> Answer:
    """Return every stage of a head along one query or one key, exactly."""
    looking, arrays, left_out = _Looking(run, head), dict[str, Labelled](), dict[str, str]()
    reads, code = list[str](), dict[str, str]()
    for stage in STAGES:
        try:
            arrays[stage] = looking.stage(stage).select(**{axis: index})
        except AnalysisUnavailable as error:
            left_out[stage] = str(error)
            continue
        reads += looking.sites(stage)
        code[stage] = f"{looking.code(stage)}.select({axis}={index})"
    name = "row" if axis == "query" else "column"
    return Answer(name, arrays, {"head": head, axis: index, "left_out": left_out}, _found(run, reads, code))


def vectors(run: ServedRun, head: str, index: int, view: api.View) -> Answer:
    looking, model = _Looking(run, head), run.model
    kept = ["query", "key", "value", "z", "head_out"]
    names = [name for name in kept if f"{looking.part.path}.{name}" in model.sites()]
    read = run.read([f"{head}.{name}" for name in names])
    arrays, code = dict[str, Labelled](), dict[str, str]()
    for name in names:
        value = read[f"{head}.{name}"].select(batch=0)
        own = "pos" in value.axes
        arrays[name] = value.select(pos=index) if own else value
        code[name] = f'run["{head}.{name}"].select(batch=0{f", pos={index}" if own else ""})'
    return Answer("vectors", arrays, {"head": head, "pos": index}, _found(run, [f"{head}.{n}" for n in names], code))


def _found(run: ServedRun, reads: Sequence[str], expressions: Mapping[str, str]) -> str:
    """Return the code of arrays that are read off a run."""
    lines = run.code.lines("run", [repr(name) for name in dict.fromkeys(reads)])
    body = [f"    {name!r}: {expression}," for name, expression in expressions.items()]
    return "\n".join([*lines, "found = {", *body, "}"])


# ------------------------------------------------------------------------------------------------------- of weights


def _of_weights(
    name: str,
    served: ServedModel,
    call: Callable[..., Any],
    path: str,
    given: Sequence[Any],
    options: Mapping[str, Any],
) -> Answer:
    """Return what an analysis of weights says of a model; asked again, it is remembered."""
    said = "".join(f", {value!r}" for value in given)
    said += "".join(f", {option}={value!r}" for option, value in options.items())
    found = served.remembered(f"{path}{said}", lambda: call(served.model, *given, **options))
    code = [
        "import glassformer as gf",
        "",
        f"model = gf.load({served.source!r})",
        f"found = gf.analysis.{path}(model{said})",
    ]
    return Answer(name, *_taken_apart(found), "\n".join(code))


def circuit(served: ServedModel, head: str, view: api.CircuitView) -> Answer:
    options: dict[str, Any] = {"heads": [head], "k": view.k}
    if view.token is not None:
        call = analysis.vocabulary.token_circuits
        return _of_weights("circuit", served, call, "vocabulary.token_circuits", [view.token], options)
    call = analysis.vocabulary.token_pairs
    return _of_weights("circuit", served, call, "vocabulary.token_pairs", [view.circuit], options)


def copying(served: ServedModel, head: str, view: api.View) -> Answer:
    return _of_weights("copying", served, analysis.from_weights.copying, "from_weights.copying", [[head]], {})


def skip_trigrams(served: ServedModel, head: str, view: api.OfHead) -> Answer:
    call = analysis.vocabulary.skip_trigrams
    return _of_weights("skip-trigrams", served, call, "vocabulary.skip_trigrams", [[head]], {"k": view.k})


def composition(served: ServedModel, view: api.CompositionView) -> Answer:
    options = {"draws": view.draws, "seed": view.seed}
    return _of_weights(
        "composition", served, analysis.from_weights.composition, "from_weights.composition", [], options
    )


def partners(served: ServedModel, head: str, view: api.CompositionView) -> Answer:
    whole = composition(served, view)
    scores, arrays, code = whole.arrays["scores"], dict[str, Labelled](), whole.python.replace("found =", "whole =")
    for name, axis in {"reads": "later", "read_by": "earlier"}.items():
        if head in scores.labels(axis):
            arrays[name] = scores.select(**{axis: head})
    if not arrays:
        # raises of what is no head; of one that is left out, why
        served.model.sites().locate(f"{head}.z")
        raise AnalysisUnavailable(f"{head} has no composition scores: {whole.facts.get('left_out')}.")
    body = [
        f"    {name!r}: whole.scores.select({'later' if name == 'reads' else 'earlier'}={head!r})," for name in arrays
    ]
    return Answer("partners", arrays, {**whole.facts, "head": head}, "\n".join([code, "found = {", *body, "}"]))


def scores(served: ServedModel, view: api.ScoresView) -> Answer:
    return _of_weights("scores", served, analysis.heads.head_scores, "heads.head_scores", [], {"seed": view.seed})


QUESTIONS: dict[str, Question] = {
    "thumbs": Question("run", api.Thumbs, "Small pictures of what every head looks at", thumbs),
    "pattern": Question("head", api.PatternView, "What one head looks at, stage by stage", pattern),
    "rows": Question("run", api.Rows, "What every head looks at from one position", rows),
    "row": Question("row", api.View, "All stages of a head at one query", row),
    "column": Question("row", api.View, "All stages of a head at one key", column),
    "vectors": Question("row", api.View, "Query, keys, values and output of a head at one position", vectors),
    "lens": Question("run", api.LensView, "What the model would say if it stopped at each layer", lens),
    "attribution": Question("run", api.Attribution, "What adds to a logit", attribution),
    "sources": Question("run", api.OfLayers, "Which tokens heads' shares of a logit come from", sources),
    "neurons": Question("run", api.OfLayers, "Which neurons add to a logit", neurons),
    "roles": Question("run", api.OfStack, "Which known roles heads play on this text", run_roles),
    "circuit": Question("head of a model", api.CircuitView, "Token pairs of a head's OV or QK circuit", circuit),
    "copying": Question("head of a model", api.View, "Eigenvalues and copying score of a head", copying),
    "skip-trigrams": Question("head of a model", api.OfHead, "Skip-trigrams of a head", skip_trigrams),
    "composition": Question("model", api.CompositionView, "Which heads read what earlier ones write", composition),
    "partners": Question("head of a model", api.CompositionView, "Heads that compose with one", partners),
    "scores": Question("model", api.ScoresView, "Roles of heads on random tokens repeated", scores),
}


def exported(run: ServedRun, view: api.ExportView, limits: Limits) -> tuple[bytes, str, str]:
    """Return a file of sites of a run: its bytes, its media type, and what its name ends with."""
    table = run.model.sites()
    names = [one.name for name in view.sites for one in table.locate(name)]
    found = run.read(view.sites)
    sites = {name: found[name] for name in dict.fromkeys(names)}
    limits.require("answer", sum(one.values.nbytes for one in sites.values()), "bytes of the file")
    if view.form == "safetensors":
        return found.to_safetensors(), "application/vnd.safetensors", "safetensors"
    if view.form == "npz":
        import numpy

        content = io.BytesIO()
        numpy.savez_compressed(content, **{name: wide(one.values).cpu().numpy() for name, one in sites.items()})
        return content.getvalue(), "application/zip", "npz"
    limits.require("answer", 40 * sum(one.values.numel() for one in sites.values()), "bytes of the table")
    lines = io.StringIO()
    writer, axes = csv.writer(lines), list(dict.fromkeys(axis for one in sites.values() for axis in one.axes))
    writer.writerow(["site", *axes, "value"])
    for name, one in sites.items():
        labels = [one.labels(axis) for axis in one.axes]
        flat = wide(one.values).flatten().tolist()
        places = torch.cartesian_prod(*(torch.arange(n) for n in one.shape)).reshape(len(flat), -1).tolist()
        for place, value in zip(places, flat):
            at = {axis: of[i] for axis, of, i in zip(one.axes, labels, place)}
            writer.writerow([name, *(at.get(axis, "") for axis in axes), repr(value)])
    return lines.getvalue().encode("utf-8", "replace"), "text/csv; charset=utf-8", "csv"
