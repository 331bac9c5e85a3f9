"""Wrong arguments to everything public, one at a time: each works, or is refused by a public error."""

import copy
import inspect
import json
import math
import random
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import glassformer as gf
from glassformer.analysis.cards import cards
from glassformer.errors import GlassformerError
from glassformer.labelled import Result
from glassformer.testing.calls import Call
from glassformer.testing.models import subject
from right_calls import IDS, calls, model
from runtime_checks import lifted
from trials import Trials

WRONG: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "an object": object,
    "a name that does not exist": lambda: "no such name",
    "an empty text": lambda: "",
    "a fraction": lambda: 1.5,
    "a negative number": lambda: -3,
    "zero": lambda: 0,
    "a large number": lambda: 2**62,
    "a number beyond 64 bits": lambda: 10**30,
    "NaN": lambda: math.nan,
    "infinity": lambda: math.inf,
    "a truth": lambda: True,
    "no entry": list,
    "a list of nothing": lambda: [None],
    "rows of unequal length": lambda: [[1, 2], [3]],
    "numbers out of range": lambda: [0, -99],
    "a list of names that do not exist": lambda: ["no such name", ""],
    "a mapping": lambda: {"no such": 1},
    "a tensor of another shape": lambda: torch.ones(3, 4),
    "a tensor of NaN": lambda: torch.full((16,), math.nan),
    "ids out of range": lambda: torch.tensor([[99, -1]]),
    "a tensor of one number": lambda: torch.tensor(0.5),
    "an empty tensor": lambda: torch.zeros(0),
    "a tensor of truths": lambda: torch.ones(2, dtype=torch.bool),
    "a run": lambda: gf.run(model(), IDS),
    "another model": lambda: subject("masked_post", dtype=torch.float32).model,
    "a module": lambda: nn.Linear(2, 2),
    "a function of another kind": lambda: lambda *_: None,
}
# where what works takes a second
SLOW = {"fit_tuned_lens", "meaning_shift"}


class Hung(BaseException):
    """Raised into what takes longer than anything here should."""


@contextmanager
def within(seconds: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise Hung

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def own_failure(call: Call, parameter: str, value: Any) -> bool:
    """Whether what is given would be called, and fails in itself: what a caller's function raises is the caller's."""
    asked = str(inspect.signature(call.function).parameters[parameter].annotation)
    return isinstance(value, nn.Module) and "Callable" in asked


def misused(call: Call, parameter: str, wrong: str, trials: Trials) -> None:
    value = WRONG[wrong]()
    if own_failure(call, parameter, value):
        return
    try:
        with within(30):
            trials.attempt(lambda: call(**{parameter: value}))
    except BaseException as error:
        if not isinstance(error, Exception | Hung):
            raise
        where = traceback.extract_tb(error.__traceback__)[-1]
        ended = f"{type(error).__name__}: {error}, {where.filename}:{where.lineno}"
        raise AssertionError(f"{call.name}({parameter}={wrong}) ended in {ended}") from error


@pytest.mark.full
def test_a_wrong_argument_works_or_is_refused_by_a_public_error(
    trials: Trials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a name that does not exist is one under which something can be saved
    monkeypatch.chdir(tmp_path)
    made, names = dict[str, Call](), sorted(set(calls()) - (set() if trials.full else SLOW))
    with lifted():
        for seed in trials(quick=200, sweep=8000):
            draw = random.Random(seed)
            name = draw.choice(names)
            if name not in made:
                made[name] = calls()[name]()
            misused(made[name], draw.choice(made[name].parameters), draw.choice(list(WRONG)), trials)
    assert trials.outcomes["refused"] > trials.outcomes["worked"] > 0


def _refused(constant: str) -> None:
    raise AssertionError(f"JSON knows no {constant}")


@pytest.mark.full
def test_a_model_whose_weights_are_not_finite_is_answered_in_valid_json_or_refused(trials: Trials) -> None:
    names = sorted(card.name for card in cards() if trials.full or card.name not in SLOW)
    with lifted():
        for seed in trials(quick=40, sweep=400):
            draw = random.Random(seed)
            call = calls()[draw.choice(names)]()
            given = {name: copy.deepcopy(one) for name, one in call.arguments.items() if isinstance(one, nn.Module)}
            for spoilt in given.values():
                draw.choice(list(spoilt.parameters())).data.view(-1)[0] = draw.choice([math.nan, math.inf])
            found = trials.attempt(partial(call, **given))
            if isinstance(found, Result):
                json.loads(found.to_json(), parse_constant=_refused)


def test_every_public_analysis_is_among_the_calls_and_its_call_is_right(trials: Trials) -> None:
    assert {card.name for card in cards()} <= set(calls())
    names = sorted(set(calls()) - (set() if trials.full else SLOW))
    random.Random(0).shuffle(names)
    with lifted():
        for seed in trials(quick=12, sweep=len(names)):
            name = names[seed % len(names)]
            found = trials.attempt(calls()[name]())
            assert not isinstance(found, GlassformerError), f"{name} is no right call: {found}"
