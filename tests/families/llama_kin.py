"""Families that are Llama's shape with a difference or two."""

from typing import Any

from families import case


def _kin(name: str, **changes: Any) -> tuple[Any, Any]:
    import transformers

    sizes: dict[str, Any] = {
        "vocab_size": 23, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": None, "bos_token_id": None,
        "eos_token_id": None,
    }  # fmt: skip
    config = getattr(transformers, f"{name}Config")
    return getattr(transformers, f"{name}ForCausalLM"), config(**(sizes | changes))


@case("Arcee")
def arcee_squared_relu() -> tuple[Any, Any]:
    return _kin("Arcee")


@case("Arcee")
def arcee_biases_tied() -> tuple[Any, Any]:
    return _kin("Arcee", attention_bias=True, mlp_bias=True, tie_word_embeddings=True)


@case("CWM")
def cwm_windows() -> tuple[Any, Any]:
    return _kin("Cwm", num_hidden_layers=5, sliding_window=3, head_dim=8, bos_token_id=0)


@case("ERNIE 4.5")
def ernie_without_biases() -> tuple[Any, Any]:
    return _kin("Ernie4_5", head_dim=8)


@case("ERNIE 4.5")
def ernie_biases_untied() -> tuple[Any, Any]:
    return _kin("Ernie4_5", head_dim=6, use_bias=True, tie_word_embeddings=False)


@case("Helium")
def helium_interleaved() -> tuple[Any, Any]:
    return _kin("Helium", head_dim=6)


@case("Helium")
def helium_biases_tied() -> tuple[Any, Any]:
    return _kin("Helium", head_dim=6, attention_bias=True, mlp_bias=True, tie_word_embeddings=True)


@case("Jais 2")
def jais2_biases() -> tuple[Any, Any]:
    return _kin("Jais2")


@case("Jais 2")
def jais2_without_biases_tied() -> tuple[Any, Any]:
    return _kin("Jais2", attention_bias=False, mlp_bias=False, tie_word_embeddings=True)


@case("Ministral")
def ministral_window() -> tuple[Any, Any]:
    return _kin("Ministral", sliding_window=3, head_dim=8)


@case("Ministral")
def ministral_window_in_one_layer() -> tuple[Any, Any]:
    return _kin(
        "Ministral", sliding_window=4, layer_types=["sliding_attention", "full_attention"], head_dim=6,
        tie_word_embeddings=True,
    )  # fmt: skip


@case("Nemotron")
def nemotron_half_rotary() -> tuple[Any, Any]:
    return _kin("Nemotron", hidden_size=32)


@case("Nemotron")
def nemotron_biases_tied() -> tuple[Any, Any]:
    return _kin("Nemotron", head_dim=8, attention_bias=True, mlp_bias=True, tie_word_embeddings=True)


@case("Seed-OSS")
def seed_oss_biases_on_what_is_read() -> tuple[Any, Any]:
    return _kin("SeedOss", head_dim=8)


@case("Seed-OSS")
def seed_oss_biases_on_what_is_written() -> tuple[Any, Any]:
    return _kin(
        "SeedOss", head_dim=6, attention_bias=False, attention_out_bias=True, mlp_bias=True, tie_word_embeddings=True
    )


@case("SmolLM3")
def smollm3_no_positions_in_the_fourth_layer() -> tuple[Any, Any]:
    return _kin("SmolLM3", num_hidden_layers=4)


@case("SmolLM3")
def smollm3_window_where_there_are_no_positions() -> tuple[Any, Any]:
    return _kin(
        "SmolLM3", use_sliding_window=True, sliding_window=3, no_rope_layers=[0, 1], attention_bias=True, mlp_bias=True,
        tie_word_embeddings=False,
    )  # fmt: skip
