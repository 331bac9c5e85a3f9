"""Counterfactuals: base prompts, source prompts that lend them one variable, and the answers that this must give.

    Counterfactuals(base="1 + 2 + 3 =", source="4 + 1 + 5 =", answer="8", before="6")      # of the sum of the first two

The answer is what the task's own rule gives for the base with the variable as it is in the source: it may be neither
prompt's.
"""

import dataclasses
from typing import Any

from glassformer.data.pairs.contrast import Contrast


@dataclasses.dataclass(frozen=True, eq=False)
class Counterfactuals:
    """Pairs of prompts, one of which takes the value of a variable from the other.

    Args:
        base: Prompts as `run` takes them: a text, texts, ids `batch pos`, a `Batch`, arguments of any module.
        source: As many prompts of the same numbers of tokens, in which the variable has the value that is taken.
        answer: The next token of each base prompt if the variable had its value in the source, as text or id; one for
            all, or a list or tensor with one each.
        before: The next token of each base prompt as it is; the same where the variable does not matter.
        target: What the decoder of an encoder-decoder reads beside the base prompts.
        source_target: The same beside the source prompts, if it differs.
        pos: The position whose next token is asked about, negative ones counted from the end of each prompt.
    """

    base: Any
    source: Any
    answer: Any
    before: Any
    target: Any = None
    source_target: Any = None
    pos: int = -1

    def __len__(self) -> int:
        """Return how many pairs there are."""
        return len(self.contrast())

    def contrast(self) -> Contrast:
        """The same as a contrast of source (clean) and base (corrupt), of the two answers of the base."""
        source_target = self.target if self.source_target is None else self.source_target
        return Contrast(
            self.source, self.base, self.answer, self.before, target=source_target, corrupt_target=self.target,
            pos=self.pos,
        )  # fmt: skip
