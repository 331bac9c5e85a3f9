"""Falcon, in its three shapes: one shared key head and one norm, grouped keys and two norms, ALiBi and no parallel."""

from typing import Any

from torch import Tensor

from glassformer.attention import Alibi
from glassformer.checkpoints.families.family import Family, Piece, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.gpt_neox import fused_by_head
from glassformer.checkpoints.families.rotary import longest, rope
from glassformer.models import DecoderConfig, LayerNorm, Mlp, block, repeat


def _config(fields: Fields) -> DecoderConfig:
    fields.only("apply_residual_connection_post_layernorm", False, "sub-layers are added to what their norm gives")
    d_model, n_heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    norm, bias = LayerNorm(fields.number("layer_norm_epsilon", 1e-5)), fields.flag("bias", False)
    grouped = fields.flag("new_decoder_architecture", False)
    n_kv_heads = 1 if fields.flag("multi_query", True) else n_heads
    parallel = grouped or fields.flag("parallel_attn", True)
    # scores are scaled with the penalty in them, which is rounded on the way
    alibi = Alibi(factor=(d_model // n_heads) ** -0.5, rounded="bfloat16")
    positions = alibi if fields.flag("alibi", False) else rope(fields)
    layer = block(
        n_heads=n_heads,
        n_kv_heads=fields.whole("num_kv_heads", n_heads) if grouped else n_kv_heads,
        positions=positions,
        bias=bias,
        norm=norm,
        mlp=Mlp(fields.whole("ffn_hidden_size", 4 * d_model), fields.activation("activation", "gelu"), bias=bias),
        wiring="parallel" if parallel else "pre",
        shared_norm=parallel and fields.whole("num_ln_in_parallel_attn", 2 if grouped else 1) == 1,
    )
    return DecoderConfig(
        fields.whole("vocab_size"),
        d_model,
        repeat(layer, fields.whole("num_hidden_layers")),
        max_len=longest(fields, positions, 2048),
        final_norm=norm,
        tied=fields.flag("tie_word_embeddings", True),
    )


def _table(fields: Fields, config: Any) -> Table:
    ours, theirs = "stack.blocks.{i}", "transformer.h.{i}"
    layer = config.layers[0]
    two = layer.wiring == "parallel" and not layer.shared_norm
    return {
        "embed.matrix": "transformer.word_embeddings.weight",
        "stack.final": "transformer.ln_f",
        "unembed.matrix": "lm_head.weight",
        f"{ours}.attn_norm": f"{theirs}.ln_attn" if two else f"{theirs}.input_layernorm",
        f"{ours}.mlp_norm": f"{theirs}.ln_mlp" if two else f"{theirs}.post_attention_layernorm",
        f"{ours}.attn.projection.qkv": _fused(f"{theirs}.self_attention.query_key_value", fields, config),
        f"{ours}.attn.merge.output": f"{theirs}.self_attention.dense",
        f"{ours}.mlp.input": f"{theirs}.mlp.dense_h_to_4h",
        f"{ours}.mlp.output": f"{theirs}.mlp.dense_4h_to_h",
    }


def _fused(name: str, fields: Fields, config: Any) -> str | tuple[Piece, ...]:
    """Return the map of queries, keys and values: in our order, by head, or by group of heads."""
    if not fields.flag("new_decoder_architecture", False):
        return name if fields.flag("multi_query", True) else fused_by_head(name, config)
    dims = config.layers[0].parts[0].dims(config.d_model, config.max_len)
    groups, size = dims.n_kv_heads, dims.n_heads // dims.n_kv_heads

    def piece(first: int, last: int) -> Piece:
        def of_groups(theirs: Tensor) -> Tensor:
            return theirs.unflatten(0, (groups, size + 2, -1))[:, first:last]

        return Piece(name, groups * (size + 2) * dims.d_head, view=of_groups)

    return piece(0, size), piece(size, size + 1), piece(size + 1, size + 2)


FALCON = Family(
    "Falcon",
    ("falcon",),
    _config,
    _table,
    prefixes=("transformer.",),
    ignored=("*.rotary_emb.inv_freq",),
    copies={"lm_head.weight": "transformer.word_embeddings.weight"},
    without_effect={"parallel_attn": "blocks of the new architecture are parallel whatever it says"},
    token_head="classifier",
)
