"""Labelled rows of a store, split by document, and how many of each document a probe tells when it has not seen it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.analysis.activations import ActivationStore, StoredSite
from glassformer.analysis.labelled_rows import as_read, is_labelled, labels_of_rows
from glassformer.analysis.probes._linear import Kind, LinearProbe, from_moments, logistic
from glassformer.analysis.probes._moments import LabelledMoments
from glassformer.data.labels import Column, LabelledText
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.models import ModuleLike, require_module

BATCH = 2**14  # rows read at once

Read = Callable[[], Iterable[Tensor]]
# by row; by document and position; a property of labelled text, by its name or as the column of tokens that have it, of
# a source and its target two
Labels = Tensor | Sequence[Tensor] | str | Column | tuple[Column, Column]


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """Which class each row of a store has, and in which fold its document is.

    Args:
        labels: Class of each row, below zero where it has none.
        documents: Document of each row.
        folds: Fold of each row.
        classes: Names of classes.
        n_folds: How many folds.
    """

    labels: Int[Tensor, " row"]
    documents: Int[Tensor, " row"]
    folds: Int[Tensor, " row"]
    classes: tuple[str, ...]
    n_folds: int

    @classmethod
    def of(
        cls,
        site: StoredSite,
        labels: Labels,
        n_folds: int,
        seed: int,
        classes: Sequence[str] | None = None,
    ) -> "LabelledRows":
        """Return the labelled rows of a site.

        Args:
            site: Whose rows they are.
            labels: Class of each row of the store; or for each document the class of each position; or a column, which
                names the classes too, of a source and its target two.
            n_folds: Documents that have a label are dealt out to so many.
            seed: Source of the order in which they are dealt.
            classes: Names of classes; their numbers by default.

        Raises:
            ShapeMismatch: There are other than as many labels as rows, or documents, or a class has no name.
            AnalysisUnavailable: There are fewer than two classes, or fewer documents with a label than folds.
        """
        documents = site.documents
        if (columns := columns_of(labels)) is not None:
            # in the order of their numbers: one against the rest is 1 against 0
            classes = tuple(dict.fromkeys(name for one in columns for name in one.classes))
            of_rows = _of_column(site, columns[0 if site.column.source else -1], documents, classes)
        else:
            of_rows = _of_rows(site, labels, documents)
        there = of_rows[of_rows >= 0].unique()
        if len(there) < 2:
            raise AnalysisUnavailable(
                f"probes tell classes apart, and these labels have {len(there)}: "
                f"{len(of_rows[of_rows >= 0]):,} of {len(of_rows):,} rows have a label.\n"
                "    Give labels of two classes and more, below zero where a row has none."
            )
        labelled = documents[of_rows >= 0].unique()
        if len(labelled) < n_folds:
            raise AnalysisUnavailable(
                f"{n_folds} folds of documents, and {len(labelled)} documents have a label: choose "
                f"folds={len(labelled)} at most, or more texts."
            )
        dealt = torch.full((int(documents.max()) + 1,), -1)
        order = labelled[torch.randperm(len(labelled), generator=torch.Generator().manual_seed(seed))]
        dealt[order] = torch.arange(len(order)) % n_folds
        names = tuple(map(str, range(int(there.max()) + 1) if classes is None else classes))
        if int(there.max()) >= len(names):
            raise ShapeMismatch(f"labels go up to {int(there.max())}, and {len(names)} classes have names.")
        return cls(of_rows, documents, dealt[documents], names, n_folds)

    @property
    def n_classes(self) -> int:
        """How many classes there are."""
        return len(self.classes)

    def shuffled(self, seed: int) -> "LabelledRows":
        """Return the same rows with the labels of those that have one shuffled."""
        labels, has = self.labels.clone(), self.labels >= 0
        found = labels[has]
        labels[has] = found[torch.randperm(len(found), generator=torch.Generator().manual_seed(seed))]
        return LabelledRows(labels, self.documents, self.folds, self.classes, self.n_folds)

    def of_tokens(self, tokens: Int[Tensor, " row"], seed: int) -> "LabelledRows":
        """Return the same rows with one class for each token, drawn as classes are frequent: a control task."""
        random, has = torch.Generator().manual_seed(seed), self.labels >= 0
        shares = torch.bincount(self.labels[has], minlength=self.n_classes).double()
        drawn = torch.multinomial(shares, int(tokens.max()) + 1, replacement=True, generator=random)
        labels = torch.where(has, drawn[tokens], self.labels)
        return LabelledRows(labels, self.documents, self.folds, self.classes, self.n_folds)

    @property
    def held_out(self) -> Int[Tensor, " document"]:
        """Documents that have a label, in order."""
        return self.documents[self.labels >= 0].unique()

    def probes(self, read: Read, kind: Kind, penalty: float) -> list[LinearProbe]:
        """Return the probe of each fold, fitted to the rows of all others.

        Args:
            read: Gives the rows, in order, batch by batch.
            kind: Of the probes.
            penalty: As for `probe`.
        """
        if kind == "logistic":
            rows = torch.cat([batch[labels >= 0] for batch, labels, _ in self.batches(read)])
            has = self.labels >= 0
            labels, folds = self.labels[has], self.folds[has]
            return [
                logistic(rows[folds != fold], labels[folds != fold], self.n_classes, penalty)
                for fold in range(self.n_folds)
            ]
        moments = LabelledMoments.by_fold(self.batches(read), self.n_folds, self.n_classes)
        return [
            from_moments(LabelledMoments.total(moments) - moments[fold], kind, penalty) for fold in range(self.n_folds)
        ]

    def whole(self, read: Read) -> LabelledMoments:
        """Return sums over all rows."""
        return LabelledMoments.total(LabelledMoments.by_fold(self.batches(read), self.n_folds, self.n_classes))

    def told(self, read: Read, probes: Sequence[LinearProbe]) -> Float[Tensor, " document"]:
        """Return which share of each labelled document's rows the probe that has not seen it tells."""
        right = []
        for rows, labels, folds in self.batches(read):
            found = torch.full_like(labels, -1)
            for fold, one in enumerate(probes):
                here = (folds == fold) & (labels >= 0)
                found[here] = one.classes(rows[here])
            right.append(found == labels)
        return self.by_document(torch.cat(right))

    def majority(self) -> Float[Tensor, " document"]:
        """Return the same of what always says the class most frequent in the other folds."""
        counts = torch.stack([
            torch.bincount(self.labels[(self.labels >= 0) & (self.folds != fold)], minlength=self.n_classes)
            for fold in range(self.n_folds)
        ])  # fmt: skip
        return self.by_document(counts.argmax(-1)[self.folds] == self.labels)

    def by_document(self, right: Tensor) -> Float[Tensor, " document"]:
        """Return the share of labelled rows of each document for which something is true."""
        has = self.labels >= 0
        _, place = self.documents[has].unique(return_inverse=True)
        counts = torch.bincount(place).double()
        return torch.zeros_like(counts).index_add_(0, place, right[has].double()) / counts

    def batches(self, read: Read) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield rows with their labels and folds."""
        at = 0
        for rows in read():
            here = slice(at, at + len(rows))
            yield rows, self.labels[here], self.folds[here]
            at += len(rows)


def rows_of(site: StoredSite) -> Read:
    """Return what reads the rows of a site of a store in order."""
    return lambda: (batch.values for batch in site.batches(BATCH))


def random_rows(tokens: Int[Tensor, " row"], width: int, seed: int) -> Read:
    """Return what gives each token a vector of its own, drawn at random: what is told by tokens alone."""
    table = torch.randn(int(tokens.max()) + 1, width, generator=torch.Generator().manual_seed(seed))
    return lambda: (table[part] for part in tokens.split(BATCH))


def require_rows(model: Any, analysis: str) -> None:
    """Raise `AnalysisUnavailable` for what is neither a module nor a store of what one made."""
    if not isinstance(model, ActivationStore):
        require_module(model, analysis)


def means_of(
    read: Iterable[Float[Tensor, "batch width"]], numbers: Int[Tensor, " row"], n: int
) -> Float[Tensor, "number width"]:
    """Return the mean of the rows that have each number.

    Args:
        read: Rows, batch by batch.
        numbers: Of each row, below zero for none.
        n: How many numbers there are.
    """
    total, at = None, 0
    for batch in read:
        here = numbers[at : at + len(batch)]
        if total is None:
            total = batch.new_zeros(n, batch.shape[1])
        total.index_add_(0, here[here >= 0], batch[here >= 0])
        at += len(batch)
    assert total is not None, "a store has rows"
    return total / torch.bincount(numbers[numbers >= 0], minlength=n).clamp_min(1)[:, None]


def read_with(model: ModuleLike | ActivationStore, texts: Any, labels: Labels) -> tuple[Any, Labels]:
    """Return what a model reads, and its labels: of a labelled text its rows, and the column of a property.

    Args:
        model: What reads it, or a store of what it made of it.
        texts: As for `probe`.
        labels: As for `probe`.

    Raises:
        ShapeMismatch: A property is named of texts without labels; or as for `as_read`.
        DataError: The labelled text has no such property.
    """
    if isinstance(labels, str):
        if not is_labelled(texts):
            raise ShapeMismatch(
                f'labels="{labels}" names a property of labelled text, and these texts have no labels: give what '
                "glassformer.data.labels makes as texts, or labels.column(…) beside a store of it."
            )
        columns = tuple(one.column(labels) for one in ([texts] if isinstance(texts, LabelledText) else texts))
        labels = columns[0] if len(columns) == 1 else (columns[0], columns[1])
    return (texts if isinstance(model, ActivationStore) else as_read(model, texts)), labels


def columns_of(labels: Labels) -> tuple[Column, ...] | None:
    """Return the columns that labels are, of source and target, or of all that is read; None if they are tensors."""
    if isinstance(labels, Column):
        return (labels,)
    if isinstance(labels, tuple) and labels and all(isinstance(one, Column) for one in labels):
        return cast("tuple[Column, ...]", labels)
    return None


def _of_column(site: StoredSite, column: Column, documents: Tensor, classes: Sequence[str]) -> Int[Tensor, " row"]:
    if len(column.text) != site.store.documents:
        raise ShapeMismatch(
            f"the store is of {site.store.documents:,} documents, and the labelled text has {len(column.text):,}: let "
            "the model read the labelled text itself."
        )
    found = labels_of_rows(site.tokens, documents, site.positions, column)
    place = torch.tensor([*map(classes.index, column.classes), -1])
    return place[found]


def _of_rows(site: StoredSite, labels: Any, documents: Tensor) -> Int[Tensor, " row"]:
    if isinstance(labels, Tensor):
        if labels.shape != (len(site),):
            raise ShapeMismatch(
                f"a label for each of the store's {len(site):,} rows, or a list with one tensor for each document; "
                f"found a tensor of {'x'.join(map(str, labels.shape))}."
            )
        return labels.long().cpu()
    if len(labels) != site.store.documents:
        raise ShapeMismatch(
            f"the store is of {site.store.documents:,} documents, and there are labels of {len(labels):,}: give a "
            "tensor for each, with a class for each position."
        )
    starts = torch.tensor([0, *(len(one) for one in labels)]).cumsum(0)
    short = starts[documents] + site.positions >= starts[documents + 1]
    if short.any():
        first = int(documents[short][0])
        raise ShapeMismatch(
            f"document {first} has a row at position {int(site.positions[short][0])}, and {len(labels[first])} labels."
        )
    return torch.cat([one.long().cpu() for one in labels])[starts[documents] + site.positions]
