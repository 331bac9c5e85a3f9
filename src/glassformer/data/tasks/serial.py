"""Questions whose answer takes one step after another: with the steps written out, with as many fillers, or at once.

    v_k = f(v_(k-1), w_k),   k = 1 … n;   the answer is v_n

    <bos> w_1 … w_n _ _ = v_1 … v_n <eos>       chain="steps": every value on the way
    <bos> w_1 … w_n _ _ = . … . v_n <eos>       chain="filler": as many tokens, which say nothing
    <bos> w_1 … w_n _ _ = v_n <eos>             chain="none": at once

    2 0 1 _ = 2 2 0                             RunningSum, modulo 3
    21345 23451 _ _ = 21345 32451               PermutationProduct
    5 mod23 ^2 ^2 ^2 _ = 2 4 16                 IteratedSquaring

Blanks fill the words up to the most there may be, so that v_k stands equally far behind w_k whatever n is. A prompt is
of one split however its answer is written. See `question` for rows and splits, `circuit_value` for circuits.

Source: Li, Liu, Zhou and Ma 2024, "Chain of Thought Empowers Transformers to Solve Inherently Serial Problems",
arXiv 2402.12875, section 4 (the tasks); Pfau, Merrill and Bowman 2024, "Let's Think Dot by Dot", arXiv 2404.15758
(fillers). Differs: the paper draws its permutations from all of a group; here they are a few generators.
"""

import dataclasses
import re
from functools import cache
from itertools import accumulate
from typing import ClassVar, Literal, NamedTuple

import torch

from glassformer.arguments import Count, Counts, Kinds
from glassformer.config import require
from glassformer.data.tasks.question import LongestQuestion, QuestionConfig

Chain = Literal["steps", "filler", "none"]
BLANK, FILLER, SQUARE = "_", ".", "^2"
_NUMBER = re.compile(r"0|[1-9][0-9]*")
_LARGEST_DEGREE = 6


class Written(NamedTuple):
    """What a prompt says: what is given before any step, and a word for each step."""

    given: tuple[str, ...]
    words: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class SerialQuestion(QuestionConfig):
    """A question of n steps: what its words are, and the value behind each of them.

    Args:
        n_min: The least steps,
        n_max: and the most; the more, the harder at once.
        chain: What stands before the answer: the values on the way, as many fillers, or nothing.
    """

    n_min: Count = 4
    n_max: Count = 12
    chain: Chain = "steps"
    # symbols of a word
    word_size: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.n_min <= self.n_max, f"{self.kind}: n_min={self.n_min} is more than n_max={self.n_max}.")

    def n_given(self) -> int:
        """Return how many symbols stand before the words."""
        return 0

    def draw_written(self, n_steps: int, random: torch.Generator) -> Written:
        """Draw what is given, and so many words."""
        raise NotImplementedError(f"{type(self).__name__} does not say how words are drawn")

    def values(self, written: Written) -> tuple[str, ...] | None:
        """Return the value behind each word; None if what is written has none."""
        raise NotImplementedError(f"{type(self).__name__} does not say what a step is")

    def steps(self, prompt: str) -> tuple[str, ...] | None:
        """Return the values on the way, the last of which is the answer; None if the task has no answer."""
        written = self.read(prompt)
        return None if written is None else self.values(written)

    def read(self, prompt: str) -> Written | None:
        """Return what a prompt says; None for one of another form."""
        *symbols, end = prompt.split() or [""]
        given, size = self.n_given(), self.word_size
        if end != "=" or len(symbols) != given + size * self.n_max:
            return None
        words = [" ".join(symbols[at : at + size]) for at in range(given, len(symbols), size)]
        while words and words[-1] == self._blank:
            words.pop()
        return Written(tuple(symbols[:given]), tuple(words)) if words else None

    def draw(self, random: torch.Generator) -> str:
        n_steps = int(torch.randint(self.n_min, self.n_max + 1, (), generator=random))
        given, words = self.draw_written(n_steps, random)
        return " ".join((*given, *words, *[self._blank] * (self.n_max - n_steps), "="))

    def answer(self, prompt: str) -> str | None:
        steps = self.steps(prompt)
        if steps is None:
            return None
        *before, found = steps
        thought = {"steps": before, "filler": [FILLER] * len(before), "none": list[str]()}[self.chain]
        return " ".join((*thought, found))

    def longest(self) -> LongestQuestion:
        prompt = self.n_given() + self.word_size * self.n_max + 1
        return LongestQuestion(prompt, 1 if self.chain == "none" else self.n_max)

    @property
    def _blank(self) -> str:
        return " ".join([BLANK] * self.word_size)


@dataclasses.dataclass(frozen=True)
class RunningSum(SerialQuestion, kind="running-sum"):
    """`2 0 1 =` -> `2 2 0`: sums of numbers modulo a number, one number after the other.

    A threshold circuit of constant depth finds the last of them at once (TC0): it counts each number, and looks the
    counts up.

    Args:
        modulus: What sums are taken modulo; numbers are below it.
    """

    modulus: Kinds = 7

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.modulus >= 2, f"running-sum: modulus={self.modulus}; there are two numbers at least.")

    def symbols(self) -> list[str]:
        return serial_symbols(*map(str, range(self.modulus)))

    def draw_written(self, n_steps: int, random: torch.Generator) -> Written:
        return Written((), tuple(map(str, torch.randint(self.modulus, (n_steps,), generator=random).tolist())))

    def values(self, written: Written) -> tuple[str, ...] | None:
        if not all(_is_below(self.modulus, word) for word in written.words):
            return None
        return tuple(str(total % self.modulus) for total in accumulate(map(int, written.words)))


