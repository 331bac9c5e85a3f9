"""Gemma 1 to 3, and VaultGemma: scaled embeddings, gains stored less one, tanh GELU gates.

Gemma 2 adds a norm behind each sub-layer, caps on scores and logits, and a window in every other layer; Gemma 3 has
norms on queries and keys in place of the cap on scores, five layers with a window to one without, and slower rotary
positions in the latter. VaultGemma is Gemma 2 without the norms behind sub-layers.
"""

from typing import Any

from glassformer.attention import QueryKeyNorm, Rope, Softmax
from glassformer.checkpoints.families.family import Family, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.llama import LLAMA_NAMES, separate_qkv
from glassformer.checkpoints.families.llama_shaped import (
    FULL,
    SLIDING,
    express_shaped,
    gated_decoder,
    layer_kinds,
    periodic_kinds,
    query_key_names,
    window_of,
)
from glassformer.checkpoints.families.rotary import rope, rope_parameters
from glassformer.models import DecoderConfig, RmsNorm

_BIDIRECTIONAL = "here every position sees those before it"


def _config_1(fields: Fields) -> DecoderConfig:
    fields.only("use_bidirectional_attention", False, _BIDIRECTIONAL)
    positions, bias = rope(fields), fields.flag("attention_bias", False)
    # the first files say "gelu" and mean its tanh form
    act = fields.get("hidden_act", "gelu")
    activation = "gelu_tanh" if act == "gelu" else fields.activation("hidden_act")
    return _decoder(fields, lambda i: {"positions": positions, "bias": bias}, activation, max_len=8192)


def _config_2(fields: Fields, wiring: str = "sandwich") -> DecoderConfig:
    fields.only("use_bidirectional_attention", False, _BIDIRECTIONAL)
    kinds = layer_kinds(fields, lambda i: i % 2 == 0)
    scale = _scale(fields)
    cap = _cap(fields, "attn_logit_softcapping", 50.0)
    positions, bias = rope(fields), fields.flag("attention_bias", False)

    def layer(i: int) -> dict[str, Any]:
        mixer = Softmax(window_of(fields, kinds[i]), scale, cap)
        return {"mixer": mixer, "positions": positions, "bias": bias, "wiring": wiring}

    logit_cap = _cap(fields, "final_logit_softcapping", 30.0)
    return _decoder(fields, layer, _activation(fields), max_len=8192, n_kv_heads=4, logit_cap=logit_cap)


def _vault_config(fields: Fields) -> DecoderConfig:
    return _config_2(fields, "pre")


def _config_3(fields: Fields) -> DecoderConfig:
    fields.only("use_bidirectional_attention", False, _BIDIRECTIONAL)
    fields.only("attn_logit_softcapping", None, "scores have no cap in the reference, whatever the file says")
    kinds = periodic_kinds(fields, 6)
    scale = _scale(fields)
    positions = {FULL: rope(fields, FULL, 1_000_000.0), SLIDING: _local_rope(fields)}
    norm = QueryKeyNorm(eps=fields.number("rms_norm_eps", 1e-6), offset=1.0)
    bias = fields.flag("attention_bias", False)

    def layer(i: int) -> dict[str, Any]:
        mixer = Softmax(window_of(fields, kinds[i]), scale)
        kind = {"positions": positions[kinds[i]], "mixer": mixer}
        return kind | {"bias": bias, "qk_norm": norm, "wiring": "sandwich"}

    cap = _cap(fields, "final_logit_softcapping", None)
    return _decoder(fields, layer, _activation(fields), max_len=131_072, n_kv_heads=4, logit_cap=cap)


def _local_rope(fields: Fields) -> Rope:
    if "rope_parameters" in fields:
        return rope(fields.replaced(rope_scaling=None), SLIDING)
    # older files scale only the layers that see everything
    return Rope(fields.number("rope_local_base_freq", 10_000.0))


