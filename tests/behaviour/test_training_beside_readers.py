"""Training is bit for bit what it is alone, while other threads look at the model."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import glassformer as gf
from glassformer.training import read_metrics, train
from tiny_runs import recipe


def losses(folder: Path) -> list[tuple[int, float]]:
    return [(line["step"], line["loss"]) for line in read_metrics(folder) if "loss" in line]


def trained(folder: Path, watched: bool) -> tuple[dict[str, Tensor], int]:
    """Return the weights of a run, and how many passes another thread made through its model meanwhile."""
    over, ids = threading.Event(), torch.arange(12)[None]
    passes: list[int] = []
    threads: list[threading.Thread] = []

    def watch(model: Any) -> None:
        while not over.is_set():
            gf.run(model, ids, read="*")
            passes.append(1)

    def begin(model: Any, _: Any) -> dict[str, Any]:
        # the first measure is taken before the first step
        if watched and not threads:
            threads.append(threading.Thread(target=watch, args=(model,)))
            threads[0].start()
        return {}

    try:
        # dropout draws at every step
        model = train(recipe(steps=12, evaluate_every=6), folder, measures={"watch": begin})
    finally:
        over.set()
        for thread in threads:
            thread.join()
    return {name: value.clone() for name, value in model.state_dict().items()}, len(passes)


@pytest.mark.full
def test_training_is_bit_for_bit_the_same_while_another_thread_runs_the_model(tmp_path: Path) -> None:
    alone, _ = trained(tmp_path / "alone", watched=False)
    beside, passes = trained(tmp_path / "beside", watched=True)
    assert passes > 0, "the other thread came to nothing"
    assert losses(tmp_path / "alone") == losses(tmp_path / "beside")
    assert alone.keys() == beside.keys()
    for name, value in alone.items():
        assert torch.equal(value, beside[name]), name
