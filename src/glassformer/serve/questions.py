"""Questions: what may be asked of a run, of a head of it, or of weights, and the library call that answers each.

What a mechanism does not define is the library's own refusal.
"""

import csv
import dataclasses
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from glassformer import analysis
from glassformer.analysis.cards import card_of
from glassformer.analysis.heads import roles
from glassformer.analysis.places import text_positions
from glassformer.analysis.reports.attention import attention_of, pattern_sites
from glassformer.errors import AnalysisUnavailable, ConfigError, ShapeMismatch
from glassformer.labelled import Labelled
from glassformer.numerics.precision import wide
from glassformer.render.page import attention_page
from glassformer.serve import api
from glassformer.serve.answers import Answer, taken_apart
from glassformer.serve.backward import backward
from glassformer.serve.carried import carried
from glassformer.serve.features import features
from glassformer.serve.frames import reduced
from glassformer.serve.lanes import lanes, mixtures
from glassformer.serve.lessons import lesson
from glassformer.serve.looking import STAGES, Looking, Places, Stage
from glassformer.serve.memories import memories
from glassformer.serve.planes import plane, query_key_plane
from glassformer.serve.programs import loading
from glassformer.serve.runs import Limits, ServedModel, ServedRun
from glassformer.serve.value_matrices import value_matrices
from glassformer.serve.verdicts import verdicts
from glassformer.trace import sites_of_heads
from glassformer.words import Sentence, sentence

Of = Literal["run", "head", "row", "model", "head of a model"]


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
    about: Sentence
    answer: Callable[..., Answer]


# ------------------------------------------------------------------------------------------------------- of two runs


def of_both(run: ServedRun, other: ServedRun, view: api.View) -> api.View:
    """Return how two runs are asked for their difference: about one logit, though each has a likeliest of its own.

    Raises:
        ShapeMismatch: Their texts have other numbers of tokens, or two models read other tokens.
        ConfigError: A lens that follows the likeliest token of every position, a plane, features, a backward lens, or a
            chapter of the tour.
    """
    if isinstance(view, api.LessonView):
        raise ConfigError("a chapter is about one run, and has no difference: look at each.")
    run.require_difference(other)
    if isinstance(view, api.FeaturesView | api.BackwardView):
        raise ConfigError("what a position says in tokens, and by its features, is of one run: look at each.")
    if isinstance(view, api.PlaneView | api.QueryKeyView):
        raise ConfigError("planes of two runs have axes of their own, and no difference: look at each.")
    if isinstance(view, api.LensView) and view.answer is None:
        raise ConfigError('the difference of two lenses follows one token in both: say which, as "answer".')
    if isinstance(view, api.Aim) and view.answer is None:
        view = dataclasses.replace(view, answer=run.likeliest(view.position))
    if isinstance(view, api.Aim | api.LensView):
        run.require_answers(other, [id for id in (view.answer, getattr(view, "against", None)) if id is not None])
    return view


# ------------------------------------------------------------------------------------------------------- of a pass


def _asked(name: str, run: ServedRun, analysis_of: Callable[..., Any], path: str, options: Mapping[str, Any]) -> Answer:
    """Return what an analysis of one pass says of a run."""
    chosen = {option: value for option, value in options.items() if value is not None}
    found = analysis_of(run.read([*card_of(analysis_of).reads(run.model), *run.ends]), **chosen)
    said = "".join(f", {option}={value!r}" for option, value in chosen.items())
    called = f"gf.analysis.{path}"
    code = [*run.code.lines("run", [called]), f"found = {called}(run{said})"]
    return Answer(name, *taken_apart(found), "\n".join(code))


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


def image(run: ServedRun, view: api.View) -> Answer:
    patches = run.model.patches
    if patches is None:
        raise AnalysisUnavailable("the image that a run reads: this model reads texts.")
    axes = ("channel", "row", "column")
    code = f"gf.Labelled(run.inputs.args[0][0], {axes})"
    facts = {"grid": [*patches.grid, patches.outside]}
    return Answer("image", {"image": Labelled(run.inputs.args[0][0], axes)}, facts, _found(run, [], {"image": code}))


# ------------------------------------------------------------------------------------------------------- of a head