@dataclasses.dataclass(frozen=True)
class PermutationProduct(SerialQuestion, kind="permutation-product"):
    """`21345 23451 =` -> `21345 32451`: products of permutations, the first word acting first.

    A permutation is written by its images: `23451` takes 1 to 2, 2 to 3 and 5 to 1. Generators of all permutations of
    five make it complete for NC1: no threshold circuit of constant depth is known that finds the last product at once,
    and there is none if TC0 is less than NC1. With generators of a solvable group, as those of permutations of four or
    fewer are, there is one.

    Args:
        generators: The permutations that words are; those they generate are the values.

    Source: Barrington 1989, "Bounded-Width Polynomial-Size Branching Programs Recognize Exactly Those Languages in
    NC1".
    """

    generators: tuple[str, ...] = ("21345", "23451", "12345", "13245")

    def __post_init__(self) -> None:
        super().__post_init__()
        degree = len(self.generators[0]) if self.generators else 0
        require(
            1 <= degree <= _LARGEST_DEGREE,
            f"permutation-product: generators={self.generators} are to be permutations of 1 to {_LARGEST_DEGREE} "
            'places, such as "21345".',
        )
        for found in self.generators:
            require(
                sorted(found) == [str(place) for place in range(1, degree + 1)],
                f'permutation-product: "{found}" does not have each of 1 to {degree} once, as a permutation of '
                f"{degree} has.",
            )
        require(
            len(set(self.generators)) == len(self.generators),
            f"permutation-product: generators={self.generators} are to differ.",
        )

    def symbols(self) -> list[str]:
        return serial_symbols(*_generated(self.generators))

    def draw_written(self, n_steps: int, random: torch.Generator) -> Written:
        drawn = torch.randint(len(self.generators), (n_steps,), generator=random).tolist()
        return Written((), tuple(self.generators[at] for at in drawn))

    def values(self, written: Written) -> tuple[str, ...] | None:
        if not set(written.words) <= set(self.generators):
            return None
        return tuple(accumulate(written.words, _product))


@dataclasses.dataclass(frozen=True)
class IteratedSquaring(SerialQuestion, kind="iterated-squaring"):
    """`5 mod23 ^2 ^2 ^2 =` -> `2 4 16`: a number squared again and again modulo another one.

    No way is known to do it in parallel, for moduli that grow. A number and what it lacks to the modulus have the same
    squares, and are the same question. Primes m for which (m - 1) / 2 is prime too, as 23, 47 and 59, make long cycles.

    Args:
        moduli: What squares are taken modulo; a prompt has one of them.

    Source: Rivest, Shamir and Wagner 1996, "Time-lock Puzzles and Timed-release Crypto" (squaring that cannot be
    hurried).
    """

    moduli: Counts = (23, 47, 59)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            min(self.moduli) >= 3 and len(set(self.moduli)) == len(self.moduli),
            f"iterated-squaring: moduli={self.moduli} are to differ and to be 3 at least.",
        )

    def symbols(self) -> list[str]:
        return serial_symbols(SQUARE, *(_modulo(m) for m in self.moduli), *map(str, range(max(self.moduli))))

    def n_given(self) -> int:
        return 2

    def draw_written(self, n_steps: int, random: torch.Generator) -> Written:
        which, number = torch.randint(2**30, (2,), generator=random).tolist()
        modulus = self.moduli[which % len(self.moduli)]
        return Written((str(1 + number % (modulus - 1)), _modulo(modulus)), (SQUARE,) * n_steps)

    def values(self, written: Written) -> tuple[str, ...] | None:
        number, named = written.given
        modulus = {_modulo(m): m for m in self.moduli}.get(named)
        if modulus is None or not _is_below(modulus, number) or set(written.words) != {SQUARE}:
            return None
        squares = accumulate(written.words, lambda found, _: found * found % modulus, initial=int(number))
        return tuple(map(str, squares))[1:]

    def key(self, prompt: str) -> str:
        written = self.read(prompt)
        if written is None or self.values(written) is None:
            return prompt
        number, named = written.given
        lacks = int(named.removeprefix(_modulo(""))) - int(number)
        return f"{min(int(number), lacks)} {named} {len(written.words)}"


def serial_symbols(*own: str) -> list[str]:
    """Return the symbols of a serial question: those that all of them have, then its own."""
    return ["<bos>", "<eos>", "=", BLANK, FILLER, *own]


def _is_below(modulus: int, word: str) -> bool:
    return _NUMBER.fullmatch(word) is not None and int(word) < modulus


def _modulo(modulus: int | str) -> str:
    return f"mod{modulus}"


def _product(first: str, then: str) -> str:
    """Return the permutation that does one and then another."""
    return "".join(then[int(image) - 1] for image in first)


@cache
def _generated(generators: tuple[str, ...]) -> tuple[str, ...]:
    """Return all products of some permutations, in the order of their images."""
    found, new = set(generators), list[str](generators)
    while new:
        new = list({_product(one, then) for one in new for then in generators} - found)
        found.update(new)
    return tuple(sorted(found))
