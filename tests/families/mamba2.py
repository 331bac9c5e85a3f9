"""Mamba-2.

The reference limits steps where it reads a text, and not where it reads a token at a time; and of padding on the left
its biases reach the first tokens by way of the convolution. Neither is compared where it would show.
"""

from pathlib import Path
from typing import Any

import torch

from families import TOLERANCE, case, compared_whole, reference_folder


def _mamba2(**changes: Any) -> tuple[Any, Any]:
    from transformers import Mamba2Config, Mamba2ForCausalLM

    sizes: dict[str, Any] = {
        "vocab_size": 23, "hidden_size": 12, "num_hidden_layers": 2, "num_heads": 4, "head_dim": 6, "state_size": 5,
        "n_groups": 2, "chunk_size": 4, "residual_in_fp32": False,
    }  # fmt: skip
    return Mamba2ForCausalLM, Mamba2Config(**(sizes | changes))


def _without(*rows: str) -> Any:
    """Return a check of all rows but those of some kinds."""

    def check(kind: Any, config: Any, folder: Path, dtype: torch.dtype = torch.float64) -> dict[str, float]:
        errors, _ = compared_whole(reference_folder(kind, config, folder, dtype), folder, dtype)
        assert all(any(name.endswith(row) for name in errors) for row in rows)
        kept = {name: error for name, error in errors.items() if not name.endswith(rows)}
        bad = {name: error for name, error in kept.items() if not error <= TOLERANCE[dtype]}
        assert kept and not bad, f"beyond {TOLERANCE[dtype]} of the reference: {bad}"
        return kept

    return check


@case("Mamba-2")
def mamba2() -> tuple[Any, Any]:
    return _mamba2()


@case("Mamba-2")
def mamba2_one_group_tied_without_biases_of_convolutions() -> tuple[Any, Any]:
    return _mamba2(n_groups=1, use_conv_bias=False, tie_word_embeddings=True, conv_kernel=3)


@case("Mamba-2")
def mamba2_a_group_for_each_head_of_a_wider_stream() -> tuple[Any, Any]:
    return _mamba2(n_groups=4, expand=1, head_dim=3, state_size=8, num_hidden_layers=3)


@case("Mamba-2", _without("padded left"))
def mamba2_biases() -> tuple[Any, Any]:
    return _mamba2(use_bias=True)


@case("Mamba-2", _without("cached"))
def mamba2_limited_steps() -> tuple[Any, Any]:
    return _mamba2(time_step_limit=(0.5, 0.9))
