"""Sparse probes: how few coordinates of a site suffice to tell a property, and which.

    score = sum of a few coordinates, weighted by least squares, both classes counting alike; above zero: it is there

Coordinates are chosen on one part of the documents and the score is tried on the others, by F1, the harmonic mean of
precision and recall. One coordinate that tells nearly all with high precision is a neuron for the property; a property
that takes many, none of which tells much, is spread over them. What is left when the best are dropped, one after the
other, tells a few copies from many.

Source: Gurnee et al. 2023, "Finding Neurons in a Haystack: Case Studies with Sparse Probing" (2305.01610).
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.analysis.activations import StoredSite, stored
from glassformer.analysis.probes._rows import LabelledRows, Labels, read_with, require_rows, rows_of
from glassformer.analysis.probes._subsets import LeastSquares, best_of_all, grown
from glassformer.analysis.question import question
from glassformer.arguments import Count, Several
from glassformer.errors import AnalysisUnavailable, MissingExtra
from glassformer.labelled import Labelled, Result
from glassformer.models import ModuleLike

Select = Literal["mean_difference", "single", "grown", "random", "mutual_information", "l1", "svm"]
COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 32)
EXHAUSTIVE, CANDIDATES = 3, 50  # all subsets up to this size are tried, of so many coordinates
DROPPED = 8


@dataclasses.dataclass(frozen=True, eq=False)
class SparseProbes(Result):
    """How well few coordinates tell a property, on documents that were not used to choose them.

    Args:
        f1: Harmonic mean of precision and recall, `select k`: by how coordinates are chosen and how many.
        bounds: 95 % interval over documents drawn again, an axis `bound` in front.
        precision: Share of the rows said to have the property that have it, `select k`.
        recall: Share of the rows that have it that are said to, `select k`.
        neurons: Which coordinates, `select k rank`; -1 behind the last. Of a site with heads they are counted through.
        fit: Share of the variance of the label that they explain, both classes counting alike, on the documents they
            were chosen on, `select k`.
        gap: How much more the best subset explains, `select k`: of all pairs and triples of the fifty coordinates that
            explain most by themselves; NaN for more.
        pruned: F1 of the best single coordinate when the best are dropped, one after the other, `dropped`.
        dense: F1 of all coordinates together.
        base: F1 of saying that all rows have it.
        rows: How many rows have a label.
    """

    HEADLINE = ("f1", "pruned")

    f1: Labelled
    bounds: Labelled
    precision: Labelled
    recall: Labelled
    neurons: Labelled
    fit: Labelled
    gap: Labelled
    pruned: Labelled
    dense: float
    base: float
    rows: int


@question("How few neurons tell a property?", of="texts")
def sparse_probe(
    model: ModuleLike,
    texts: Any,
    labels: Labels,
    site: str,
    *,
    counts: Several[int] = COUNTS,
    select: Several[Select] = ("grown", "single", "mean_difference", "random"),
    folds: Count = 4,
    seed: int = 0,
    report: Callable[[int, int], None] | None = None,
) -> SparseProbes:
    """Choose few coordinates of a site that tell a property, and try them on other documents.

    Args:
        model: As for `probe`, and so are texts and labels.
        texts: What the model reads, or a store of its activations.
        labels: As for `probe`, of two classes, `text.column("kind").one_vs_rest("number")`: 1 where a position has the
            property, 0 where it has not, below zero where that is not said.
        site: Name of one site: `blocks.2.mlp.act` for neurons.
        counts: How many coordinates to choose.
        select: `grown`, the set of each size that least squares grows, with swaps; and rankings: `single`, by what each
            explains by itself (the F statistic of an analysis of variance); `mean_difference`, in standard deviations;
            `random`; with scikit-learn `mutual_information`, `l1` (a logistic regression's coefficients, C = 0.1) and
            `svm` (a linear one's).
        folds: Documents are dealt out to so many; the first is held out.
        seed: Source of folds and of random coordinates.
        report: Called with (done, total) ways to choose.

    Raises:
        ShapeMismatch: Labels do not fit the rows.
        AnalysisUnavailable: There are not two classes, or fewer documents than folds; or one class is missing on either
            side of the split.
        UnknownSite: The model, or the store, has no such site.
        MissingExtra: A way to choose needs scikit-learn.
    """
    if folds < 2:
        raise AnalysisUnavailable("sparse_probe: what is chosen is tried on other documents: folds is 2 or more.")
    require_rows(model, "sparse_probe")
    texts, labels = read_with(model, texts, labels)
    with stored(model, texts, site) as (store, names):
        found = store.site(names[0])
        rows = LabelledRows.of(found, labels, folds, seed)
        if rows.n_classes > 2:
            raise AnalysisUnavailable(
                "sparse_probe tells one property from its absence, 1 from 0; these labels go up to "
                f"{rows.n_classes - 1}.\n    Ask of each class by itself, below zero where a row has no label; of a "
                'column by text.column(…).one_vs_rest("…").'
            )
        split = _Split.of(found, rows)
    counts = sorted({k for k in counts if k <= split.problem.cross.numel()})
    if not counts:
        raise AnalysisUnavailable(
            f"sparse_probe: the site has {split.problem.cross.numel()} coordinates; choose counts up to that."
        )
    chosen = list[list[Tensor]]()
    for done, how in enumerate(select):
        if report is not None:
            report(done, len(select))
        chosen.append(_chosen(split, how, counts, seed))
    if report is not None:
        report(len(select), len(select))
    return _result(split, list(select), counts, chosen, seed)


@dataclasses.dataclass(frozen=True, eq=False)
class _Split:
    """Rows to choose on, and rows to try on.

    Args:
        rows: To choose on.
        has: Whether each has the property.
        held_out: Rows to try on.
        truth: Whether each of these has it.
        documents: Of these, counted from 0.
        problem: Least squares on the former, both classes counting alike.
        mean: Of coordinates, likewise.
    """

    rows: Float[Tensor, "row width"]
    has: Bool[Tensor, " row"]
    held_out: Float[Tensor, "other width"]
    truth: Bool[Tensor, " other"]
    documents: Int[Tensor, " other"]
    problem: LeastSquares
    mean: Float[Tensor, " width"]

    @classmethod
    def of(cls, site: StoredSite, rows: LabelledRows) -> "_Split":
        there = rows.labels >= 0
        values = torch.cat([batch[labels >= 0] for batch, labels, _ in rows.batches(rows_of(site))]).double()
        has, out, documents = rows.labels[there] == 1, rows.folds[there] == 0, rows.documents[there]
        for side, some in (("chosen on", has[~out]), ("tried on", has[out])):
            if some.all() or not some.any():
                raise AnalysisUnavailable(
                    f"sparse_probe: of the documents {side}, {int(some.sum())} of {len(some)} rows have the property: "
                    "both kinds are needed.\n    Give more documents, or another seed."
                )
        train, target = values[~out], 2 * has[~out].double() - 1
        # both classes weigh one half
        weight = 0.5 / torch.where(target > 0, (target > 0).sum(), (target < 0).sum()).double()
        mean = weight @ train
        centred = train - mean
        problem = LeastSquares(centred.mT @ (weight[:, None] * centred), centred.mT @ (weight * target), 1.0)
        counted = documents[out].unique(return_inverse=True)[1]
        return cls(
            rows=train, has=has[~out], held_out=values[out], truth=has[out], documents=counted, problem=problem,
            mean=mean,
        )  # fmt: skip

    def said(self, subset: Int[Tensor, " k"]) -> Bool[Tensor, " other"]:
        """Return which of the held-out rows few coordinates say have the property."""
        return (self.held_out[:, subset] - self.mean[subset]) @ self.problem.weights(subset) > 0

    def counted(self, subset: Int[Tensor, " k"]) -> Float[Tensor, "three document"]:
        """Return true and false positives and misses in each held-out document."""
        said = self.said(subset)
        kinds = torch.stack((said & self.truth, said & ~self.truth, ~said & self.truth)).double()
        return kinds.new_zeros(3, int(self.documents.max()) + 1).index_add_(1, self.documents, kinds)


def _chosen(split: _Split, how: Select, counts: Sequence[int], seed: int) -> list[Tensor]:
    """Return the coordinates of each count."""
    if how == "grown":
        sets = dict(enumerate(grown(split.problem, max(counts)), 1))
        return [sets[k] for k in counts]
    order = _scores(split, how, seed).argsort(descending=True, stable=True)
    return [order[:k] for k in counts]


def _scores(split: _Split, how: Select, seed: int) -> Float[Tensor, " width"]:
    """Return what coordinates are ranked by."""
    if how == "random":
        return torch.rand(len(split.mean), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    deviation = split.rows.std(0, correction=0)
    deviation = deviation.masked_fill(deviation == 0, 1.0)
    if how == "single":
        return split.problem.single
    if how == "mean_difference":
        return (split.rows[split.has].mean(0) - split.rows[~split.has].mean(0)).abs() / deviation
    try:
        from sklearn import feature_selection, linear_model, svm  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingExtra(
            f"sparse_probe: select=\"{how}\" needs scikit-learn: pip install 'glassformer[learn]'. Without it there "
            "are grown, single, mean_difference and random."
        ) from error
    x, y = ((split.rows - split.rows.mean(0)) / deviation).numpy(), split.has.numpy()
    if how == "mutual_information":
        return torch.from_numpy(feature_selection.mutual_info_classif(x, y, random_state=seed))
    model: Any = (
        linear_model.LogisticRegression(
            l1_ratio=1.0, C=0.1, solver="liblinear", class_weight="balanced", random_state=seed
        )
        if how == "l1"
        else svm.LinearSVC(class_weight="balanced", random_state=seed)
    )
    return torch.from_numpy(model.fit(x, y).coef_[0]).abs()


def _result(split: _Split, select: list[str], counts: list[int], chosen: list[list[Tensor]], seed: int) -> SparseProbes:
    coords = {"select": select, "k": counts}
    kinds = torch.stack([torch.stack([split.counted(one) for one in sets]) for sets in chosen])
    hits, wrong, missed = kinds.sum(-1).unbind(-1)
    neurons = torch.full((len(select), len(counts), max(counts)), -1)
    for i, sets in enumerate(chosen):
        for j, one in enumerate(sets):
            neurons[i, j, : len(one)] = one
    fit = torch.stack([torch.stack([split.problem.fit(one[None])[0] for one in sets]) for sets in chosen])
    everything = torch.arange(len(split.mean))
    return SparseProbes(
        f1=Labelled(_f1(kinds.sum(-1)), ("select", "k"), coords),
        bounds=Labelled(_bounds(kinds, seed), ("bound", "select", "k"), {"bound": ["low", "high"], **coords}),
        precision=Labelled(hits / (hits + wrong), ("select", "k"), coords),
        recall=Labelled(hits / (hits + missed), ("select", "k"), coords),
        neurons=Labelled(neurons, ("select", "k", "rank"), {**coords, "rank": range(1, max(counts) + 1)}),
        fit=Labelled(fit, ("select", "k"), coords),
        gap=Labelled(_best(split, counts) - fit, ("select", "k"), coords),
        pruned=_pruned(split),
        dense=float(_f1(split.counted(everything).sum(-1))),
        base=float(_f1(torch.tensor([split.truth.sum(), (~split.truth).sum(), 0.0]))),
        rows=len(split.has) + len(split.truth),
    )


def _f1(kinds: Float[Tensor, "*n three"]) -> Float[Tensor, "*n"]:
    hits, wrong, missed = kinds.unbind(-1)
    return 2 * hits / (2 * hits + wrong + missed).clamp_min(1)


def _bounds(kinds: Float[Tensor, "select k three document"], seed: int) -> Float[Tensor, "bound select k"]:
    """Return the interval of F1 over documents drawn again, with replacement."""
    n, draws = kinds.shape[-1], 1000
    drawn = torch.randint(n, (draws, n), generator=torch.Generator().manual_seed(seed))
    times = torch.zeros(draws, n, dtype=torch.float64).scatter_add_(1, drawn, torch.ones(draws, n, dtype=torch.float64))
    again = _f1((kinds @ times.mT).movedim(-2, -1))
    return again.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64), dim=-1)


def _best(split: _Split, counts: Sequence[int]) -> Float[Tensor, " k"]:
    """Return what the best subset of each size explains; NaN where not all were tried."""
    candidates = split.problem.single.argsort(descending=True)[:CANDIDATES]
    return torch.stack([
        split.problem.fit(best_of_all(split.problem, k, candidates)[None])[0]
        if k <= EXHAUSTIVE
        else split.problem.cross.new_tensor(torch.nan)
        for k in counts
    ])  # fmt: skip


def _pruned(split: _Split) -> Labelled:
    """Return F1 of the best single coordinate that is left, as the best are dropped."""
    order = split.problem.single.argsort(descending=True)[:DROPPED]
    values = torch.stack([_f1(split.counted(one[None]).sum(-1)) for one in order])
    return Labelled(values, ("dropped",), {"dropped": range(len(order))})
