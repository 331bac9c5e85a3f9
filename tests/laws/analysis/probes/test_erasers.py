"""Erasers: what is left says nothing linear of the property, and no smaller change would do."""

import torch

from glassformer.analysis.probes import Eraser
from glassformer.analysis.probes._linear import from_moments
from glassformer.analysis.probes._moments import LabelledMoments
from glassformer.testing import close


def drawn(n: int = 300, width: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (n,), generator=random)
    means = torch.randn(3, width, generator=random, dtype=torch.float64)
    mixing = torch.randn(width, width, generator=random, dtype=torch.float64)
    return means[labels] + torch.randn(n, width, generator=random, dtype=torch.float64) @ mixing, labels


def test_the_best_linear_probe_of_what_is_left_is_a_constant() -> None:
    rows, labels = drawn()
    moments = LabelledMoments.of(rows, labels, 3)
    eraser = Eraser.of(moments)
    left = LabelledMoments.of(eraser(rows), labels, 3)
    assert eraser.rank == 2
    assert float(left.cross_covariance.abs().max()) < 1e-12 < float(moments.cross_covariance.abs().max())
    close(left.mean, moments.mean)
    probe = from_moments(left, "ridge", 0.0)
    assert float(probe.weight.abs().max()) < 1e-9
    # of logistic regression, too: at the shares of classes the gradient is zero
    logits = torch.zeros(3, 8, dtype=torch.float64, requires_grad=True)
    bias = (left.counts / left.count).log()
    loss = torch.nn.functional.cross_entropy((eraser(rows) - left.mean) @ logits.mT + bias, labels)
    assert float(torch.autograd.grad(loss, logits)[0].abs().max()) < 1e-12


def test_erasing_is_the_formula_of_the_paper_and_does_nothing_the_second_time() -> None:
    rows, labels = drawn()
    moments = LabelledMoments.of(rows, labels, 3)
    eraser = Eraser.of(moments)
    values, vectors = torch.linalg.eigh(moments.covariance)
    root = (vectors * values.sqrt()) @ vectors.mT
    whitening = torch.linalg.inv(root)
    crossed = whitening @ moments.cross_covariance
    projection = crossed @ torch.linalg.pinv(crossed, rtol=1e-10)
    close(eraser(rows), rows - (rows - moments.mean) @ (root @ projection @ whitening).mT)
    close(eraser(eraser(rows)), eraser(rows))


def test_other_changes_that_erase_as_much_move_rows_further() -> None:
    rows, labels = drawn()
    moments = LabelledMoments.of(rows, labels, 3)
    moved = float((Eraser.of(moments)(rows) - rows).square().mean())
    # taking out the span of what covaries, at right angles
    basis = torch.linalg.svd(moments.cross_covariance)[0][:, :2]
    centred = rows - moments.mean
    assert moved < float((centred @ basis @ basis.mT).square().mean())
    # any map that leaves no covariance acts as this one does on what covaries, and as it likes beside that
    eraser = Eraser.of(moments)
    taken, beside = eraser.read @ eraser.written, torch.eye(8, dtype=torch.float64) - basis @ basis.mT
    for seed in range(5):
        other = taken + beside @ torch.randn(8, 8, generator=torch.Generator().manual_seed(seed)).double() * 0.02
        left = LabelledMoments.of(rows - centred @ other, labels, 3)
        assert float(left.cross_covariance.abs().max()) < 1e-12
        assert moved < float((centred @ other).square().mean())


def test_rows_that_do_not_fill_their_space_are_erased_within_what_they_span() -> None:
    rows, labels = drawn(width=4)
    wide = torch.cat((rows, rows[:, :2], torch.zeros(len(rows), 1)), 1)
    eraser = Eraser.of(LabelledMoments.of(wide, labels, 3))
    left = eraser(wide)
    assert float(LabelledMoments.of(left, labels, 3).cross_covariance.abs().max()) < 1e-10
    close(left[:, 4:6], left[:, :2])
    assert (left[:, 6].abs() < 1e-12).all()
