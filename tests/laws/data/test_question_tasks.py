"""Questions: answers are right by another way to them, splits share nothing, and a reward is for the answer alone."""

import ast
import operator
import re
from functools import reduce
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glassformer.data import (
    Arithmetic,
    CircuitValue,
    ClosingBrackets,
    DataConfig,
    IteratedSquaring,
    MixtureConfig,
    PermutationProduct,
    Question,
    QuestionConfig,
    RunningSum,
    SerialQuestion,
    SortedSums,
    Sorting,
    WhichTask,
)
from glassformer.errors import ConfigError, DataError
from glassformer.models import GREEDY, generate
from glassformer.training import train
from glassformer.training.recipes import recipe
from one_pass import in_one_pass

TASKS: list[QuestionConfig] = [
    Arithmetic(),
    Arithmetic(n_terms=3, largest=20),
    Sorting(n_max=4),
    Sorting(n_min=2, n_max=7, largest=9),
    ClosingBrackets(),
    ClosingBrackets(n_min=2, n_max=8, n_kinds=2),
    SortedSums(),
    WhichTask(),
    RunningSum(),
    RunningSum(modulus=2, n_min=12, chain="none"),
    PermutationProduct(chain="filler"),
    PermutationProduct(generators=("231", "213"), n_min=5),
    IteratedSquaring(),
    IteratedSquaring(moduli=(15, 47), chain="filler"),
    CircuitValue(),
    CircuitValue(gates=("and", "not", "xnor"), n_inputs=2, chain="none"),
]
IN_PYTHON = {
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "nand": lambda x, y: 1 - (x & y),
    "nor": lambda x, y: 1 - (x | y),
    "xnor": lambda x, y: 1 - (x ^ y),
    "not": lambda x, y: 1 - x,
}
SPLITS: Any = ("train", "heldout", "test")


def computed(text: str) -> int:
    """Return what a sum comes to, by Python's own grammar and a walk over its tree."""
    tree = ast.parse(text, mode="eval").body
    terms: list[int] = []
    while isinstance(tree, ast.BinOp):
        assert isinstance(tree.right, ast.Constant) and isinstance(tree.right.value, int)
        terms.append(tree.right.value * (1 if isinstance(tree.op, ast.Add) else -1))
        tree = tree.left
    assert isinstance(tree, ast.Constant) and isinstance(tree.value, int)
    return reduce(operator.add, terms, tree.value)


def solved(config: QuestionConfig, prompt: str) -> str:
    """Return the answer to a prompt by a search that knows the rule and nothing of the task's own reading."""
    text = prompt.replace(" ", "").removesuffix("=")
    match config:
        case Arithmetic():
            return str(computed(text))
        case Sorting() | SortedSums():
            values = [computed(item) for item in text.split(",")]
            ordered = []
            while values:
                ordered.append(min(values))
                values.remove(ordered[-1])
            return ",".join(map(str, ordered))
        case ClosingBrackets():
            found = ""
            while (open_brackets := reduced(text + found)) != "":
                found += {"(": ")", "[": "]", "{": "}", "<": ">"}[open_brackets[-1]]
            return found
        case WhichTask():
            about = text.removeprefix("which")
            if "," in about:
                items = about.split(",")
                return "sorting" if len({int(item) for item in items}) == len(items) else "other"
            if "+" in about or "-" in about:
                return "arithmetic" if computed(about) >= 0 else "other"
            left = reduced(about)
            return "closing-brackets" if left and not set(left) & set(")]}>") else "other"
        case SerialQuestion():
            *before, found = worked_out(config, [symbol for symbol in prompt.split() if symbol not in "_="])
            return "".join({"steps": before, "filler": ["."] * len(before), "none": []}[config.chain]) + found
    raise AssertionError(config)


def worked_out(config: SerialQuestion, symbols: list[str]) -> list[str]:
    """Return the value behind each word: by sums, matrices, powers, and Python's operators."""
    match config:
        case RunningSum():
            return [str(sum(map(int, symbols[:k])) % config.modulus) for k in range(1, len(symbols) + 1)]
        case PermutationProduct():
            places = len(symbols[0])
            matrices = [np.eye(places, dtype=int)[[int(image) - 1 for image in symbol]] for symbol in symbols]
            return ["".join(map(str, product.argmax(1) + 1)) for product in accumulate(matrices, operator.matmul)]
        case IteratedSquaring():
            number, modulus = int(symbols[0]), int(symbols[1].removeprefix("mod"))
            return [str(pow(number, 2**k, modulus)) for k in range(1, len(symbols) - 1)]
        case CircuitValue():
            bits = {f"x{i}": int(bit) for i, bit in enumerate(symbols[: config.n_inputs])}
            words = symbols[config.n_inputs :]
            for kind, first, second in zip(words[::3], words[1::3], words[2::3]):
                bits[f"x{len(bits)}"] = IN_PYTHON[kind](bits[first], bits[second])
            return list(map(str, bits.values()))[config.n_inputs :]
    raise AssertionError(config)


