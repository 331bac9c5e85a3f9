"""Models that are served, and runs of them: what is kept, for how long.

A run is a model, tokens and changes; it never changes, and its id is the hash of what makes it. It keeps its stream,
and what was read of it for as long as there is room: the oldest goes first, and comes back when it is asked for.
"""

import hashlib
import itertools
import math
import re
import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from glassformer.analysis import Run
from glassformer.analysis.heads import roles
from glassformer.analysis.prepare import prepare
from glassformer.analysis.sweep import CachedPass
from glassformer.applicability import applied
from glassformer.data import Marks
from glassformer.errors import GlassformerError, ShapeMismatch, TextError, WrongArgument, nearest
from glassformer.files import json_text
from glassformer.labelled import Labelled
from glassformer.models import Model
from glassformer.models.readable import readable_outputs
from glassformer.models.reading import Inputs, Side, read_side
from glassformer.serve.api import (
    Borrowed,
    Change,
    LayerCard,
    Likeliest,
    MixerCard,
    ModelCard,
    RunCard,
    RunSpec,
    TokenCard,
    traits_of,
)
from glassformer.serve.images import ServedImage
from glassformer.serve.programs import RunCode
from glassformer.serve.worker import Worker
from glassformer.trace import Add, At, Edit, Project, Scale, Set, Site
from glassformer.version import __version__
from glassformer.zoo.examples import example_of

_LIKELIEST = 5  # answers shown of each position
OpensImages = Callable[[Model, str], Mapping[str, ServedImage]]
_NAMED = {"set": Set, "add": Add, "scale": Scale}


class NotFound(GlassformerError, KeyError):
    """A run that is not kept, or not any more, or a model that is not served."""


class TooLarge(GlassformerError, MemoryError):
    """More was asked for than a limit allows."""


@dataclass(frozen=True)
class Limits:
    """What one server does at most.

    Args:
        text: Characters of a text.
        tokens: Tokens of a run, of either side.
        body: Bytes of a request's body.
        memory: Bytes that all runs keep together.
        answer: Bytes of one answer.
        rows: Changes that one sweep makes.
        new_tokens: Tokens that are drawn for one request.
        waiting: Requests that wait for one model.
    """

    text: int = 200_000
    tokens: int = 8_192
    body: int = 2**20
    memory: int = 2**30
    answer: int = 2**28
    rows: int = 20_000
    new_tokens: int = 1_024
    waiting: int = 256

    def require(self, name: str, asked: int, what: str) -> None:
        """Raise `TooLarge` if something is more than a limit."""
        most: int = getattr(self, name)
        if asked > most:
            raise TooLarge(f"{what}: {asked:,}, and this server takes {most:,} at most. Ask for less at once.")


