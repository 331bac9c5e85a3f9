"""Fits that studies make by themselves: every step is told, and one that is not finite is none."""

import torch
from torch import Tensor

from glassformer.studies.fits import fit
from glassformer.studies.word_order import BACKWARDS, NONE, config, loss, rows
from glassformer.study import Case
from glassformer.training import OptimConfig


def test_a_fit_that_diverges_ends_with_the_weights_of_the_step_before() -> None:
    model, told = config(BACKWARDS, NONE, depth=1).build(0), list[tuple[int, int]]()
    words = rows(2, torch.Generator().manual_seed(0))
    case = Case({}, {"steps": 4}, 0, report=lambda done, total: told.append((done, total)))

    def of_step(step: int) -> Tensor:
        return loss(model, words) * (torch.nan if step == 3 else 1)

    seen, weights = list[float](), list[Tensor]()
    for update in fit(model, case, OptimConfig(lr=1e-2, warmup=0), of_step):
        seen.append(update.loss)
        weights.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert told == [(1, 4), (2, 4)] and len(seen) == 2 and seen[1] < seen[0]
    kept = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert torch.equal(kept, weights[-1]) and not torch.equal(kept, weights[0])
