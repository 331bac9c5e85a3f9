"""The question which task a prompt is of.

    which 1 7 + 2 5 = arithmetic
    which 4 2 , 7 , 4 2 = other                 it looks like sorting, and a number occurs twice

See `question` for rows and splits.
"""

import dataclasses

import torch

from glassformer.arguments import Share
from glassformer.config import require
from glassformer.data.tasks.arithmetic import Arithmetic, Sorting
from glassformer.data.tasks.closing_brackets import ClosingBrackets
from glassformer.data.tasks.question import LongestQuestion, QuestionConfig, QuestionSplit

WHICH, OTHER = "which", "other"


@dataclasses.dataclass(frozen=True)
class WhichTask(QuestionConfig, kind="which-task"):
    """`which 1 7 + 2 5 =` -> `arithmetic`: the kind of the task that has an answer to a prompt, or `other` if none has.

    It is of the split that the prompt itself is of.

    Args:
        parts: The tasks; prompts are drawn from all of them alike. Their lengths and batch sizes do not matter.
        other: Share of the questions whose answer is `other`: what looks like a prompt of a task and has no answer.
            These make it hard.
    """

    parts: tuple[QuestionConfig, ...] = (Arithmetic(), Sorting(), ClosingBrackets())
    other: Share = 0.5

    def __post_init__(self) -> None:
        kinds = [part.kind for part in self.parts]
        require(len(kinds) > 0 and len(set(kinds)) == len(kinds), f"which-task: parts={kinds} are to differ in kind.")
        require(self.kind not in kinds, "which-task: a part is this question itself; give tasks that it may be about.")
        super().__post_init__()

    def symbols(self) -> list[str]:
        of_parts = [symbol for part in self.parts for symbol in part.symbols() or ()]
        *kinds, other = self.choices()
        return list(dict.fromkeys([*of_parts, WHICH, other, *kinds]))

    def choices(self) -> tuple[str, ...]:
        """Return the answers there are: the kinds of the tasks, and `other`."""
        return (*(part.kind or "" for part in self.parts), OTHER)

    def asked(self, prompt: str) -> str:
        """Return the question which task a prompt is of."""
        return f"{WHICH} {prompt}"

    def draw(self, random: torch.Generator) -> str:
        part = self.parts[int(torch.randint(len(self.parts), (), generator=random))]
        is_other = float(torch.rand((), generator=random)) < self.other
        return self.asked(
            self.drawn(lambda: part.draw(random), lambda prompt: (self.task_of(prompt) is None) == is_other)
        )

    def answer(self, prompt: str) -> str | None:
        mark, _, about = prompt.partition(" ")
        if mark != WHICH:
            return None
        part = self.task_of(about)
        return OTHER if part is None else part.kind

    def task_of(self, prompt: str) -> QuestionConfig | None:
        """Return the first part that has an answer to a prompt; None if none has."""
        return next((part for part in self.parts if part.answer(prompt) is not None), None)

    def split_of(self, prompt: str) -> QuestionSplit:
        about = prompt.removeprefix(f"{WHICH} ")
        part = self.task_of(about)
        return super().split_of(about) if part is None else part.split_of(about)

    def longest(self) -> LongestQuestion:
        return LongestQuestion(1 + max(part.longest().prompt for part in self.parts), 1)
