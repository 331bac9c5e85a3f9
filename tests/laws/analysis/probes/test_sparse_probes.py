"""Sparse probes: what a subset explains, which subsets are the best, and planted neurons."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from glassformer.analysis.probes import SparseProbes, sparse_probe
from glassformer.analysis.probes._subsets import LeastSquares, best_of_all, grown
from glassformer.errors import AnalysisUnavailable
from glassformer.models import Decoder, DecoderConfig, Mlp, block
from glassformer.testing import close


def problem(width: int = 7, n: int = 200) -> tuple[LeastSquares, Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    rows = torch.randn(n, width, generator=random, dtype=torch.float64) @ torch.randn(
        width, width, generator=random, dtype=torch.float64
    )
    y = rows[:, :3].sum(-1) + 3 * torch.randn(n, generator=random, dtype=torch.float64)
    x, y = rows - rows.mean(0), y - y.mean()
    return LeastSquares(x.mT @ x / n, x.mT @ y / n, float(y.square().mean())), x, y


def test_what_a_subset_explains_is_one_less_what_regression_leaves() -> None:
    found, x, y = problem()
    for subset in ([2], [0, 5], [1, 2, 6]):
        _, left, *_ = np.linalg.lstsq(x[:, subset].numpy(), y.numpy(), rcond=None)
        close(found.fit(torch.tensor([subset]))[0], torch.tensor(1 - left[0] / float(y.square().sum())))
    close(found.single, torch.stack([found.fit(torch.tensor([[i]]))[0] for i in range(7)]))


def test_the_best_of_all_is_the_best_of_all_and_grown_sets_explain_more_and_more() -> None:
    found, *_ = problem()
    for k in (1, 2, 3):
        slow = max(itertools.combinations(range(7), k), key=lambda one: float(found.fit(torch.tensor([one]))[0]))
        assert sorted(best_of_all(found, k, torch.arange(7)).tolist()) == list(slow)
    fits = [float(found.fit(one[None])[0]) for one in grown(found, 9)]
    assert len(fits) == 7 and all(low <= high + 1e-12 for low, high in itertools.pairwise(fits))


def test_a_coordinate_that_is_the_sum_of_others_adds_nothing() -> None:
    found, x, y = problem()
    wide = torch.cat((x, x[:, :1] + x[:, 1:2], torch.zeros(len(x), 1)), 1)
    more = LeastSquares(wide.mT @ wide / len(x), wide.mT @ y / len(x), found.variance)
    close(more.fit(torch.tensor([[0, 1, 7]])), found.fit(torch.tensor([[0, 1]])), 1e-6)
    assert float(more.single[8]) == 0.0


def planted(write: Tensor) -> Decoder:
    """Return a decoder whose stream holds a vector of each token, and whose layer changes nothing."""
    model = DecoderConfig(len(write), write.shape[1], (block(n_heads=2, mlp=Mlp(8)),), max_len=64).build(0).double()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    model.embed.matrix.data.copy_(write)  # type: ignore[union-attr]
    return model


TEXTS = torch.randint(16, (30, 24), generator=torch.Generator().manual_seed(0))
BITS = torch.tensor([[token >> bit & 1 for bit in range(4)] for token in range(16)]).double()


def asked(labels: Tensor, write: Tensor, **options: Any) -> SparseProbes:
    """Return what sparse probes find of a property of tokens."""
    return sparse_probe(
        planted(write), TEXTS, list(labels[TEXTS]), "blocks.0.resid_post", counts=(1, 2, 3, 4), **options
    )


def chosen(found: SparseProbes, how: str, k: int) -> list[int]:
    return sorted(i for i in found.neurons.select(select=how, k=k - 1).values.tolist() if i >= 0)


def test_planted_neurons_are_found_and_no_others() -> None:
    noise = torch.randn(16, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 0.1
    write = torch.cat((noise, BITS), 1)
    both, either = ((BITS[:, 1:3].sum(-1) >= least).long() for least in (2, 1))
    for labels in (both, either):
        found = asked(labels, write)
        assert chosen(found, "grown", 2) == [7, 8] == chosen(found, "mean_difference", 2)
        assert float(found.f1.select(select="grown", k=1).values) == 1.0
        assert float(found.gap.select(select="grown").values[:3].max()) < 1e-9
        assert float(found.gap.select(select="random").values[0]) > 0.1
        assert float(found.f1.select(select="grown", k=0).values) < 1.0 and found.dense == 1.0


def test_neurons_in_another_order_are_found_in_that_order() -> None:
    labels = BITS[:, 0].long()
    write = torch.randn(16, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    write[:, 3] += BITS[:, 0] * 4
    order = torch.randperm(8, generator=torch.Generator().manual_seed(2))
    one, other = asked(labels, write), asked(labels, write[:, order])
    for how in ("grown", "single", "mean_difference"):
        assert sorted(order[i] for i in chosen(other, how, 2)) == chosen(one, how, 2)
        close(other.f1.select(select=how).values, one.f1.select(select=how).values)


def test_one_neuron_of_several_copies_is_missed_by_nobody_and_a_spread_property_falls_to_chance() -> None:
    labels = BITS[:, 0].long()
    noise = torch.randn(16, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 0.05
    copies = noise.clone()
    copies[:, 2:5] += BITS[:, :1]
    single = noise.clone()
    single[:, 2] += BITS[:, 0]
    assert (asked(labels, copies).pruned.values[:3] == 1.0).all()
    assert asked(labels, copies).pruned.values[3] < 0.9
    assert asked(labels, single).pruned.values[0] == 1.0 > asked(labels, single).pruned.values[1]
    found = asked(labels, single)
    low, high = found.bounds.select(select="random", k=0).values
    assert low <= float(found.f1.select(select="random", k=0).values) <= high


def test_what_cannot_be_told_is_refused() -> None:
    with pytest.raises(AnalysisUnavailable, match="these labels have 1"):
        asked(torch.ones(16, dtype=torch.long), BITS)
    with pytest.raises(AnalysisUnavailable, match="one property from its absence"):
        asked(torch.arange(16) % 3, BITS)
    with pytest.raises(AnalysisUnavailable, match="folds is 2"):
        asked(BITS[:, 0].long(), BITS, folds=1)
    rare = [torch.zeros(24, dtype=torch.long) for _ in range(30)]
    rare[0][3] = 1
    with pytest.raises(AnalysisUnavailable, match="both kinds are needed"):
        sparse_probe(planted(BITS), TEXTS, rare, "blocks.0.resid_post")


@pytest.mark.parametrize("how", ["mutual_information", "l1", "svm"])
def test_other_ways_to_choose_find_the_neuron_too(how: Any) -> None:
    pytest.importorskip("sklearn")
    write = torch.zeros(16, 8, dtype=torch.float64)
    write[:, 2], write[:, 5] = BITS[:, 1], BITS[:, 0]
    assert chosen(asked(BITS[:, 0].long(), write, select=(how,)), how, 1) == [5]
