"""What a check says of right answers, of wrong ones with a name, and of all others."""

import pytest
import torch

from glassformer.book import EXERCISES, Exercise, Mistake, check, exercise
from glassformer.book.exercise import alike
from glassformer.errors import WrongArgument
from glassformer.words import speaking, spoken

MEAN = Exercise(
    "The mean of a list of numbers.",
    (([1.0, 2.0, 6.0],), ([4.0, 4.0],)),
    lambda numbers: sum(numbers) / len(numbers),
    (Mistake(sum, "this is the sum; divide it by how many there are."),),
)


def test_a_right_answer_is_right_however_it_is_written() -> None:
    found = MEAN.check(lambda numbers: torch.tensor(numbers).mean())
    assert found and str(found) == "Right."


def test_a_known_mistake_is_named() -> None:
    found = MEAN.check(lambda numbers: torch.tensor(numbers).sum())
    assert not found
    assert str(found) == "Not yet: this is the sum; divide it by how many there are."


def test_another_mistake_is_shown_where_it_shows_first() -> None:
    # right on the second input alone, and so no known mistake
    assert str(MEAN.check(max)) == "Not yet: for [1.0, 2.0, 6.0] it gives 6.0; right is 3.0."


def test_numbers_have_the_digits_that_a_reader_wants_and_more_where_they_tell_two_apart() -> None:
    third = Exercise("A third of a number.", ((torch.tensor(2.0, dtype=torch.float64),),), lambda x: x / 3, ())
    assert str(third.check(lambda x: [x / 7])) == "Not yet: for 2.0 it gives [0.2857]; right is 0.6667."
    assert str(third.check(lambda x: 0.66667)) == "Not yet: for 2.0 it gives 0.66667; right is 0.666667."
    # what is whole stays whole, and arguments are rounded as answers are
    assert str(third.check(lambda x: (1234567.0, x))) == "Not yet: for 2.0 it gives (1234567.0, 2.0); right is 0.6667."
    assert str(check("look_up", lambda *_: None)).startswith("Not yet: for [1.541, -0.2934], [[0.6614, 0.2669], ")


def test_an_answer_that_raises_is_told_what_it_raised() -> None:
    said = str(MEAN.check(lambda numbers: numbers[5]))
    assert said == "Not yet: for [1.0, 2.0, 6.0] it raises IndexError: list index out of range"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (1, 1.0, True), ([1, 2], torch.tensor([1.0, 2.0]), True), (1.0, 1.0 + 1e-12, True), ([1, 2], [1, 2, 3], False),
        (1.0, [1.0], False), ("ab", "ab", True), ("ab", "ba", False), ("1", 1, False), (["a"], ["a"], True),
        ({"a": 1}, {"a": 1}, True), (None, 0, False),
    ],
)  # fmt: skip
def test_answers_are_alike_up_to_rounding_and_not_up_to_shape(one: object, other: object, same: bool) -> None:
    assert alike(one, other) is same and alike(other, one) is same


def test_every_solution_passes_and_each_of_three_mistakes_fails_with_its_own_name() -> None:
    assert len(EXERCISES) == 12
    for name, one in EXERCISES.items():
        assert check(name, one.solution), name
        assert len(one.mistakes) == 3, name
        for mistake in one.mistakes:
            found = check(name, mistake.answer)
            # the first that fits is named: none may do what another does
            assert not found and str(found) == f"Not yet: {mistake.named}", name


def test_an_exercise_that_is_not_there_is_refused_with_the_nearest() -> None:
    with pytest.raises(WrongArgument, match=r'no exercise "soft_max"\. Nearest: "softmax"'):
        check("soft_max", max)


def test_tasks_and_what_is_said_of_answers_are_chinese_if_asked_for() -> None:
    for name, one in EXERCISES.items():
        task = exercise(name, lang="zh").task
        with speaking("zh"):
            named = [spoken(mistake.named) for mistake in one.mistakes]
            assert task == spoken(one.task) != one.task
        assert [str(check(name, mistake.answer, lang="zh")) for mistake in one.mistakes] == [
            f"还不对：{n}" for n in named
        ]
        assert str(check(name, one.solution, lang="zh")) == "正确。" and str(check(name, one.solution)) == "Right."
        raised = str(check(name, lambda *_: [][1], lang="zh"))
        assert raised.startswith("还不对：") and raised.endswith("时抛出 IndexError：list index out of range")
        assert str(check(name, lambda *_: None, lang="zh")).startswith("还不对：")
        assert exercise(name).task == one.task