class ServedModel:
    """One model on the list of those that may be asked about.

    Args:
        id: Its name in addresses.
        source: What it is loaded from; empty of one that was in memory.
        load: Loads it.
        limits: Of the server.
        opens: Opens the images that runs may read, by their names, of the model and what it is loaded from.
    """

    def __init__(
        self, id: str, source: str, load: Callable[[], Model], limits: Limits, opens: OpensImages | None = None
    ) -> None:
        self.id, self.source, self._load, self._opens = id, source, load, opens
        self.limits, self.worker = limits, Worker(f"model {id}", limits.waiting)
        self.loaded: Model | None = None
        self.images: Mapping[str, ServedImage] = {}
        # answers from weights alone, which stay what they are
        self.known: OrderedDict[str, Any] = OrderedDict()

    @property
    def model(self) -> Model:
        """The model, loaded if it is not; on its worker's thread."""
        if self.loaded is None:
            model = self._load()
            if model.patches is not None and self._opens is not None:
                self.images = self._opens(model, self.source)
            self.loaded = model
        return self.loaded

    def read_image(self, spec: RunSpec) -> ServedImage | None:
        """Return the image that a run reads; None where it reads a text or ids.

        Raises:
            TextError: The model reads the other.
            WrongArgument: It is served without an image of that name.
        """
        if self.model.patches is None:
            if spec.image is not None:
                raise TextError(f'"{self.id}" reads texts, and no images: give "text" or "ids" in place of "image".')
            return None
        if not self.images:
            raise TextError(
                f'"{self.id}" reads images, and none is served with it.\n    glassformer serve takes some behind '
                "--image; gf.explain(model, image) makes a page of one."
            )
        known = ", ".join(self.images)
        if spec.image is None:
            raise TextError(f'"{self.id}" reads images: give "image", one that it is served with. Images: {known}.')
        if spec.image not in self.images:
            raise WrongArgument(
                f'no image "{spec.image[:80]}" is served with "{self.id}".{nearest(spec.image, self.images)} '
                f"Images: {known}."
            )
        return self.images[spec.image]

    def remembered(self, key: str, made: Callable[[], Any], most: int = 32) -> Any:
        """Return what was found of these weights before under a key, or find it now."""
        key = f"{self.model.digest()} {key}"
        if key not in self.known:
            self.known[key] = made()
            while len(self.known) > most:
                self.known.popitem(last=False)
        return self.known[key]

    @property
    def card(self) -> ModelCard:
        model = self.loaded
        if model is None:
            return ModelCard(self.id, self.source, False)
        config = model.config
        return ModelCard(
            id=self.id,
            source=self.source,
            loaded=True,
            architecture=config.kind,
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            d_model=config.d_model,
            vocab_size=config.vocab_size,
            max_len=config.max_len,
            trained_length=model.trained_length,
            logits_of=model.logits_of,
            layers=layer_cards(model),
            applies=_applicability(model),
            notes=tuple(str(note) for note in model.checkpoint_notes),
            example=_example(model),
            images=tuple(self.images),
        )


def _example(model: Model) -> str:
    """Return a text that a model may begin with; none if it cannot read it."""
    example = example_of(model.name)
    try:
        read_side(model, example, "source" if model.reads_pairs else "prompt")
    except GlassformerError:
        return ""
    return example


def layer_cards(model: Model) -> tuple[LayerCard, ...]:
    """Return what each block is made of."""
    heads_of, sites_of, found = (
        defaultdict[str, list[roles.Head]](list),
        defaultdict[str, list[Site]](list),
        list[LayerCard](),
    )
    for head in roles.heads(model):
        heads_of[head.path].append(head)
    for site in model.sites().values():
        sites_of[site.path].append(site)
    for name, stack in model.stacks.items():
        for index, layers in itertools.groupby(stack.sub_layers(), lambda layer: layer.layer):
            mixers, others = list[MixerCard](), list[str]()
            for layer in layers:
                if (part := layer.attention) is None:
                    others.append(layer.name)
                    continue
                heads, own = heads_of[part.path], sites_of[part.path]
                by_head = [site.quantity for site in own if {"head", "kv_head"} & {*site.axes}]
                keys = next((site.sizes["kv_head"] for site in own if "kv_head" in site.sizes), None)
                config = part.config
                sees_all = layer.crosses or model.reads_ahead(name or None)
                window = getattr(config.mixer, "window", None)
                mixers.append(
                    MixerCard(
                        path=part.path,
                        mechanism=config.mixer.kind or "",
                        settings=config.mixer.described,
                        heads=tuple(head.label for head in heads),
                        kv_heads=keys,
                        pattern=heads[0].reading if heads else None,
                        support="full" if sees_all else "causal",
                        window=window if isinstance(window, int) else None,
                        crosses=layer.crosses,
                        traits=traits_of(part.traits),
                        sites=tuple(by_head),
                    )
                )
            found.append(LayerCard(name, index, tuple(mixers), tuple(others)))
    return tuple(found)


def _applicability(model: Model) -> dict[str, Any]:
    """Return the rows of the table of what applies to what that are of a model's mechanisms."""
    found: dict[str, Any] = {}
    for layers in (model.sub_layers(stack) for stack in model.stacks):
        for mixer in (layer.attention.config.mixer for layer in layers if layer.attention is not None):
            rows = [row for row in applied().groups.get("mechanism", []) if row.name.partition("(")[0] == mixer.kind]
            row = next((row for row in rows if mixer.described in (row.name, *row.also)), rows[0] if rows else None)
            if row is not None:
                found[mixer.described] = {name: one.to_dict() for name, one in row.outcomes.items()}
    return found


