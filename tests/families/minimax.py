"""MiniMax-01."""

from typing import Any

from families import case


def _minimax(**changes: Any) -> tuple[Any, Any]:
    from transformers import MiniMaxConfig, MiniMaxForCausalLM

    sizes: dict[str, Any] = {
        "vocab_size": 23, "hidden_size": 24, "intermediate_size": 10, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2,
        "max_position_embeddings": 64, "block_size": 5, "pad_token_id": None, "eos_token_id": None,
    }  # fmt: skip
    return MiniMaxForCausalLM, MiniMaxConfig(**(sizes | changes))


def _deep(alpha: float) -> dict[str, float]:
    return {f"{part}_alpha_factor": alpha for part in ("linear_attn", "full_attn", "mlp")}


@case("MiniMax")
def minimax_layers_in_turn_and_a_larger_stream() -> tuple[Any, Any]:
    return _minimax(**_deep(3.5565588200778455))


@case("MiniMax")
def minimax_lightning_first_and_three_of_five_experts() -> tuple[Any, Any]:
    return _minimax(
        layer_types=["linear_attention", "linear_attention", "full_attention"], num_local_experts=5,
        num_experts_per_tok=3, num_attention_heads=3, num_key_value_heads=3, head_dim=6, tie_word_embeddings=True,
        router_aux_loss_coef=0.0,
    )  # fmt: skip


@case("MiniMax")
def minimax_with_a_window() -> tuple[Any, Any]:
    # behind a first layer of lightning the reference loses count of what its window has left
    return _minimax(sliding_window=4, **_deep(0.7))
