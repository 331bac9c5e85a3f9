"""What every head looks at: the patterns that a run read, as the document of a page. Nothing is needed but patterns.

glassformer attention MODEL TEXT --html page.html, or gf.run(model, text, read=pattern_sites(model)).html("page.html")
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from glassformer.analysis._run import Run
from glassformer.analysis.heads import roles
from glassformer.analysis.reports.explanation import Pattern
from glassformer.analysis.reports.model_facts import model_facts
from glassformer.data import UNMARKED, Marks
from glassformer.errors import ShapeMismatch, SiteNotRead
from glassformer.labelled import Labelled
from glassformer.models import Model
from glassformer.provenance import Note, Provenance
from glassformer.trace import Site
from glassformer.words import sentence

FORMAT, VERSION = "glassformer.attention", 1
# of several values each has a pattern
_AXES = (("batch", "head", "query", "key"), ("batch", "value_stream", "head", "query", "key"))


def pattern_sites(model: Any) -> list[str]:
    """Return the sites of a model's patterns, one for each layer whose mechanism has one; none if no layer has."""
    if isinstance(model, Model):
        return list(dict.fromkeys(f"{h.path}.pattern" for h in roles.patterned(model)))
    return [name for name in model.sites() if Site.named(name).quantity == "pattern"]


@dataclasses.dataclass(frozen=True, eq=False)
class Attention:
    """What every head of a run looks at.

    Args:
        model: Facts of the model; of one that is not ours, its name.
        text: The text that was given, if it was one.
        texts: What stands along queries and keys, by the names that patterns have for it: `tokens`, `source_tokens`,
            and numbers where keys are no tokens.
        marks: Of `tokens` and `source_tokens`, which are unknown or parts of a character.
        patterns: One for each head.
        notes: What must be known, also of layers that have no picture.
        provenance: What the run is of.
    """

    model: Mapping[str, Any]
    text: str | None
    texts: Mapping[str, Sequence[str]]
    marks: Mapping[str, Marks]
    patterns: tuple[Pattern, ...]
    notes: tuple[Note, ...]
    provenance: Provenance | None

    def to_dict(self) -> dict[str, Any]:
        """JSON data, which a page is drawn from: tokens as explanations write them, and each pattern."""
        texts = {
            name: [{"text": text} | self.marks.get(name, UNMARKED).of(i) for i, text in enumerate(words)]
            for name, words in self.texts.items()
        }
        of = {} if self.provenance is None else {"provenance": self.provenance.to_dict()}
        return {
            "format": FORMAT, "version": VERSION, "notes": [note.to_dict() for note in self.notes],
            "model": dict(self.model), "text": self.text, **texts,
            "patterns": [pattern.to_dict() for pattern in self.patterns],
        } | of  # fmt: skip


def attention_of(run: Run, row: int = 0) -> Attention:
    """Return what the heads of a run look at in one prompt.

    Args:
        run: One that read patterns, of any model that has them by name: also of one without a head for its vocabulary.
        row: Which prompt of several, from 0; negative ones count from the last.

    Raises:
        SiteNotRead: It read no pattern, though there are some.
        ShapeMismatch: It has no such row, or no mechanism of the model has a pattern.
        AnalysisUnavailable: The pass overflowed: there are no numbers to draw.
    """
    run = run.prompt(row) if run.token_rows else run
    run.require_computed()
    read = [(name, value) for name, value in run.items() if Site.named(name).quantity == "pattern"]
    read = [(name, value) for name, value in read if value.axes in _AXES]
    if not read:
        raise _nothing(run)
    texts = {"tokens": [*run.tokens]} | ({"source_tokens": [*run.source_tokens]} if run.source_rows else {})
    patterns = [one for name, value in read for one in _patterns(name, value, texts, _looks_ahead(run, name))]
    ours = isinstance(run.model, Model)
    return Attention(
        model=dataclasses.asdict(model_facts(run.model)) if ours else {"name": _name(run)},
        text=run.text,
        texts=texts,
        marks={"tokens": run.marks, "source_tokens": run.source_marks},
        patterns=tuple(patterns),
        notes=(*run.notes, *_without(run, {name for name, _ in read})),
        provenance=run.provenance,
    )


def _patterns(name: str, value: Labelled, texts: dict[str, list[str]], looks_ahead: bool | None) -> list[Pattern]:
    """Return the pattern of each head of a layer, or of each value; texts of axes that are no tokens are added."""
    site = Site.named(name, value.axes)
    n = value.size("value_stream") if "value_stream" in value.axes else 1
    labels = [str(label) if isinstance(label, str) else f"{site.path} {label}" for label in value.labels("head")]
    labels = labels if n == 1 else [f"{label}/{i}" for label in labels for i in range(n)]
    weights = roles.rows_of(value.values)[0].detach().float()
    named = {axis: _list_of(site, axis, value.size(axis), texts) for axis in ("query", "key")}
    return [
        Pattern(
            label=label, stack=site.stack, part=site.part, layer=site.layer or 0, head=row // n,
            weights=weights[row], looks_ahead=looks_ahead, **named,
        )
        for row, label in enumerate(labels)
    ]  # fmt: skip


def _looks_ahead(run: Run, name: str) -> bool | None:
    """Return whether queries of a site see keys behind them; None of a model that is not ours."""
    site = Site.named(name)
    if not isinstance(run.model, Model):
        return None
    return site.reads_source("key") or run.model.reads_ahead(site.stack or None)


def _list_of(site: Site, axis: str, size: int, texts: dict[str, list[str]]) -> Any:
    """Return the name of the texts along an axis; keys that are no tokens, such as learned ones, go by numbers."""
    name = "source_tokens" if site.reads_source(axis) and "source_tokens" in texts else "tokens"
    if len(texts[name]) != size:
        name = f"{axis} 0 to {size - 1}"
        texts[name] = [str(i) for i in range(size)]
    return name


def _without(run: Run, read: set[str]) -> list[Note]:
    """Return what to say of layers that have no picture."""
    if not isinstance(run.model, Model):
        return []
    layers: dict[tuple[str, bool], list[str]] = {}
    shown = {head.path for head in roles.patterned(run.model)}
    for head in roles.heads(run.model):
        if f"{head.path}.pattern" not in read:
            of_kind = layers.setdefault((head.mechanism, head.path not in shown), [])
            of_kind += [] if head.path in of_kind else [head.path]
    return [
        Note(
            sentence('Heads of "{kind}" have no pattern.', kind=kind)
            if none
            else sentence('Patterns of "{kind}" were not read.', kind=kind),
            sentence("There is no picture of {layers}.", layers=", ".join(paths)),
        )
        for (kind, none), paths in layers.items()
    ]


def _nothing(run: Run) -> SiteNotRead | ShapeMismatch:
    known: Mapping[str, Any] = {} if run.model is None else run.model.sites()
    there = [name for name in known if Site.named(name).quantity == "pattern"]
    if isinstance(run.model, Model):
        there = pattern_sites(run.model)
    if not there and known:
        return ShapeMismatch("no layer of this model attends by a pattern, so there is nothing to draw.")
    return SiteNotRead('this run read no whole pattern. Run again with read=["*.pattern"], or glassformer attention.')


def _name(run: Run) -> str:
    return str(getattr(run.model, "name", "") or type(run.model).__name__)
