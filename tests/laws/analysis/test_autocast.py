"""Whatever autocast stands around, an analysis computes in the types of the weights."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

import glassformer as gf
from glassformer.analysis.cards import cards
from glassformer.errors import GlassformerError
from right_calls import IDS, calls, model


def tensors(found: Any) -> Iterator[Tensor]:
    """Yield every tensor that a result holds."""
    if isinstance(found, Tensor):
        yield found
    elif dataclasses.is_dataclass(found) and not isinstance(found, type):
        for field in dataclasses.fields(found):
            yield from tensors(getattr(found, field.name))
    elif isinstance(found, Mapping | list | tuple):
        for inner in found.values() if isinstance(found, Mapping) else found:
            yield from tensors(inner)


# makes some ten others
HEAVY = pytest.param("circuits", marks=pytest.mark.full)


@pytest.mark.parametrize("name", [*sorted(card.name for card in cards() if card.name != "circuits"), HEAVY])
def test_an_analysis_finds_under_autocast_what_it_finds_without(name):
    call = calls()[name]
    with torch.autocast("cpu", torch.bfloat16):
        found = list(tensors(call()()))
        assert torch.is_autocast_enabled("cpu")
    for one, other in zip(found, tensors(call()()), strict=True):
        assert one.dtype == other.dtype and torch.equal(one.nan_to_num(), other.nan_to_num())


def test_a_run_is_of_the_types_of_the_weights():
    with torch.autocast("cpu", torch.bfloat16):
        run = gf.run(model(), IDS, read="*")
    assert run.logits is not None
    assert {site.values.dtype for site in run.sites.values()} | {run.logits.dtype} == {torch.float32}
    with pytest.raises(GlassformerError), torch.autocast("cpu", torch.bfloat16):
        gf.run(model(), IDS, read="nothing")
    assert not torch.is_autocast_enabled("cpu")
