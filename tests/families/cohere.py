"""Cohere (Command R) and its second version."""

from typing import Any

from families import case

_SIZES: dict[str, Any] = {
    "vocab_size": 23, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": None, "bos_token_id": None,
    "eos_token_id": None,
}  # fmt: skip


def _cohere(**changes: Any) -> tuple[Any, Any]:
    from transformers import CohereConfig, CohereForCausalLM

    return CohereForCausalLM, CohereConfig(**(_SIZES | changes))


def _cohere2(**changes: Any) -> tuple[Any, Any]:
    from transformers import Cohere2Config, Cohere2ForCausalLM

    return Cohere2ForCausalLM, Cohere2Config(**(_SIZES | changes))


@case("Cohere")
def cohere_tied() -> tuple[Any, Any]:
    return _cohere()


@case("Cohere")
def cohere_norms_for_each_head_untied_with_biases() -> tuple[Any, Any]:
    return _cohere(use_qk_norm=True, attention_bias=True, tie_word_embeddings=False, logit_scale=0.5)


@case("Cohere 2")
def cohere2_no_positions_in_the_fourth_layer() -> tuple[Any, Any]:
    return _cohere2(num_hidden_layers=4, sliding_window=3)


@case("Cohere 2")
def cohere2_with_biases_and_layers_as_listed() -> tuple[Any, Any]:
    kinds = ["full_attention", "sliding_attention"]
    return _cohere2(attention_bias=True, layer_types=kinds, sliding_window=5, num_key_value_heads=4)
