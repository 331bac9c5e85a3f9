"""BioGPT and XGLM: decoders with norms before parts, biases everywhere, scaled token vectors, and positions that are
learned, or sines and then cosines counted from 2."""

from collections.abc import Callable
from typing import Any

from glassformer.checkpoints.families.family import Family, Table, position_rows
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.llama import separate_qkv
from glassformer.models import DecoderConfig, LayerNorm, Learned, Mlp, Sinusoidal, block, repeat


def _bio_config(fields: Fields) -> DecoderConfig:
    mlp = Mlp(fields.whole("intermediate_size"), fields.activation("hidden_act", "gelu"))
    return _decoder(
        fields,
        d_model=fields.whole("hidden_size"),
        n_layers=fields.whole("num_hidden_layers"),
        n_heads=fields.whole("num_attention_heads"),
        mlp=mlp,
        positions=Learned(offset=2),
    )


def _xglm_config(fields: Fields) -> DecoderConfig:
    fields.only("add_cross_attention", False, "it reads an encoder that is not there")
    if fields.whole("pad_token_id", 1) > 1:
        fields.only("pad_token_id", 1, "the position of its number, counted from 2, would have no vector")
    return _decoder(
        fields,
        d_model=fields.whole("d_model"),
        n_layers=fields.whole("num_layers"),
        n_heads=fields.whole("attention_heads"),
        mlp=Mlp(fields.whole("ffn_dim"), fields.activation("activation_function", "gelu")),
        positions=Sinusoidal("halves", offset=2, slowest=True),
    )


def _decoder(
    fields: Fields, *, d_model: int, n_layers: int, n_heads: int, mlp: Mlp, positions: Learned | Sinusoidal
) -> DecoderConfig:
    return DecoderConfig(
        fields.whole("vocab_size"),
        d_model,
        repeat(block(n_heads=n_heads, bias=True, norm=LayerNorm(), mlp=mlp), n_layers),
        max_len=fields.whole("max_position_embeddings", 1024 if isinstance(positions, Learned) else 2048),
        positions=positions,
        final_norm=LayerNorm(),
        tied=fields.flag("tie_word_embeddings", True),
        embed_scale=fields.flag("scale_embedding", True),
    )


def _table(top: str, head: str) -> Callable[[Fields, Any], Table]:
    ours, theirs = "stack.blocks.{i}", f"{top}.layers.{{i}}"
    return lambda fields, config: {
        "embed.matrix": f"{top}.embed_tokens.weight",
        "embed.positions.weight": f"{top}.embed_positions.weight",
        "stack.final": f"{top}.layer_norm",
        "unembed.matrix": head,
        f"{ours}.attn_norm": f"{theirs}.self_attn_layer_norm",
        f"{ours}.attn.projection.qkv": separate_qkv(config, f"{theirs}.self_attn"),
        f"{ours}.attn.merge.output": f"{theirs}.self_attn.out_proj",
        f"{ours}.mlp_norm": f"{theirs}.final_layer_norm",
        f"{ours}.mlp.input": f"{theirs}.fc1",
        f"{ours}.mlp.output": f"{theirs}.fc2",
    }


BIOGPT, XGLM = (
    Family(
        name,
        (name.lower(),),
        config,
        _table(top, head),
        prefixes=(f"{top}.",),
        token_head="classifier",
        computed={"model.embed_positions.weights": position_rows},
        copies={head: f"{top}.embed_tokens.weight"},
    )
    for name, config, top, head in (
        ("BioGPT", _bio_config, "biogpt", "output_projection.weight"),
        ("XGLM", _xglm_config, "model", "lm_head.weight"),
    )
)
