"""Exercises: a function to write, and a check that names the mistake where an answer is wrong in a known way.

The check runs an answer beside the solution, on a few inputs. A known mistake is a function too, one that makes it on
purpose: an answer that gives on every input what this one gives has made that mistake, however it is written.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from glassformer.words import spoken

Answer = Callable[..., Any]
SHOWN = 200  # characters of a value in a message
DIGITS = 4  # of a number in a message; more where a wrong one would look right


@dataclass(frozen=True)
class Checked:
    """What a check says of an answer; true if it is right.

    Args:
        right: Whether it gives what the solution gives, on every input.
        said: A sentence for whoever wrote it.
    """

    right: bool
    said: str

    def __bool__(self) -> bool:
        return self.right

    def __str__(self) -> str:
        return self.said


class Mistake(NamedTuple):
    """A known mistake.

    Args:
        answer: A function that makes it.
        named: What is wrong, and what would be right, in a sentence.
    """

    answer: Answer
    named: str


@dataclass(frozen=True)
class Exercise:
    """A function to write.

    Args:
        task: What it is to return, of which arguments.
        inputs: Arguments on which answers are compared; on these each mistake gives something of its own.
        solution: A right answer.
        mistakes: Known ones; the first that an answer makes is named.
    """

    task: str
    inputs: tuple[tuple[Any, ...], ...]
    solution: Answer
    mistakes: tuple[Mistake, ...]

    def check(self, answer: Answer) -> Checked:
        """Compare an answer with the solution and, where they differ, with each known mistake.

        Args:
            answer: A function of the task's arguments.
        """
        answers = []
        for arguments in self.inputs:
            try:
                answers.append(answer(*arguments))
            except Exception as error:
                asked, kind = _shown(*arguments), type(error).__name__
                raised = spoken("Not yet: for {asked} it raises {kind}: {error}", asked=asked, kind=kind, error=error)
                return Checked(False, raised)
        wanted = [self.solution(*arguments) for arguments in self.inputs]
        if all(map(alike, answers, wanted)):
            return Checked(True, spoken("Right."))
        for mistake in self.mistakes:
            if all(alike(one, mistake.answer(*arguments)) for one, arguments in zip(answers, self.inputs)):
                return Checked(False, spoken("Not yet: {named}", named=mistake.named))
        first = next(i for i, pair in enumerate(zip(answers, wanted)) if not alike(*pair))
        asked, (given, right) = _shown(*self.inputs[first]), _told_apart(answers[first], wanted[first])
        told = spoken("Not yet: for {asked} it gives {given}; right is {right}.", asked=asked, given=given, right=right)
        return Checked(False, told)


def alike(one: Any, other: Any) -> bool:
    """Whether two answers are the same: numbers, lists and tensors of them up to rounding, all else exactly."""
    try:
        numbers = [torch.as_tensor(value, dtype=torch.float64) for value in (one, other)]
    except (TypeError, ValueError, RuntimeError):
        return type(one) is type(other) and bool(one == other)
    return numbers[0].shape == numbers[1].shape and torch.allclose(*numbers, rtol=1e-6, atol=1e-9)


def _told_apart(one: Any, other: Any) -> tuple[str, str]:
    """Return two answers with as few digits as show that they are not the same, and no fewer than a message has."""
    shown = ((_shown(one, digits=n), _shown(other, digits=n)) for n in range(DIGITS, 18))
    return next((pair for pair in shown if pair[0] != pair[1]), (_shown(one), _shown(other)))


def _shown(*values: Any, digits: int = DIGITS) -> str:
    """Return values as they would be typed, their numbers rounded, cut where they are long."""
    words = ", ".join(repr(_rounded(value, digits)) for value in values)
    return words if len(words) <= SHOWN else f"{words[:SHOWN]} …"


def _rounded(value: Any, digits: int) -> Any:
    """Return a value with so many digits in each of its numbers that is not whole."""
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    if isinstance(value, list | tuple):
        rounded = [_rounded(one, digits) for one in value]
        return rounded if isinstance(value, list) else tuple(rounded)
    return float(f"{value:.{digits}g}") if isinstance(value, float) and not value.is_integer() else value
