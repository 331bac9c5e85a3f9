"""Phrases as clusters: planted ones are found, chance is not, and names, scales and widths of nothing matter not."""

import itertools
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from glassformer.analysis.labelled_rows import labels_of_rows
from glassformer.analysis.probes import PhraseClusters, phrase_clusters
from glassformer.analysis.probes._clusters import agreement, counted, k_means
from glassformer.analysis.probes._phrases import LENGTH, _Phrases
from glassformer.analysis.probes._probe import SHUFFLED, SITE, TOKENS, UNTRAINED
from glassformer.analysis.uncertainty import jackknife, standard_error
from glassformer.data.grammar import ZhEnConfig, zh_en_tokenizer
from glassformer.data.labels import LabelledText, copy_labels, zh_en_labels
from glassformer.errors import AnalysisUnavailable, DataError, ShapeMismatch
from glassformer.labelled import Labelled
from glassformer.models import Decoder, DecoderConfig, block
from glassformer.testing import close

Z = 1.959963984540054  # 97.5 % of a normal distribution lie below


def apart(clusters: Tensor, classes: Tensor) -> float:
    """Return the normalised mutual information, summed pair by pair over the definition."""
    n, found, entropies = len(clusters), 0.0, 0.0
    for one in clusters.unique():
        for other in classes.unique():
            both = float(((clusters == one) & (classes == other)).sum()) / n
            a, b = (float((labels == value).sum()) / n for labels, value in ((clusters, one), (classes, other)))
            if both:
                found += both * torch.tensor(both / a / b).log().item()
    for labels in (clusters, classes):
        shares = torch.bincount(labels).double() / n
        entropies -= float((shares[shares > 0] * shares[shares > 0].log()).sum())
    return 2 * found / entropies


def together(clusters: Tensor, classes: Tensor, n: int = 4) -> float:
    return float(agreement(counted(clusters, classes, torch.zeros_like(clusters), (n, n))[0]))


