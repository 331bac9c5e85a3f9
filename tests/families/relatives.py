"""Families that are relatives of others: of GPT-J, Gemma 2, OPT, OLMo 2 and Phi."""

from typing import Any

from families import case

_LLAMA: dict[str, Any] = {
    "vocab_size": 23, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": None, "bos_token_id": None,
    "eos_token_id": None,
}  # fmt: skip


def _biogpt(**changes: Any) -> tuple[Any, Any]:
    from transformers import BioGptConfig, BioGptForCausalLM

    sizes: dict[str, Any] = {name: value for name, value in _LLAMA.items() if name != "num_key_value_heads"}
    return BioGptForCausalLM, BioGptConfig(**(sizes | changes))


def _codegen(**changes: Any) -> tuple[Any, Any]:
    from transformers import CodeGenConfig, CodeGenForCausalLM

    sizes: dict[str, Any] = {
        "vocab_size": 23, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 4,
    }  # fmt: skip
    return CodeGenForCausalLM, CodeGenConfig(**(sizes | changes))


def _exaone4(**changes: Any) -> tuple[Any, Any]:
    from transformers import Exaone4Config, Exaone4ForCausalLM

    return Exaone4ForCausalLM, Exaone4Config(**(_LLAMA | changes))


def _mpt(clip: float | None = None, scale: float | None = None, **changes: Any) -> tuple[Any, Any]:
    from transformers import MptConfig, MptForCausalLM

    sizes: dict[str, Any] = {"vocab_size": 23, "d_model": 24, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}
    own = {"clip_qkv": clip, "softmax_scale": scale}
    return MptForCausalLM, MptConfig(**(sizes | changes), attn_config=own)


def _persimmon(**changes: Any) -> tuple[Any, Any]:
    from transformers import PersimmonConfig, PersimmonForCausalLM

    sizes: dict[str, Any] = {name: value for name, value in _LLAMA.items() if name != "num_key_value_heads"}
    sizes["hidden_size"] = 32
    return PersimmonForCausalLM, PersimmonConfig(**(sizes | changes))


def _vaultgemma(**changes: Any) -> tuple[Any, Any]:
    from transformers import VaultGemmaConfig, VaultGemmaForCausalLM

    sizes: dict[str, Any] = _LLAMA | {"head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 6}
    return VaultGemmaForCausalLM, VaultGemmaConfig(**(sizes | changes))


def _xglm(**changes: Any) -> tuple[Any, Any]:
    from transformers import XGLMConfig, XGLMForCausalLM

    sizes: dict[str, Any] = {
        "vocab_size": 23, "d_model": 12, "ffn_dim": 20, "num_layers": 2, "attention_heads": 3,
        "max_position_embeddings": 64,
    }  # fmt: skip
    return XGLMForCausalLM, XGLMConfig(**(sizes | changes))


@case("BioGPT")
def biogpt() -> tuple[Any, Any]:
    return _biogpt()


@case("BioGPT")
def biogpt_untied_not_scaled() -> tuple[Any, Any]:
    return _biogpt(scale_embedding=False, tie_word_embeddings=False, hidden_act="relu")


@case("CodeGen")
def codegen_part_of_each_head_turns() -> tuple[Any, Any]:
    return _codegen()


@case("CodeGen")
def codegen_of_eight_heads_wide_mlp() -> tuple[Any, Any]:
    return _codegen(n_head=8, n_inner=20)


@case("EXAONE 4")
def exaone4_no_positions_in_the_fourth_layer() -> tuple[Any, Any]:
    return _exaone4(num_hidden_layers=4, sliding_window=3)


@case("EXAONE 4")
def exaone4_without_windows_tied() -> tuple[Any, Any]:
    kinds = ["full_attention", "full_attention"]
    return _exaone4(sliding_window=None, layer_types=kinds, tie_word_embeddings=True, num_key_value_heads=4)


@case("MPT")
def mpt() -> tuple[Any, Any]:
    return _mpt()


@case("MPT")
def mpt_of_six_heads_clipped_untied() -> tuple[Any, Any]:
    return _mpt(clip=0.8, scale=0.3, n_heads=6, tie_word_embeddings=False)


@case("Persimmon")
def persimmon_half_rotary() -> tuple[Any, Any]:
    return _persimmon()


@case("Persimmon")
def persimmon_without_norms_on_queries_and_keys() -> tuple[Any, Any]:
    return _persimmon(qk_layernorm=False, partial_rotary_factor=1.0, tie_word_embeddings=True)


@case("VaultGemma")
def vaultgemma() -> tuple[Any, Any]:
    return _vaultgemma()


@case("VaultGemma")
def vaultgemma_without_caps() -> tuple[Any, Any]:
    return _vaultgemma(attn_logit_softcapping=None, final_logit_softcapping=None, attention_bias=True)


@case("XGLM")
def xglm() -> tuple[Any, Any]:
    return _xglm()


@case("XGLM")
def xglm_untied_not_scaled() -> tuple[Any, Any]:
    return _xglm(scale_embedding=False, tie_word_embeddings=False, activation_function="relu", attention_heads=2)
