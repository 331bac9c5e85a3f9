"""Llama 1 to 3.x, and the models made of its blocks: Mistral, Mixtral, Phi-3."""

from pathlib import Path
from typing import Any

import torch

import glassformer as gf
from families import TOLERANCE, case, check_decoder, generated
from glassformer.checkpoints.comparison.reference import reference

SIZES: dict[str, Any] = {
    "vocab_size": 23, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": None,
}  # fmt: skip
FACTORS = {"short_factor": [1.0, 1.3, 2.0], "long_factor": [2.0, 5.0, 9.0]}


def outgrown(kind: Any, config: Any, folder: Path, dtype: torch.dtype) -> dict[str, float]:
    """Compare as usual, and over 50 steps that lead far beyond the length the model was trained on."""
    errors = check_decoder(kind, config, folder, dtype)
    ours: Any = gf.load(folder, dtype=dtype)
    for length in (3, 7):
        tokens = torch.randint(0, 23, (2, length), generator=torch.Generator().manual_seed(length))
        # the reference remembers how long its longest text was: a new one for each
        errors[f"{length} + 50"] = generated(ours, reference(folder, dtype), tokens, 50)
    bad = {name: error for name, error in errors.items() if not error <= TOLERANCE[dtype]}
    assert not bad, f"beyond {TOLERANCE[dtype]} of the reference: {bad}"
    return errors


def _llama(**changes: Any) -> tuple[Any, Any]:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM, LlamaConfig(**(SIZES | changes))


def _scaled(kind: str, **described: Any) -> tuple[Any, Any]:
    return _llama(rope_parameters={"rope_type": kind, "rope_theta": 50.0} | described)


@case("Llama")
def llama_grouped_keys() -> tuple[Any, Any]:
    return _llama()


@case("Llama")
def llama_biases_tied_own_head_width() -> tuple[Any, Any]:
    return _llama(attention_bias=True, mlp_bias=True, tie_word_embeddings=True, head_dim=10, num_key_value_heads=1)


@case("Llama")
def llama_linear_scaling() -> tuple[Any, Any]:
    return _scaled("linear", factor=3.0)


@case("Llama", check=outgrown)
def llama_dynamic_scaling() -> tuple[Any, Any]:
    kind, config = _scaled("dynamic", factor=3.0)
    config.max_position_embeddings = 5
    return kind, config


@case("Llama")
def llama_llama3_scaling() -> tuple[Any, Any]:
    bounds = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
    return _scaled("llama3", factor=4.0, **bounds)


@case("Llama")
def llama_yarn_scaling() -> tuple[Any, Any]:
    return _scaled("yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=2.0)


@case("Llama", check=outgrown)
def llama_longrope_scaling() -> tuple[Any, Any]:
    return _scaled("longrope", original_max_position_embeddings=5, **FACTORS)


@case("Mistral")
def mistral_sliding_window() -> tuple[Any, Any]:
    from transformers import MistralConfig, MistralForCausalLM

    return MistralForCausalLM, MistralConfig(**SIZES, sliding_window=4)


@case("Mistral")
def mistral_without_window_own_head_width() -> tuple[Any, Any]:
    from transformers import MistralConfig, MistralForCausalLM

    return MistralForCausalLM, MistralConfig(**SIZES, sliding_window=None, head_dim=8, tie_word_embeddings=True)


@case("Mixtral")
def mixtral() -> tuple[Any, Any]:
    from transformers import MixtralConfig, MixtralForCausalLM

    return MixtralForCausalLM, MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2)


@case("Mixtral")
def mixtral_three_of_five_with_a_window() -> tuple[Any, Any]:
    from transformers import MixtralConfig, MixtralForCausalLM

    sizes: dict[str, Any] = SIZES | {"num_local_experts": 5, "num_experts_per_tok": 3, "sliding_window": 3}
    return MixtralForCausalLM, MixtralConfig(**sizes)


def _phi3(**changes: Any) -> tuple[Any, Any]:
    from transformers import Phi3Config, Phi3ForCausalLM

    return Phi3ForCausalLM, Phi3Config(**(SIZES | changes))


@case("Phi-3")
def phi3_with_a_window() -> tuple[Any, Any]:
    return _phi3(sliding_window=4)


@case("Phi-3", check=outgrown)
def phi3_longrope() -> tuple[Any, Any]:
    described = {"rope_type": "longrope", "rope_theta": 100.0} | FACTORS
    return _phi3(rope_parameters=described, original_max_position_embeddings=5, max_position_embeddings=20)


@case("Phi-3")
def phi3_partial_rotation_tied() -> tuple[Any, Any]:
    parameters = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}
    return _phi3(hidden_size=32, rope_parameters=parameters, tie_word_embeddings=True, num_key_value_heads=4)
