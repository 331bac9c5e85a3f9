"""Llama 1 to 3.x."""

from typing import Any

from families import case


def _llama(**changes: Any) -> tuple[Any, Any]:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {
        "vocab_size": 23, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 64,
    }  # fmt: skip
    return LlamaForCausalLM, LlamaConfig(**(sizes | changes))


@case("Llama")
def llama_grouped_keys() -> tuple[Any, Any]:
    return _llama()


@case("Llama")
def llama_biases_tied_own_head_width() -> tuple[Any, Any]:
    return _llama(attention_bias=True, mlp_bias=True, tie_word_embeddings=True, head_dim=10, num_key_value_heads=1)
