"""The same done many times holds no more than once: no tensors stay, and the process does not grow."""

import gc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import glassformer as gf
from glassformer.analysis.sweep import logit, sweep
from glassformer.models import generate
from glassformer.testing.models import subject
from runtime_checks import lifted
from trials import Trials

MEGABYTE = 1 << 20


@pytest.fixture(autouse=True)
def only_new_objects() -> Iterator[None]:
    """Leave out of all counts what other tests made: there may be millions of objects to look at."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def live_tensors() -> int:
    gc.collect()
    with warnings.catch_warnings():
        # some objects of libraries warn when they are asked what they are
        warnings.simplefilter("ignore")
        return sum(isinstance(one, Tensor) for one in gc.get_objects())


def resident() -> int:
    """Return the bytes of memory that the process holds."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


def jobs(model: Any, ids: Tensor) -> dict[str, Callable[[], Any]]:
    def refused() -> None:
        try:
            gf.run(model, ids, read="*", edit=[gf.Set("blocks.1.resid_pre", torch.zeros(3))])
        except gf.errors.ShapeMismatch:
            return
        raise AssertionError("a vector of another size was taken")

    return {
        "run": lambda: gf.run(model, ids, read="*", edit=[gf.Scale("L0H0.z", 0.5)]),
        "gradients": lambda: gf.run(model, ids, read="*", grad=True).predictions().sum().backward(),
        "explain": lambda: gf.explain(model, ids),
        "sweep": lambda: sweep(model, ids, [[gf.Scale(f"L{i}H0.z", 0.0)] for i in range(2)], logit(3)),
        "generate": lambda: generate(model, ids, max_new_tokens=4),
        "refusal": refused,
    }


@pytest.mark.full
def test_repeated_work_leaves_no_tensors_behind_and_does_not_grow(trials: Trials) -> None:
    model, ids = subject("gpt2", dtype=torch.float32).model, torch.tensor([[5, 9, 3, 7]])
    done = jobs(model, ids)

    def once() -> None:
        for name, job in done.items():
            job()
            trials.count(name)
        model.zero_grad(set_to_none=True)

    # compiling the checks would take most of the time
    with lifted():
        # what is made once and kept (tables of sites) is made in the first rounds
        once()
        once()
        before, size = live_tensors(), resident()
        for _ in trials(quick=2, sweep=40):
            once()
        assert live_tensors() <= before
    # freed memory goes back to the allocator in pieces; a pass that stays in each round would be far more
    assert resident() - size < 64 * MEGABYTE
