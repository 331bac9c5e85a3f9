"""Llama 1 to 3.x: RMSNorm, rotary positions, grouped keys, SwiGLU."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from glassformer.attention import Rope
from glassformer.checkpoints.families.family import Family, Piece, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.llama_shaped import (
    LLAMA_FILES,
    express_llama,
    express_mlp,
    gated_decoder,
    gated_mlp,
)
from glassformer.checkpoints.families.rotary import rope
from glassformer.models import DecoderConfig, RmsNorm


def _config(fields: Fields) -> DecoderConfig:
    layer = {"positions": rope(fields), "bias": fields.flag("attention_bias", False), "mlp": gated_mlp(fields)}
    return gated_decoder(fields, RmsNorm(fields.number("rms_norm_eps", 1e-6)), lambda i: layer)


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
    parts: Any = config.layers[0].parts
    attention, mlp = parts
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": attention.projection.bias,
        "mlp_bias": mlp.bias,
        **express_llama(config),
        **express_mlp(config),
    }


LLAMA = Family(
    "Llama",
    ("llama",),
    _config,
    _table,
    express=_express,
    any_pairing=True,
    **LLAMA_FILES,
)
