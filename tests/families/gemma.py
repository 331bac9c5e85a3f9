"""Gemma 1 to 3."""

from typing import Any

from families import case

# the reference holds the factor on embeddings in float32: the root of a square has no digits to lose
_SIZES: dict[str, Any] = {
    "vocab_size": 23, "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 64,
}  # fmt: skip


def _gemma(**changes: Any) -> tuple[Any, Any]:
    from transformers import GemmaConfig, GemmaForCausalLM

    return GemmaForCausalLM, GemmaConfig(**(_SIZES | changes))


def _gemma2(**changes: Any) -> tuple[Any, Any]:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    sizes: dict[str, Any] = _SIZES | {"sliding_window": 3, "query_pre_attn_scalar": 5}
    return Gemma2ForCausalLM, Gemma2Config(**(sizes | changes))


def _gemma3(**changes: Any) -> tuple[Any, Any]:
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    sizes: dict[str, Any] = _SIZES | {"sliding_window": 3, "query_pre_attn_scalar": 5, "num_hidden_layers": 3}
    return Gemma3ForCausalLM, Gemma3TextConfig(**(sizes | changes))


@case("Gemma")
def gemma_one_key_head() -> tuple[Any, Any]:
    return _gemma(num_key_value_heads=1)


@case("Gemma")
def gemma_untied_with_biases() -> tuple[Any, Any]:
    return _gemma(num_key_value_heads=4, tie_word_embeddings=False, attention_bias=True, hidden_act="gelu")


@case("Gemma 2")
def gemma2_caps_and_windows() -> tuple[Any, Any]:
    # caps as small as scores and logits themselves, so that they bend them
    return _gemma2(attn_logit_softcapping=0.5, final_logit_softcapping=2.0)


@case("Gemma 2")
def gemma2_without_caps() -> tuple[Any, Any]:
    return _gemma2(
        attn_logit_softcapping=None, final_logit_softcapping=None, num_key_value_heads=4,
        layer_types=["full_attention", "sliding_attention"],
    )  # fmt: skip


@case("Gemma 3")
def gemma3_local_and_global_layers() -> tuple[Any, Any]:
    return _gemma3(sliding_window_pattern=2)


@case("Gemma 3")
def gemma3_scaled_rotary_positions_in_global_layers() -> tuple[Any, Any]:
    rotary = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    return _gemma3(rope_parameters=rotary, layer_types=types, final_logit_softcapping=3.0, num_key_value_heads=1)
