"""Data of which the best loss is known: counting in context, and skip-trigrams through a single head."""

import itertools
import math

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from glassformer.data import DirichletMarkov, SkipTrigram, dirichlet_predictive
from glassformer.data.tasks.in_context import _estimate
from glassformer.data.tasks.one_head import entropy, fitted_loss, ranked_loss
from glassformer.errors import ConfigError
from glassformer.testing import close
from one_pass import in_one_pass


def random_tables(n_sources: int, n_destinations: int, n_answers: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(n_sources, n_destinations, n_answers, generator=generator, dtype=torch.float64)
    return (2 * scores).softmax(-1)


def certain(answers: list[list[int]], n_answers: int) -> Tensor:
    return torch.nn.functional.one_hot(torch.tensor(answers), n_answers).double()


# counting in context --------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 2), max_size=9), st.integers(0, 2), st.floats(0.1, 3.0))
def test_the_predictive_counts_what_followed_the_same_context(symbols: list[int], order: int, alpha: float) -> None:
    found = dirichlet_predictive(torch.tensor([symbols], dtype=torch.int64), 3, order=order, alpha=alpha)
    assert found.shape == (1, len(symbols) + 1, 3)
    for i in range(len(symbols) + 1):
        context = symbols[i - order : i]
        ends = [j for j in range(order, i) if symbols[j - order : j] == context] if i >= order else []
        counts = [sum(symbols[j] == w for j in ends) for w in range(3)]
        expected = [(count + alpha) / (len(ends) + 3 * alpha) for count in counts]
        assert found[0, i].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("order", [0, 1])
def test_the_predictive_is_the_posterior_mean_by_integration(order: int) -> None:
    # two symbols, order 0 or 1: each context's chance of symbol 1 is one number, integrated on a fine grid
    symbols, alpha, grid = [0, 1, 1, 0, 1], 0.7, (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    found = dirichlet_predictive(torch.tensor([symbols]), 2, order=order, alpha=alpha)[0, -1, 1]
    followers = symbols if order == 0 else [b for a, b in itertools.pairwise(symbols) if a == symbols[-1]]
    density = (grid * (1 - grid)).pow(alpha - 1)
    for symbol in followers:
        density = density * (grid if symbol else 1 - grid)
    assert float(found) == pytest.approx(float((density * grid).sum() / density.sum()), abs=1e-3)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_a_task_knows_the_distribution_its_rows_are_drawn_from(order: int) -> None:
    config = DirichletMarkov(batch_size=512, length=48, n_symbols=4, order=order, alpha=0.3, seed=4)
    batch = config.build().batch(0)
    predictive = config.predictive(batch.tokens)
    close(predictive.sum(-1), torch.ones(512, 48, dtype=torch.float64))
    assert (predictive[..., 0] == 0).all()
    # on every position the loss has the entropy as its mean: 24,000 draws with a standard deviation near 1
    losses = -predictive.gather(-1, batch.targets[..., None])[..., 0].log()
    entropies = -torch.special.xlogy(predictive, predictive).sum(-1)
    assert float((losses - entropies).mean()) == pytest.approx(0.0, abs=0.02)
    # four times the standard error over 512 rows, which differ in how predictable they are
    rows = (entropies * batch.weight).sum(1) / (48 - order)
    error = float(rows.std()) / 512**0.5
    assert float(rows.mean()) == pytest.approx(config.optimal_loss(), abs=4 * error)
    assert error < 0.012
    assert int(batch.weight.sum()) == 512 * (48 - order)


def test_the_optimal_loss_of_independent_draws_is_exact() -> None:
    # by going through all rows: two symbols, four positions
    config = DirichletMarkov(order=0, n_symbols=2, length=4, alpha=0.6)
    total = 0.0
    for row in itertools.product(range(2), repeat=4):
        predictive = dirichlet_predictive(torch.tensor([row]), 2, order=0, alpha=0.6)[0, :-1]
        chances = predictive[torch.arange(4), torch.tensor(row)]
        total -= float(chances.prod() * chances.log().mean())
    assert config.optimal_loss() == pytest.approx(total, abs=1e-12)


def test_the_estimate_of_the_optimal_loss_agrees_with_the_exact_one() -> None:
    mean, error = _estimate(64, 0, 8, 0.5)
    assert abs(mean - DirichletMarkov(order=0).optimal_loss()) < 4 * error
    assert _estimate(64, 1, 8, 0.5)[1] < 1e-3


def test_context_makes_later_positions_cheaper() -> None:
    losses = [DirichletMarkov(order=0, length=length).optimal_loss() for length in (1, 8, 64)]
    assert losses[0] == pytest.approx(math.log(8))
    assert losses[0] > losses[1] > losses[2]


def test_settings_without_meaning_are_refused() -> None:
    with pytest.raises(ConfigError, match="alpha must be a positive number, found 0"):
        DirichletMarkov(alpha=0.0)
    with pytest.raises(ConfigError, match="order must not be negative"):
        DirichletMarkov(order=-1)
    with pytest.raises(ConfigError, match="transitions a row; at most"):
        DirichletMarkov(order=5, n_symbols=10)


# one head -------------------------------------------------------------------------------------------------------------


@in_one_pass
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_one_source_with_n_different_answers_costs_the_mean_log_of_their_ranks(n: int) -> None:
    answers = torch.arange(n)
    found = ranked_loss(answers[None], n + 2)
    assert found == pytest.approx(math.lgamma(n + 1) / n)
    # a head that falls steeply enough comes close: row -R^k for rank k, attention that reaches down to its own rank
    steep = 1e6
    row = torch.cat((-(steep ** torch.arange(1.0, n + 1)), torch.full((2,), -(steep ** (n + 1)))))
    weight = steep ** -(torch.arange(1.0, n + 1) + 0.5)
    logits = (weight[:, None] * row).double()
    assert float(torch.nn.functional.cross_entropy(logits, answers)) == pytest.approx(found, abs=2e-3)


@pytest.mark.full
def test_a_search_finds_the_least_loss_of_one_head() -> None:
    assert fitted_loss(certain([[0, 1]], 3), direct=False, restarts=2) == pytest.approx(math.log(2) / 2, abs=1e-6)


def test_answers_that_are_often_right_rank_first() -> None:
    # of four destinations three want answer 5: ranks 1 1 1 2
    assert ranked_loss(torch.tensor([[5, 5, 0, 5]]), 6) == pytest.approx(math.log(2) / 4)
    # sources count alike
    assert ranked_loss(torch.tensor([[5, 5, 0, 5], [1, 1, 1, 1]]), 6) == pytest.approx(math.log(2) / 8)


@pytest.mark.full
@given(st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), min_size=1, max_size=3))
def test_no_search_gets_below_the_ranked_loss(answers: list[list[int]]) -> None:
    bound = ranked_loss(torch.tensor(answers), 4)
    found = fitted_loss(certain(answers, 4), direct=False, steps=100, restarts=2)
    assert found > bound - 1e-9


