"""Qwen 2 and 3."""

from typing import Any

from families import case

_SIZES: dict[str, Any] = {
    "vocab_size": 23, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip


def _qwen2(**changes: Any) -> tuple[Any, Any]:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM, Qwen2Config(**(_SIZES | changes))


def _qwen3(**changes: Any) -> tuple[Any, Any]:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes: dict[str, Any] = _SIZES | {"head_dim": 8}
    return Qwen3ForCausalLM, Qwen3Config(**(sizes | changes))


@case("Qwen 2")
def qwen2_grouped_keys_tied() -> tuple[Any, Any]:
    return _qwen2(tie_word_embeddings=True)


@case("Qwen 2")
def qwen2_window_in_later_layers() -> tuple[Any, Any]:
    return _qwen2(num_key_value_heads=4, use_sliding_window=True, sliding_window=3, max_window_layers=1)


@case("Qwen 3")
def qwen3_norms_on_queries_and_keys() -> tuple[Any, Any]:
    return _qwen3()


@case("Qwen 3")
def qwen3_biases_window_tied() -> tuple[Any, Any]:
    return _qwen3(
        attention_bias=True, use_sliding_window=True, sliding_window=4, max_window_layers=1, num_key_value_heads=1,
        tie_word_embeddings=True, rms_norm_eps=1e-5,
    )  # fmt: skip
