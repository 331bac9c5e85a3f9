"""Linear probes by site: what can be read off each place of a model, beside what says as much without it.

    told(site) = mean over documents of the share of its rows whose class is told by a probe that did not see it

Beside it stand the class most frequent elsewhere; a random vector for each token, which says what the token alone
tells; probes of shuffled labels; a control task, in which each token has a class drawn at random (selectivity is what
a probe tells less what it tells there); and the same site of an untrained model.

Where along the sites a property comes from is said by the expected layer and the centre of gravity.

Source: Alain and Bengio 2016, "Understanding intermediate layers using linear classifier probes"; Hewitt and Liang
2019, "Designing and Interpreting Probes with Control Tasks"; Tenney, Das and Pavlick 2019, "BERT Rediscovers the
Classical NLP Pipeline".
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from glassformer.analysis.activations import ActivationStore, StoredSite, stored
from glassformer.analysis.probes._layers import MEASURES, layers_of
from glassformer.analysis.probes._linear import Kind, LinearProbe
from glassformer.analysis.probes._rows import LabelledRows, Labels, Read, random_rows, read_with, require_rows, rows_of
from glassformer.analysis.question import question
from glassformer.analysis.uncertainty import interval, interval_of
from glassformer.arguments import Count, Positive, Several
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Labelled, Result
from glassformer.models import ModuleLike

SITE, UNTRAINED, TOKENS = "the site", "untrained model", "random vector by token"
MAJORITY, SHUFFLED, CONTROL = "majority", "shuffled labels", "control task"


@dataclasses.dataclass(frozen=True, eq=False)
class Probes(Result):
    """What linear probes tell at each site, of documents that they did not see.

    Args:
        accuracy: Share of a document's labelled rows that is told, mean over documents, `site told_by`: probes of the
            site and of the same site of an untrained model, random vectors by token, the most frequent class, and
            probes of shuffled labels and of the control task, of these labels.
        bounds: 95 % interval over documents drawn again, an axis `bound` in front.
        selectivity: What is told less what the control task is, `site`.
        layers: Where along the sites, counted from 0, the property comes from, `measure told_by`, of the model and of
            the untrained one: the expected layer, mean place of what is told more than at any site before; and the
            centre of gravity, mean place of what is told more than by the majority. NaN where that is nothing. They
            are of a model's depth if sites are, `sites=("blocks.0.resid_pre", "resid_post")`.
        layer_bounds: The same interval.
        direction: What probes read for each class, fitted to all folds but the first, `site class width`; the site's
            own axes are laid out flat.
        classes: Names of classes.
        documents: How many documents have a label.
        rows: How many rows have one.
    """

    HEADLINE = ("accuracy", "selectivity")
    SIGNED = ("selectivity",)

    accuracy: Labelled
    bounds: Labelled
    selectivity: Labelled
    layers: Labelled
    layer_bounds: Labelled
    direction: tuple[Labelled, ...]
    classes: tuple[str, ...]
    documents: int
    rows: int


@question("What can be read linearly at each site?", of="texts")
def probe(
    model: ModuleLike,
    texts: Any,
    labels: Labels,
    *,
    classes: Sequence[str] | None = None,
    sites: str | Several[str] = "resid_post",
    kind: Kind = "ridge",
    penalty: Positive = 1e-3,
    folds: Count = 5,
    untrained: ModuleLike | ActivationStore | None = None,
    seed: int = 0,
    report: Callable[[int, int], None] | None = None,
) -> Probes:
    """Fit linear probes of a property at sites, each document told by one that did not see it.

    Args:
        model: One of ours, or a module whose sites a spec names.
        texts: What it reads, as `record_activations` takes it, each text a document; or labelled text, of a model that
            reads pairs that of sources and that of targets; or a store of its activations.
        labels: Name of a property of labelled text, or a column of it, `text.column("kind")`, which goes with a store
            too; or for each document a class for each of its positions, from 0, below zero where there is none; or one
            tensor with a class for each row that is recorded.
        classes: Names of classes; a column has its own.
        sites: Names, globs or short names; the stream behind each layer by default.
        kind: `ridge`, least squares; `means`, the nearest class mean; `logistic`, with scikit-learn.
        penalty: Of ridge, as a share of the mean variance of a coordinate; of logistic regression, on half the squared
            length of standardised weights, per row.
        folds: Documents are dealt out to so many; at least 2.
        untrained: A model of the same shape as it begins, `model.config.build(1)`; or a store of its activations.
        seed: Source of folds, shuffled labels, control task and random vectors.
        report: Called with (done, total) sites.

    Raises:
        ShapeMismatch: Labels do not fit the rows, or are of other tokens than the model reads.
        TextError: A labelled document has more tokens than the context; `text.cut` leaves the first.
        DataError: The labelled text has no such property.
        AnalysisUnavailable: There are fewer than two classes, two folds, or documents than folds; or the untrained
            model's store is of other rows.
        UnknownSite: A name that no site has.
        MissingExtra: Logistic regression needs scikit-learn.
    """
    if folds < 2:
        raise AnalysisUnavailable(
            "probe: what a probe tells is asked of documents it has not seen: folds is 2 or more."
        )
    require_rows(model, "probe")
    texts, labels = read_with(model, texts, labels)
    with contextlib.ExitStack() as stack:
        store, names = stack.enter_context(stored(model, texts, sites))
        other = None if untrained is None else stack.enter_context(stored(untrained, texts, names))[0]
        rows = LabelledRows.of(store.site(names[0]), labels, folds, seed, classes)
        told, directions = list[dict[str, Tensor]](), list[Labelled]()
        for done, name in enumerate(names):
            if report is not None:
                report(done, len(names))
            site = store.site(name)
            here = LabelledRows.of(site, labels, folds, seed, classes)
            probes = here.probes(rows_of(site), kind, penalty)
            found = {SITE: here.told(rows_of(site), probes)}
            found |= dict(_beside(site, here, kind, penalty, None if other is None else _alike(other, site), seed))
            told.append(found)
            directions.append(_direction(probes[0], here.classes))
    if report is not None:
        report(len(names), len(names))
    return _result(names, told, directions, rows, seed)


def _beside(
    site: StoredSite, rows: LabelledRows, kind: Kind, penalty: float, untrained: StoredSite | None, seed: int
) -> Iterator[tuple[str, Tensor]]:
    """Yield what says as much without the site, and what share of each document's rows it tells."""

    def told(of: LabelledRows, read: Read) -> Tensor:
        return of.told(read, of.probes(read, kind, penalty))

    if untrained is not None:
        yield UNTRAINED, told(rows, rows_of(untrained))
    # the patches of an image are no tokens
    tokens = site.tokens.clamp_min(0)
    yield TOKENS, told(rows, random_rows(tokens, site.width, seed))
    yield MAJORITY, rows.majority()
    yield SHUFFLED, told(rows.shuffled(seed), rows_of(site))
    yield CONTROL, told(rows.of_tokens(tokens, seed), rows_of(site))


