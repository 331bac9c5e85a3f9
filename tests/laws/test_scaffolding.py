"""The test scaffolding itself: a comparison that cannot fail, or poison that does not poison, would hide every bug."""

from dataclasses import dataclass

import pytest
import torch
from jaxtyping import TypeCheckError
from torch import Tensor

from closeness import close
from glassformer.config import Config
from glassformer.labelled import Labelled


def test_fresh_memory_is_poisoned() -> None:
    assert torch.empty(1000).isnan().all()


@pytest.mark.parametrize("wrong", [torch.tensor([1.0, 2.1]), torch.tensor([1.0, torch.nan]), torch.tensor([0.9, 2.0])])
def test_close_rejects_what_differs(wrong: Tensor) -> None:
    with pytest.raises(AssertionError, match="of the reference's RMS"):
        close(wrong, torch.tensor([1.0, 2.0]), tolerance=1e-3)


def test_close_measures_errors_against_the_size_of_the_reference() -> None:
    reference = torch.tensor([1e6, 2e6])
    close(reference + 1, reference)
    with pytest.raises(AssertionError):
        close(torch.tensor([1e-6]), torch.tensor([2e-6]))


def test_annotations_are_checked_at_run_time() -> None:
    with pytest.raises(TypeCheckError, match="axes"):
        Labelled(torch.zeros(2), axes=3)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Empty(Config):
    pass


def test_a_method_that_returns_self_is_checked_too() -> None:
    assert Empty.from_json("{}") == Empty()
    with pytest.raises(TypeCheckError, match="text"):
        Empty.from_json(5)  # type: ignore[arg-type]