class ServedRun:
    """One run: its stream, and what was read of it lately, as far as that takes most of the server's memory.

    Args:
        id: Its name in addresses.
        served: Its model.
        spec: What was asked for.
        cached: The pass.
        edits: Its changes as edits, as they were asked for.
        code: What makes it in Python.
        milliseconds: That making it took.
    """

    def __init__(
        self, *, id: str, served: ServedModel, spec: RunSpec, cached: CachedPass, edits: Sequence[Edit],
        code: RunCode, milliseconds: float,
    ) -> None:  # fmt: skip
        self.id, self.served, self.spec, self.code = id, served, spec, code
        self.edits, self.milliseconds = edits, milliseconds
        self.inputs, self.weights, self._cached = cached.inputs, served.model.digest(), cached
        self.sites: OrderedDict[str, Labelled] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def model(self) -> Model:
        return self.served.model

    @property
    def cached(self) -> CachedPass:
        """The pass; raises `NotFound` if the weights of the model are others by now."""
        if self.model.digest() != self.weights:
            raise NotFound(f'the weights of "{self.served.id}" were changed since this run: ask for it again.')
        return self._cached

    @property
    def nbytes(self) -> int:
        """Bytes of all that is kept of it."""
        with self._lock:
            return self._cached.nbytes + sum(value.values.nbytes for value in self.sites.values())

    @property
    def ends(self) -> list[str]:
        """What an analysis of logits has to find in it: the end of the stream, or logits that are more than that says.

        Those of a text are many times what is kept of it.
        """
        model = self.model
        if not model.predicts:
            return []
        if model.reads_pairs or model.makes_logits_for(site.name for site, _ in self.cached.edits):
            return ["logits"]
        return [model.output_stack.final.at_out]

    def read(self, names: Iterable[str]) -> Run:
        """Return a run that has some sites, read now or before, and logits if these are one of them.

        Args:
            names: Sites, globs, short names or heads; of a head all of its layer is read.
        """
        table = self.model.sites()
        wanted = list(dict.fromkeys(one.site.name for name in names for one in table.locate(name)))
        with self._lock:
            have = {name: self.sites[name] for name in wanted if name in self.sites}
            for name in have:
                self.sites.move_to_end(name)
        missing = [name for name in wanted if name not in have]
        pairs = sum(self._pairs(table[name]) for name in missing)
        self.served.limits.require("memory", 4 * pairs, "bytes of scores and patterns that this takes")
        if "logits" in missing:
            size = 4 * self.inputs.output.counts[0] * self.model.config.n_outputs
            self.served.limits.require("memory", size, "bytes of logits that this takes")
        found = self.cached.read(missing)
        with self._lock:
            self.sites |= found.sites
            # what was read first goes first; an eighth is for the streams of this run and others
            while sum(value.values.nbytes for value in self.sites.values()) > 7 * self.served.limits.memory // 8:
                self.sites.popitem(last=False)
        sites = {name: have[name] if name in have else found.sites[name] for name in wanted}
        return replace(found, sites=sites, logits=sites["logits"].values if "logits" in sites else None)

    def likeliest(self, position: int) -> int:
        """Return the id of the likeliest answer at a position; negative ones count from the end."""
        return int(self.cached.logits([position])[0, 0].argmax())

    def require_length(self, other: "ServedRun") -> None:
        """Raise `ShapeMismatch` unless another run reads as many tokens, on either side."""
        own, theirs = ([side.counts[0] for side in run.inputs.sides.values()] for run in (self, other))
        if own != theirs:
            told = " and ".join("+".join(map(str, counts)) for counts in (own, theirs))
            raise ShapeMismatch(
                f"the two runs read {told} tokens, and are taken position by position: give texts of as many tokens, "
                "or look at each."
            )

    def require_difference(self, other: "ServedRun") -> None:
        """Raise `ShapeMismatch` unless numbers of this run and of another may be subtracted, position by position."""
        self.require_length(other)
        if other.served is self.served:
            return
        for own, theirs in zip(self.inputs.sides.values(), other.inputs.sides.values()):
            for i, (a, b) in enumerate(zip(own.tokens[0], theirs.tokens[0])):
                if a != b:
                    raise ShapeMismatch(
                        f"the difference of two models: at position {i} one reads {a!r}, the other {b!r}. Give both "
                        "the same tokens, or look at each."
                    )

    def require_answers(self, other: "ServedRun", ids: Sequence[int]) -> None:
        """Raise `ShapeMismatch` unless some answers, by their ids, are the same of this run's model and another's."""
        if other.served is self.served or not ids:
            return
        own, theirs = (readable_outputs(run.model, torch.tensor([ids]))[0] for run in (self, other))
        for id, a, b in zip(ids, own, theirs):
            if a != b:
                raise ShapeMismatch(
                    f"two models are asked about one answer, and {id} is {a!r} of one and {b!r} of the other: "
                    "look at each."
                )

    def _pairs(self, site: Site) -> int:
        """Return how many numbers a site has for pairs of positions; none for one that has no such axes."""
        if not {"query", "key"} <= {*site.axes}:
            return 0
        inputs = self.inputs
        lengths = [(inputs.source if site.reads_source(axis) else None) or inputs.output for axis in ("query", "key")]
        return site.sizes.get("head", 1) * math.prod(max(side.counts) for side in lengths)

    def forget_oldest(self) -> bool:
        """Let go of what was not read for longest; return whether there was anything."""
        with self._lock:
            if not self.sites:
                return False
            self.sites.popitem(last=False)
            return True

    @property
    def card(self) -> RunCard:
        inputs = self.inputs
        model, sides = self.model, {"source": inputs.source, "target": inputs.output}
        cards = {
            name: () if side is None else token_cards(model, side, name == "source") for name, side in sides.items()
        }
        notes = tuple(str(note) for note in inputs.notes)
        return RunCard(
            id=self.id,
            spec=self.spec,
            tokens=cards["target"],
            source_tokens=cards["source"],
            top=self.top,
            blocks_run=self.cached.blocks_run,
            blocks=sum(len(stack.blocks) for stack in model.stacks.values()),
            milliseconds=self.milliseconds,
            bytes=self.nbytes,
            notes=notes,
            spelled=tuple(dict.fromkeys(name for side in inputs.sides.values() for name in side.spelled)),
            python="\n".join(self.code.lines("run", ())),
        )

    @cached_property
    def top(self) -> tuple[Likeliest, ...]:
        """The likeliest answers at each position; none of a model without logits."""
        if not self.model.predicts:
            return ()
        k = min(_LIKELIEST, self.model.config.n_outputs)

        def likeliest(logits: Tensor) -> Tensor:
            best = logits.topk(k)
            log_probs = best.values.double() - logits.logsumexp(-1, keepdim=True)
            return torch.stack((log_probs, best.indices.double()), -1)

        found = self.cached.of_logits(likeliest)[0]
        ids = found[..., 1].long()
        names = readable_outputs(self.model, ids)
        return tuple(
            Likeliest(tuple(row), tuple(words), tuple(log_probs))
            for row, words, log_probs in zip(ids.tolist(), names, found[..., 0].tolist())
        )


