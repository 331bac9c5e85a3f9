"""GLM 4, earlier and later form."""

from typing import Any

from families import case

_SIZES: dict[str, Any] = {
    "vocab_size": 23, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "pad_token_id": None, "eos_token_id": None,
}  # fmt: skip


def _glm(**changes: Any) -> tuple[Any, Any]:
    from transformers import GlmConfig, GlmForCausalLM

    return GlmForCausalLM, GlmConfig(**(_SIZES | changes))


def _glm4(**changes: Any) -> tuple[Any, Any]:
    from transformers import Glm4Config, Glm4ForCausalLM

    return Glm4ForCausalLM, Glm4Config(**(_SIZES | changes))


@case("GLM")
def glm_half_rotary() -> tuple[Any, Any]:
    return _glm()


@case("GLM")
def glm_tied_without_biases() -> tuple[Any, Any]:
    return _glm(attention_bias=False, tie_word_embeddings=True, num_key_value_heads=4)


@case("GLM 4")
def glm4_norms_behind() -> tuple[Any, Any]:
    return _glm4()


@case("GLM 4")
def glm4_tied_without_biases() -> tuple[Any, Any]:
    return _glm4(attention_bias=False, tie_word_embeddings=True, partial_rotary_factor=1.0)
