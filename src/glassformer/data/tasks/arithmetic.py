"""Questions about numbers, written digit by digit: sums, numbers in order, and sums in order.

    1 7 + 2 5 = 4 2                             Arithmetic
    4 2 , 7 , 1 9 = 7 , 1 9 , 4 2               Sorting
    1 7 + 2 5 , 7 , 3 0 - 9 = 7 , 2 1 , 4 2     SortedSums: what takes both, and neither of them trains

A sum below zero has no answer, nor has a list in which a number occurs twice. Numbers of one digit, of two and so on
are drawn alike often, so that some prompts are easy and some hard. See `question` for rows and splits.
"""

import dataclasses
import re

import torch

from glassformer.arguments import Count
from glassformer.config import require
from glassformer.data.tasks.question import LongestQuestion, QuestionConfig, question_text, spaced

_SUM = re.compile(r"(0|[1-9][0-9]*)([+-](0|[1-9][0-9]*))*")
_TERM = re.compile(r"[+-]?[0-9]+")


@dataclasses.dataclass(frozen=True)
class Arithmetic(QuestionConfig, kind="arithmetic"):
    """`1 7 + 2 5 =` -> `4 2`: sums and differences of natural numbers, the first digit first.

    Terms in another order are the same question.

    Args:
        n_terms: Numbers in a sum; the more, the harder.
        largest: The largest of them; likewise, of as many lengths as it has digits.
    """

    n_terms: Count = 2
    largest: Count = 99

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.n_terms >= 2, f"arithmetic: n_terms={self.n_terms}; a sum has two terms or more.")

    def symbols(self) -> list[str]:
        return _symbols("+", "-")

    def draw(self, random: torch.Generator) -> str:
        return spaced(_sum(self.n_terms, self.largest, random) + "=")

    def answer(self, prompt: str) -> str | None:
        text = question_text(prompt)
        found = value(text)
        return None if found is None or len(_TERM.findall(text)) < 2 else spaced(str(found))

    def longest(self) -> LongestQuestion:
        return LongestQuestion(_longest_sum(self.n_terms, self.largest) + 1, len(str(self.n_terms * self.largest)))

    def key(self, prompt: str) -> str:
        first, *others = _TERM.findall(question_text(prompt))
        return " ".join(sorted([f"+{first}", *others]))


@dataclasses.dataclass(frozen=True)
class Sorting(QuestionConfig, kind="sorting"):
    """`4 2 , 7 , 1 9 =` -> `7 , 1 9 , 4 2`: different natural numbers, the least first.

    Lists of the same numbers are the same question.

    Args:
        n_min: The least numbers in a list,
        n_max: and the most; the more, the harder.
        largest: The largest number; single digits, up to 9, are easier.
    """

    n_min: Count = 3
    n_max: Count = 5
    largest: Count = 99

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_list(self)

    def symbols(self) -> list[str]:
        return _symbols(",")

    def draw(self, random: torch.Generator) -> str:
        numbers = [str(number) for number in _numbers(_size(self, random), self.largest, random)]
        return _listed(numbers, random)

    def answer(self, prompt: str) -> str | None:
        return _in_order(question_text(prompt).split(","), (1, 1))

    def longest(self) -> LongestQuestion:
        return _longest_list(self.n_max, len(str(self.largest)), len(str(self.largest)))

    def key(self, prompt: str) -> str:
        return " ".join(sorted(question_text(prompt).split(",")))


@dataclasses.dataclass(frozen=True)
class SortedSums(QuestionConfig, kind="sorted-sums"):
    """`1 7 + 2 5 , 7 , 3 0 - 9 =` -> `7 , 2 1 , 4 2`: sums and numbers, their values in order, all different.

    A mixture of `Arithmetic` and `Sorting` has its symbols and both of its parts, and not one of its prompts.

    Args:
        n_min: The least sums in a list,
        n_max: and the most.
        largest: The largest term of a sum. One in two items is a number by itself, and one at least is a sum.
    """

    n_min: Count = 2
    n_max: Count = 3
    largest: Count = 9

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_list(self)

    def symbols(self) -> list[str]:
        return _symbols("+", "-", ",")

    def draw(self, random: torch.Generator) -> str:
        size = _size(self, random)
        *terms, a_sum = torch.randint(2**30, (size + 1,), generator=random).tolist()
        counts = [2 if place == a_sum % size else 1 + term % 2 for place, term in enumerate(terms)]
        return _listed([_sum(count, self.largest, random) for count in counts], random)

    def answer(self, prompt: str) -> str | None:
        return _in_order(question_text(prompt).split(","), (2, 2))

    def longest(self) -> LongestQuestion:
        return _longest_list(self.n_max, _longest_sum(2, self.largest), len(str(2 * self.largest)))


def value(text: str) -> int | None:
    """Return what a sum or a number comes to; None for what is neither, or comes to less than zero."""
    if _SUM.fullmatch(text) is None:
        return None
    found = sum(map(int, _TERM.findall(text)))
    return found if found >= 0 else None


def _in_order(items: list[str], terms: tuple[int, int]) -> str | None:
    """Return the values of items in order; None unless all have one, of their own, and the longest so many terms."""
    values = [value(item) for item in items]
    known = [found for found in values if found is not None]
    longest = max(len(_TERM.findall(item)) for item in items)
    if len(items) < 2 or len(set(known)) < len(items) or not terms[0] <= longest <= terms[1]:
        return None
    return spaced(",".join(map(str, sorted(known))))


def _symbols(*marks: str) -> list[str]:
    return ["<bos>", "<eos>", "=", *"0123456789", *marks]


def _numbers(count: int, largest: int, random: torch.Generator) -> list[int]:
    """Return numbers up to the largest, those of each length alike often."""
    drawn, found = torch.randint(2**30, (2, count), generator=random).tolist(), list[int]()
    for length, number in zip(*drawn):
        digits = 1 + length % len(str(largest))
        least = 10 ** (digits - 1) if digits > 1 else 0
        found.append(least + number % (min(10**digits - 1, largest) - least + 1))
    return found


def _sum(count: int, largest: int, random: torch.Generator) -> str:
    first, *others = _numbers(count, largest, random)
    signs = torch.randint(2, (count - 1,), generator=random).tolist()
    return str(first) + "".join(f"{'+-'[sign]}{number}" for sign, number in zip(signs, others))


def _listed(items: list[str], random: torch.Generator) -> str:
    """Return a prompt of items; in one of two the first stands again in place of another, which leaves no answer."""
    again, place = torch.randint(2**30, (2,), generator=random).tolist()
    if again % 2:
        items[1 + place % (len(items) - 1)] = items[0]
    return spaced(",".join(items) + "=")


def _size(config: Sorting | SortedSums, random: torch.Generator) -> int:
    return int(torch.randint(config.n_min, config.n_max + 1, (), generator=random))


def _longest_sum(count: int, largest: int) -> int:
    return count * (len(str(largest)) + 1) - 1


def _longest_list(count: int, item: int, found: int) -> LongestQuestion:
    return LongestQuestion(count * (item + 1), count * (found + 1) - 1)


def _check_list(config: Sorting | SortedSums) -> None:
    require(
        2 <= config.n_min <= config.n_max <= config.largest + 1,
        f"{config.kind}: n_min={config.n_min} and n_max={config.n_max} must be from 2, the one no more than the other, "
        f"to largest + 1 = {config.largest + 1}: all numbers of a list differ.",
    )
