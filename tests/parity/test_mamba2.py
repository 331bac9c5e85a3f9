"""Mamba-2 beyond what every family is compared in: gradients, pads at the end, limits of steps, what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import glassformer as gf
from families import all_cases, reference_folder
from glassformer.attention import StateSpace
from glassformer.checkpoints.comparison.reference import wide
from glassformer.checkpoints.families import taken_apart
from glassformer.checkpoints.loading import open_folder
from glassformer.errors import CheckpointError
from glassformer.models import RmsNorm, published_block
from glassformer.testing import close

CASES = all_cases()
EXACT = 1e-9


def loaded(name: str, folder: Path) -> tuple[Any, Any]:
    """Return a case's reference in float64, and ours of the same weights."""
    theirs = reference_folder(*CASES[name].make(), folder, torch.float64)
    return theirs, gf.load(folder, dtype=torch.float64)


def tokens(n: int) -> torch.Tensor:
    return torch.randint(0, 23, (2, n), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["mamba2", "mamba2_biases", "mamba2_limited_steps"])
def test_gradients_of_all_parameters_are_the_references(name: str, tmp_path: Path) -> None:
    theirs, ours = loaded(name, tmp_path)
    ids = tokens(11)
    with wide(torch.float64):
        expected = theirs(input_ids=ids, use_cache=False).logits
        weights = torch.sin(torch.arange(expected.numel(), dtype=torch.float64)).view_as(expected)
        (expected * weights).sum().backward()
    found = ours(ids)
    close(found, expected, EXACT)
    parameters = dict(ours.named_parameters())
    grads = dict(zip(parameters, torch.autograd.grad((found * weights).sum(), list(parameters.values()))))
    # as tensors of theirs, by the table that weights are written by
    written = taken_apart(open_folder(tmp_path).parts, grads.__getitem__)
    known = dict(theirs.named_parameters())
    assert set(written) == set(known)
    for tensor, grad in written.items():
        close(grad, known[tensor].grad, EXACT)


def test_limits_of_steps_hold_when_tokens_come_one_by_one(tmp_path: Path) -> None:
    """The reference limits them in whole texts alone."""
    theirs, ours = loaded("mamba2_limited_steps", tmp_path)
    ids, state = tokens(9), ours.begin(batch=2)
    with torch.no_grad(), wide(torch.float64):
        expected = theirs(input_ids=ids, use_cache=False).logits
        rows = []
        for t in range(9):
            logits, state = ours(ids[:, t : t + 1], state=state)
            rows.append(logits)
    close(torch.cat(rows, 1), expected, EXACT)


def test_the_block_as_published_is_one_that_is_read(tmp_path: Path) -> None:
    """But for sizes, the width of convolutions and whether they have biases, and the epsilons of this case."""
    _, ours = loaded("mamba2_one_group_tied_without_biases_of_convolutions", tmp_path)
    made: Any = published_block(StateSpace(), n_heads=4, d_head=5, d_value=6, norm=RmsNorm(0.03))
    (attention,) = made.parts
    assert attention.departures(0) == []
    projection = attention.projection.replace(width=3, tap_bias=False)
    same = attention.replace(projection=projection, merge=attention.merge.replace(groups=1, eps=0.03))
    assert made.replace(parts=(same,)) == ours.config.layers[0]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"expand": 3}, "expand"),
        ({"n_groups": 3}, "n_groups"),
        ({"time_step_limit": [0.5, 0.1]}, "time_step_limit"),
        ({"time_step_limit": [0.5]}, "time_step_limit"),
    ],
)
def test_what_cannot_be_represented_is_refused_by_name(fields: dict[str, Any], says: str, tmp_path: Path) -> None:
    loaded("mamba2", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    with pytest.raises(CheckpointError, match=says):
        gf.load(tmp_path)


def test_a_limit_may_be_infinite_in_a_word_or_as_python_writes_it(tmp_path: Path) -> None:
    loaded("mamba2", tmp_path)
    path = tmp_path / "config.json"
    said = json.loads(path.read_text())
    for longest, expected in (({"__float__": "Infinity"}, None), (float("inf"), None), (0.5, 0.5)):
        path.write_text(json.dumps(said | {"time_step_limit": [0.1, longest]}))
        config: Any = open_folder(tmp_path).config
        mixer = config.layers[0].parts[0].mixer
        assert (mixer.shortest, mixer.longest) == (0.1, expected)
