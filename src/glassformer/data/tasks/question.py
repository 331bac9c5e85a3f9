"""Questions: prompts that have one answer each, so that what a model writes behind them is right or wrong.

    <bos> prompt = answer <eos>                 what counts is the answer and its end
    reward(prompt, completion) = +1 if the completion is the answer, -1 if not

A prompt alone decides by a hash which split it is of, whatever the seed: nothing of "heldout" or "test" is ever trained
on, and what is chosen by "heldout" says nothing of "test". What a text means is found by reading it; nothing is run.

A task may write prompts that look like its own and have no answer: which task a prompt is of is then not to be told by
the looks alone.
"""

import dataclasses
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch

from glassformer.arguments import Count, Rate, checked
from glassformer.config import require
from glassformer.data.batch import Split, generator, hash64
from glassformer.data.tasks.task import Alphabet, Rows, TaskConfig
from glassformer.errors import DataError

QuestionSplit = Literal["train", "heldout", "test"]
# in a row without one that is wanted; one in several hundred is found all the same
_TRIES = 20_000


class Question(NamedTuple):
    """A prompt and its answer, as symbols with spaces between them; the prompt ends with `=`."""

    prompt: str
    answer: str


class LongestQuestion(NamedTuple):
    """Symbols of the longest prompt of a task, `=` among them, and of its longest answer."""

    prompt: int
    answer: int


@dataclasses.dataclass(frozen=True)
class QuestionConfig(TaskConfig):
    """A task of questions: how a prompt is drawn, and what its answer is.

    Args:
        heldout: Share of all prompts that is held out of training, to choose by.
        tested: Share of all prompts that is held out of both, to measure by.
    """

    batch_size: Count = 64
    length: Count = 32
    seed: int = 0
    heldout: Rate = 0.1
    tested: Rate = 0.1

    def __post_init__(self) -> None:
        require(
            self.heldout + self.tested < 1,
            f"{self.kind}: heldout={self.heldout} and tested={self.tested} leave nothing to train on.",
        )
        longest = self.longest()
        # <bos> in front and the end behind; the last token of a row is read by nobody
        least = longest.prompt + longest.answer + 1
        require(
            least <= self.length,
            f"{self.kind}: length={self.length} has no room for the longest prompt of {longest.prompt} symbols and the "
            f"longest answer of {longest.answer}; length={least} has.",
        )

    def draw(self, random: torch.Generator) -> str:
        """Draw a prompt that looks like the task's own, whether it has an answer or not."""
        raise NotImplementedError(f"{type(self).__name__} does not say how a prompt is drawn")

    def answer(self, prompt: str) -> str | None:
        """Return the answer to a prompt; None if the task has none."""
        raise NotImplementedError(f"{type(self).__name__} does not say what the answer is")

    def longest(self) -> LongestQuestion:
        """Return how long prompts and answers are at most."""
        raise NotImplementedError(f"{type(self).__name__} does not say how long a question is")

    def key(self, prompt: str) -> str:
        """Return what prompts that are the same question share: all of them are of one split."""
        return prompt

    def split_of(self, prompt: str) -> QuestionSplit:
        """Return the split that a prompt is of."""
        share = hash64("question", self.key(prompt)) / 2**64
        if share < self.heldout:
            return "heldout"
        return "test" if share < self.heldout + self.tested else "train"

    @checked
    def questions(self, count: Count, split: QuestionSplit = "train", *, seed: int = 0) -> tuple[Question, ...]:
        """Draw questions of a split; the same one may come twice.

        Args:
            count: How many.
            split: Where prompts are from: "train", "heldout" to choose by, or "test" to measure by.
            seed: Source of the draws, together with the config's own.

        Raises:
            DataError: The split has none.
        """
        random = generator(self.seed, "questions", split, seed)
        return tuple(self._question(split, random) for _ in range(count))

    def reward(self, prompt: str, completion: str) -> float:
        """Return 1 if a completion is the answer, symbol for symbol, and -1 if it is anything else.

        Args:
            prompt: A prompt that the task has an answer to.
            completion: What was written behind it, without the end.

        Raises:
            DataError: The task has no answer to the prompt.
        """
        right = self.answer(prompt)
        if right is None:
            raise DataError(f'{self.kind}: "{prompt}" is no prompt with an answer; draw some with questions(count).')
        return 1.0 if completion.split() == right.split() else -1.0

    def rows(self, alphabet: Alphabet, split: Split, random: torch.Generator) -> Rows:
        ids = {symbol: id for id, symbol in enumerate(self.symbols() or ())}
        sequence = torch.full((self.batch_size, self.length + 1), ids["<eos>"])
        lengths, first = (torch.empty(self.batch_size, dtype=torch.int64) for _ in range(2))
        for row in range(self.batch_size):
            prompt, answer = (text.split() for text in self._question(split, random))
            written = [ids[symbol] for symbol in ("<bos>", *prompt, *answer, "<eos>")]
            sequence[row, : len(written)] = torch.tensor(written)
            lengths[row], first[row] = len(written) - 1, len(prompt)
        at = torch.arange(self.length)
        return Rows(sequence, (at >= first[:, None]) & (at < lengths[:, None]), lengths)

    def drawn(self, draw: Callable[[], str], wanted: Callable[[str], bool]) -> str:
        """Draw until a prompt is as wanted.

        Raises:
            DataError: None was, in very many draws.
        """
        for _ in range(_TRIES):
            if wanted(prompt := draw()):
                return prompt
        raise DataError(
            f"{self.described}: {_TRIES:,} draws gave no prompt that is wanted. Allow more different prompts, or "
            f"larger shares of them for the other splits (heldout={self.heldout}, tested={self.tested})."
        )

    def _question(self, split: QuestionSplit, random: torch.Generator) -> Question:
        def wanted(prompt: str) -> bool:
            return self.answer(prompt) is not None and self.split_of(prompt) == split

        prompt = self.drawn(lambda: self.draw(random), wanted)
        right = self.answer(prompt)
        assert right is not None, "a wanted prompt has an answer"
        return Question(prompt, right)


def spaced(text: str) -> str:
    """Return a text as symbols of one character with spaces between them."""
    return " ".join(text)


def question_text(prompt: str) -> str:
    """Return what stands before `=`, without spaces; nothing of a text that does not end with it."""
    text = "".join(prompt.split())
    return text[:-1] if text.endswith("=") else ""
