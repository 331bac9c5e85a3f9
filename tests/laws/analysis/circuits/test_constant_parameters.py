"""Gradients of circuits leave the parameters alone, whoever trains them meanwhile."""

import threading
from typing import Any

import pytest
import torch

from circuit_pairs import Compared, pair
from glassformer.analysis.circuits import attribute_edges
from glassformer.testing import close
from glassformer.testing.models import subject

# more than anything here takes
SECONDS = 60


def test_a_thread_that_trains_the_model_meanwhile_loses_no_gradient() -> None:
    given = pair("gpt2")
    inside, trained = threading.Event(), threading.Event()
    gradients: list[Any] = []

    def train() -> None:
        assert inside.wait(SECONDS)
        try:
            loss = given.model(given.clean[0]).square().mean()
            gradients.extend(torch.autograd.grad(loss, list(given.model.parameters()), allow_unused=True))
        finally:
            trained.set()

    def metric(logits: Any) -> Any:
        # the pass that gradients are taken of has begun, and waits for a step of the other thread
        if torch.is_grad_enabled():
            inside.set()
            assert trained.wait(SECONDS)
        return logits[:, :, -1, 1]

    alone = given.model(given.clean[0]).square().mean()
    wanted = torch.autograd.grad(alone, list(given.model.parameters()), allow_unused=True)
    thread = threading.Thread(target=train)
    thread.start()
    attribute_edges(*given.prompts, metric)
    thread.join(SECONDS)
    assert len(gradients) == len(wanted) > 0
    for found, expected in zip(gradients, wanted):
        close(found, expected)


@pytest.mark.parametrize("name", ["gpt2", "llama", "translator_pre", "linear", "experts"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gradients_of_circuits_are_none_of_the_parameters(name: str, dtype: torch.dtype) -> None:
    given = Compared(subject(name, dtype=dtype))
    attribute_edges(*given.args)
    for parameter in given.model.parameters():
        assert parameter.requires_grad
        assert parameter.grad is None
