"""Synthetic tasks: the answer keys hold, by brute force; the best losses are right, by counting."""

import math

import numpy as np
import pytest
import torch

from glassformer.data import (
    Arithmetic,
    Brackets,
    CircuitValue,
    ClosingBrackets,
    Copy,
    DataConfig,
    DirichletMarkov,
    Induction,
    IteratedSquaring,
    Markov,
    MixtureConfig,
    ModularAddition,
    Needle,
    PermutationProduct,
    Recall,
    Repeat,
    Reverse,
    RunningSum,
    Sessions,
    SkipTrigram,
    SortedSums,
    Sorting,
    TextConfig,
    WhichTask,
    ZhEnConfig,
    ZipfMarkov,
)
from glassformer.data.tasks.puzzles import is_balanced
from one_pass import in_one_pass

TASKS = [
    Repeat(batch_size=32, length=40, unit_min=3, unit_max=12, vocab_size=30),
    Repeat(batch_size=32, length=40, unit_min=5, unit_max=60, vocab_size=80, bos=False),
    Induction(batch_size=32, length=12, vocab_size=30),
    Copy(batch_size=32, length=15),
    Reverse(batch_size=32, length=16),
    ModularAddition(batch_size=32, length=10, modulus=11),
    Recall(batch_size=32, length=20, n_pairs=4),
    Needle(batch_size=32, length=14),
    Needle(batch_size=32, length=14, n_needles=3, n_names=5),
    Brackets(batch_size=64, length=14),
    SkipTrigram(batch_size=32, length=16),
]
# where nothing is certain, and the best loss is known
CHANCES = [Markov(), DirichletMarkov(), Sessions(), ZipfMarkov()]
# whose answers are asked about in test_questions.py
QUESTIONS = [kind(batch_size=4) for kind in (Arithmetic, Sorting, SortedSums, ClosingBrackets, WhichTask)]
QUESTIONS += [kind(batch_size=4) for kind in (RunningSum, PermutationProduct, IteratedSquaring, CircuitValue)]
NAMES = [f"{config.kind}-{i}" for i, config in enumerate(TASKS)]
IDS = [*NAMES, *(config.kind for config in [*CHANCES, *QUESTIONS]), "zh-en"]


def answers(config, split="train", steps=4):
    """Yield (tokens before the answer, answer) as text for every weighted position."""
    data = config.build()
    for step in range(steps):
        batch = data.batch(step, split)
        for row, pos in batch.weight.nonzero().tolist():
            shown = data.tokenizer.tokens(batch.tokens[row, : pos + 1].tolist())
            yield shown, data.tokenizer.token(int(batch.targets[row, pos]))


def solve(config, before):
    """Return the one possible next token, found by a search that knows the rule and nothing of the generator."""
    *earlier, last = before
    match config:
        case Repeat() | Induction():
            return before[len(earlier) - 1 - earlier[::-1].index(last) + 1]
        case Copy() | Reverse():
            cut = before.index("=")
            payload, written = before[1:cut], before[cut + 1 :]
            wanted = [*(payload if isinstance(config, Copy) else payload[::-1]), "<eos>"]
            assert written == wanted[: len(written)]
            return wanted[len(written)]
        case ModularAddition():
            a, plus, b, equals = before[-4:]
            assert (plus, equals) == ("+", "=")
            return str((int(a) + int(b)) % config.modulus)
        case Recall() | Needle():
            (answer,) = {after for token, after in zip(earlier, before[1:]) if token == last}
            return answer
        case Brackets():
            return "yes" if reduces_to_nothing("".join(before[1:-1])) else "no"
        case SkipTrigram():
            (source,) = [token for token in before if token.startswith("a")]
            return f"c{int(config.table()[int(source[1:]), int(last[1:])])}"


def reduces_to_nothing(string):
    while any(pair in string for pair in ("()", "[]")):
        string = string.replace("()", "").replace("[]", "")
    return not string


@pytest.mark.parametrize("config", TASKS, ids=NAMES)
@pytest.mark.parametrize("split", ["train", "heldout"])
def test_the_answer_key_is_what_the_row_determines(config, split):
    found = list(answers(config, split))
    assert found
    assert config.optimal_loss() == 0
    for before, answer in found:
        assert solve(config, before) == answer