class Store:
    """The models that are served, and the runs that are kept.

    Args:
        models: What loads each, by what it is loaded from.
        limits: Of the server.
        images: What opens the images that a model is served with, if it reads images.
    """

    def __init__(
        self,
        models: Mapping[str, Callable[[], Model]],
        limits: Limits | None = None,
        images: OpensImages | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.models: dict[str, ServedModel] = {}
        for source, load in models.items():
            id = _named(source, self.models)
            self.models[id] = ServedModel(id, source, load, self.limits, images)
        self.runs: OrderedDict[str, ServedRun] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, model: Model) -> ServedModel:
        """Serve a model that is in memory, which whoever asks calls `model`."""
        id = _named(model.name, self.models)
        served = self.models[id] = ServedModel(id, "", lambda: model, self.limits)
        served.loaded = model
        return served

    def model(self, id: str) -> ServedModel:
        """Return a model by its id; raises `NotFound` for one that is not served."""
        if id not in self.models:
            known = ", ".join(self.models)
            raise NotFound(
                f'no model "{id[:80]}" is served.{nearest(id, self.models)} Served: {known}. A server opens the '
                "models that it was started with, and no others."
            )
        return self.models[id]

    def run(self, id: str) -> ServedRun:
        """Return a run by its id; raises `NotFound` for one that is not kept."""
        with self._lock:
            if id not in self.runs:
                raise NotFound(
                    f'no run "{id[:80]}" is kept. Runs that nobody asked about for long are let go, and a server that '
                    "was started anew has none: ask for it again by its spec (POST runs)."
                )
            self.runs.move_to_end(id)
            return self.runs[id]

    def lenders(self, spec: RunSpec) -> dict[str, tuple[ServedRun, list[str]]]:
        """Return the runs that a run borrows from, by their ids, each with the sites that are borrowed."""
        found: dict[str, tuple[ServedRun, list[str]]] = {}
        for change in spec.changes:
            if isinstance(change.value, Borrowed):
                found.setdefault(change.value.run, (self.run(change.value.run), []))[1].append(change.site)
        return found

    def made(self, spec: RunSpec, lent: Mapping[str, Run]) -> ServedRun:
        """Return the run of a spec, made now or before; on the thread of its model's worker.

        Args:
            spec: What is asked for.
            lent: What it borrows, read on the threads of the models that it is borrowed from, by the ids of runs.
        """
        served, limits = self.model(spec.model), self.limits
        for words in (spec.text, spec.target):
            limits.require("text", len(words or ""), "characters of the text")
        for ids in (spec.ids, spec.target_ids):
            limits.require("tokens", len(ids or ()), "tokens")
        model, image = served.model, served.read_image(spec)
        id = _hash(spec, model, image)
        with self._lock:
            if id in self.runs:
                self.runs.move_to_end(id)
                return self.runs[id]
        started = time.perf_counter()
        same = self._same_text(spec, served)
        inputs = same.inputs if same is not None else self._read(model, spec, image)
        edits = _edits(model, spec.changes, lent)
        lenders = {id: run.code for id, (run, _) in self.lenders(spec).items()}
        code = RunCode(served.source, spec, inputs, lenders, image)
        cached = CachedPass(model, inputs, edit=edits) if same is None else same.cached.under(edits)
        took = 1000 * (time.perf_counter() - started)
        run = ServedRun(id=id, served=served, spec=spec, cached=cached, edits=edits, code=code, milliseconds=took)
        return self._keep(run)

    def fit(self) -> None:
        """Let go of what is oldest until all that is kept is within the limit; the newest run stays.

        What was read of runs goes before any run does: it comes back by a pass through one layer, and not through all.
        """
        with self._lock:
            left = list(self.runs.values())
            while sum(run.nbytes for run in left) > self.limits.memory:
                if any(run.forget_oldest() for run in left):
                    continue
                if len(left) == 1:
                    return
                del self.runs[left.pop(0).id]

    def _read(self, model: Model, spec: RunSpec, image: ServedImage | None) -> Inputs:
        """Return what a run reads, checked before anything runs."""
        target = spec.target if spec.target_ids is None else list(spec.target_ids)
        given = spec.text if spec.ids is None else list(spec.ids)
        if given == [] or target == []:
            raise TextError("the text is empty: give at least one token.")
        if target is not None and not model.reads_pairs:
            raise ShapeMismatch(f'"{spec.model}" has no decoder beside an encoder: leave the target out.')
        read = given if image is None else image.pixels
        inputs = prepare(model, read, target, specials=spec.specials, allow_unknown=spec.allow_unknown)
        for side in inputs.sides.values():
            self.limits.require("tokens", max(side.counts, default=0), "tokens of the text")
        blocks = sum(len(stack.blocks) + 1 for stack in model.stacks.values())
        longest = max(max(side.counts, default=0) for side in inputs.sides.values())
        # four bytes of a number: what is kept of any run
        self.limits.require("memory", 4 * longest * model.config.d_model * blocks, "bytes that the run would keep")
        return inputs

    def _same_text(self, spec: RunSpec, served: ServedModel) -> ServedRun | None:
        """Return the kept run of the same tokens whose changes are most like these."""
        bare, weights = replace(spec, changes=()), served.model.digest()
        with self._lock:
            of_model = [run for run in self.runs.values() if run.served is served and run.weights == weights]
        same = [run for run in of_model if replace(run.spec, changes=()) == bare]
        return max(same, key=lambda run: _alike(run.spec.changes, spec.changes), default=None)

    def _keep(self, run: ServedRun) -> ServedRun:
        with self._lock:
            run = self.runs.setdefault(run.id, run)
            self.runs.move_to_end(run.id)
        self.fit()
        return run


