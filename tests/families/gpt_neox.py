"""GPT-NeoX and Pythia."""

from typing import Any

from families import case


def _gpt_neox(**changes: Any) -> tuple[Any, Any]:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    sizes: dict[str, Any] = {
        "vocab_size": 23, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 3,
        "max_position_embeddings": 64,
    }  # fmt: skip
    return GPTNeoXForCausalLM, GPTNeoXConfig(**(sizes | changes))


@case("GPT-NeoX")
def gpt_neox_parallel_quarter_rotary() -> tuple[Any, Any]:
    return _gpt_neox()


@case("GPT-NeoX")
def gpt_neox_in_turn_whole_rotary_tied_without_biases() -> tuple[Any, Any]:
    return _gpt_neox(
        num_attention_heads=2, use_parallel_residual=False, attention_bias=False, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 1.0},
    )  # fmt: skip
