"""Persimmon: LayerNorm, squared ReLU, norms on queries and keys, rotary positions on half of each head."""

from typing import Any

from glassformer.attention import QueryKeyNorm
from glassformer.checkpoints.families.family import Family, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.gpt_neox import fused_by_head
from glassformer.checkpoints.families.llama import LLAMA_NAMES
from glassformer.checkpoints.families.llama_shaped import LLAMA_FILES, gated_decoder
from glassformer.checkpoints.families.rotary import rope, turned_share
from glassformer.models import DecoderConfig, LayerNorm, Mlp


def _config(fields: Fields) -> DecoderConfig:
    eps = fields.number("layer_norm_eps", 1e-5)
    qk_norm = QueryKeyNorm(centred=True, bias=True, eps=eps)
    layer = {
        "positions": rope(fields, fraction=turned_share(fields, 0.5)),
        "bias": True,
        "qk_norm": qk_norm if fields.flag("qk_layernorm", True) else False,
        "mlp": Mlp(fields.whole("intermediate_size"), fields.activation("hidden_act", "relu2")),
    }
    return gated_decoder(fields, LayerNorm(eps), lambda i: layer, max_len=16_384)


def _table(fields: Fields, config: Any) -> Table:
    ours, theirs = "stack.blocks.{i}", "model.layers.{i}"
    return LLAMA_NAMES | {
        "stack.final": "model.final_layernorm",
        f"{ours}.attn.projection.qkv": fused_by_head(f"{theirs}.self_attn.query_key_value", config),
        f"{ours}.attn.projection.norms.0": f"{theirs}.self_attn.q_layernorm",
        f"{ours}.attn.projection.norms.1": f"{theirs}.self_attn.k_layernorm",
        f"{ours}.attn.merge.output": f"{theirs}.self_attn.dense",
        f"{ours}.mlp.input": f"{theirs}.mlp.dense_h_to_4h",
        f"{ours}.mlp.output": f"{theirs}.mlp.dense_4h_to_h",
    }


PERSIMMON = Family("Persimmon", ("persimmon",), _config, _table, **LLAMA_FILES)
