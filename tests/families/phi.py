"""Phi 1, 1.5 and 2."""

from typing import Any

from families import case


def _phi(**changes: Any) -> tuple[Any, Any]:
    from transformers import PhiConfig, PhiForCausalLM

    sizes: dict[str, Any] = {
        "vocab_size": 23, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 3,
        "max_position_embeddings": 64,
    }  # fmt: skip
    return PhiForCausalLM, PhiConfig(**(sizes | changes))


@case("Phi")
def phi_half_rotary() -> tuple[Any, Any]:
    return _phi()


@case("Phi")
def phi_grouped_keys_normed_queries_and_keys() -> tuple[Any, Any]:
    return _phi(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
        qk_layernorm=True, hidden_act="gelu",
    )  # fmt: skip
