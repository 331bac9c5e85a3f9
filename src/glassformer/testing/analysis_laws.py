"""Laws every analysis of one pass obeys: what a stranger may rely on before having read it.

    class TestMine(AnalysisLaws):
        analysis = mine
        reads = sites_of_mine

An analysis of this kind is a function of a run, and `reads` tells of a model which sites the run must have read.
"""

import dataclasses
import json
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from glassformer.analysis import Run, run
from glassformer.errors import AnalysisUnavailable, GlassformerError, NoPattern, SiteNotRead
from glassformer.labelled import Labelled, Result
from glassformer.testing.closeness import close
from glassformer.testing.models import subject
from glassformer.testing.suite import Suite

SUITE = Suite("asked")
# grouped keys and gates, streams in a head, experts, two stacks
MODELS = ("llama", "differential", "experts", "translator_pre")


@dataclasses.dataclass(frozen=True)
class Asked:
    """An analysis, what it reads, and a model it is asked of."""

    analysis: Callable[[Run], Any]
    reads: Callable[[Any], Iterable[str]]
    name: str

    def of(self, *also: str) -> tuple[Any, Run]:
        """Return the analysis of a run, and that run; skip where it says in a typed error that it has no answer."""
        model, inputs = self.model()
        try:
            one = run(model, *inputs, read=list(dict.fromkeys([*self.reads(model), *also])))
            return self.analysis(one), one
        except (AnalysisUnavailable, NoPattern) as error:
            pytest.skip(f"not of {self.name}: {error}")

    def model(self) -> tuple[Any, list[Tensor]]:
        found = subject(self.name, batch=1)
        return found.model, list(found.inputs)


class AnalysisLaws:
    """The laws of one analysis, as tests.

    Args:
        analysis: A function of a run.
        reads: From a model to the sites it needs.
        models: Names of the tiny models it is asked of, in `glassformer.testing.models`.
    """

    analysis: ClassVar[Callable[..., Any]]
    reads: ClassVar[Callable[..., Any]]
    models: ClassVar[Iterable[str]] = MODELS

    def __init_subclass__(cls) -> None:
        SUITE.bind(cls, {name: Asked(cls.analysis, cls.reads, name) for name in cls.models})


law = SUITE.law()


@law
def test_it_returns_a_frozen_result_that_prints_and_survives_json(asked: Asked) -> None:
    found, _ = asked.of()
    assert isinstance(found, Result)
    assert type(found).__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert repr(found).startswith(type(found).__name__)
    assert json.loads(found.to_json())["result"] == type(found).__name__


@law
def test_a_run_that_read_nothing_is_refused_with_what_to_read(asked: Asked) -> None:
    asked.of()
    model, inputs = asked.model()
    needed = list(asked.reads(model))
    if not needed:
        return
    with pytest.raises(SiteNotRead) as refusal:
        asked.analysis(run(model, *inputs))
    assert any(site in str(refusal.value) for site in needed)


@law
def test_what_it_reads_are_sites_of_the_model(asked: Asked) -> None:
    model, _ = asked.model()
    try:
        needed = list(asked.reads(model))
    except GlassformerError as error:
        pytest.skip(f"not of {asked.name}: {error}")
    assert all(model.sites(glob) for glob in needed)


@law
def test_asking_twice_gives_the_same_numbers(asked: Asked) -> None:
    found, one = asked.of()
    again = asked.analysis(one)
    for name, values in tensors_of(found).items():
        assert torch.equal(values.nan_to_num(), tensors_of(again)[name].nan_to_num()), name


@law
def test_reading_more_changes_no_number(asked: Asked) -> None:
    found, _ = asked.of()
    more, _ = asked.of("*")
    for name, values in tensors_of(found).items():
        # patterns take the dense route, which sums in another order
        close(tensors_of(more)[name].nan_to_num(), values.nan_to_num(), 1e-6)


@law
def test_it_leaves_the_run_and_the_model_as_they_were(asked: Asked) -> None:
    model, inputs = asked.model()
    try:
        one = run(model, *inputs, read=list(asked.reads(model)))
        held = {name: site.values.clone() for name, site in one.sites.items()}
        before = [(parameter, parameter.clone()) for parameter in model.parameters()]
        asked.analysis(one)
    except (AnalysisUnavailable, NoPattern) as error:
        pytest.skip(f"not of {asked.name}: {error}")
    assert all(torch.equal(one.sites[name].values, values) for name, values in held.items())
    assert all(torch.equal(parameter, copy) and parameter.grad is None for parameter, copy in before)
    assert not model.training


@law
def test_its_numbers_hold_on_to_no_graph(asked: Asked) -> None:
    found, _ = asked.of()
    assert not any(values.requires_grad for values in tensors_of(found).values())


def tensors_of(result: Any, path: str = "") -> dict[str, Tensor]:
    """Return every tensor in a result, by where it stands."""
    if isinstance(result, Labelled):
        return {path: result.values}
    if isinstance(result, Tensor):
        return {path: result}
    if dataclasses.is_dataclass(result):
        inside = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    elif isinstance(result, dict):
        inside = result
    elif isinstance(result, (list, tuple)):
        inside = dict(enumerate(result))
    else:
        return {}
    return {at: values for name, held in inside.items() for at, values in tensors_of(held, f"{path}.{name}").items()}
