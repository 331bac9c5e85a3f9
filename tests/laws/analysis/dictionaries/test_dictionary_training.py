"""Training a dictionary: it learns what is there, goes on bit for bit, and is measured as numpy measures it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from glassformer.analysis.dictionaries import (
    DictionaryStep,
    JumpRelu,
    Relu,
    SparseAutoencoder,
    TopK,
    dictionary_quality,
    train_dictionary,
)
from glassformer.errors import AnalysisUnavailable, CheckpointError, ShapeMismatch, WrongArgument
from glassformer.testing import close
from glassformer.testing.models import subject
from one_pass import in_one_pass

KINDS = [Relu(8, 12, l1=0.5), TopK(8, 12, k=2), JumpRelu(8, 12, l0=0.3, bandwidth=0.5)]


def planted(n: int = 512, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return rows that are made of one or two of twelve directions, and the directions."""
    random = torch.Generator().manual_seed(seed)
    directions = torch.randn(12, 8, generator=random)
    directions = directions / directions.norm(dim=-1, keepdim=True)
    there = torch.rand(n, 12, generator=random) < 0.1
    strength = 1 + torch.rand(n, 12, generator=random)
    return (there * strength) @ directions, directions


@pytest.mark.parametrize("config", KINDS, ids=lambda config: config.kind)
def test_a_training_goes_on_bit_for_bit_from_its_file(config: Any, tmp_path: Path) -> None:
    x, file = planted()[0], tmp_path / f"{config.kind}.safetensors"
    options: dict[str, Any] = {"steps": 7, "batch_size": 200, "dead_after": 150, "seed": 3}
    whole, told = train_dictionary(x, config, **options), list[DictionaryStep]()

    def stop(step: DictionaryStep) -> None:
        told.append(step)
        if step.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_dictionary(x, config, **options, save_to=file, report=stop)
    found = train_dictionary(x, config, **options, save_to=file, report=told.append)
    assert [step.step for step in told] == [1, 2, 3, 4, 5, 6, 7]
    for name, value in whole.state_dict().items():
        assert torch.equal(found.state_dict()[name], value), name
    with pytest.raises(CheckpointError, match="another dictionary"):
        train_dictionary(x + 1, config, **options, save_to=file)
    assert found.facts["steps"] == 7 and found.facts["rows"] == 512
    assert all(0 <= step.dead <= 1 and step.l0 <= 12 for step in told)


@pytest.mark.full
@in_one_pass
@pytest.mark.parametrize("config", KINDS, ids=lambda config: config.kind)
def test_planted_directions_are_found(config: Any) -> None:
    """Twelve directions in eight dimensions, one or two at a time mostly.

    A count of features says nothing of directions, so JumpReLU may make one feature of two that meet: it explains more
    with fewer, and finds some directions less well.
    """
    x, directions = planted(4096)
    told = list[DictionaryStep]()
    options: dict[str, Any] = {"n_features": 24} | ({"l0": 0.2} if config.kind == "jumprelu" else {})
    found = train_dictionary(x, config.replace(**options), steps=1000, batch_size=512, lr=5e-3, report=told.append)
    rows = found.W_dec.detach() / found.W_dec.detach().norm(dim=-1, keepdim=True)
    assert float((directions @ rows.mT).max(-1).values.mean()) > (0.9 if config.kind == "jumprelu" else 0.95)
    quality = dictionary_quality(found, x)
    # of two features at most, where a row has three or four
    assert quality.explained_variance > (0.85 if config.kind == "topk" else 0.95)
    assert told[-1].fvu < told[0].fvu / 2 and abs(told[-1].fvu - quality.fvu) < 0.1


class _Reads(SparseAutoencoder, config=type("Unused", (Relu,), {})):
    """A dictionary whose reconstruction is given."""

    def __init__(self, made: Tensor) -> None:
        super().__init__(Relu(made.shape[1], 5))
        self.double()
        self.made, self.at = made, 0

    def encode(self, rows: Tensor) -> Tensor:
        features = torch.zeros(len(rows), 5, dtype=torch.float64)
        features[:, 1], features[::2, 3] = 1.0, 2.0
        return features

    def decode(self, features: Tensor) -> Tensor:
        found = self.made[self.at : self.at + len(features)]
        self.at += len(features)
        return found


def alike(ours: float, theirs: float) -> None:
    assert abs(ours - theirs) < 1e-12 * abs(theirs)


def test_moments_over_batches_are_those_of_numpy() -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(30, 6, generator=random, dtype=torch.float64) + 5 * torch.arange(6)
    made = x + torch.randn(30, 6, generator=random, dtype=torch.float64)
    found = dictionary_quality(_Reads(made), x, batch_size=8)
    a, b = x.numpy(), made.numpy()
    alike(found.explained_variance, 1 - ((a - b) ** 2).sum() / ((a - a.mean(0)) ** 2).sum())
    norms = np.linalg.norm(a, axis=-1), np.linalg.norm(b, axis=-1)
    alike(found.cosine, ((a * b).sum(-1) / norms[0] / norms[1]).mean())
    alike(found.norm_ratio, (norms[1] / norms[0]).mean())
    alike(found.bias, (b**2).sum() / (a * b).sum())
    assert found.rows == 30 and found.l0 == 1.5 and found.dead == 0.6
    close(found.density.values, torch.tensor([0, 1, 0, 0.5, 0], dtype=torch.float64))
    assert found.density.axes == ("feature",)


def test_a_perfect_dictionary_and_one_that_says_the_mean_are_measured_so() -> None:
    x = torch.randn(30, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 3
    perfect = dictionary_quality(_Reads(x), x, batch_size=7)
    for value in (perfect.explained_variance, perfect.cosine, perfect.norm_ratio, perfect.bias):
        assert abs(value - 1) < 1e-12
    assert abs(dictionary_quality(_Reads(x.mean(0).expand(30, 6)), x, batch_size=7).explained_variance) < 1e-12


def test_rows_that_are_none_are_refused() -> None:
    config, x = Relu(8, 12), planted()[0]
    with pytest.raises(ShapeMismatch, match="rows have 6 numbers"):
        train_dictionary(x[:, :6], config)
    with pytest.raises(ShapeMismatch, match="row width"):
        train_dictionary(x[None], config)
    with pytest.raises(ShapeMismatch, match="not finite"):
        train_dictionary(x / 0, config)
    with pytest.raises(AnalysisUnavailable, match="no rows"):
        train_dictionary(x[:0], config)
    with pytest.raises(AnalysisUnavailable, match="site of a store"):
        train_dictionary(["a text"], config)
    with pytest.raises(WrongArgument, match="steps"):
        train_dictionary(x, config, steps=0)
    with pytest.raises(ShapeMismatch, match="dictionary is of 8"):
        dictionary_quality(config.build(), x[:, :6])


def test_a_dictionary_remembers_what_it_is_of() -> None:
    model = subject("llama").model
    found = train_dictionary(planted()[0], Relu(8, 12), steps=1, model=model, site="blocks.0.resid_post")
    assert found.facts["site"] == "blocks.0.resid_post" and found.facts["digest"] == model.digest()
    assert 'of "blocks.0.resid_post"' in repr(found)
