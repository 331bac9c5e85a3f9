"""Linear probes: what their sums are, what leaves them unchanged, and what they find."""

import numpy as np
import pytest
import torch
from torch import Tensor

from glassformer.analysis.probes._linear import LinearProbe, from_moments, logistic
from glassformer.analysis.probes._moments import LabelledMoments
from glassformer.testing import close


def drawn(n: int = 400, width: int = 6, n_classes: int = 3, apart: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return rows of classes whose means are drawn, and their classes."""
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(n_classes, (n,), generator=random)
    means = torch.randn(n_classes, width, generator=random, dtype=torch.float64)
    mixing = torch.randn(width, width, generator=random, dtype=torch.float64)
    return apart * means[labels] + torch.randn(n, width, generator=random, dtype=torch.float64) @ mixing, labels


def test_sums_of_folds_are_those_of_rows_and_rows_without_a_label_do_not_count() -> None:
    rows, labels = drawn()
    labels[::5] = -1
    folds = torch.arange(len(rows)) % 3
    batches = [(rows[at], labels[at], folds[at]) for at in torch.arange(len(rows)).split(64)]
    parts = LabelledMoments.by_fold(batches, 3, 3)
    whole, some = parts[0] + parts[1] + parts[2], rows[labels >= 0]
    close(whole.covariance, torch.from_numpy(np.cov(some.numpy().T, bias=True)))
    close(whole.mean, some.mean(0))
    close((whole - parts[1]).class_means[2], rows[(labels == 2) & (folds != 1)].mean(0))
    indicators = torch.nn.functional.one_hot(labels[labels >= 0], 3).double()
    close(whole.cross_covariance, (some - some.mean(0)).mT @ (indicators - indicators.mean(0)) / len(some))


def test_ridge_without_a_penalty_is_least_squares_to_indicators() -> None:
    rows, labels = drawn()
    probe = from_moments(LabelledMoments.of(rows, labels, 3), "ridge", 0.0)
    design = np.concatenate([rows.numpy(), np.ones((len(rows), 1))], 1)
    found, *_ = np.linalg.lstsq(design, np.eye(3)[labels.numpy()], rcond=None)
    close(probe.scores(rows), torch.from_numpy(design @ found))


@pytest.mark.parametrize("kind", ["ridge", "means"])
def test_what_a_probe_tells_does_not_change_if_rows_are_turned_or_scaled(kind: str) -> None:
    rows, labels = drawn()
    turn = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64))[0]
    fits = [from_moments(LabelledMoments.of(x, labels, 3), kind, 0.1) for x in (rows, 7 * rows @ turn)]  # type: ignore[arg-type]
    one, other = fits[0].scores(rows), fits[1].scores(7 * rows @ turn)
    close(other / other.std(), one / one.std())


def test_means_say_the_nearest_class_mean() -> None:
    rows, labels = drawn()
    probe = from_moments(LabelledMoments.of(rows, labels, 3), "means", 1.0)
    means = torch.stack([rows[labels == c].mean(0) for c in range(3)])
    assert (probe.classes(rows) == torch.cdist(rows, means).argmin(-1)).all()


def test_a_planted_direction_is_found_the_better_the_more_rows_there_are() -> None:
    random = torch.Generator().manual_seed(3)
    width, found = 12, list[float]()
    planted = torch.randn(width, generator=random, dtype=torch.float64)
    for n in (60, 6000):
        labels = torch.randint(2, (n,), generator=random)
        rows = torch.randn(n, width, generator=random, dtype=torch.float64) + labels[:, None] * planted
        weight = from_moments(LabelledMoments.of(rows, labels, 2), "ridge", 1e-3).weight
        found.append(float(torch.cosine_similarity(weight[1] - weight[0], planted, dim=0)))
    # unit covariance: the best direction is the difference of means
    assert found[0] < found[1] and found[1] > 0.995


def test_a_class_that_has_no_rows_is_never_said() -> None:
    rows, labels = drawn(n_classes=2)
    moments = LabelledMoments.of(rows, labels, 4)
    for kind in ("ridge", "means"):
        assert from_moments(moments, kind, 1e-3).classes(rows).max() == 1


def test_logistic_probes_are_the_likeliest_ones() -> None:
    pytest.importorskip("sklearn")
    rows, labels = drawn()

    def loss(probe: LinearProbe) -> float:
        weight = probe.weight * rows.std(0, correction=0)
        own = torch.nn.functional.cross_entropy(probe.scores(rows), labels)
        return float(own + 0.01 * weight.square().sum() / 2)

    best = logistic(rows, labels, 3, 0.01)
    for seed in range(5):
        off = 0.05 * torch.randn(best.weight.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        assert loss(LinearProbe(best.weight + off, best.bias, best.mean)) > loss(best)
    two = logistic(rows[labels < 2], labels[labels < 2], 3, 0.01)
    assert two.classes(rows).max() == 1
