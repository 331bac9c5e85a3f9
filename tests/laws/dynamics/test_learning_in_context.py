"""Prompts as spins that interact in pairs: their energy is a loss, their mean what training ends in."""

import pytest
import torch

from glassformer.attention import Attention, Lightning
from glassformer.dynamics import Prompts, draw_prompts, spins_of
from glassformer.errors import ShapeMismatch
from glassformer.models.stack import make_context
from glassformer.testing import close

PROMPTS = draw_prompts(5, 6, 3, n_prompts=5)


def test_the_energy_of_spins_is_the_loss_of_a_linear_head_with_decay() -> None:
    weights = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    loss = (PROMPTS.answer - PROMPTS.predicted(weights)).square().sum() / 2 + 0.1 * weights.square().sum() / 2
    energy = spins_of(PROMPTS, 0.1).energy(weights.flatten())
    close(energy + PROMPTS.answer.square().sum() / 2, loss)
    (of_energy,), (of_loss,) = (torch.autograd.grad(one, weights) for one in (energy, loss))
    close(of_energy, of_loss)


def test_the_mean_of_spins_is_where_the_loss_is_least() -> None:
    spins = spins_of(PROMPTS, 0.1)
    means = spins.magnetisations().requires_grad_()
    [slope] = torch.autograd.grad(spins.energy(means), means)
    assert slope.abs().max() < 1e-12


def test_the_prediction_is_that_of_linear_attention() -> None:
    mixer = Lightning(slopes=(0.0,), activation="none").build(Attention(1, d_head=3, d_value=1).dims(3, 7), "").double()
    weights = torch.randn(3, 3, dtype=torch.float64)
    # the query stands behind the pairs, with a value of zero; queries are multiplied by the product of both matrices
    keys = torch.cat((PROMPTS.x, PROMPTS.query[:, None]), 1)[:, None]
    values = torch.nn.functional.pad(PROMPTS.y, (0, 1))[:, None, :, None]
    context = make_context(5, 7, torch.device("cpu"), is_causal=True)
    z, _ = mixer(keys @ weights, keys, values, keys, context, None, None)
    close(z[:, 0, -1, 0] / 6, PROMPTS.predicted(weights))


def test_of_many_tasks_the_mean_is_the_one_matrix_for_all_and_of_few_it_is_not() -> None:
    width, pairs = 3, 6
    limit = torch.eye(width, dtype=torch.float64) / (1 + (width + 1) / pairs)
    fresh = draw_prompts(2000, pairs, width, n_prompts=2000, seed=1)
    errors = []
    for tasks in (2, 20_000):
        found = spins_of(draw_prompts(tasks, pairs, width, n_prompts=20_000)).magnetisations().reshape(width, width)
        errors.append(float((fresh.predicted(found) - fresh.answer).square().mean() / fresh.answer.square().mean()))
    # of 20,000 prompts a number is right to a hundredth or two
    assert (found - limit).abs().max() < 0.05
    assert errors[1] < 0.5 < errors[0]


def test_prompts_of_unequal_numbers_are_refused() -> None:
    with pytest.raises(ShapeMismatch, match="one number of them"):
        spins_of(Prompts(PROMPTS.x, PROMPTS.y[:4], PROMPTS.query, PROMPTS.answer))
