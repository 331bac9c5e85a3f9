"""GPT-OSS."""

from typing import Any

from families import case


def _gpt_oss(**changes: Any) -> tuple[Any, Any]:
    from transformers import GptOssConfig, GptOssForCausalLM

    sizes: dict[str, Any] = {
        "vocab_size": 23, "hidden_size": 24, "intermediate_size": 10, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 3,
        "max_position_embeddings": 64,
    }  # fmt: skip
    return GptOssForCausalLM, GptOssConfig(**(sizes | changes))


@case("GPT-OSS")
def gpt_oss_sinks_and_experts() -> tuple[Any, Any]:
    return _gpt_oss()


@case("GPT-OSS")
def gpt_oss_tied_without_biases_and_narrow_limits() -> tuple[Any, Any]:
    # a limit as small as what it cuts off
    return _gpt_oss(
        attention_bias=False, swiglu_limit=0.5, num_experts_per_tok=1, num_key_value_heads=4, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )  # fmt: skip