def pattern(run: ServedRun, head: str, view: api.PatternView) -> Answer:
    looking, part, code = Looking(run, head), dict[str, Places](), ""
    if view.window is not None:
        first, last, left, right = view.window
        part = {"query": slice(first, last), "key": slice(left, right)}
        code = f".select(query=slice({first}, {last}), key=slice({left}, {right}))"
    value = looking.stage(view.stage, **part)
    if not value.values.numel():
        raise ShapeMismatch(
            f"window={','.join(map(str, view.window or ()))}: no pair of positions lies in it. Give the first query, "
            "one behind the last, the first key, and one behind the last."
        )
    facts = {"head": head, "stage": view.stage, "size": list(value.shape)}
    code = looking.code(view.stage) + code
    value = value if view.size is None else _smaller(value, view.size)
    return Answer("pattern", {view.stage: value}, facts, _found(run, looking.sites(view.stage), {view.stage: code}))


def thumbs(run: ServedRun, view: api.Thumbs) -> Answer:
    paths = {head.path: head.layer for head in roles.heads(run.model)}
    first, last = view.layers or (0, max(paths.values(), default=0))
    wanted = [path for path, layer in paths.items() if first <= layer <= last]
    if paths and not wanted:
        there = ", ".join(map(str, sorted({*paths.values()})))
        raise ShapeMismatch(f"layers={first},{last}: no attention there. Layers with attention: {there}.")
    arrays, left_out, python = _by_layer(run, wanted, view.stage, lambda whole: _smaller(whole, view.size))
    return Answer("thumbs", arrays, {"stage": view.stage, "left_out": left_out}, python)


def rows(run: ServedRun, view: api.Rows) -> Answer:
    (position,) = text_positions([view.position], run.inputs.output.counts[0])
    # an encoder reads another text
    wanted = dict.fromkeys(head.path for head in roles.heads(run.model) if head.path.startswith(run.model.prefix))
    arrays, left_out, python = _by_layer(
        run, wanted, "weights", lambda one: one.select(query=0), f".select(query={position})",
        query=[position],
    )  # fmt: skip
    return Answer("rows", arrays, {"position": position, "left_out": left_out}, python)


def _by_layer(
    run: ServedRun,
    paths: Iterable[str],
    stage: Stage,
    made: Callable[[Labelled], Labelled],
    code: str = "",
    **part: Places,
) -> tuple[dict[str, Labelled], dict[str, str], str]:
    """Return what is made of a stage of each layer, why some are left out, and the Python that gives it."""
    arrays, left_out, codes, reads = dict[str, Labelled](), dict[str, str](), dict[str, str](), list[str]()
    for path in paths:
        looking = Looking(run, path)
        try:
            arrays[path] = made(looking.stage(stage, **part))
        except AnalysisUnavailable as error:
            left_out[path] = str(error)
            continue
        reads += looking.sites(stage)
        codes[path] = looking.code(stage) + code
    return arrays, left_out, _found(run, reads, codes)


def _smaller(value: Labelled, size: int) -> Labelled:
    """Return matrices of at most so many rows and columns, which have no labels if they were made smaller."""
    values = reduced(value.values, size, size)
    coords = {axis: labels for axis, labels in value.coords.items() if axis not in ("query", "key")}
    return value if values.shape == value.values.shape else Labelled(values, value.axes, coords)


def row(run: ServedRun, head: str, index: int, view: api.View) -> Answer:
    return _line(run, head, index, "query")


def column(run: ServedRun, head: str, index: int, view: api.View) -> Answer:
    return _line(run, head, index, "key")


def _line(run: ServedRun, head: str, index: int, axis: Literal["query", "key"]) -> Answer:
    """Return every stage of a head along one query or one key, exactly."""
    looking, arrays, left_out = Looking(run, head), dict[str, Labelled](), dict[str, str]()
    reads, code = list[str](), dict[str, str]()
    for stage in STAGES:
        try:
            arrays[stage] = looking.stage(stage, **{axis: [index]}).select(**{axis: 0})
        except AnalysisUnavailable as error:
            left_out[stage] = str(error)
            continue
        reads += looking.sites(stage)
        code[stage] = f"{looking.code(stage)}.select({axis}={index})"
    name = "row" if axis == "query" else "column"
    return Answer(name, arrays, {"head": head, axis: index, "left_out": left_out}, _found(run, reads, code))


def vectors(run: ServedRun, head: str, index: int, view: api.View) -> Answer:
    looking, model = Looking(run, head), run.model
    quantities = ["query", "key", "value", "z", "head_out"]
    names = [name for name in quantities if f"{looking.part.path}.{name}" in model.sites()]
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
        *loading(served.source),
        f"found = gf.analysis.{path}(model{said})",
    ]
    return Answer(name, *taken_apart(found), "\n".join(code))


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
        sites_of_heads(served.model.sites(), head)
        raise AnalysisUnavailable(f"{head} has no composition scores: {whole.facts.get('left_out')}.")
    body = [
        f"    {name!r}: whole.scores.select({'later' if name == 'reads' else 'earlier'}={head!r})," for name in arrays
    ]
    return Answer("partners", arrays, {**whole.facts, "head": head}, "\n".join([code, "found = {", *body, "}"]))


