"""DiffLlama."""

from typing import Any

from families import case


def _diffllama(**changes: Any) -> tuple[Any, Any]:
    from transformers import DiffLlamaConfig, DiffLlamaForCausalLM

    sizes: dict[str, Any] = {
        "vocab_size": 23, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 64,
    }  # fmt: skip
    return DiffLlamaForCausalLM, DiffLlamaConfig(**(sizes | changes))


@case("DiffLlama")
def diffllama_grouped_keys() -> tuple[Any, Any]:
    return _diffllama(num_attention_heads=8, num_key_value_heads=4, hidden_size=32)


@case("DiffLlama")
def diffllama_biases_tied() -> tuple[Any, Any]:
    return _diffllama(num_key_value_heads=4, attention_bias=True, tie_word_embeddings=True)
