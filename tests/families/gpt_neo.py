"""GPT-Neo."""

from typing import Any

from families import case


def _gpt_neo(**changes: Any) -> tuple[Any, Any]:
    from transformers import GPTNeoConfig, GPTNeoForCausalLM

    sizes: dict[str, Any] = {
        "vocab_size": 23, "hidden_size": 12, "num_layers": 2, "num_heads": 3, "max_position_embeddings": 64,
        "attention_types": [[["global", "local"], 1]], "window_size": 3,
    }  # fmt: skip
    return GPTNeoForCausalLM, GPTNeoConfig(**(sizes | changes))


@case("GPT-Neo")
def gpt_neo_alternating_windows() -> tuple[Any, Any]:
    return _gpt_neo()


@case("GPT-Neo")
def gpt_neo_untied_with_patterns_in_turn() -> tuple[Any, Any]:
    return _gpt_neo(
        num_layers=3, num_heads=2, attention_types=[[["local"], 2], [["global"], 1]], intermediate_size=20,
        activation_function="relu", tie_word_embeddings=False,
    )  # fmt: skip