def reduced(text: str) -> str:
    """Return a text without pairs of brackets that close each other."""
    while any(pair in text for pair in ("()", "[]", "{}", "<>")):
        for pair in ("()", "[]", "{}", "<>"):
            text = text.replace(pair, "")
    return text


@in_one_pass
@pytest.mark.parametrize("config", TASKS, ids=lambda config: config.described)
def test_answers_are_those_of_another_way_to_them_and_earn_the_reward_which_nothing_else_does(config) -> None:
    asked = config.questions(60, seed=1)
    assert len({question.prompt for question in asked}) > 20
    for question in asked:
        assert question.answer.replace(" ", "") == solved(config, question.prompt).replace(" ", "")
        assert config.reward(question.prompt, question.answer) == 1
        assert config.reward(question.prompt, f" {question.answer}\n") == 1
        spoilt = ("", f"{question.answer} 0", question.answer[:-1], question.answer[::-1] + " (", "__import__('os')")
        assert {config.reward(question.prompt, text) for text in spoilt} == {-1}
    longest = config.longest()
    assert max(len(question.prompt.split()) for question in asked) <= longest.prompt
    assert max(len(question.answer.split()) for question in asked) <= longest.answer


@in_one_pass
@pytest.mark.parametrize("config", TASKS, ids=lambda config: config.described)
def test_a_prompt_is_of_one_split_whatever_the_seed_and_rows_hold_those_of_theirs(config) -> None:
    for split in SPLITS:
        prompts = [question.prompt for question in config.questions(4, split)]
        assert {config.split_of(prompt) for prompt in prompts} == {split}
        assert {config.replace(seed=7).split_of(prompt) for prompt in prompts} == {split}
    data = config.replace(batch_size=3).build()
    for split in ("train", "heldout"):
        batch = data.batch(3, split)
        for row, answer in zip(batch.tokens, batch.weight):
            prompt = data.tokenizer.decode(row[1 : int(answer.nonzero()[0]) + 1].tolist())
            assert config.split_of(prompt) == split


@in_one_pass
@pytest.mark.parametrize("config", TASKS, ids=lambda config: config.described)
def test_what_counts_in_a_row_is_the_answer_and_its_end(config) -> None:
    data = config.replace(batch_size=16).build()
    batch = data.batch(0)
    assert batch.lengths is not None
    for row in range(16):
        shown = data.tokenizer.tokens(batch.tokens[row, : batch.lengths[row]].tolist())
        told = data.tokenizer.tokens(batch.targets[row][batch.weight[row]].tolist())
        prompt = " ".join(shown[1 : len(shown) - len(told) + 1])
        assert shown[0] == "<bos>" and prompt.endswith("=")
        assert [*(config.answer(prompt) or "none").split(), "<eos>"] == told


def test_what_is_the_same_question_is_of_one_split() -> None:
    arithmetic, sorting, which = Arithmetic(n_terms=3, largest=9), Sorting(), WhichTask()
    assert arithmetic.key("1 + 2 - 3 =") == arithmetic.key("2 - 3 + 1 =") != arithmetic.key("1 + 3 - 2 =")
    assert sorting.key("1 , 2 , 3 =") == sorting.key("3 , 1 , 2 =")
    for question in Sorting().questions(20, "test"):
        assert which.split_of(which.asked(question.prompt)) == "test"


def test_splits_have_the_shares_that_were_asked_for() -> None:
    config = Arithmetic(heldout=0.2, tested=0.3)
    found = [config.split_of(f"{a} + {b} =") for a in range(60) for b in range(a, 60)]
    # 1,830 different sums: a standard deviation of .011
    for split, share in {"train": 0.5, "heldout": 0.2, "test": 0.3}.items():
        assert found.count(split) / len(found) == pytest.approx(share, abs=0.04)


def test_numbers_of_each_length_are_drawn_alike_often_and_all_that_are_allowed() -> None:
    config, random = Arithmetic(largest=120), torch.Generator().manual_seed(0)
    found = [int(number) for _ in range(1500) for number in re.findall("[0-9]+", config.draw(random).replace(" ", ""))]
    assert set(found) == set(range(121))
    for digits in (1, 2, 3):
        # a standard deviation of .009
        share = sum(len(str(number)) == digits for number in found) / len(found)
        assert share == pytest.approx(1 / 3, abs=0.04)


def test_which_task_a_prompt_is_of_is_not_told_by_its_looks() -> None:
    config = WhichTask(other=0.4)
    asked = config.questions(300, seed=2)
    others = [question for question in asked if question.answer == "other"]
    assert len(others) / 300 == pytest.approx(0.4, abs=0.1)
    # of those without an answer each task has its share
    looks = [next((mark for mark in ",+-" if mark in question.prompt), "(") for question in others]
    assert {"," in looks, "-" in looks, "(" in looks} == {True}
    assert {question.answer for question in asked} == {"arithmetic", "sorting", "closing-brackets", "other"}
    assert WhichTask(other=0.0).questions(20)[0].answer != "other"


