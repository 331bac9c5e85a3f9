"""OPT: learned positions from the table's third row on, ReLU; in one size norms behind parts, narrow token vectors."""

from typing import Any

from glassformer.checkpoints.families.family import Family, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.llama import separate_qkv
from glassformer.models import DecoderConfig, LayerNorm, Learned, Mlp, NoNorm, block, repeat


def _config(fields: Fields) -> DecoderConfig:
    d_model, bias = fields.whole("hidden_size"), fields.flag("enable_bias", True)
    affine = fields.flag("layer_norm_elementwise_affine", True)
    before, without = fields.flag("do_layer_norm_before", True), fields.flag("_remove_final_layer_norm", False)
    norm = LayerNorm(gain=affine, bias=affine)
    width = fields.whole("word_embed_proj_dim", d_model)
    layer = block(
        n_heads=fields.whole("num_attention_heads"),
        bias=bias,
        norm=norm,
        mlp=Mlp(fields.whole("ffn_dim"), fields.activation("activation_function", "relu"), bias=bias),
        wiring="pre" if before else "post",
    )
    return DecoderConfig(
        fields.whole("vocab_size"),
        d_model,
        repeat(layer, fields.whole("num_hidden_layers")),
        max_len=fields.whole("max_position_embeddings", 2048),
        positions=Learned(offset=2),
        final_norm=norm if before and not without else NoNorm(),
        tied=fields.flag("tie_word_embeddings", True),
        d_embed=None if width == d_model else width,
    )


def _table(fields: Fields, config: Any) -> Table:
    ours, theirs, top = "stack.blocks.{i}", "model.decoder.layers.{i}", "model.decoder"
    norms = {"attn_norm": "self_attn_layer_norm", "mlp_norm": "final_layer_norm"}
    return {
        "embed.matrix": f"{top}.embed_tokens.weight",
        "embed.map": f"{top}.project_in",
        "embed.positions.weight": f"{top}.embed_positions.weight",
        "stack.final": f"{top}.final_layer_norm",
        "unembed.map": f"{top}.project_out",
        "unembed.matrix": "lm_head.weight",
        # one name for norms before parts and behind
        **{f"{ours}.{name}{place}": f"{theirs}.{own}" for name, own in norms.items() for place in ("", "_after")},
        f"{ours}.attn.projection.qkv": separate_qkv(config, f"{theirs}.self_attn"),
        f"{ours}.attn.merge.output": f"{theirs}.self_attn.out_proj",
        f"{ours}.mlp.input": f"{theirs}.fc1",
        f"{ours}.mlp.output": f"{theirs}.fc2",
    }


OPT = Family(
    "OPT",
    ("opt",),
    _config,
    _table,
    prefixes=("model.",),
    copies={"lm_head.weight": "model.decoder.embed_tokens.weight"},
)
