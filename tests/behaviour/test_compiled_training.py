"""Compiled training: it runs, repeats itself, and learns what eager training learns."""

from shutil import which

import pytest
import torch

from glassformer.testing import close
from glassformer.training import OptimConfig, train
from tiny_runs import MODEL, recipe

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(which("g++") is None, reason="torch.compile needs a C++ compiler on CPU"),
]


def test_a_compiled_run_repeats_itself_and_agrees_with_an_eager_one(tmp_path):
    model = MODEL.replace(layers=tuple(layer.replace(dropout=0.0) for layer in MODEL.layers))
    # Adam divides by small roots, so a large eps keeps differences of rounding as small as they are
    config = recipe(model=model, optim=OptimConfig(eps=1e-3), steps=3, save_every=3, keep=())
    ends = [
        train(config.replace(compile=compiled), tmp_path / name).state_dict()
        for name, compiled in (("eager", False), ("compiled", True), ("again", True))
    ]
    assert not torch.are_deterministic_algorithms_enabled() or torch.is_deterministic_algorithms_warn_only_enabled()
    for name, value in ends[0].items():
        assert torch.equal(ends[1][name], ends[2][name])
        close(ends[1][name], value, tolerance=1e-4)
