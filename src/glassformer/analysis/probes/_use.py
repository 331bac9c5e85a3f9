"""Decodable and used: what can be read at a site, what is left of it when it is erased, and what that costs the model.

What can be read linearly need not be read by what comes behind. A property is erased (`Eraser`, fitted to other
documents), probes are fitted anew to what is left, and the model predicts next tokens from it; beside it stands an
eraser of shuffled labels, which takes out as many directions.

Source: Belrose et al. 2023, "LEACE: Perfect linear concept erasure in closed form" (2306.03819), section 5; Elazar
et al. 2021, "Amnesic Probing" (2006.00995).
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis._run import run
from glassformer.analysis.activations import StoredSite, stored
from glassformer.analysis.losses import losses_of
from glassformer.analysis.prepare import next_tokens
from glassformer.analysis.probes._eraser import Eraser
from glassformer.analysis.probes._linear import Kind
from glassformer.analysis.probes._moments import LabelledMoments
from glassformer.analysis.probes._rows import LabelledRows, Labels, read_with, rows_of
from glassformer.analysis.question import question
from glassformer.analysis.uncertainty import interval
from glassformer.arguments import Count, Positive, Several
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Labelled, Result
from glassformer.models import ModelLike, require_model

TOGETHER = 16  # documents in one pass
TOLD, LEFT, MAJORITY = "told", "told after erasing", "majority"
COST, AT_RANDOM = "loss after erasing", "loss after erasing shuffled labels"


@dataclasses.dataclass(frozen=True, eq=False)
class ErasureEffects(Result):
    """What is decodable at each site, and what erasing it costs.

    Args:
        told: Share of a held-out document's labelled rows that is told, `site told_by`: by probes of the site, by
            probes of what erasing leaves, and by the most frequent class.
        told_bounds: 95 % interval over documents drawn again, an axis `bound` in front.
        cost: What the loss of next tokens rises by, in nats, mean over documents, `site erased`: after erasing the
            property, and as many directions of shuffled labels.
        cost_bounds: The same interval.
        loss: Without erasing, in nats, mean over documents.
    """

    HEADLINE = ("told", "cost")
    SIGNED = ("cost",)

    told: Labelled
    told_bounds: Labelled
    cost: Labelled
    cost_bounds: Labelled
    loss: float


@question("What can be read at a site, and is it used?", of="texts")
def erasure_effects(
    model: ModelLike,
    texts: Sequence[Any] | Tensor,
    labels: Labels,
    *,
    sites: str | Several[str] = "resid_post",
    kind: Kind = "ridge",
    penalty: Positive = 1e-3,
    folds: Count = 5,
    seed: int = 0,
    report: Callable[[int, int], None] | None = None,
) -> ErasureEffects:
    """Erase a property at each site, and return whether it is still told there and what the model loses.

    Erasers and probes are fitted to other documents than they are tried on, so that what is told after erasing may be
    a little more than chance, and by how much is seen.

    Args:
        model: One that predicts next tokens.
        texts: Texts, rows of ids or labelled text, each a document.
        labels: As for `probe`.
        sites: The same; places of the stream.
        kind: Of probes, as for `probe`.
        penalty: The same.
        folds: The same.
        seed: Source of folds and shuffled labels.
        report: Called with (done, total) sites.

    Raises:
        ShapeMismatch: Labels do not fit the rows.
        AnalysisUnavailable: There are fewer than two classes, two folds, or documents than folds; or the model predicts
            no next tokens.
        UnknownSite: A name that no site has.
        MissingExtra: Logistic regression needs scikit-learn.
    """
    if folds < 2:
        raise AnalysisUnavailable("erasure_effects: what is fitted is tried on other documents: folds is 2 or more.")
    require_model(model, "erasure_effects")
    texts, labels = read_with(model, texts, labels)
    documents = list(texts)
    told, costs = list[Tensor](), list[Tensor]()
    with stored(model, documents, sites) as (store, names):
        rows = LabelledRows.of(store.site(names[0]), labels, folds, seed)
        groups = [rows.documents[rows.folds == fold].unique().tolist() for fold in range(folds)]
        before = _losses(model, documents, groups, [()] * folds)
        for done, name in enumerate(names):
            if report is not None:
                report(done, len(names))
            site, shuffled = store.site(name), rows.shuffled(seed)
            parts, other = (
                LabelledMoments.by_fold(of.batches(rows_of(site)), folds, rows.n_classes) for of in (rows, shuffled)
            )
            erasers, at_random = _erasers(parts), _erasers(other)
            told.append(_told(site, rows, erasers, kind, penalty))
            costs.append(
                torch.stack([
                    _losses(model, documents, groups, [(one.edit(name),) for one in of]) - before
                    for of in (erasers, at_random)
                ])
            )  # fmt: skip
    if report is not None:
        report(len(names), len(names))
    told_coords = {"site": list(names), "told_by": [TOLD, LEFT, MAJORITY]}
    cost_coords = {"site": list(names), "erased": [COST, AT_RANDOM]}
    of_told, of_cost = torch.stack(told), torch.stack(costs)
    return ErasureEffects(
        told=Labelled(of_told.mean(-1), ("site", "told_by"), told_coords),
        told_bounds=interval(Labelled(of_told, ("site", "told_by", "batch"), told_coords), seed=seed),
        cost=Labelled(of_cost.nanmean(-1), ("site", "erased"), cost_coords),
        cost_bounds=interval(Labelled(of_cost, ("site", "erased", "batch"), cost_coords), seed=seed),
        loss=float(before.nanmean()),
    )


def _erasers(parts: Sequence[LabelledMoments]) -> list[Eraser]:
    """Return the eraser of each fold, fitted to the others."""
    whole = LabelledMoments.total(parts)
    return [Eraser.of(whole - part) for part in parts]


def _told(
    site: StoredSite, rows: LabelledRows, erasers: Sequence[Eraser], kind: Kind, penalty: float
) -> Float[Tensor, "told_by document"]:
    """Return what is told of each document: at the site, of what erasing leaves there, and by the majority."""
    read = rows_of(site)
    own = rows.told(read, rows.probes(read, kind, penalty))
    left = torch.zeros_like(own)
    for fold, eraser in enumerate(erasers):

        def erased(eraser: Eraser = eraser) -> Iterator[Tensor]:
            return (eraser(batch) for batch in read())

        found = rows.told(erased, rows.probes(erased, kind, penalty))
        here = torch.isin(rows.held_out, rows.documents[rows.folds == fold])
        left[here] = found[here]
    return torch.stack([own, left, rows.majority()])


def _losses(
    model: ModelLike, documents: Sequence[Any], groups: Sequence[Sequence[int]], edits: Sequence[Any]
) -> Float[Tensor, " document"]:
    """Return the mean loss of each labelled document, in order, each fold's under edits of its own."""
    found = dict[int, float]()
    for group, edit in zip(groups, edits, strict=True):
        for some in (group[at : at + TOGETHER] for at in range(0, len(group), TOGETHER)):
            found |= zip(some, _mean_losses(model, [documents[i] for i in some], edit))
    return torch.tensor([found[i] for i in sorted(found)], dtype=torch.float64)


def _mean_losses(model: ModelLike, texts: Sequence[Any], edit: Any) -> Iterator[float]:
    batch = next_tokens(model, texts, "erasure_effects")
    logits = run(model, texts, edit=edit).logits
    assert logits is not None, "a model that predicts next tokens has logits"
    losses = losses_of(logits[:, :-1].double(), batch)
    weight = torch.ones_like(losses) if batch.weight is None else batch.weight.to(losses)
    # a text of one token has no next one, and no loss
    yield from ((losses * weight).sum(-1) / weight.sum(-1)).tolist()
