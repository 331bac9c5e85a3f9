"""Vectors of length 1 in training: after every step, across a stop, and nowhere else."""

from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer.adaptation import ExpertConfig
from glassformer.data import Arithmetic
from glassformer.errors import ConfigError
from glassformer.models import normalised_decoder, stream_vectors
from glassformer.testing import close
from glassformer.training import OptimConfig, Progress, TrainConfig, train
from glassformer.training.parallel import Mesh
from glassformer.training.recipes import recipe as known_recipe
from tiny_runs import recipe

ON_SPHERE = OptimConfig(lr=1e-2, warmup=0, weight_decay=0.0, unit_vectors=True)


def tiny() -> TrainConfig:
    model = normalised_decoder(20, 16, 2, n_heads=2, d_mlp=12, max_len=32)
    return recipe(model=model, optim=ON_SPHERE)


def lengths(model: Any) -> torch.Tensor:
    return torch.cat([stored.norm(dim=axis).flatten() for _, stored, axis in stream_vectors(model)])


def test_every_step_ends_on_the_sphere_and_moves_there() -> None:
    model: Any = normalised_decoder(20, 16, 2, n_heads=2, d_mlp=12, max_len=32).build().double()
    optimizer = ON_SPHERE.build(model)
    for _ in range(3):
        before = {name: value.detach().clone() for name, value in model.named_parameters()}
        model(torch.arange(12)[None]).log_softmax(-1)[..., 3].sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        close(lengths(model), torch.ones_like(lengths(model)))
        assert all(not torch.equal(value, before[name]) for name, value in model.named_parameters())


def test_a_run_that_was_stopped_goes_on_to_the_same_weights_on_the_sphere(tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.step == 3:
            raise KeyboardInterrupt

    whole = train(tiny(), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(tiny(), tmp_path / "stopped", report=stop)
    again = train(tiny(), tmp_path / "stopped")
    for name, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
    close(lengths(whole), torch.ones_like(lengths(whole)), 1e-6)


def test_it_is_unsaid_where_it_is_not_asked_for() -> None:
    assert "unit_vectors" not in OptimConfig().to_dict()
    assert OptimConfig.from_json(ON_SPHERE.to_json()) == ON_SPHERE


def test_processes_that_share_a_model_and_experts_refuse_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="by one process, which has them whole"):
        train(tiny(), tmp_path, mesh=Mesh(dp=2))
    with pytest.raises(ConfigError, match="an expert leaves as they are"):
        ExpertConfig(Arithmetic(), optim=ON_SPHERE)


def test_the_two_recipes_have_the_same_matrices() -> None:
    sizes = [
        [tuple(stored.shape) for _, stored, _ in stream_vectors(known_recipe(name).model.build())]
        for name in ("ngpt", "ngpt-baseline")
    ]
    assert sizes[0] == sizes[1] and known_recipe("ngpt").optim.unit_vectors