@in_one_pass
@pytest.mark.parametrize("config", [*TASKS, *CHANCES, *QUESTIONS, ZhEnConfig(batch_size=8)], ids=IDS)
def test_batches_are_a_pure_function_of_the_step(config):
    one, two = config.build(), config.build()
    first = [one.batch(step).tensors() for step in range(4)]
    for step in (3, 0, 2):
        again = two.batch(step).tensors()
        assert again.keys() == first[step].keys()
        assert all(torch.equal(value, again[name]) for name, value in first[step].items())
    assert not torch.equal(one.batch(0).targets, one.batch(0, "heldout").targets)
    assert not torch.equal(one.batch(0).targets, one.batch(1).targets)
    assert not torch.equal(one.batch(0).targets, config.replace(seed=5).build().batch(0).targets)


@in_one_pass
@pytest.mark.parametrize("config", [*TASKS, *CHANCES, *QUESTIONS, ZhEnConfig()], ids=IDS)
def test_batches_fit_their_config(config):
    data = config.build()
    batch = data.batch(0)
    assert batch.tokens.dtype == batch.targets.dtype == torch.int64 and batch.weight.dtype == torch.bool
    assert batch.tokens.shape == batch.targets.shape == batch.weight.shape
    assert len(batch.tokens) == config.batch_size and batch.tokens.shape[1] <= config.length
    assert int(batch.tokens.min()) >= 0 and int(batch.tokens.max()) < data.vocab_size == data.tokenizer.vocab_size
    assert torch.equal(batch.tokens[:, 1:], batch.targets[:, :-1]) or batch.source is not None
    if batch.lengths is not None:
        beyond = torch.arange(batch.tokens.shape[1])[None, :] >= batch.lengths[:, None]
        assert not (batch.weight & beyond).any()


CONFIGS = [
    *TASKS,
    *CHANCES,
    *QUESTIONS,
    ZhEnConfig(),
    TextConfig(),
    MixtureConfig(parts=(TextConfig(), Repeat()), shares=(0.5, 0.5)),
]


@in_one_pass
@pytest.mark.parametrize("config", CONFIGS, ids=[*IDS, "text", "mixture"])
def test_data_configs_survive_json(config):
    assert DataConfig.from_json(config.to_json()) == config


def test_repeat_counts_all_that_is_determined_and_no_more():
    config = Repeat(batch_size=64, length=30, unit_min=2, unit_max=9, vocab_size=40)
    batch = config.build().batch(0)
    for tokens, weight in zip(batch.tokens.tolist(), batch.weight.tolist()):
        # a row is determined from the first token that was seen before
        seen_before = [token in tokens[:pos] for pos, token in enumerate(tokens)]
        assert weight == seen_before


def test_repeat_draws_every_unit_length_and_no_special_token():
    config = Repeat(batch_size=200, length=30, unit_min=2, unit_max=5, vocab_size=40)
    batch = config.build().batch(0)
    assert set((~batch.weight).sum(1).tolist()) == {3, 4, 5, 6}  # <bos> and the unit
    assert (batch.tokens[:, 0] == 0).all() and (batch.tokens[:, 1:] != 0).all()


def test_held_out_sums_never_occur_in_training_in_either_order():
    config = ModularAddition(batch_size=200, modulus=13)
    pairs = {
        split: {(min(a, b), max(a, b)) for before, _ in answers(config, split, 20) for a, b in [(before[1], before[3])]}
        for split in ("train", "heldout")
    }
    assert pairs["train"].isdisjoint(pairs["heldout"])
    assert len(pairs["train"] | pairs["heldout"]) == 13 * 14 // 2


@pytest.mark.parametrize("depth", [0.0, 0.5, 1.0])
def test_the_needle_lies_at_the_asked_depth(depth):
    batch = Needle(length=23, depth=depth).build().batch(0)
    assert (batch.tokens == 1).nonzero()[::2, 1].unique().tolist() == [1 + round(depth * 19)]


