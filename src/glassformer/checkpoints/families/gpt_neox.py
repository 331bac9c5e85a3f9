"""GPT-NeoX and Pythia: attention and MLP side by side, rotary positions on a part of each head, biases everywhere."""

from typing import Any

from torch import Tensor

from glassformer.checkpoints.families.family import Family, Piece, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.rotary import rope, turned_share
from glassformer.models import DecoderConfig, LayerNorm, Mlp, block, repeat


def _config(fields: Fields) -> DecoderConfig:
    norm = LayerNorm(fields.number("layer_norm_eps", 1e-5))
    layer = block(
        n_heads=fields.whole("num_attention_heads"),
        positions=rope(
            fields,
            base=fields.number("rotary_emb_base", 10000.0),
            fraction=turned_share(fields, fields.number("rotary_pct", 0.25)),
        ),
        bias=fields.flag("attention_bias", True),
        norm=norm,
        mlp=Mlp(fields.whole("intermediate_size"), fields.activation("hidden_act", "gelu")),
        wiring="parallel" if fields.flag("use_parallel_residual", True) else "pre",
    )
    return DecoderConfig(
        fields.whole("vocab_size"),
        fields.whole("hidden_size"),
        repeat(layer, fields.whole("num_hidden_layers")),
        max_len=fields.whole("max_position_embeddings", 2048),
        final_norm=norm,
        tied=fields.flag("tie_word_embeddings", False),
    )


def _table(fields: Fields, config: Any) -> Table:
    ours, theirs = "stack.blocks.{i}", "gpt_neox.layers.{i}"
    return {
        "embed.matrix": "gpt_neox.embed_in.weight",
        "stack.final": "gpt_neox.final_layer_norm",
        "unembed.matrix": "embed_out.weight",
        f"{ours}.attn_norm": f"{theirs}.input_layernorm",
        f"{ours}.attn.projection.qkv": fused_by_head(f"{theirs}.attention.query_key_value", config),
        f"{ours}.attn.merge.output": f"{theirs}.attention.dense",
        f"{ours}.mlp_norm": f"{theirs}.post_attention_layernorm",
        f"{ours}.mlp.input": f"{theirs}.mlp.dense_h_to_4h",
        f"{ours}.mlp.output": f"{theirs}.mlp.dense_4h_to_h",
    }


def fused_by_head(name: str, config: Any) -> tuple[Piece, ...]:
    """Return query, key and value maps that are stored as one, the three of each head together."""
    n_heads = config.layers[0].parts[0].n_heads

    def piece(which: int) -> Piece:
        def of_heads(theirs: Tensor) -> Tensor:
            return theirs.unflatten(0, (n_heads, 3, -1))[:, which]

        return Piece(name, 3 * config.d_model, view=of_heads)

    return piece(0), piece(1), piece(2)


GPT_NEOX = Family(
    "GPT-NeoX",
    ("gpt_neox",),
    _config,
    _table,
    prefixes=("gpt_neox.",),
    endings={"embed_out.weight": "lm_head.weight"},
    ignored=("*.attention.bias", "*.attention.masked_bias", "*.rotary_emb.inv_freq"),
    copies={"embed_out.weight": "gpt_neox.embed_in.weight"},
    token_head="classifier",
)
