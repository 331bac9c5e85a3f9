"""Questions about brackets that are open: what closes them.

    ( [ ( ) = ] )

See `question` for rows and splits.
"""

import dataclasses

import torch

from glassformer.arguments import Count
from glassformer.config import require
from glassformer.data.tasks.question import LongestQuestion, QuestionConfig, question_text, spaced

_OPEN, _CLOSED = "([{<", ")]}>"


@dataclasses.dataclass(frozen=True)
class ClosingBrackets(QuestionConfig, kind="closing-brackets"):
    """`( [ ( ) =` -> `] )`: the brackets that are still open, closed in order.

    A prompt has no answer if a bracket is closed by one of another kind, or none is open.

    Args:
        n_min: The least brackets in a prompt,
        n_max: and the most; the more, the harder.
        n_kinds: Kinds of brackets, 1 to 4.
    """

    n_min: Count = 4
    n_max: Count = 12
    n_kinds: Count = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.n_min <= self.n_max, f"closing-brackets: n_min={self.n_min} is more than n_max={self.n_max}.")
        require(1 <= self.n_kinds <= 4, f"closing-brackets: n_kinds={self.n_kinds} is not in 1 to 4.")

    def symbols(self) -> list[str]:
        return ["<bos>", "<eos>", "=", *_OPEN[: self.n_kinds], *_CLOSED[: self.n_kinds]]

    def draw(self, random: torch.Generator) -> str:
        size = int(torch.randint(self.n_min, self.n_max + 1, (), generator=random))
        written, opened = list[str](), list[int]()
        opens, kinds = torch.randint(2**30, (2, size), generator=random).tolist()
        for opening, kind in zip(opens, kinds):
            if opening % 2 or not opened:
                opened.append(kind % self.n_kinds)
                written.append(_OPEN[opened[-1]])
            else:
                written.append(_CLOSED[opened.pop()])
        # one bracket in one of two prompts becomes any other: most of these have no answer
        spoilt, place, kind = torch.randint(2**30, (3,), generator=random).tolist()
        if spoilt % 2:
            written[place % size] = (_OPEN[: self.n_kinds] + _CLOSED[: self.n_kinds])[kind % (2 * self.n_kinds)]
        return spaced("".join(written) + "=")

    def answer(self, prompt: str) -> str | None:
        opened = list[str]()
        for bracket in question_text(prompt):
            if bracket in _OPEN:
                opened.append(_CLOSED[_OPEN.index(bracket)])
            elif not opened or opened.pop() != bracket:
                return None
        return spaced("".join(reversed(opened))) or None

    def longest(self) -> LongestQuestion:
        return LongestQuestion(self.n_max + 1, self.n_max)