def test_of_several_needles_all_differ_stand_anywhere_and_the_asked_one_is_where_it_should():
    config = Needle(batch_size=400, length=12, n_needles=3, n_names=4, n_values=5)
    tokens = config.build().batch(0).tokens
    found = (tokens[:, 1:-1] >= 1) & (tokens[:, 1:-1] <= 4)
    assert (found.sum(1) == 3).all()
    needles, values = tokens[:, 1:-1][found].view(-1, 3), tokens[:, 2:][found[:, :10]].view(-1, 3)
    for each in (needles, values):
        assert (each.sort(1).values.diff(dim=1) > 0).all()
    assert ((values >= 5) & (values < 10)).all()
    # ten places, the last of which no needle can take; each of the three is asked for as often
    assert sorted(set(found.nonzero()[:, 1].tolist())) == list(range(9))
    asked = (needles == tokens[:, -1:]).double().mean(0)
    assert asked.sum() == 1 and (asked - 1 / 3).abs().max() < 0.1
    first = config.replace(depth=0.0).build().batch(0).tokens
    assert torch.equal(first[:, 1], first[:, -1])


def test_bracket_strings_are_balanced_about_half_the_time():
    told = [answer for _, answer in answers(Brackets(batch_size=64, length=20), steps=10)]
    assert 0.45 < told.count("yes") / len(told) < 0.65
    assert is_balanced([0, 1, 3, 2], 2) and not is_balanced([0, 1, 2, 3], 2) and not is_balanced([2], 2)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_the_markov_optimum_is_the_entropy_rate(order):
    config = Markov(order=order, n_symbols=3, seed=1)
    table = config.table().numpy()
    # the chain over contexts written out as a matrix, its stationary vector by linear algebra
    n = 3**order
    chain = np.zeros((n, n))
    for context in range(n):
        for symbol in range(3):
            chain[context, (context * 3 + symbol) % n] += table[context, symbol]
    values, vectors = np.linalg.eig(chain.T)
    weights = np.real(vectors[:, np.argmax(np.real(values))])
    weights /= weights.sum()
    entropy = -(table * np.log(table)).sum(1)
    assert config.optimal_loss() == pytest.approx(float(weights @ entropy), abs=1e-10)


@pytest.mark.parametrize("order", [1, 2])
def test_markov_rows_cost_a_perfect_model_the_optimal_loss(order):
    config = Markov(order=order, n_symbols=4, batch_size=256, length=65, seed=3)
    batch, table = config.build().batch(0), config.table()
    symbols = torch.cat([batch.tokens, batch.targets[:, -1:]], 1)[:, 1:] - 1
    contexts = sum(symbols[:, k : symbols.shape[1] - order + k] * 4 ** (order - 1 - k) for k in range(order))
    losses = -table[contexts, symbols[:, order:]].log()
    assert losses.numel() == int(batch.weight.sum())
    # 16,000 draws with a standard deviation below 1
    assert float(losses.mean()) == pytest.approx(config.optimal_loss(), abs=0.03)


def test_markov_sharpness_zero_is_noise():
    assert Markov(n_symbols=8, sharpness=0.0).optimal_loss() == pytest.approx(math.log(8))


def test_shares_of_zipf_markov_words_stay_as_they_are_and_fall_as_ranks_do():
    config = ZipfMarkov(n_words=30, n_classes=4, seed=2)
    chain = config.table()[torch.arange(30) % 4]
    assert torch.allclose(config.shares() @ chain, config.shares(), atol=1e-12)
    assert float(config.shares().sum()) == pytest.approx(1)
    flat = config.replace(sharpness=0.0).shares().sort(descending=True).values
    assert torch.allclose(flat * torch.arange(1, 31), flat[:1].expand(30))


def test_zipf_markov_rows_cost_a_perfect_model_the_optimal_loss():
    config = ZipfMarkov(batch_size=256, length=64, n_words=40, n_classes=3, seed=1)
    batch = config.build().batch(0)
    losses = -config.table()[batch.tokens % 3, batch.targets].log()
    assert batch.weight.all()
    # 16,000 draws with a standard deviation of 1.4
    assert float(losses.mean()) == pytest.approx(config.optimal_loss(), abs=0.04)
    counted = torch.bincount(batch.tokens.flatten(), minlength=40) / batch.tokens.numel()
    assert (counted - config.shares()).abs().max() < 0.015
