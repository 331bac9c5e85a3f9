"""Bloom: ALiBi, a norm on the token vectors, maps whose query, key and value lie together head by head."""

from typing import Any

from glassformer.attention import Alibi
from glassformer.checkpoints.families.family import Family, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.gpt_neox import fused_by_head
from glassformer.models import DecoderConfig, LayerNorm, Mlp, block, repeat


def _config(fields: Fields) -> DecoderConfig:
    fields.only("apply_residual_connection_post_layernorm", False, "sub-layers are added to what their norm gives")
    d_model = _either(fields, "n_embed", "hidden_size")
    norm = LayerNorm(fields.number("layer_norm_epsilon", 1e-5))
    layer = block(
        n_heads=_either(fields, "n_head", "num_attention_heads"),
        positions=Alibi(),
        bias=True,
        norm=norm,
        mlp=Mlp(activation="gelu_tanh"),
    )
    return DecoderConfig(
        fields.whole("vocab_size"),
        d_model,
        repeat(layer, _either(fields, "n_layer", "num_hidden_layers")),
        max_len=fields.whole("seq_length", 2048),
        final_norm=norm,
        tied=fields.flag("tie_word_embeddings", True),
        embed_norm=norm,
    )


def _either(fields: Fields, old: str, new: str) -> int:
    return fields.whole(old if old in fields else new)


def _table(fields: Fields, config: Any) -> Table:
    ours, theirs = "stack.blocks.{i}", "transformer.h.{i}"
    return {
        "embed.matrix": "transformer.word_embeddings.weight",
        "embed.norm": "transformer.word_embeddings_layernorm",
        "stack.final": "transformer.ln_f",
        "unembed.matrix": "lm_head.weight",
        f"{ours}.attn_norm": f"{theirs}.input_layernorm",
        f"{ours}.attn.projection.qkv": fused_by_head(f"{theirs}.self_attention.query_key_value", config),
        f"{ours}.attn.merge.output": f"{theirs}.self_attention.dense",
        f"{ours}.mlp_norm": f"{theirs}.post_attention_layernorm",
        f"{ours}.mlp.input": f"{theirs}.mlp.dense_h_to_4h",
        f"{ours}.mlp.output": f"{theirs}.mlp.dense_4h_to_h",
    }


BLOOM = Family(
    "Bloom",
    ("bloom",),
    _config,
    _table,
    prefixes=("transformer.",),
    copies={"lm_head.weight": "transformer.word_embeddings.weight"},
    token_head="classifier",
)
