"""OLMo 1 to 3."""

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


@case("OLMo 3")
def olmo3_window_in_three_layers_of_four() -> tuple[Any, Any]:
    from transformers import Olmo3Config, Olmo3ForCausalLM

    return Olmo3ForCausalLM, Olmo3Config(**(_SIZES | dict[str, Any](num_hidden_layers=4)), sliding_window=3)


@case("OLMo 3")
def olmo3_scaled_where_it_sees_everything() -> tuple[Any, Any]:
    from transformers import Olmo3Config, Olmo3ForCausalLM

    kinds = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 4}
    scaling = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32, "rope_theta": 100.0}
    rotary = {"full_attention": scaling, "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}
    return Olmo3ForCausalLM, Olmo3Config(**_SIZES, **kinds, rope_parameters=rotary, attention_bias=True)
