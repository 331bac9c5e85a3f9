"""MPT: ALiBi, LayerNorm without biases, GELU, no biases anywhere."""

from typing import Any

from glassformer.attention import Alibi, Softmax
from glassformer.checkpoints.families.family import Family, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.models import DecoderConfig, LayerNorm, Mlp, block, repeat


def _config(fields: Fields) -> DecoderConfig:
    fields.only("no_bias", True, "the reference has no biases")
    fields.only("logit_scale", None, "the reference does not scale logits")
    described = fields.get("attn_config", {})
    if not isinstance(described, dict):
        raise fields.wrong("attn_config", described, "an object")
    own = Fields(described, fields.where)
    own.only("alibi", True, "the reference has no other positions")
    own.only("alibi_bias_max", 8, "the steepest slope is 2^-8")
    for name in ("prefix_lm", "qk_ln", "attn_uses_sequence_id"):
        own.only(name, False, "the reference has no such attention")
    norm = LayerNorm(fields.number("layer_norm_epsilon", 1e-5), bias=False)
    layer = block(
        Softmax(scale=own.number("softmax_scale") if "softmax_scale" in own else None),
        n_heads=fields.whole("n_heads"),
        positions=Alibi(),
        # 0 is no limit there
        clip=own.number("clip_qkv", 0.0) or None,
        norm=norm,
        mlp=Mlp(activation="gelu", bias=False),
    )
    return DecoderConfig(
        fields.whole("vocab_size"),
        fields.whole("d_model"),
        repeat(layer, fields.whole("n_layers")),
        max_len=fields.whole("max_seq_len", 2048),
        final_norm=norm,
        tied=fields.flag("tie_word_embeddings", True),
    )


def _table(fields: Fields, config: Any) -> Table:
    ours, theirs = "stack.blocks.{i}", "transformer.blocks.{i}"
    return {
        "embed.matrix": "transformer.wte.weight",
        "stack.final": "transformer.norm_f",
        "unembed.matrix": "lm_head.weight",
        f"{ours}.attn_norm": f"{theirs}.norm_1",
        f"{ours}.attn.projection.qkv": f"{theirs}.attn.Wqkv",
        f"{ours}.attn.merge.output": f"{theirs}.attn.out_proj",
        f"{ours}.mlp_norm": f"{theirs}.norm_2",
        f"{ours}.mlp.input": f"{theirs}.ffn.up_proj",
        f"{ours}.mlp.output": f"{theirs}.ffn.down_proj",
    }


MPT = Family(
    "MPT",
    ("mpt",),
    _config,
    _table,
    prefixes=("transformer.",),
    copies={"lm_head.weight": "transformer.wte.weight"},
    token_head="classifier",
)
