"""What the study of chains of thought compares: the last value that is written, by models of one size."""

from types import SimpleNamespace

import pytest

from glassformer.data import RunningSum
from glassformer.studies import chain_of_thought
from glassformer.studies.chain_of_thought import FILLER, NONE, STEPS, SUMS, TASKS, recipe, right, task


@pytest.mark.parametrize("problem", TASKS)
def test_models_of_a_problem_are_alike_and_rows_just_hold_what_is_written(problem: str) -> None:
    data = {chain: task(problem, chain) for chain in (STEPS, FILLER, NONE)}
    recipes = [recipe(problem, one, steps=3) for one in data.values()]
    assert len({one.model.to_json() for one in recipes}) == 1
    assert data[STEPS].length == data[FILLER].length == data[NONE].length + data[NONE].n_max - 1
    longest = data[STEPS].replace(batch_size=4, n_min=data[STEPS].n_max)
    lengths = longest.build().batch(0).lengths
    assert lengths is not None and lengths.tolist() == [longest.length] * 4


def test_the_last_value_that_is_written_is_judged_whatever_stands_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    data = RunningSum(n_min=3, n_max=3)
    model = recipe(SUMS, data, steps=1).model.build()
    asked = data.questions(4, "test", seed=1)
    ends = [question.answer.split()[-1] for question in asked]
    written = (asked[0].answer, f"{ends[1]} {ends[1]} {ends[1]}", f"{ends[2]} x", "")
    monkeypatch.setattr(chain_of_thought, "generate", lambda *_, **__: SimpleNamespace(texts=written))
    assert right(model, data, asked) == 0.5
