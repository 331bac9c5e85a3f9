"""OLMo 1 to 3: Llama's shape with norms that have no parameters and clipped projections (1), or with norms behind each
sub-layer, none before, and over all queries and all keys (2), a window in three layers of four (3)."""

from typing import Any

from glassformer.attention import QueryKeyNorm, Softmax
from glassformer.checkpoints.families.family import Family, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.llama import LLAMA_NAMES, separate_qkv
from glassformer.checkpoints.families.llama_shaped import (
    FULL,
    SLIDING,
    express_shaped,
    gated_decoder,
    layer_kinds,
    query_key_names,
    window_of,
)
from glassformer.checkpoints.families.rotary import rope
from glassformer.models import DecoderConfig, LayerNorm, NoNorm, RmsNorm


def _config_1(fields: Fields) -> DecoderConfig:
    clip = fields.number("clip_qkv") if "clip_qkv" in fields else None
    layer = {"positions": rope(fields), "bias": fields.flag("attention_bias", False), "clip": clip}
    return gated_decoder(fields, LayerNorm(1e-5, bias=False, gain=False), lambda i: layer)


def _config_2(fields: Fields) -> DecoderConfig:
    eps = fields.number("rms_norm_eps", 1e-5)
    layer = _behind(fields, eps) | {"positions": rope(fields)}
    return gated_decoder(fields, NoNorm(), lambda i: layer, final_norm=RmsNorm(eps))


def _config_3(fields: Fields) -> DecoderConfig:
    kinds = layer_kinds(fields, lambda i: (i + 1) % 4 != 0)
    eps, sized = fields.number("rms_norm_eps", 1e-5), fields.filled(sliding_window=4096)
    positions = {kind: rope(_scaled_where_full(fields, kind), kind, 500_000.0) for kind in (FULL, SLIDING)}

    def layer(i: int) -> dict[str, Any]:
        mixer = Softmax(window_of(sized, kinds[i]))
        return _behind(fields, eps) | {"mixer": mixer, "positions": positions[kinds[i]]}

    return gated_decoder(fields, NoNorm(), layer, final_norm=RmsNorm(eps))


def _scaled_where_full(fields: Fields, kind: str) -> Fields:
    # older files have one scaling, and mean it for the layers that see everything
    return fields if kind == FULL else fields.replaced(rope_scaling=None)


def _behind(fields: Fields, eps: float) -> dict[str, Any]:
    """Return what layers with norms behind each sub-layer have in common."""
    return {
        "bias": fields.flag("attention_bias", False),
        "qk_norm": QueryKeyNorm(over="all", eps=eps),
        "wiring": "sandwich",
        "norm_after": RmsNorm(eps),
    }


def _table_1(fields: Fields, config: Any) -> Table:
    return LLAMA_NAMES | {"stack.blocks.{i}.attn.projection.qkv": separate_qkv(config)}


def _table_2(fields: Fields, config: Any) -> Table:
    return {
        **_table_1(fields, config),
        **query_key_names(config, ("q_norm", "k_norm")),
        "stack.blocks.{i}.attn_norm_after": "model.layers.{i}.post_attention_layernorm",
        "stack.blocks.{i}.mlp_norm_after": "model.layers.{i}.post_feedforward_layernorm",
    }


def _express_1(config: DecoderConfig) -> dict[str, Any]:
    attention: Any = config.layers[0].parts[0]
    found = express_shaped(config, "olmo", "OlmoForCausalLM", clip_qkv=attention.projection.clip)
    for name in ("head_dim", "layer_types", "sliding_window", "rms_norm_eps"):
        del found[name]
    return found


def _express_2(config: DecoderConfig) -> dict[str, Any]:
    after: Any = config.layers[0].norm_after
    # what every sub-layer reads has no norm to take it from
    normed = config.replace(layers=tuple(layer.replace(norm=RmsNorm(after.eps)) for layer in config.layers))
    found = express_shaped(normed, "olmo2", "Olmo2ForCausalLM")
    for name in ("head_dim", "layer_types", "sliding_window"):
        del found[name]
    return found


_LAYOUT: dict[str, Any] = {
    "prefixes": ("model.",),
    "ignored": ("*.rotary_emb.inv_freq",),
    "copies": {"lm_head.weight": "model.embed_tokens.weight"},
}
OLMO = Family("OLMo", ("olmo",), _config_1, _table_1, express=_express_1, **_LAYOUT)
OLMO2 = Family("OLMo 2", ("olmo2",), _config_2, _table_2, express=_express_2, **_LAYOUT)
# its last stage trains on the whole context, with positions scaled (Olmo 3, 2025, the stage of long contexts)
OLMO3 = Family("OLMo 3", ("olmo3",), _config_3, _table_2, trained_with_scaling=True, **_LAYOUT)
