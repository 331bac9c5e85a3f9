"""Frequencies of scaled rotary positions against the functions that transformers computes them with, in float64."""

from typing import Any

import pytest
import torch

from glassformer.checkpoints.comparison.reference import wide
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.rotary import longest, rope, rope_parameters
from glassformer.errors import CheckpointError
from glassformer.testing import close
from one_pass import in_one_pass

FACTORS = {
    "short_factor": [1.0, 1.1, 1.3, 1.7, 2.0, 2.5, 3.0, 4.0],
    "long_factor": [1.0, 2.0, 3.0, 5.0, 7.0, 9.0, 12.0, 16.0],
}
CASES: dict[str, dict[str, Any]] = {
    "linear": {"factor": 3.0},
    "dynamic": {"factor": 2.5},
    "llama3": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 8.0},
    "yarn untruncated": {"factor": 4.0, "original_max_position_embeddings": 64, "truncate": False, "beta_fast": 4.0},
    "yarn with an attention factor": {"factor": 4.0, "original_max_position_embeddings": 64, "attention_factor": 1.4},
    "yarn with two weights": {
        "factor": 40.0, "original_max_position_embeddings": 64, "mscale": 1.0, "mscale_all_dim": 0.7,
    },
    "yarn of one width": {"factor": 4.0, "original_max_position_embeddings": 7},
    "longrope": {"factor": 8.0, "original_max_position_embeddings": 32} | FACTORS,
    "longrope by its lengths": {"original_max_position_embeddings": 32} | FACTORS,
    "longrope with an attention factor": {"original_max_position_embeddings": 32, "attention_factor": 1.2} | FACTORS,
}  # fmt: skip


@in_one_pass
@pytest.mark.parametrize("name", CASES)
def test_scaled_frequencies_equal_the_references(name: str) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    kind = name.split()[0]
    described = {"rope_type": kind, "rope_theta": 500.0} | CASES[name]
    config: Any = LlamaConfig(
        hidden_size=32, num_attention_heads=2, max_position_embeddings=256, rope_parameters=described
    )
    ours = rope(Fields(config.to_dict()))
    for length in (5, 32, 33, 256, 300, 1000):
        with wide(torch.float64):
            frequencies, amplitude = ROPE_INIT_FUNCTIONS[kind](config, None, length)
        assert frequencies.dtype == torch.float64
        close(ours.frequencies(16, torch.tensor(length)), frequencies, 1e-12)
        assert ours.amplitude == pytest.approx(amplitude, rel=1e-12)
    # and written back, they describe the same
    assert rope(Fields(config.to_dict() | {"rope_parameters": rope_parameters(ours)})) == ours


@in_one_pass
@pytest.mark.parametrize(
    ("described", "length"),
    [
        ({"rope_type": "default"}, 256),
        ({"rope_type": "linear", "factor": 4.0}, 1024),
        ({"rope_type": "dynamic", "factor": 2.0}, 512),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}, 1024),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, 256),
        ({"rope_type": "longrope", "original_max_position_embeddings": 32} | FACTORS, 256),
    ],
)
def test_the_longest_context_counts_scaling_in(described: dict[str, Any], length: int) -> None:
    fields = Fields({"max_position_embeddings": 256, "rope_parameters": described | {"rope_theta": 500.0}})
    assert longest(fields, rope(fields), 1) == length


def test_an_unknown_scaling_is_refused_with_those_that_are_known() -> None:
    fields = Fields({"rope_scaling": {"type": "spiral", "factor": 2.0}}, "model/config.json")
    with pytest.raises(CheckpointError) as caught:
        rope(fields)
    assert str(caught.value) == (
        '"model/config.json": rope scaling "spiral" is not known. '
        "Known: default, dynamic, linear, llama3, longrope, yarn."
    )