def test_the_task_states_what_one_head_can_reach() -> None:
    config = SkipTrigram(n_sources=3, n_destinations=4, n_answers=5)
    assert config.one_head_loss() == ranked_loss(config.table(), 5)
    assert 0 == config.optimal_loss() < config.one_head_loss() < math.log(4)
    assert SkipTrigram(n_destinations=1).one_head_loss() == 0


@pytest.mark.full
def test_as_many_heads_as_destinations_lose_nothing() -> None:
    table = random_tables(3, 3, 4)
    losses = [fitted_loss(table, n_heads=n, direct=False, steps=200, restarts=1) for n in (1, 2, 3)]
    assert losses[0] > losses[1] > losses[2] == pytest.approx(entropy(table), abs=1e-6)
    assert losses[0] - losses[2] > 0.05


def test_the_direct_path_pays_part_of_the_price() -> None:
    table = random_tables(3, 4, 6)
    alone, together = (fitted_loss(table, direct=direct, steps=150, restarts=1) for direct in (False, True))
    assert entropy(table) < together < alone
    # one source tells nothing that the destination does not
    single = random_tables(1, 4, 6)
    assert fitted_loss(single, restarts=1) == pytest.approx(entropy(single), abs=1e-6)


def test_a_search_needs_probabilities() -> None:
    with pytest.raises(ConfigError, match="of sum one; sums are 2 to 2"):
        fitted_loss(torch.ones(1, 1, 2))