def test_the_unseen_task_is_no_prompt_of_a_task_that_is_trained_and_has_no_symbol_of_its_own() -> None:
    parts = (Arithmetic(), Sorting(), ClosingBrackets(), WhichTask())
    mixture = MixtureConfig(parts, (0.25,) * 4, length=32)
    unseen = SortedSums()
    assert set(unseen.symbols()) <= set(mixture.symbols() or ())
    for question in unseen.questions(30):
        assert [part.answer(question.prompt) for part in parts] == [None] * 4
    data = mixture.build()
    batch, heldout = data.batch(0), data.batch(0, "heldout")
    assert batch.tokens.shape == heldout.tokens.shape == (16, 32)
    assert DataConfig.from_json(mixture.to_json()) == mixture


def test_prompts_of_another_form_have_no_answer_and_no_reward() -> None:
    assert [Arithmetic().answer(text) for text in ("1 + 2", "1 + =", "0 1 + 2 =", "7 =", "1 - 2 =", "")] == [None] * 6
    assert [Sorting().answer(text) for text in ("1 , 1 =", "1 =", "1 , + =", "1 + 1 , 3 =")] == [None] * 4
    assert [ClosingBrackets().answer(text) for text in ("( ] =", "( ) =", ") =", "1 =")] == [None] * 4
    assert [SortedSums().answer(text) for text in ("1 , 2 =", "1 + 2 + 3 , 4 =", "1 + 1 , 2 =")] == [None] * 3
    assert WhichTask().answer("1 + 2 =") is None
    assert Arithmetic().answer("17+25=") == "4 2"
    with pytest.raises(DataError, match='arithmetic: "1 - 2 =" is no prompt with an answer'):
        Arithmetic().reward("1 - 2 =", "other")


def test_questions_are_a_function_of_both_seeds() -> None:
    config = Sorting()
    assert config.questions(5, seed=1) == config.questions(5, seed=1)
    assert config.questions(5, seed=1) != config.questions(5, seed=2)
    assert config.questions(5, seed=1) != config.replace(seed=1).questions(5, seed=1)
    assert isinstance(config.questions(1)[0], Question)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sorting(length=16), r"no room for the longest prompt of 15 symbols .* answer of 14; length=30 has"),
        (lambda: Arithmetic(heldout=0.6, tested=0.5), r"heldout=0\.6 and tested=0\.5 leave nothing"),
        (lambda: Arithmetic(n_terms=1), "a sum has two terms or more"),
        (lambda: Sorting(n_min=4, n_max=3), r"n_min=4 and n_max=3 must be from 2"),
        (lambda: Sorting(n_max=5, largest=3), r"to largest \+ 1 = 4"),
        (lambda: ClosingBrackets(n_min=8, n_max=7), "n_min=8 is more than n_max=7"),
        (lambda: WhichTask(parts=(Arithmetic(), Arithmetic(n_terms=3))), "are to differ in kind"),
        (lambda: WhichTask(parts=(WhichTask(),)), "a part is this question itself"),
    ],
)
def test_what_cannot_be_asked_is_refused(make, message) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_split_without_prompts_is_refused_in_finite_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassformer.data.tasks.question._TRIES", 50)
    with pytest.raises(DataError, match=r"arithmetic\(tested=0\.0\): 50 draws gave no prompt that is wanted"):
        Arithmetic(tested=0.0).questions(1, "test")


def test_longest_questions_fit_their_rows() -> None:
    # the least length that is allowed holds every token that is read or told
    config = ClosingBrackets(n_min=12, length=26)
    longest = config.longest()
    assert config.length == longest.prompt + longest.answer + 1
    batch = config.replace(batch_size=200).build().batch(0)
    assert batch.lengths is not None and int(batch.lengths.max()) <= 26
    assert torch.equal(batch.weight.sum(1), batch.lengths - batch.tokens.eq(2).int().argmax(1))


@pytest.mark.full
def test_the_recipe_of_questions_trains_a_small_decoder_whose_answers_are_rewarded(tmp_path: Path) -> None:
    config = recipe("questions")
    assert 3e5 < sum(parameter.numel() for parameter in config.model.build().parameters()) < 4e5
    short = config.replace(data=config.data.replace(batch_size=4), steps=2, evaluate_batches=1)
    model = train(short, tmp_path)
    assert isinstance(config.data, MixtureConfig)
    for task in config.data.parts:
        assert isinstance(task, QuestionConfig)
        asked = task.questions(3, "heldout")
        new = task.longest().answer + 1
        found = generate(model, [question.prompt for question in asked], GREEDY, max_new_tokens=new)
        assert {task.reward(question.prompt, text) for question, text in zip(asked, found.texts)} <= {-1, 1}
