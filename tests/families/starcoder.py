"""StarCoder 1 (GPT-BigCode) and 2."""

from typing import Any

from families import case


def _bigcode(**changes: Any) -> tuple[Any, Any]:
    from transformers import GPTBigCodeConfig, GPTBigCodeForCausalLM

    sizes: dict[str, Any] = {"vocab_size": 23, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 64}
    return GPTBigCodeForCausalLM, GPTBigCodeConfig(**(sizes | changes))


def _starcoder2(**changes: Any) -> tuple[Any, Any]:
    from transformers import Starcoder2Config, Starcoder2ForCausalLM

    sizes: dict[str, Any] = {
        "vocab_size": 23, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 64,
    }  # fmt: skip
    return Starcoder2ForCausalLM, Starcoder2Config(**(sizes | changes))


@case("GPT-BigCode")
def bigcode_of_one_key_head() -> tuple[Any, Any]:
    return _bigcode()


@case("GPT-BigCode")
def bigcode_with_a_key_head_each_untied_and_not_scaled() -> tuple[Any, Any]:
    return _bigcode(
        multi_query=False, scale_attn_weights=False, tie_word_embeddings=False, n_inner=20, activation_function="gelu"
    )  # fmt: skip


@case("StarCoder 2")
def starcoder2_with_a_window() -> tuple[Any, Any]:
    return _starcoder2(sliding_window=4)


@case("StarCoder 2")
def starcoder2_without_biases_untied() -> tuple[Any, Any]:
    return _starcoder2(use_bias=False, tie_word_embeddings=False, norm_epsilon=1e-6)
