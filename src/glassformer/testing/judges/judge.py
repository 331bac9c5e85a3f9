"""What a judge is: a second way to the numbers of an analysis, and how both are compared."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from glassformer.testing.calls import Call
from glassformer.testing.closeness import close
from glassformer.testing.models import Subject
from glassformer.trace import parts_of

# what some hundreds of roundings of numbers near one may leave
NOTHING = 512 * torch.finfo(torch.float64).eps


class Pair(NamedTuple):
    """Numbers of an analysis beside those of its judge.

    Args:
        what: They are.
        found: By the analysis.
        expected: By the judge.
        tolerance: Largest error in units of the judge's root mean square; None for that of `close`.
    """

    what: str
    found: Any
    expected: Any
    tolerance: float | None = None


@dataclass(frozen=True)
class Asked:
    """An analysis that was asked of a model, and what it found.

    Args:
        subject: The model.
        call: How it was asked.
        found: What it answered.
    """

    subject: Subject
    call: Call
    found: Any

    @property
    def model(self) -> Any:
        return self.subject.model

    @property
    def parts(self) -> Any:
        """The model, or one of ours that holds the weights of a module seen through a spec."""
        return parts_of(self.subject.model)

    @property
    def given(self) -> Mapping[str, Any]:
        """The arguments, by name."""
        return self.call.arguments

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Ids that the model reads, of an analysis of one text: the source first, where there is one."""
        read = (self.given["text"], self.given.get("target"))
        return tuple(ids for ids in read if ids is not None)


@dataclass(frozen=True)
class Judge:
    """Who compares an analysis.

    Args:
        pairs: Returns numbers of the analysis beside others that were come by otherwise.
        covers: Fields of the result whose numbers are compared; `heads.roles` is the field of each of those in another.
    """

    pairs: Callable[[Asked], Iterator[Pair]]
    covers: tuple[str, ...]

    def compare(self, asked: Asked) -> None:
        """Compare what an analysis found; raises `AssertionError` where both differ, and says what."""
        for pair in self.pairs(asked):
            found, expected = _numbers(pair.found), _numbers(pair.expected)
            # of what is nothing a judge may leave rounding, which is no unit to measure by
            expected = torch.where(expected.abs() < NOTHING, 0.0, expected)
            assert torch.equal(found.isnan(), expected.isnan()), f"{pair.what}: undefined in other places"
            try:
                close(found.nan_to_num(), expected.nan_to_num(), pair.tolerance)
            except AssertionError as error:
                raise AssertionError(f"{pair.what}: {error}") from error


def _numbers(given: Any) -> Tensor:
    # numbers of Python have all digits of float64, which is not what torch makes of them
    return torch.atleast_1d(torch.as_tensor(given, dtype=torch.float64).detach())
