"""Our adaptive softmax against torch's, with the same weights: log-probabilities, best words, loss, gradients."""

from typing import Any

import pytest
import torch

from glassformer.models import AdaptiveSoftmax
from glassformer.testing import close
from glassformer.testing.layers import randomise, stream


@pytest.mark.parametrize(("cutoffs", "div_value"), [((3,), 4.0), ((2, 5, 9), 2.0), ((4, 8), 1.0)])
def test_the_adaptive_softmax_equals_torchs(cutoffs: tuple[int, ...], div_value: float) -> None:
    theirs: Any = randomise(torch.nn.AdaptiveLogSoftmaxWithLoss(16, 12, list(cutoffs), div_value).double(), std=1.0)
    ours: Any = AdaptiveSoftmax(None, cutoffs, div_value).build(12, 16).double()
    pairs = [(ours.stored, theirs.head.weight)]
    for tail, (down, words) in zip(ours.tails, theirs.tail, strict=True):
        pairs += [(tail.down.weight, down.weight), (tail.words.weight, words.weight)]
    with torch.no_grad():
        for mine, its in pairs:
            mine.copy_(its)
    x = stream(1, 24, d_model=16).requires_grad_()
    ids = torch.arange(24) % 12
    expected, found = theirs(x[0], ids), ours.loss(x, ids[None])
    close(ours.logits(x)[0], theirs.log_prob(x[0]), 1e-12)
    close(ours.log_prob(x, ids[None])[0], expected.output, 1e-12)
    assert torch.equal(ours.logits(x)[0].argmax(-1), theirs.predict(x[0]))
    close(found, expected.loss, 1e-12)
    of_ours = torch.autograd.grad(found, [x, *(mine for mine, _ in pairs)])
    of_theirs = torch.autograd.grad(expected.loss, [x, *(its for _, its in pairs)])
    for mine, its in zip(of_ours, of_theirs):
        close(mine, its, 1e-11)
