"""Questions that take steps: one prompt and one value whatever is written before it, and groups of the right size."""

import pytest

from glassformer.data import (
    CircuitValue,
    IteratedSquaring,
    PermutationProduct,
    Question,
    QuestionConfig,
    RunningSum,
    SerialQuestion,
)
from glassformer.errors import ConfigError
from one_pass import in_one_pass

TASKS: list[SerialQuestion] = [RunningSum(), PermutationProduct(), IteratedSquaring(), CircuitValue(n_inputs=3)]


@in_one_pass
@pytest.mark.parametrize("config", TASKS, ids=lambda config: config.kind)
def test_what_is_written_before_the_answer_changes_neither_prompts_nor_splits_nor_the_last_value(config) -> None:
    asked = {chain: config.replace(chain=chain).questions(20, "test") for chain in ("steps", "filler", "none")}
    for steps, filler, none in zip(*asked.values(), strict=True):
        assert steps.prompt == filler.prompt == none.prompt
        written = config.steps(steps.prompt)
        assert written is not None and steps.answer.split() == list(written)
        assert filler.answer.split() == ["."] * (len(written) - 1) + [written[-1]]
        assert none.answer == written[-1]
    vocabularies = {tuple(config.replace(chain=chain).symbols() or ()) for chain in asked}
    assert len(vocabularies) == 1
    used = {symbol for questions in asked.values() for question in questions for symbol in " ".join(question).split()}
    (vocabulary,) = vocabularies
    assert used <= set(vocabulary) and len(set(vocabulary)) == len(vocabulary)


@in_one_pass
@pytest.mark.parametrize("config", TASKS, ids=lambda config: config.kind)
def test_there_are_as_many_steps_as_words_and_all_numbers_of_steps_that_are_allowed(config) -> None:
    asked = config.replace(n_min=2, n_max=4).questions(60)
    words = [len(symbols_of_words(config, question)) // config.word_size for question in asked]
    assert [len(question.answer.split()) for question in asked] == words and set(words) == {2, 3, 4}
    # the answer stands equally far behind the words it is of
    assert len({len(question.prompt.split()) for question in asked}) == 1


def symbols_of_words(config: SerialQuestion, question: Question) -> list[str]:
    return [symbol for symbol in question.prompt.split()[config.n_given() : -1] if symbol != "_"]


@pytest.mark.parametrize(
    ("generators", "size"),
    [
        (PermutationProduct().generators, 120),
        (("23451",), 5),
        (("23145", "12453"), 60),
        (("2341", "2134"), 24),
        (("1",), 1),
    ],
)
def test_the_values_of_products_are_the_group_that_is_generated(generators, size) -> None:
    config = PermutationProduct(generators=generators, n_min=1)
    values = set(config.symbols()[5:])
    assert len(values) == size and set(generators) <= values
    seen = {value for question in config.questions(40) for value in question.answer.split()}
    assert seen <= values


def test_the_sign_of_a_product_is_the_parity_of_its_odd_generators() -> None:
    def is_odd(permutation: str) -> bool:
        pairs = ((i, j) for j in range(len(permutation)) for i in range(j))
        return sum(permutation[i] > permutation[j] for i, j in pairs) % 2 == 1

    for question in PermutationProduct(chain="none").questions(40, "test"):
        words = question.prompt.split()[:-1]
        assert is_odd(question.answer) == (sum(is_odd(word) for word in words if word != "_") % 2 == 1)


def test_a_number_and_what_it_lacks_are_the_same_question() -> None:
    config = IteratedSquaring(moduli=(23, 47), n_min=1, n_max=3)
    assert config.key("5 mod23 ^2 ^2 _ =") == config.key("18 mod23 ^2 ^2 _ =")
    assert config.steps("5 mod23 ^2 ^2 _ =") == config.steps("18 mod23 ^2 ^2 _ =") == ("2", "4")
    others = ("5 mod23 ^2 _ _ =", "5 mod47 ^2 ^2 _ =", "6 mod23 ^2 ^2 _ =")
    assert config.key("5 mod23 ^2 ^2 _ =") not in map(config.key, others)
    # of what has no answer every text is its own
    assert config.key("5 mod24 ^2 _ _ =") == "5 mod24 ^2 _ _ ="


@pytest.mark.parametrize(
    ("config", "prompts"),
    [
        (RunningSum(modulus=3, n_max=4), ("0 1 2 1", "0 1 3 1 =", "0 1 =", "0 _ 1 _ =", "_ _ _ _ =", "00 1 _ _ =", "")),
        (PermutationProduct(n_max=4), ("32145 _ _ _ =", "21345 21345 =", "_ _ _ _ =", "21345 2134 _ _ =")),
        (IteratedSquaring(n_max=4), ("5 mod24 ^2 _ _ _ =", "23 mod23 ^2 _ _ _ =", "5 mod23 _ _ _ _ =", "mod23 ^2 =")),
        (
            CircuitValue(n_inputs=1, n_min=1, n_max=1),
            ("1 and x0 x1 =", "1 and x0 y =", "1 but x0 x0 =", "2 and x0 x0 =", "1 and x0 =", "1 not x0 x0 =", "="),
        ),
    ],
    ids=lambda part: part.kind if isinstance(part, QuestionConfig) else "",
)
def test_prompts_of_another_form_have_no_answer(config, prompts) -> None:
    assert [config.answer(prompt) for prompt in prompts] == [None] * len(prompts)


@in_one_pass
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RunningSum(n_min=5, n_max=4), "running-sum: n_min=5 is more than n_max=4"),
        (lambda: RunningSum(modulus=1), "modulus=1; there are two numbers at least"),
        (lambda: RunningSum(length=24), "length=24 has no room for .* length=26 has"),
        (lambda: PermutationProduct(generators=()), "are to be permutations of 1 to 6 places"),
        (lambda: PermutationProduct(generators=("2345671",)), "are to be permutations of 1 to 6 places"),
        (lambda: PermutationProduct(generators=("213", "2134")), '"2134" does not have each of 1 to 3 once'),
        (lambda: PermutationProduct(generators=("213", "213")), "are to differ"),
        (lambda: IteratedSquaring(moduli=(23, 23)), "are to differ and to be 3 at least"),
        (lambda: IteratedSquaring(moduli=(2,)), "are to differ and to be 3 at least"),
        (lambda: CircuitValue(gates=("and", "xnort")), '"xnort" is no gate. Nearest: "xnor"'),
        (lambda: CircuitValue(gates=()), "gates is empty. There are and, or"),
    ],
)
def test_what_cannot_be_asked_is_refused(make, message) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