def scores(served: ServedModel, view: api.ScoresView) -> Answer:
    return _of_weights("scores", served, analysis.heads.head_scores, "heads.head_scores", [], {"seed": view.seed})


QUESTIONS: dict[str, Question] = {
    "image": Question("run", api.View, sentence("The image that a run reads, and its grid of patches"), image),
    "thumbs": Question("run", api.Thumbs, sentence("Small pictures of what every head looks at"), thumbs),
    "pattern": Question("head", api.PatternView, sentence("What one head looks at, stage by stage"), pattern),
    "rows": Question("run", api.Rows, sentence("What every head looks at from one position"), rows),
    "row": Question("row", api.View, sentence("All stages of a head at one query"), row),
    "column": Question("row", api.View, sentence("All stages of a head at one key"), column),
    "vectors": Question("row", api.View, sentence("Query, keys, values and output of a head at one position"), vectors),
    "plane": Question(
        "run", api.PlaneView, sentence("Tokens as points in a plane, and the path of one as arrows"), plane
    ),
    "query-key-plane": Question(
        "row", api.QueryKeyView, sentence("A query among the keys it sees, in a plane through it"), query_key_plane
    ),
    "added-token": Question(
        "row",
        api.View,
        sentence("What the layer of a head keeps of the tokens before one, and computes for it"),
        carried,
    ),
    "lanes": Question("run", api.View, sentence("How far each write moves the stream, at every position"), lanes),
    "mixtures": Question(
        "run", api.MixtureView, sentence("Weights with which heads mix the tokens at one position"), mixtures
    ),
    "memories": Question("run", api.Rows, sentence("What came from memory at a position, layer by layer"), memories),
    "features": Question(
        "run", api.FeaturesView, sentence("Features of a dictionary that fire at a position"), features
    ),
    "backward": Question(
        "run", api.BackwardView, sentence("What a step of descent would write into each linear map"), backward
    ),
    "lens": Question("run", api.LensView, sentence("What the model would say if it stopped at each layer"), lens),
    "attribution": Question("run", api.Attribution, sentence("What adds to a logit"), attribution),
    "sources": Question("run", api.OfLayers, sentence("Which tokens heads' shares of a logit come from"), sources),
    "neurons": Question("run", api.OfLayers, sentence("Which neurons add to a logit"), neurons),
    "roles": Question("run", api.OfStack, sentence("Which known roles heads play on this text"), run_roles),
    "lesson": Question("run", api.LessonView, sentence("What a chapter of the tour says of this run"), lesson),
    "circuit": Question(
        "head of a model", api.CircuitView, sentence("Token pairs of a head's OV or QK circuit"), circuit
    ),
    "copying": Question("head of a model", api.View, sentence("Eigenvalues and copying score of a head"), copying),
    "skip-trigrams": Question("head of a model", api.OfHead, sentence("Skip-trigrams of a head"), skip_trigrams),
    "verdicts": Question(
        "head of a model",
        api.VerdictsView,
        sentence("What studies found of the mechanism of a head"),
        verdicts,
    ),
    "value-matrices": Question(
        "head of a model",
        api.MatricesView,
        sentence("Value matrices of a head, down, up and their product"),
        value_matrices,
    ),
    "composition": Question(
        "model", api.CompositionView, sentence("Which heads read what earlier ones write"), composition
    ),
    "partners": Question("head of a model", api.CompositionView, sentence("Heads that compose with one"), partners),
    "scores": Question("model", api.ScoresView, sentence("Roles of heads on random tokens repeated"), scores),
}


def exported(run: ServedRun, view: api.ExportView, limits: Limits) -> tuple[bytes, str, str]:
    """Return a file of a run: its bytes, its media type, and what its name ends with.

    Raises:
        ConfigError: A file of sites without any, or a page of some.
        TooLarge: It has too many bytes.
    """
    if (view.form == "html") == bool(view.sites):
        raise ConfigError(
            'a file is of sites: name them, "sites=L1H6.pattern"; a page (form=html) is of the whole run.'
        )
    if view.form == "html":
        whole = run.read(pattern_sites(run.model))
        limits.require("answer", sum(one.values.nbytes for one in whole.sites.values()), "bytes of the page")
        return attention_page(attention_of(whole).to_dict()).encode(), "text/html; charset=utf-8", "html"
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
        arrays: dict[str, Any] = {name: wide(one.values).cpu().numpy() for name, one in sites.items()}
        numpy.savez_compressed(content, **arrays)
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
