"""GPT-J."""

from typing import Any

from families import case


def _gptj(**changes: Any) -> tuple[Any, Any]:
    from transformers import GPTJConfig, GPTJForCausalLM

    sizes: dict[str, Any] = {
        "vocab_size": 23, "n_positions": 64, "n_embd": 24, "n_layer": 2, "n_head": 3, "rotary_dim": 4,
    }  # fmt: skip
    return GPTJForCausalLM, GPTJConfig(**(sizes | changes))


@case("GPT-J")
def gptj_part_of_each_head_turns() -> tuple[Any, Any]:
    return _gptj()


@case("GPT-J")
def gptj_whole_heads_turn_wide_mlp() -> tuple[Any, Any]:
    return _gptj(n_head=2, rotary_dim=12, n_inner=20, activation_function="relu")
