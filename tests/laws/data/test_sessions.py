"""Sessions: which visits count, and what a perfect model reaches, by counting."""

import math
from collections import Counter
from itertools import combinations
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from glassformer.data import Sessions
from glassformer.errors import ConfigError

SMALL = Sessions(batch_size=400, length=10, n_items=6, n_referrers=5, sharpness=1.5)


def written(config: Sessions, steps: int, split: Literal["train", "heldout"] = "train") -> list[tuple[list[str], str]]:
    """Return sessions as text, and what follows each."""
    data, found = config.build(), []
    for step in range(steps):
        batch = data.batch(step, split)
        for tokens, target in zip(batch.tokens.tolist(), batch.targets[:, -1].tolist()):
            found.append((data.tokenizer.tokens(tokens), data.tokenizer.token(target)))
    return found


def counted(session: list[str]) -> tuple[int, int]:
    """Return the items of the two visits that share a referrer, by a search that knows the rule alone."""
    assert session[0] == "<bos>" and session[-1] == "?"
    visits = list(zip(session[1:-1:2], session[2:-1:2]))
    (pair,) = [(a, b) for (a, r), (b, s) in combinations(visits, 2) if r == s]
    assert len({item for item, _ in visits}) == len(visits) == len({r for _, r in visits}) + 1
    return int(pair[0][1:]), int(pair[1][1:])


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_two_visits_share_a_referrer_and_the_best_prediction_is_that_of_their_items(split: Any) -> None:
    batch, table = SMALL.build().batch(3, split), SMALL.table()
    best = SMALL.predictive(batch.tokens)
    for row, (session, answer) in enumerate(written(SMALL, 4, split)[3 * 400 :]):
        u, v = counted(session)
        assert torch.equal(best[row, 2:8], table[u, v]) and answer[0] == "i"
        assert best[row, :2].sum() == best[row, 8:].sum() == 0
    assert batch.weight.sum(0).tolist() == [0] * 9 + [400]


@pytest.mark.full
def test_next_items_follow_the_table_and_pairs_are_equally_likely() -> None:
    found = [(frozenset(counted(session)), int(answer[1:])) for session, answer in written(SMALL, 25)]
    pairs, n = Counter(pair for pair, _ in found), len(found)
    assert len(pairs) == 15
    # within five standard errors, all of them
    for count in pairs.values():
        assert abs(count / n - 1 / 15) < 5 * math.sqrt(1 / 15 / n)
    for pair, total in pairs.items():
        share = torch.tensor([sum(p == pair and answer == i for p, answer in found) for i in range(6)]) / total
        expected = SMALL.table()[tuple(pair)]
        assert ((share - expected).abs() < 5 * (expected / total).sqrt()).all()


def test_the_best_loss_and_hit_rates_are_sums_over_pairs() -> None:
    table = SMALL.table()
    rows = [table[u, v] for u, v in combinations(range(6), 2)]
    close = {"rel_tol": 1e-12}
    assert math.isclose(SMALL.optimal_loss(), sum(float(-(p * p.log()).sum()) for p in rows) / 15, **close)
    for k in range(1, 7):
        expected = sum(sum(sorted(p.tolist())[-k:]) for p in rows) / 15
        assert math.isclose(SMALL.best_hit_rate(k), expected, **close)
    assert math.isclose(SMALL.best_hit_rate(6), 1.0, **close)
    assert math.isclose(SMALL.replace(sharpness=0.0).optimal_loss(), math.log(6), **close)


def test_drawn_rows_cost_the_best_prediction_the_best_loss() -> None:
    data, losses, hits = SMALL.build(), list[Tensor](), list[Tensor]()
    for step in range(25):
        batch = data.batch(step, "heldout")
        best, answers = SMALL.predictive(batch.tokens), batch.targets[:, -1]
        losses.append(-best.gather(1, answers[:, None]).log())
        hits.append((best.topk(2).indices == answers[:, None]).any(1).double())
    for drawn, expected in ((torch.cat(losses), SMALL.optimal_loss()), (torch.cat(hits), SMALL.best_hit_rate(2))):
        assert abs(float(drawn.mean()) - expected) < 5 * float(drawn.std()) / len(drawn) ** 0.5


def test_neither_items_nor_referrers_alone_say_what_comes_next() -> None:
    """One session with its referrers dealt out anew counts any other pair."""
    session = SMALL.build().batch(0).tokens[:1].clone()
    pairs = set()
    for u, v in combinations(range(4), 2):
        others = iter((9, 10))
        session[0, 2:-1:2] = torch.tensor([8 if i in (u, v) else next(others) for i in range(4)])
        pairs.add(tuple(SMALL.predictive(session)[0].tolist()))
    assert len(pairs) == 6


def test_sessions_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="length=11 must be even"):
        Sessions(length=11)
    with pytest.raises(ConfigError, match=r"length=12 has 5 visits, but n_items=4 and n_referrers=16 suffice for 4"):
        Sessions(n_items=4)
    with pytest.raises(ConfigError, match="sharpness"):
        Sessions(sharpness=-1.0)
    with pytest.raises(ConfigError, match=r"k=17 of n_items=16"):
        Sessions().best_hit_rate(17)
