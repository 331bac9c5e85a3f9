"""Llama 1 to 3.x: RMSNorm, rotary positions, grouped keys, SwiGLU."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from glassformer.attention import Llama3Scaling, Rope
from glassformer.checkpoints.families.family import Family, Piece, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.rotary import rope
from glassformer.models import DecoderConfig, Mlp, RmsNorm, block, repeat


def _config(fields: Fields) -> DecoderConfig:
    d_model, n_heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    norm = RmsNorm(fields.number("rms_norm_eps", 1e-6))
    mlp_bias = fields.flag("mlp_bias", False)
    attention_bias = fields.flag("attention_bias", False)
    layer = block(
        n_heads=n_heads,
        n_kv_heads=fields.whole("num_key_value_heads", n_heads),
        d_head=fields.whole("head_dim", d_model // n_heads),
        positions=rope(fields),
        bias=attention_bias,
        norm=norm,
        mlp=Mlp(fields.whole("intermediate_size"), fields.activation("hidden_act", "silu"), True, mlp_bias),
    )
    return DecoderConfig(
        fields.whole("vocab_size"),
        d_model,
        repeat(layer, fields.whole("num_hidden_layers")),
        max_len=fields.whole("max_position_embeddings", 2048),
        final_norm=norm,
        tied=fields.flag("tie_word_embeddings", False),
    )


def _table(fields: Fields, config: Any) -> Table:
    return LLAMA_NAMES | {"stack.blocks.{i}.attn.projection.qkv": separate_qkv(config, pairing="half")}


LLAMA_NAMES: dict[str, Any] = {
    "embed.matrix": "model.embed_tokens.weight",
    "stack.final": "model.norm",
    "unembed.matrix": "lm_head.weight",
    "stack.blocks.{i}.attn_norm": "model.layers.{i}.input_layernorm",
    "stack.blocks.{i}.attn.merge.output": "model.layers.{i}.self_attn.o_proj",
    "stack.blocks.{i}.mlp_norm": "model.layers.{i}.post_attention_layernorm",
    "stack.blocks.{i}.mlp.gate": "model.layers.{i}.mlp.gate_proj",
    "stack.blocks.{i}.mlp.input": "model.layers.{i}.mlp.up_proj",
    "stack.blocks.{i}.mlp.output": "model.layers.{i}.mlp.down_proj",
}


def separate_qkv(
    config: Any,
    prefix: str = "model.layers.{i}.self_attn",
    names: tuple[str, str, str] = ("q_proj", "k_proj", "v_proj"),
    pairing: str | None = None,
) -> tuple[Piece, ...]:
    """Return query, key and value maps that are stored one by one, as most models store them.

    Args:
        config: Ours.
        prefix: Of their names.
        names: Of the three.
        pairing: How they order rotary pairs, where ours may have the other order; by default as ours does.
    """
    attention = config.layers[0].parts[0]
    dims = attention.dims(config.d_model, config.max_len)
    heads = (dims.n_heads, dims.n_kv_heads)
    rows = (dims.n_heads * dims.d_head, dims.n_kv_heads * dims.d_head, dims.n_kv_heads * dims.d_value)
    turned = [_reordered(attention.positions, pairing, n, dims.d_head) for n in heads]
    return tuple(Piece(f"{prefix}.{name}", size, view=view) for name, size, view in zip(names, rows, (*turned, None)))


def _reordered(positions: Any, pairing: str | None, n_heads: int, d_head: int) -> Callable[[Tensor], Tensor] | None:
    """Return the view on rows in which their rotary pairs are in our order; None where they are already."""
    if pairing is None or not isinstance(positions, Rope) or positions.pairing == pairing:
        return None
    pairs = (2, d_head // 2) if pairing == "half" else (d_head // 2, 2)
    return lambda rows: rows.unflatten(0, (n_heads, *pairs)).transpose(1, 2)


def _express(config: DecoderConfig) -> dict[str, Any]:
    attention: Any = config.layers[0].parts[0]
    mlp: Any = config.layers[0].parts[1]
    norm: Any = config.layers[0].norm
    dims = attention.dims(config.d_model, config.max_len)
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": mlp.d_mlp or 4 * config.d_model,
        "num_hidden_layers": len(config.layers),
        "num_attention_heads": dims.n_heads,
        "num_key_value_heads": dims.n_kv_heads,
        "head_dim": dims.d_head,
        "hidden_act": mlp.activation,
        "max_position_embeddings": config.max_len,
        "rms_norm_eps": getattr(norm, "eps", 1e-6),
        "rope_parameters": _rope_parameters(attention.positions),
        "attention_bias": attention.projection.bias,
        "mlp_bias": mlp.bias,
        "tie_word_embeddings": config.tied,
    }


def _rope_parameters(positions: Any) -> dict[str, Any]:
    """Return their description of rotary positions; of scalings with fields of their own, llama3's."""
    if not isinstance(positions, Rope):
        return {"rope_type": "default", "rope_theta": 10000.0}
    scaling, base = positions.scaling, {"rope_theta": positions.base}
    if scaling is None:
        return base | {"rope_type": "default"}
    if not isinstance(scaling, Llama3Scaling):
        return base | {"rope_type": scaling.kind, "factor": getattr(scaling, "factor", 1.0)}
    return base | {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low,
        "high_freq_factor": scaling.high,
        "original_max_position_embeddings": scaling.original_length,
    }


LLAMA = Family(
    "Llama",
    ("llama",),
    _config,
    _table,
    prefixes=("model.",),
    ignored=("*.rotary_emb.inv_freq",),
    copies={"lm_head.weight": "model.embed_tokens.weight"},
    express=_express,
    any_pairing=True,
)
