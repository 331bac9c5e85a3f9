"""OPT."""

from typing import Any

from families import case


def _opt(**changes: Any) -> tuple[Any, Any]:
    from transformers import OPTConfig, OPTForCausalLM

    sizes: dict[str, Any] = {
        "vocab_size": 23, "hidden_size": 12, "ffn_dim": 20, "num_hidden_layers": 2, "num_attention_heads": 3,
        "max_position_embeddings": 64,
    }  # fmt: skip
    return OPTForCausalLM, OPTConfig(**(sizes | changes))


@case("OPT")
def opt_norms_before() -> tuple[Any, Any]:
    return _opt()


@case("OPT")
def opt_norms_behind_and_narrow_token_vectors() -> tuple[Any, Any]:
    return _opt(do_layer_norm_before=False, word_embed_proj_dim=6)


@case("OPT")
def opt_without_biases_gains_and_final_norm() -> tuple[Any, Any]:
    return _opt(
        enable_bias=False, layer_norm_elementwise_affine=False, num_attention_heads=2, activation_function="gelu",
        tie_word_embeddings=False, _remove_final_layer_norm=True,
    )  # fmt: skip