def _direction(probe: LinearProbe, classes: Sequence[str]) -> Labelled:
    return Labelled(probe.weight.float(), ("class", "width"), {"class": list(classes)})


def _result(
    names: Sequence[str],
    told: Sequence[dict[str, Tensor]],
    directions: Sequence[Labelled],
    rows: LabelledRows,
    seed: int,
) -> Probes:
    controls = list(told[0])
    values = torch.stack([torch.stack(list(one.values())) for one in told])
    coords = {"site": list(names), "told_by": controls}
    accuracy = Labelled(values.mean(-1), ("site", "told_by"), coords)
    per_document = Labelled(values, ("site", "told_by", "batch"), coords)
    own, control = (accuracy.values[:, controls.index(name)] for name in (SITE, CONTROL))
    layers, layer_bounds = _layers(per_document, accuracy, seed)
    return Probes(
        accuracy=accuracy,
        bounds=interval(per_document, seed=seed),
        selectivity=Labelled(own - control, ("site",), {"site": list(names)}),
        layers=layers,
        layer_bounds=layer_bounds,
        direction=tuple(directions),
        classes=tuple(rows.classes),
        documents=len(rows.held_out),
        rows=int((rows.labels >= 0).sum()),
    )


def _layers(per_document: Labelled, accuracy: Labelled, seed: int) -> tuple[Labelled, Labelled]:
    """Return where along the sites a property comes from, and the interval of that."""
    controls = accuracy.coords["told_by"]
    models, majority = [name for name in (SITE, UNTRAINED) if name in controls], controls.index(MAJORITY)

    def of_means(means: Tensor) -> Tensor:
        each = [layers_of(means[:, controls.index(name)], means[:, majority]) for name in models]
        return torch.stack(each, 1)

    axes, coords = ("measure", "told_by"), {"measure": list(MEASURES), "told_by": models}
    bounds = interval_of(per_document, of_means, seed=seed)
    return (
        Labelled(of_means(accuracy.values), axes, coords),
        Labelled(bounds, ("bound", *axes), {"bound": ["low", "high"], **coords}),
    )


def _alike(store: ActivationStore, site: StoredSite) -> StoredSite:
    """Return the same site of another store; raises `AnalysisUnavailable` if it has other rows."""
    found = store.site(site.name)
    if len(found) != len(site) or not torch.equal(found.tokens, site.tokens):
        raise AnalysisUnavailable(
            f'"{site.name}": the untrained model\'s store is of other texts: {len(found):,} rows, and {len(site):,} of '
            "the model's.\n    Record both of the same texts, with the same drop."
        )
    return found
