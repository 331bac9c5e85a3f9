"""Phrases as clusters: whether phrases of one kind lie together at a site, whatever words they are of.

    span = [a; b; a * b; a - b],      a and b the vectors of a phrase's first and last token

Spans are clustered by k-means into as many clusters as there are kinds of phrase, and clusters compared with kinds by
normalised mutual information (NMI). Beside it stand clusters of the same site of an untrained model, of a random vector
for each token, of how long a phrase is alone, and shuffled kinds.

Source: Jawahar, Sagot and Seddah 2019, "What Does BERT Learn about the Structure of Language?" (P19-1356), section 4,
which clusters 3,000 chunks of ten kinds. Here vectors are scaled to unit mean square at a site before they are
multiplied, or products would outweigh all else where vectors are long.
"""

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.analysis.activations import StoredSite, stored
from glassformer.analysis.labelled_rows import as_read, labels_of_rows
from glassformer.analysis.probes._clusters import agreement, counted, k_means
from glassformer.analysis.probes._probe import SHUFFLED, SITE, TOKENS, UNTRAINED
from glassformer.analysis.probes._rows import means_of, random_rows, rows_of
from glassformer.analysis.question import question
from glassformer.analysis.uncertainty import jackknife
from glassformer.arguments import Count, Several
from glassformer.data.labels import Column, LabelledText
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Labelled, Result
from glassformer.models import Model, ModuleLike, require_module

LENGTH = "length alone"


@dataclasses.dataclass(frozen=True, eq=False)
class PhraseClusters(Result):
    """How far clusters of phrases agree with their kinds, at each site.

    Args:
        agreement: Normalised mutual information of clusters and kinds, from 0 to 1, `site told_by`: clusters of the
            site, of an untrained model's, of random vectors by token, of lengths; and those of the site with kinds
            shuffled, which is what chance gives.
        bounds: 95 % interval, by leaving out each document once, an axis `bound` in front. Clusters are held.
        above_tokens: Agreement at a site less that of random vectors by token, `site`.
        above_tokens_bounds: The same interval.
        kinds: Of phrases.
        documents: How many documents have any.
        spans: How many phrases.
    """

    HEADLINE = ("agreement", "above_tokens")
    SIGNED = ("above_tokens",)

    agreement: Labelled
    bounds: Labelled
    above_tokens: Labelled
    above_tokens_bounds: Labelled
    kinds: tuple[str, ...]
    documents: int
    spans: int


@question("Do phrases of one kind lie together at each site?", of="texts")
def phrase_clusters(
    model: ModuleLike,
    texts: LabelledText,
    *,
    sites: str | Several[str] = "resid_post",
    kinds: Count = 10,
    spans: Count = 3000,
    restarts: Count = 10,
    untrained: ModuleLike | None = None,
    seed: int = 0,
    report: Callable[[int, int], None] | None = None,
) -> PhraseClusters:
    """Cluster the phrases of labelled text, and compare clusters with kinds of phrase.

    In a model that reads from left to right the first token of a phrase knows nothing of the rest, and the last one
    does.

    Args:
        model: One of ours that reads texts by themselves, or a module whose sites a spec names.
        texts: Labelled text with trees, of Python or of the Chinese-English grammar. A phrase is a node that has parts,
            but for the whole text; of those over the same tokens the innermost.
        sites: Names, globs or short names; the stream behind each layer by default.
        kinds: How many kinds of phrase, the commonest of them; and how many clusters.
        spans: How many phrases, at most, drawn from those of these kinds.
        restarts: Beginnings of k-means, of which the best is kept.
        untrained: A model of the same shape as it begins, `model.config.build(1)`.
        seed: Source of phrases, of where k-means begins, of random vectors and shuffled kinds.
        report: Called with (done, total) sites.

    Raises:
        AnalysisUnavailable: There are fewer than two kinds of phrase, or documents that have any; or the model reads
            pairs or images.
        DataError: A text has no tree.
        ShapeMismatch: The text is labelled with other tokens than the model reads.
        TextError: A document has more tokens than the context.
        UnknownSite: A name that no site has.
    """
    require_module(model, "phrase_clusters")
    if isinstance(model, Model) and model.reads_pairs:
        raise AnalysisUnavailable("phrase_clusters is of phrases of one text, and this model reads pairs of texts.")
    phrases = _Phrases.of(texts, kinds, spans, seed)
    read, found = as_read(model, texts), list[dict[str, Tensor]]()
    with contextlib.ExitStack() as stack:
        store, names = stack.enter_context(stored(model, read, sites))
        other = None if untrained is None else stack.enter_context(stored(untrained, read, names))[0]
        fit = _Fit(phrases, restarts, seed)
        beside = fit.beside(store.site(names[0]))
        for done, name in enumerate(names):
            if report is not None:
                report(done, len(names))
            clusters = fit.clusters(store.site(name))
            here = {SITE: fit.counted(clusters)}
            if other is not None:
                here[UNTRAINED] = fit.counted(fit.clusters(other.site(name)))
            found.append(here | beside | {SHUFFLED: fit.counted(clusters, shuffled=True)})
    if report is not None:
        report(len(names), len(names))
    return _result(names, found, phrases)