def _edits(model: Model, changes: Sequence[Change], lent: Mapping[str, Run]) -> list[Edit]:
    """Return changes as edits."""
    found = list[Edit]()
    for change in changes:
        at, value = At(**change.at.where), change.value
        if isinstance(value, Borrowed):
            for one in model.sites().locate(change.site, at):
                borrowed = lent[value.run][one.site.name]
                found.append(_edit(change, one.site.name, one.at, _part(borrowed, one.site, one.at, value)))
        else:
            number = value if isinstance(value, float) else torch.tensor(value)
            found.append(_edit(change, change.site, at, number))
    return found


def _alike(changes: Sequence[Change], others: Sequence[Change]) -> int:
    """Return how many changes two runs share."""
    return sum(change in others for change in changes) - sum(change not in changes for change in others)


def _part(lent: Labelled, site: Site, at: At, asked: Borrowed) -> Tensor:
    """Return the part of what a run has at a site, averaged if that was asked for."""
    if not asked.mean:
        return at.of(lent, site)
    dims = [lent.dim(axis) for axis in asked.mean]
    return at.take(lent.values.mean(dims, keepdim=True).expand(lent.shape), site)


def _edit(change: Change, site: str, at: At, value: float | Tensor) -> Edit:
    if change.edit == "project":
        if not isinstance(value, Tensor):
            raise ShapeMismatch('Project takes a direction: "value": [0.1, …], as long as the last axis.')
        return Project(site, value, change.keep, at=at)
    return _NAMED[change.edit](site, value, at=at)


