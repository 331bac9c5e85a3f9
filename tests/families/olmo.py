"""OLMo 1 and 2."""

from typing import Any

from families import case

_SIZES: dict[str, Any] = {
    "vocab_size": 23, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": None, "eos_token_id": None,
}  # fmt: skip


@case("OLMo")
def olmo_clipped() -> tuple[Any, Any]:
    from transformers import OlmoConfig, OlmoForCausalLM

    return OlmoForCausalLM, OlmoConfig(**_SIZES, clip_qkv=0.8)


@case("OLMo")
def olmo_tied_with_biases() -> tuple[Any, Any]:
    from transformers import OlmoConfig, OlmoForCausalLM

    return OlmoForCausalLM, OlmoConfig(**_SIZES, tie_word_embeddings=True, attention_bias=True)


@case("OLMo 2")
def olmo2_norms_over_all_heads() -> tuple[Any, Any]:
    from transformers import Olmo2Config, Olmo2ForCausalLM

    return Olmo2ForCausalLM, Olmo2Config(**_SIZES)


@case("OLMo 2")
def olmo2_biases_without_groups() -> tuple[Any, Any]:
    from transformers import Olmo2Config, Olmo2ForCausalLM

    sizes: dict[str, Any] = _SIZES | {"num_key_value_heads": 4}
    return Olmo2ForCausalLM, Olmo2Config(**sizes, attention_bias=True, rms_norm_eps=1e-6, tie_word_embeddings=True)
