"""StableLM."""

from typing import Any

from families import case


def _stablelm(**changes: Any) -> tuple[Any, Any]:
    from transformers import StableLmConfig, StableLmForCausalLM

    sizes: dict[str, Any] = {
        "vocab_size": 23, "hidden_size": 32, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 64,
    }  # fmt: skip
    return StableLmForCausalLM, StableLmConfig(**(sizes | changes))


@case("StableLM")
def stablelm_partly_rotary() -> tuple[Any, Any]:
    return _stablelm(use_qkv_bias=True)


@case("StableLM")
def stablelm_parallel_with_norms_for_each_head() -> tuple[Any, Any]:
    return _stablelm(use_parallel_residual=True, qk_layernorm=True, partial_rotary_factor=0.5, tie_word_embeddings=True)


@case("StableLM")
def stablelm_one_after_the_other_with_norms_for_each_head() -> tuple[Any, Any]:
    return _stablelm(qk_layernorm=True, use_qkv_bias=True, num_key_value_heads=4)