def test_agreement_is_mutual_information_whatever_clusters_are_called() -> None:
    random = torch.Generator().manual_seed(0)
    for _ in range(5):
        clusters, classes = torch.randint(4, (2, 40), generator=random)
        found = together(clusters, classes)
        assert found == pytest.approx(apart(clusters, classes), abs=1e-6) and 0 <= found < 0.4
        renamed = torch.randperm(4, generator=random)[clusters]
        assert found == pytest.approx(together(renamed, classes), abs=1e-12)
        assert found == pytest.approx(together(classes, clusters), abs=1e-12)
        assert together(renamed, clusters) == pytest.approx(1, abs=1e-12)
    assert together(torch.zeros(9, dtype=torch.long), torch.arange(9) % 3) == 0
    # every pair as often as any other
    assert together(torch.arange(16) // 4, torch.arange(16) % 4) == pytest.approx(0, abs=1e-12)


def test_clusters_and_agreement_are_those_of_scikit_learn() -> None:
    pytest.importorskip("sklearn")
    from sklearn import cluster, metrics  # pyright: ignore[reportMissingImports]

    random = torch.Generator().manual_seed(5)
    rows, classes = (
        torch.randn(200, 5, generator=random, dtype=torch.float64),
        torch.randint(4, (200,), generator=random),
    )
    found = k_means(rows, 4, restarts=20, seed=0)
    theirs = cluster.KMeans(4, n_init=20, random_state=0).fit(rows.numpy())
    # theirs begins better, and of few beginnings finds a slightly tighter end
    assert inertia(rows, found) <= 1.01 * theirs.inertia_
    expected = metrics.normalized_mutual_info_score(found.numpy(), classes.numpy())
    assert together(found, classes) == pytest.approx(expected, abs=1e-9)


def inertia(rows: Tensor, clusters: Tensor) -> float:
    return sum(
        float((rows[clusters == one] - rows[clusters == one].mean(0)).square().sum()) for one in clusters.unique()
    )


def test_clusters_are_as_tight_as_any_partition_of_few_rows() -> None:
    random = torch.Generator().manual_seed(1)
    for seed in range(2):
        rows = torch.randn(6, 2, generator=random, dtype=torch.float64)
        every = (torch.tensor((0, *labels)) for labels in itertools.product(range(3), repeat=5))
        best = min(inertia(rows, labels) for labels in every)
        found = k_means(rows, 3, restarts=20, seed=seed)
        assert inertia(rows, found) == pytest.approx(best, rel=1e-9)
        # clusters do not depend on where zero is, nor on the unit
        assert together(found, k_means(7 * rows - 100, 3, restarts=20, seed=seed)) == pytest.approx(1)


def test_rows_are_nearest_to_the_mean_of_their_own_cluster() -> None:
    rows = torch.randn(60, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = k_means(rows, 5, restarts=2, seed=0)
    means = torch.stack([rows[found == one].mean(0) for one in range(5)])
    assert torch.equal(torch.cdist(rows, means).argmin(-1), found)
    # of three different rows there are three clusters
    few = rows[:3].repeat(4, 1)
    assert len(k_means(few, 5, restarts=2, seed=0).unique()) == 3


def test_the_jackknife_of_a_mean_is_its_standard_error() -> None:
    values = torch.randn(2, 9, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    of_all = Labelled(values.mean(-1), ("site",), {"site": ["a", "b"]})
    without = (values.sum(-1, keepdim=True) - values) / 8
    found = jackknife(of_all, without)
    assert found.axes == ("bound", "site") and found.coords["site"] == ["a", "b"]
    error = standard_error(Labelled(values, ("site", "batch"))).values
    close(found.values, torch.stack([of_all.values - Z * error, of_all.values + Z * error]))


@cache
def sentences(n: int = 24) -> LabelledText:
    return zh_en_labels(ZhEnConfig().build().pairs("heldout", n), zh_en_tokenizer(), "en")


@cache
def reader(seed: int = 0) -> Decoder:
    tokenizer = zh_en_tokenizer()
    config = DecoderConfig(vocab_size=tokenizer.vocab_size, d_model=8, max_len=40, layers=(block(n_heads=2),) * 2)
    model = config.build(seed)
    model.tokenizer = tokenizer
    return model


@cache
def found() -> PhraseClusters:
    return phrase_clusters(reader(), sentences(), untrained=reader().config.build(1), restarts=2)


def test_kinds_planted_in_vectors_are_found_and_vectors_of_chance_are_not() -> None:
    phrases = _Phrases.of(sentences(), 4, 500, 0)
    n, place = len(phrases.column.label), torch.arange(len(phrases.column.label))
    random = torch.Generator().manual_seed(4)

    def told(ends: Tensor) -> float:
        rows = phrases.vectors([ends[: n // 2], ends[n // 2 :]], place)
        assert rows.shape == (len(phrases.kinds), 4 * ends.shape[1])
        k = len(phrases.names)
        return together(k_means(rows, k, restarts=5, seed=0), phrases.kinds, k)

    # a phrase's kind on its first token alone, where no other phrase begins or ends in it
    planted = torch.zeros(n, 6).index_put_(
        (phrases.first, phrases.kinds), torch.ones(len(phrases.kinds)), accumulate=True
    )
    noise = torch.randn(n, 6, generator=random)
    alone = told(noise)
    assert told(planted + 0.01 * noise) > 0.5 > 4 * alone
    # lengths of vectors do not matter
    assert told(1000 * (planted + noise)) == pytest.approx(told(planted + noise), abs=1e-6)


def test_phrases_are_nodes_with_parts_and_begin_and_end_where_their_words_do() -> None:
    phrases, texts = _Phrases.of(sentences(), 9, 10_000, 0), sentences()
    assert {"NP", "VP"} <= {*phrases.names} and not {"noun", "S"} & {*phrases.names}
    assert len(phrases.kinds) == sum(len(document.constituents) for document in texts)
    for document in texts:
        assert {*document.constituents} <= {*document.phrases}
        assert len({(one.first, one.end) for one in document.constituents}) == len(document.constituents)
    drawn = _Phrases.of(texts, 2, 30, 0)
    assert len(drawn.kinds) == 30 and len(drawn.names) == 2
    (tokens,) = (torch.tensor([id for document in texts for id in document.ids]),)
    documents = torch.tensor([d for d, document in enumerate(texts) for _ in document.ids])
    positions = torch.tensor([i for document in texts for i in range(len(document.ids))])
    place = labels_of_rows(tokens, documents, positions, drawn.column)
    assert sorted(place[place >= 0].tolist()) == drawn.column.label.tolist()


def test_random_weights_tell_no_more_of_phrases_than_others_and_chance_is_near_zero() -> None:
    one = found()
    assert one.agreement.axes == ("site", "told_by") and one.documents == 24
    own, untrained, tokens, shuffled = (
        one.agreement.select(told_by=name).values for name in (SITE, UNTRAINED, TOKENS, SHUFFLED)
    )
    # 110 phrases of seven kinds in seven clusters: about 36 / 220 nats over an entropy of 1.5 are chance
    assert bool(((own - untrained).abs() < 0.15).all()) and bool((shuffled < 0.15).all())
    assert float(one.agreement.select(told_by=LENGTH).values[0]) > 0.1, "sentences and words are of different lengths"
    close(one.above_tokens.values, own - tokens)
    low, high = one.bounds.select(told_by=SITE).values
    assert bool((low < own).all()) and bool((own < high).all()) and bool((high - low < 0.3).all())
    assert one.above_tokens_bounds.axes == ("bound", "site")


def test_what_has_no_phrases_of_two_kinds_is_refused() -> None:
    with pytest.raises(DataError, match="no tree"):
        phrase_clusters(reader(), copy_labels(torch.ones(3, 5, dtype=torch.long)))
    with pytest.raises(AnalysisUnavailable, match=r"found 1 kinds in .* phrases of 24 documents"):
        phrase_clusters(reader(), sentences(), kinds=1)
    with pytest.raises(AnalysisUnavailable, match="of 1 documents"):
        phrase_clusters(reader(), LabelledText(sentences()[:1]))
    with pytest.raises(AnalysisUnavailable, match="found 1 kinds in 1 phrases"):
        phrase_clusters(reader(), sentences(), spans=1)
    other = LabelledText(replace(one, ids=(*one.ids[1:], one.ids[0])) for one in sentences())
    with pytest.raises(ShapeMismatch, match="labels of document 0 are of"):
        phrase_clusters(reader(), other)