@dataclasses.dataclass(frozen=True, eq=False)
class _Phrases:
    """Phrases of documents, one after the other.

    Args:
        column: Tokens that a phrase begins or ends with, numbered through.
        first: Number of the first token of each phrase.
        last: Of its last.
        lengths: Its tokens.
        documents: Its document, those without a phrase left out.
        kinds: What it is.
        names: Of kinds.
    """

    column: Column
    first: Int[Tensor, " span"]
    last: Int[Tensor, " span"]
    lengths: Int[Tensor, " span"]
    documents: Int[Tensor, " span"]
    kinds: Int[Tensor, " span"]
    names: tuple[str, ...]

    @classmethod
    def of(cls, texts: LabelledText, kinds: int, spans: int, seed: int) -> "_Phrases":
        """Return phrases of the commonest kinds, so many at most, drawn at random."""
        rows = [(place, one) for place, document in enumerate(texts) for one in document.constituents]
        common = {kind for kind, _ in Counter(one.kind for _, one in rows).most_common(kinds)}
        rows = [(place, one) for place, one in rows if one.kind in common]
        drawn = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:spans]
        rows = [rows[i] for i in drawn.sort().values.tolist()]
        names, there = tuple(sorted({one.kind for _, one in rows})), sorted({place for place, _ in rows})
        if len(names) < 2 or len(there) < 2:
            raise AnalysisUnavailable(
                f"phrase_clusters tells kinds of phrase apart, and documents are left out in turn: found {len(names)} "
                f"kinds in {len(rows)} phrases of {len(there)} documents.\n"
                "    Give two documents and more with phrases of two kinds."
            )
        ends = sorted({(place, token) for place, one in rows for token in (one.first, one.end - 1)})
        number = {end: i for i, end in enumerate(ends)}
        documents, tokens = torch.tensor(ends).mT.contiguous()
        return cls(
            column=Column(documents, tokens, torch.arange(len(ends)), (), texts),
            first=torch.tensor([number[place, one.first] for place, one in rows]),
            last=torch.tensor([number[place, one.end - 1] for place, one in rows]),
            lengths=torch.tensor([one.end - one.first for _, one in rows]),
            documents=torch.tensor([there.index(place) for place, _ in rows]),
            kinds=torch.tensor([names.index(one.kind) for _, one in rows]),
            names=names,
        )

    def vectors(
        self, read: Iterable[Float[Tensor, "batch width"]], place: Int[Tensor, " row"]
    ) -> Float[Tensor, "span widths"]:
        """Return the vector of each phrase.

        Args:
            read: Rows, batch by batch.
            place: Which token that a phrase begins or ends with each row is, below zero for none.
        """
        ends = means_of(read, place, len(self.column.label)).float()
        ends = ends / (float(ends.square().mean().sqrt()) or 1.0)
        first, last = ends[self.first], ends[self.last]
        return torch.cat((first, last, first * last, first - last), -1)


@dataclasses.dataclass(frozen=True, eq=False)
class _Fit:
    """What is clustered, and how.

    Args:
        phrases: Of all documents.
        restarts: As for `phrase_clusters`.
        seed: The same.
    """

    phrases: _Phrases
    restarts: int
    seed: int

    def clusters(self, site: StoredSite) -> Int[Tensor, " span"]:
        """Return the cluster of each phrase at a site."""
        return self.clustered(self.phrases.vectors(rows_of(site)(), self.place(site)))

    def beside(self, site: StoredSite) -> "dict[str, Float[Tensor, 'document cluster cls']]":
        """Return what tokens and lengths alone lead to, which is the same at each site."""
        read = random_rows(site.tokens.clamp_min(0), site.width, self.seed)
        tokens = self.clustered(self.phrases.vectors(read(), self.place(site)))
        # of phrases of one token and of hundreds
        lengths = self.clustered(self.phrases.lengths.float().log2()[:, None])
        return {TOKENS: self.counted(tokens), LENGTH: self.counted(lengths)}

    def place(self, site: StoredSite) -> Int[Tensor, " row"]:
        """Return which of the numbered tokens each row is."""
        return labels_of_rows(site.tokens, site.documents, site.positions, self.phrases.column)

    def clustered(self, rows: Float[Tensor, "span width"]) -> Int[Tensor, " span"]:
        return k_means(rows, len(self.phrases.names), restarts=self.restarts, seed=self.seed)

    def counted(
        self, clusters: Int[Tensor, " span"], *, shuffled: bool = False
    ) -> Float[Tensor, "document cluster cls"]:
        """Return how often clusters and kinds meet in each document, with kinds as they are or shuffled."""
        kinds, n = self.phrases.kinds, len(self.phrases.names)
        if shuffled:
            kinds = kinds[torch.randperm(len(kinds), generator=torch.Generator().manual_seed(self.seed))]
        return counted(clusters, kinds, self.phrases.documents, (n, n))


def _result(names: Sequence[str], found: Sequence[dict[str, Tensor]], phrases: _Phrases) -> PhraseClusters:
    told_by = list(found[0])
    counts = torch.stack([torch.stack(list(one.values())) for one in found], 0)
    whole = counts.sum(2)
    # each document left out once
    value, without = agreement(whole), agreement(whole[:, :, None] - counts)
    coords, own, token = {"site": list(names), "told_by": told_by}, told_by.index(SITE), told_by.index(TOKENS)
    told = Labelled(value, ("site", "told_by"), coords)
    above = Labelled(value[:, own] - value[:, token], ("site",), {"site": list(names)})
    return PhraseClusters(
        agreement=told,
        bounds=jackknife(told, without),
        above_tokens=above,
        above_tokens_bounds=jackknife(above, without[:, own] - without[:, token]),
        kinds=phrases.names,
        documents=counts.shape[2],
        spans=len(phrases.kinds),
    )