def _decoder(fields: Fields, layer: Any, activation: str, **whole: Any) -> DecoderConfig:
    # the width of a head is no share of the model's
    sized = fields.filled(head_dim=256)
    norm = RmsNorm(fields.number("rms_norm_eps", 1e-6), offset=1.0)
    return gated_decoder(sized, norm, layer, activation=activation, tied=True, embed_scale=True, **whole)


def _scale(fields: Fields) -> float | None:
    scalar = fields.number("query_pre_attn_scalar", 256)
    if scalar <= 0:
        raise fields.wrong("query_pre_attn_scalar", scalar, "above zero, as the width of a head is")
    return None if scalar == fields.whole("head_dim", 256) else scalar**-0.5


def _activation(fields: Fields) -> str:
    return fields.activation("hidden_activation", "gelu_pytorch_tanh")


def _cap(fields: Fields, name: str, default: float | None) -> float | None:
    # null is a value here: no cap
    if not fields.says(name):
        return default
    return fields.number(name) if name in fields else None


def _table(fields: Fields, config: Any) -> Table:
    return LLAMA_NAMES | {"stack.blocks.{i}.attn.projection.qkv": separate_qkv(config)}


def _sandwich_table(fields: Fields, config: Any) -> Table:
    return {
        **_table(fields, config),
        **query_key_names(config, ("q_norm", "k_norm")),
        "stack.blocks.{i}.attn_norm_after": "model.layers.{i}.post_attention_layernorm",
        "stack.blocks.{i}.mlp_norm": "model.layers.{i}.pre_feedforward_layernorm",
        "stack.blocks.{i}.mlp_norm_after": "model.layers.{i}.post_feedforward_layernorm",
    }


def _express_1(config: DecoderConfig) -> dict[str, Any]:
    found = express_shaped(config, "gemma", "GemmaForCausalLM")
    del found["layer_types"], found["sliding_window"]
    return found


def _express_2(config: DecoderConfig) -> dict[str, Any]:
    attention: Any = config.layers[0].parts[0]
    found = _express_sandwich(config, "gemma2", "Gemma2ForCausalLM")
    return found | {"attn_logit_softcapping": attention.mixer.cap}


def _express_3(config: DecoderConfig) -> dict[str, Any]:
    found = _express_sandwich(config, "gemma3_text", "Gemma3ForCausalLM")
    first: dict[str, Any] = {kind: layer.parts[0] for kind, layer in zip(found["layer_types"], config.layers)}
    rotary = {kind: rope_parameters(attention.positions) for kind, attention in first.items()}
    return found | {"rope_parameters": rotary}


def _express_sandwich(config: DecoderConfig, kind: str, architecture: str) -> dict[str, Any]:
    found = express_shaped(config, kind, architecture)
    attention: Any = config.layers[0].parts[0]
    scale: float | None = attention.mixer.scale
    return found | {
        "hidden_activation": found["hidden_act"],
        "query_pre_attn_scalar": found["head_dim"] if scale is None else round(scale**-2),
        "final_logit_softcapping": config.logit_cap,
    }


_LAYOUT: dict[str, Any] = {
    "prefixes": ("model.",),
    "ignored": ("*.rotary_emb.inv_freq",),
    "copies": {"lm_head.weight": "model.embed_tokens.weight"},
}
GEMMA = Family("Gemma", ("gemma",), _config_1, _table, express=_express_1, **_LAYOUT)
GEMMA2 = Family("Gemma 2", ("gemma2",), _config_2, _sandwich_table, express=_express_2, **_LAYOUT)
VAULTGEMMA = Family("VaultGemma", ("vaultgemma",), _vault_config, _sandwich_table, **_LAYOUT)
# the whole context was trained on at the end, with positions scaled (Gemma Team 2025, section 2.1)
GEMMA3 = Family(
    "Gemma 3", ("gemma3_text",), _config_3, _sandwich_table, express=_express_3, trained_with_scaling=True, **_LAYOUT
)
