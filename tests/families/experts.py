"""Qwen 3 MoE and OLMoE."""

from typing import Any

from families import case

_SIZES: dict[str, Any] = {
    "vocab_size": 23, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "num_experts": 4, "num_experts_per_tok": 2,
    "pad_token_id": None, "eos_token_id": None,
}  # fmt: skip


def _qwen3_moe(**changes: Any) -> tuple[Any, Any]:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    return Qwen3MoeForCausalLM, Qwen3MoeConfig(**(_SIZES | dict[str, Any](moe_intermediate_size=12) | changes))


def _olmoe(**changes: Any) -> tuple[Any, Any]:
    from transformers import OlmoeConfig, OlmoeForCausalLM

    return OlmoeForCausalLM, OlmoeConfig(**(_SIZES | changes))


@case("Qwen 3 MoE")
def qwen3_moe() -> tuple[Any, Any]:
    return _qwen3_moe()


@case("Qwen 3 MoE")
def qwen3_moe_with_a_dense_layer_and_shares_that_sum_to_one() -> tuple[Any, Any]:
    return _qwen3_moe(
        mlp_only_layers=[0], norm_topk_prob=True, attention_bias=True, use_sliding_window=True, sliding_window=4,
        tie_word_embeddings=True, num_experts_per_tok=3,
    )  # fmt: skip


@case("OLMoE")
def olmoe() -> tuple[Any, Any]:
    return _olmoe()


@case("OLMoE")
def olmoe_with_biases_and_shares_that_sum_to_one() -> tuple[Any, Any]:
    return _olmoe(attention_bias=True, norm_topk_prob=True, num_key_value_heads=4, tie_word_embeddings=True)
