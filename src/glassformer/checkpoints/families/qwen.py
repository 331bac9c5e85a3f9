"""Qwen 2 and 3: Llama's shape with biases on queries, keys and values (2), or norms on queries and keys (3)."""

from typing import Any

from glassformer.attention import Merge, QueryKeyNorm, Softmax
from glassformer.checkpoints.families.family import Family, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.llama import LLAMA_NAMES, separate_qkv
from glassformer.checkpoints.families.llama_shaped import (
    LLAMA_FILES,
    express_shaped,
    gated_decoder,
    layer_kinds,
    query_key_names,
    window_of,
)
from glassformer.checkpoints.families.rotary import rope
from glassformer.models import DecoderConfig, RmsNorm


def _config(fields: Fields, **more: Any) -> DecoderConfig:
    # the window of files that do not use it is there all the same
    first = fields.whole("max_window_layers", 28) if fields.flag("use_sliding_window", False) else None
    kinds = layer_kinds(fields, lambda i: first is not None and i >= first)
    positions = rope(fields)

    def layer(i: int) -> dict[str, Any]:
        return {"mixer": Softmax(window_of(fields, kinds[i])), "positions": positions, **more}

    return gated_decoder(fields, RmsNorm(fields.number("rms_norm_eps", 1e-6)), layer, max_len=32768)


def _config_2(fields: Fields) -> DecoderConfig:
    return _config(fields, bias=True, merge=Merge())


def _config_3(fields: Fields) -> DecoderConfig:
    norm = QueryKeyNorm(eps=fields.number("rms_norm_eps", 1e-6))
    # the head's width has a default of its own, not a share of the model's
    fields = fields.filled(head_dim=128)
    return _config(fields, bias=fields.flag("attention_bias", False), qk_norm=norm)


def _table(fields: Fields, config: Any) -> Table:
    norms = query_key_names(config, ("q_norm", "k_norm"))
    return LLAMA_NAMES | norms | {"stack.blocks.{i}.attn.projection.qkv": separate_qkv(config)}


def _express_2(config: DecoderConfig) -> dict[str, Any]:
    found = express_shaped(config, "qwen2", "Qwen2ForCausalLM")
    # its heads have no width of their own, and its biases no choice
    del found["head_dim"], found["attention_bias"]
    return found | {"use_sliding_window": found["sliding_window"] is not None}


def _express_3(config: DecoderConfig) -> dict[str, Any]:
    found = express_shaped(config, "qwen3", "Qwen3ForCausalLM")
    return found | {"use_sliding_window": found["sliding_window"] is not None}


QWEN2 = Family(
    "Qwen 2",
    ("qwen2",),
    _config_2,
    _table,
    express=_express_2,
    without_effect={"attention_bias": "queries, keys and values have biases whatever it says"},
    **LLAMA_FILES,
)
QWEN3 = Family(
    "Qwen 3",
    ("qwen3",),
    _config_3,
    _table,
    prefixes=("model.",),
    copies={"lm_head.weight": "model.embed_tokens.weight"},
    express=_express_3,
)
