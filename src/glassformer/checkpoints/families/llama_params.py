"""Llama as its authors stored it, and llama2.c: params.json, names of the reference code, rotary pairs side by side.

A folder holds `params.json` (or `config.json` with llama2.c's `model_args`, alone or under that name) and the state
dict as safetensors. llama2.c, whose arguments name a dropout, ties its output matrix to the embedding; Meta's files do
not say, and hold both matrices.
"""

from collections.abc import Mapping
from typing import Any

from glassformer.attention import Llama3Scaling, Rope
from glassformer.checkpoints.families.family import Family, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.llama import separate_qkv
from glassformer.errors import CheckpointError
from glassformer.models import DecoderConfig, Mlp, RmsNorm, block, repeat


def _is(config: Mapping[str, Any]) -> bool:
    return "model_type" not in config and all(name in _own(config) for name in ("dim", "n_layers", "n_heads"))


def _own(config: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = config.get("model_args")
    return inner if isinstance(inner, Mapping) else config


def _config(fields: Fields) -> DecoderConfig:
    fields = Fields(_own(fields.data), fields.where)
    d_model, n_heads, vocab_size = fields.whole("dim"), fields.whole("n_heads"), fields.whole("vocab_size", 32000)
    if vocab_size < 1:
        raise CheckpointError(
            f'"{fields.where}": vocab_size={vocab_size} leaves the size to the tokenizer; write there how many rows '
            "tok_embeddings.weight has."
        )
    fields.only("moe_args", None, "experts are not read in this layout")
    scaling = None
    if fields.flag("use_scaled_rope", False):
        factor, high = fields.number("rope_scaling_factor", 8.0), fields.number("rope_high_freq_factor", 4.0)
        scaling = Llama3Scaling(factor, 1.0, high, 8192)
    norm = RmsNorm(fields.number("norm_eps", 1e-5))
    layer = block(
        n_heads=n_heads,
        n_kv_heads=fields.whole("n_kv_heads", n_heads),
        d_head=fields.whole("head_dim", d_model // n_heads),
        positions=Rope(fields.number("rope_theta", 10000.0), "interleaved", scaling=scaling),
        norm=norm,
        mlp=Mlp(_d_mlp(fields, d_model), "silu", True, False),
    )
    return DecoderConfig(
        vocab_size,
        d_model,
        repeat(layer, fields.whole("n_layers")),
        max_len=fields.whole("max_seq_len", 2048),
        final_norm=norm,
        tied=fields.flag("tie_word_embeddings", "dropout" in fields.data),
    )


def _d_mlp(fields: Fields, d_model: int) -> int:
    """Return the neurons: as given, or two thirds of four widths, scaled, and rounded up to whole multiples."""
    if "hidden_dim" in fields:
        return fields.whole("hidden_dim")
    wide = int(fields.number("ffn_dim_multiplier", 1.0) * int(2 * 4 * d_model / 3))
    multiple = fields.whole("multiple_of", 256)
    return -(-wide // multiple) * multiple


def _express(config: DecoderConfig) -> dict[str, Any]:
    attention: Any = config.layers[0].parts[0]
    mlp: Any = config.layers[0].parts[1]
    norm: Any = config.layers[0].norm
    dims = attention.dims(config.d_model, config.max_len)
    positions = attention.positions
    scaling, scaled = getattr(positions, "scaling", None), dict[str, Any]()
    if isinstance(scaling, Llama3Scaling):
        scaled = {"use_scaled_rope": True, "rope_scaling_factor": scaling.factor, "rope_high_freq_factor": scaling.high}
    own_width = {} if dims.n_heads * dims.d_head == config.d_model else {"head_dim": dims.d_head}
    return (
        scaled
        | own_width
        | {
            "dim": config.d_model,
            "n_layers": len(config.layers),
            "n_heads": dims.n_heads,
            "n_kv_heads": dims.n_kv_heads,
            "vocab_size": config.vocab_size,
            "hidden_dim": mlp.d_mlp or 4 * config.d_model,
            "multiple_of": 1,
            "norm_eps": getattr(norm, "eps", 1e-5),
            "rope_theta": getattr(positions, "base", 10000.0),
            "max_seq_len": config.max_len,
            "tie_word_embeddings": config.tied,
            "dropout": config.layers[0].dropout,
        }
    )


def _table(fields: Fields, config: Any) -> Table:
    ours, theirs = "stack.blocks.{i}", "layers.{i}"
    return {
        "embed.matrix": "tok_embeddings.weight",
        "stack.final": "norm",
        "unembed.matrix": "output.weight",
        f"{ours}.attn_norm": f"{theirs}.attention_norm",
        f"{ours}.attn.projection.qkv": separate_qkv(config, f"{theirs}.attention", ("wq", "wk", "wv"), "interleaved"),
        f"{ours}.attn.merge.output": f"{theirs}.attention.wo",
        f"{ours}.mlp_norm": f"{theirs}.ffn_norm",
        f"{ours}.mlp.gate": f"{theirs}.feed_forward.w1",
        f"{ours}.mlp.input": f"{theirs}.feed_forward.w3",
        f"{ours}.mlp.output": f"{theirs}.feed_forward.w2",
    }


LLAMA_PARAMS = Family(
    "Llama (params.json)",
    (),
    _config,
    _table,
    ignored=("rope.freqs", "freqs_cos", "freqs_sin"),
    copies={"output.weight": "tok_embeddings.weight"},
    recognise=_is,
    express=_express,
    config_name="params.json",
    writes_copies=True,
    any_pairing=True,
)
