"""RWKV, version 4."""

from typing import Any

from families import case


def rwkv_of(**changes: Any) -> tuple[Any, Any]:
    """Return the reference class and a tiny config of it."""
    from transformers import RwkvConfig, RwkvForCausalLM

    sizes: dict[str, Any] = {"vocab_size": 23, "context_length": 64, "hidden_size": 16, "num_hidden_layers": 2}
    return RwkvForCausalLM, RwkvConfig(**(sizes | changes))


@case("RWKV")
def rwkv() -> tuple[Any, Any]:
    return rwkv_of()


@case("RWKV")
def rwkv_deeper_narrow_mlp_tied() -> tuple[Any, Any]:
    return rwkv_of(num_hidden_layers=3, intermediate_size=12, tie_word_embeddings=True)
