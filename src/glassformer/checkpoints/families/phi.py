"""Phi 1, 1.5 and 2: attention and MLP side by side behind one norm, rotary positions on a part of each head."""

from typing import Any

from glassformer.attention import QueryKeyNorm
from glassformer.checkpoints.families.family import Family, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.llama import separate_qkv
from glassformer.checkpoints.families.llama_shaped import LLAMA_FILES
from glassformer.checkpoints.families.rotary import rope, turned_share
from glassformer.models import DecoderConfig, LayerNorm, Mlp, block, repeat


def _config(fields: Fields) -> DecoderConfig:
    n_heads = fields.whole("num_attention_heads")
    eps = fields.number("layer_norm_eps", 1e-5)
    norm, qk_norm = LayerNorm(eps), QueryKeyNorm(centred=True, bias=True, eps=eps)
    layer = block(
        n_heads=n_heads,
        n_kv_heads=fields.whole("num_key_value_heads", n_heads),
        positions=rope(fields, fraction=turned_share(fields, 0.5)),
        bias=True,
        qk_norm=qk_norm if fields.flag("qk_layernorm", False) else False,
        norm=norm,
        mlp=Mlp(fields.whole("intermediate_size"), fields.activation("hidden_act", "gelu_new")),
        wiring="parallel",
        shared_norm=True,
    )
    return DecoderConfig(
        fields.whole("vocab_size"),
        fields.whole("hidden_size"),
        repeat(layer, fields.whole("num_hidden_layers")),
        max_len=fields.whole("max_position_embeddings", 2048),
        final_norm=norm,
        tied=fields.flag("tie_word_embeddings", False),
        unembed_bias=True,
    )


def _table(fields: Fields, config: Any) -> Table:
    ours, theirs = "stack.blocks.{i}", "model.layers.{i}"
    return {
        "embed.matrix": "model.embed_tokens.weight",
        "stack.final": "model.final_layernorm",
        "unembed.matrix": "lm_head.weight",
        "unembed.bias": "lm_head.bias",
        f"{ours}.attn_norm": f"{theirs}.input_layernorm",
        f"{ours}.attn.projection.qkv": separate_qkv(config),
        f"{ours}.attn.projection.norms.0": f"{theirs}.self_attn.q_layernorm",
        f"{ours}.attn.projection.norms.1": f"{theirs}.self_attn.k_layernorm",
        f"{ours}.attn.merge.output": f"{theirs}.self_attn.dense",
        f"{ours}.mlp.input": f"{theirs}.mlp.fc1",
        f"{ours}.mlp.output": f"{theirs}.mlp.fc2",
    }


PHI = Family(
    "Phi",
    ("phi",),
    _config,
    _table,
    **LLAMA_FILES,
)
