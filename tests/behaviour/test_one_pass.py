"""One test of many cases: each is run, the one that fails is named, and what needs a test of its own is refused."""

from typing import Any

import pytest
import torch

from one_pass import in_one_pass


def test_every_case_of_every_parameter_is_run_from_the_same_generator_and_the_one_that_fails_is_named() -> None:
    run: list[tuple[Any, ...]] = []

    @in_one_pass
    @pytest.mark.parametrize("pair", [(1, 2), pytest.param((3, 4), id="last")])
    @pytest.mark.parametrize(("a", "b"), [("x", "y"), ("z", "w")])
    def every(a: str, b: str, pair: tuple[int, int]) -> None:
        run.append((a, b, pair, float(torch.rand(()))))
        assert (a, pair) != ("z", (3, 4))

    with pytest.raises(AssertionError) as raised:
        every()
    assert [one[:3] for one in run] == [("x", "y", (1, 2)), ("x", "y", (3, 4)), ("z", "w", (1, 2)), ("z", "w", (3, 4))]
    assert len({one[3] for one in run}) == 1
    assert raised.value.__notes__ == ["case: {'a': 'z', 'b': 'w', 'pair': (3, 4)}"]


def test_cases_that_take_fixtures_or_have_marks_are_refused() -> None:
    def takes(a: int, tmp_path: Any) -> None: ...

    def marked(a: int) -> None: ...

    with pytest.raises(AssertionError, match="takes takes fixtures"):
        in_one_pass(pytest.mark.parametrize("a", [1])(takes))
    with pytest.raises(AssertionError, match="a test of its own"):
        in_one_pass(pytest.mark.parametrize("a", [pytest.param(1, marks=pytest.mark.full)])(marked))
