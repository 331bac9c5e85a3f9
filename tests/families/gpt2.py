"""GPT-2."""

from typing import Any

from families import case


@case("GPT-2")
def gpt2() -> tuple[Any, Any]:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel, GPT2Config(vocab_size=23, n_positions=64, n_embd=12, n_layer=2, n_head=3)


@case("GPT-2")
def gpt2_untied_with_wide_mlp() -> tuple[Any, Any]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=23, n_positions=64, n_embd=12, n_layer=2, n_head=2, n_inner=20, activation_function="relu",
        tie_word_embeddings=False,
    )  # fmt: skip
    return GPT2LMHeadModel, config


@case("GPT-2")
def gpt2_scaled_by_layer() -> tuple[Any, Any]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=23, n_positions=64, n_embd=12, n_layer=3, n_head=2, activation_function="quick_gelu",
        scale_attn_by_inverse_layer_idx=True,
    )  # fmt: skip
    return GPT2LMHeadModel, config


@case("GPT-2")
def gpt2_not_scaled() -> tuple[Any, Any]:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel, GPT2Config(
        vocab_size=23, n_positions=64, n_embd=12, n_layer=2, n_head=3, scale_attn_weights=False
    )