def _hash(spec: RunSpec, model: Model, image: ServedImage | None) -> str:
    # the same file gives other numbers in another type
    of = {"weights": model.digest(), "type": str(next(model.parameters()).dtype), "version": __version__}
    if image is not None:
        # another server may have another image of that name
        of["image"] = image.digest
    whole = json_text({"spec": spec.to_dict()} | of, sort=True, tight=True)
    return hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _named(source: str, taken: Collection[str]) -> str:
    """Return a short name for what a model is loaded from, fit for an address."""
    last = source.rstrip("/").rpartition("/")[2]
    word = re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-.") or "model"
    names = (word if n == 1 else f"{word}-{n}" for n in itertools.count(1))
    return next(name for name in names if name not in taken)


def token_cards(model: Model, side: Side, of_source: bool) -> tuple[TokenCard, ...]:
    """Return the tokens of one row, each with its bytes and its place in the text, if that is known."""
    tokenizer = model.source_tokenizer if of_source else model.tokenizer
    ids: Sequence[int | None] = [None] * side.counts[0] if side.ids is None else side.rows[0]
    before = [0, *itertools.accumulate(len(c.encode("utf-8", "surrogatepass")) for c in side.text or "")]
    spans = [None if span is None else (before[span[0]], before[span[1]]) for span in side.spans]
    marks: Marks = side.marks
    raw = [b"" if tokenizer is None or id is None else tokenizer.bytes_of(id) for id in ids]
    return tuple(
        TokenCard(id, text, some.hex(), span, i in marks.unknown)
        for i, (id, text, some, span) in enumerate(zip(ids, side.tokens[0], raw, spans))
    )
