"""Every analysis, pass, edit and generation runs where the model is, wherever its arguments lie: the same numbers."""

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from elsewhere import ELSEWHERE, MixedDevices, elsewhere
from glassformer import weights
from glassformer.data import Batch, Contrast, PlantedRows
from glassformer.labelled import Labelled
from glassformer.testing import close
from glassformer.testing.calls import Call
from right_calls import calls

# of each kind one, quick
QUICK = {
    "run",
    "generate",
    "edited generate",
    "function generate",
    "sweep",
    "ablate",
    "evaluate_heads",
    "importance",
    "logit_lens",
    "copying",
    "skip_trigrams",
}
CALLS = [name if name in QUICK else pytest.param(name, marks=pytest.mark.full) for name in calls()]


def moved(value: Any, device: torch.device, models_alone: bool, memo: dict[int, Any]) -> Any:
    """Return arguments on a device: models, and unless these are to move alone, tensors and what is made of them."""
    if isinstance(value, weights.HeadWeights):
        return weights.of(moved(value.model, device, models_alone, memo))
    if isinstance(value, nn.Module):
        # one model given twice stays one
        return memo.setdefault(id(value), copy.deepcopy(value).to(device))
    if models_alone:
        return value
    if isinstance(value, Tensor | Batch):
        return value.to(device)
    if isinstance(value, Contrast):
        inside = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        return dataclasses.replace(value, **{n: moved(part, device, models_alone, memo) for n, part in inside.items()})
    if isinstance(value, PlantedRows):
        return PlantedRows(*(moved(part, device, models_alone, memo) for part in value))
    if isinstance(value, list | tuple):
        return type(value)(moved(part, device, models_alone, memo) for part in value)  # type: ignore[call-arg]
    return value


def numbers(found: Any, depth: int = 5) -> Iterator[Tensor]:
    """Yield the numbers in what a call returned, as tensors."""
    if isinstance(found, Tensor):
        yield found
    elif isinstance(found, int | float):
        yield torch.tensor(found)
    elif isinstance(found, Labelled):
        yield from numbers(found.values)
    elif depth and dataclasses.is_dataclass(found):
        for field in dataclasses.fields(found):
            yield from numbers(getattr(found, field.name), depth - 1)
    elif depth and isinstance(found, list | tuple | dict):
        for part in found.values() if isinstance(found, dict) else found:
            yield from numbers(part, depth - 1)


def same_numbers_on(device: torch.device, make: Callable[[], Call], models_alone: bool) -> None:
    here, call = make()(), make()
    memo: dict[int, Any] = {}
    arguments = {name: moved(value, device, models_alone, memo) for name, value in call.arguments.items()}
    there = call._replace(arguments=arguments)()
    for found, expected in zip(numbers(there), numbers(here), strict=True):
        found, expected = found.cpu(), expected.cpu()
        # float32, summed in another order; a number alone may be what little is left of large ones
        if expected.ndim == 0:
            assert float(found) == pytest.approx(float(expected), rel=1e-3, abs=1e-5, nan_ok=True)
        else:
            assert torch.equal(found.isnan(), expected.isnan())
            close(found.nan_to_num().double(), expected.nan_to_num().double(), 1e-3)


@pytest.mark.parametrize("models_alone", [True, pytest.param(False, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", CALLS)
def test_where_the_model_is_the_numbers_are_those_of_the_cpu(name: str, models_alone: bool) -> None:
    with elsewhere():
        same_numbers_on(ELSEWHERE, calls()[name], models_alone)


@pytest.mark.gpu
@pytest.mark.parametrize("models_alone", [True, False])
@pytest.mark.parametrize("name", list(calls()))
def test_on_a_gpu_the_numbers_are_those_of_the_cpu(name: str, models_alone: bool, cuda: torch.device) -> None:
    same_numbers_on(cuda, calls()[name], models_alone)


def test_the_stand_in_refuses_what_a_gpu_refuses() -> None:
    here = torch.arange(3.0)
    with elsewhere():
        there = here.to(ELSEWHERE)
        assert there.device == ELSEWHERE
        assert torch.equal((there * 2 + torch.tensor(1.0)).cpu(), here * 2 + 1)
        assert there[torch.tensor([2, 0])].tolist() == [2.0, 0.0]
        assert there.new_tensor([5.0]).item() == torch.tensor([5.0], device=ELSEWHERE).item() == 5.0
        mixed: list[Callable[[], Any]] = [
            lambda: there + here, lambda: torch.stack((here, there)), lambda: here[there.long()], lambda: there.numpy(),
            lambda: there.addcmul_(here, here),
        ]  # fmt: skip
        for operation in mixed:
            with pytest.raises(MixedDevices):
                operation()
