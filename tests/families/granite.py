"""Granite."""

from typing import Any

from families import case


def _granite(**changes: Any) -> tuple[Any, Any]:
    from transformers import GraniteConfig, GraniteForCausalLM

    sizes: dict[str, Any] = {
        "vocab_size": 23, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 64,
    }  # fmt: skip
    return GraniteForCausalLM, GraniteConfig(**(sizes | changes))


@case("Granite")
def granite_with_all_its_factors() -> tuple[Any, Any]:
    return _granite(
        embedding_multiplier=6.0, logits_scaling=4.0, residual_multiplier=0.3, attention_multiplier=0.2,
        tie_word_embeddings=True,
    )  # fmt: skip


@case("Granite")
def granite_without_factors_and_with_biases() -> tuple[Any, Any]:
    return _granite(attention_bias=True, mlp_bias=True, num_key_value_heads=4)
