"""Qwen 3 MoE and OLMoE: ordinary attention with normed queries and keys, and experts, each in tensors of its own."""

from collections.abc import Mapping
from typing import Any

from glassformer.attention import QueryKeyNorm, Softmax
from glassformer.checkpoints.families.family import Family, Piece, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.llama import LLAMA_NAMES, separate_qkv
from glassformer.checkpoints.families.llama_shaped import LLAMA_FILES, gated_decoder, gated_mlp, query_key_names
from glassformer.checkpoints.families.rotary import rope
from glassformer.models import DecoderConfig, MixtureOfExperts, RmsNorm

_NAMES = {"gate": "gate_proj", "input": "up_proj", "output": "down_proj"}


def separate_experts(config: Any, theirs: str, names: Mapping[str, str]) -> Table:
    """Return rows of a table for experts that are stored one by one, in the layers that have any.

    They come before rows that are for MLPs, since layers may differ.

    Args:
        config: Ours.
        theirs: Where their experts lie, `model.layers.{i}.mlp.experts`.
        names: Of the matrices of each, by ours.
    """
    table: dict[str, Any] = {}
    for i, layer in enumerate(config.layers):
        experts = layer.parts[1]
        if isinstance(experts, MixtureOfExperts):
            inwards, outwards = (experts.d_mlp, config.d_model), (config.d_model, experts.d_mlp)
            for ours, name in names.items():
                shape: Any = outwards if ours == "output" else inwards
                table[f"stack.blocks.{i}.mlp.{ours}"] = tuple(
                    Piece(f"{theirs.format(i=i)}.{e}.{name}", shape=shape) for e in range(experts.n_experts)
                )
    return table


def _qwen_config(fields: Fields) -> DecoderConfig:
    experts = _experts(fields, 128, fields.whole("moe_intermediate_size", 768))
    windowed = all([fields.flag("use_sliding_window", False), "sliding_window" in fields])
    sparse = _sparse_layers(fields)
    shared: dict[str, Any] = {
        "mixer": Softmax(fields.whole("sliding_window") if windowed else None),
        "positions": rope(fields),
        "bias": fields.flag("attention_bias", False),
        "qk_norm": QueryKeyNorm(eps=fields.number("rms_norm_eps", 1e-6)),
    }

    def layer(i: int) -> dict[str, Any]:
        return shared | {"mlp": experts if sparse[i] else gated_mlp(fields)}

    norm = RmsNorm(fields.number("rms_norm_eps", 1e-6))
    return gated_decoder(fields, norm, layer, max_len=32_768, n_kv_heads=4)


def _sparse_layers(fields: Fields) -> list[bool]:
    """Return for each layer whether experts stand in the place of its MLP."""
    step, dense = fields.whole("decoder_sparse_step", 1), fields.get("mlp_only_layers", [])
    if not isinstance(dense, list) or step < 1:
        raise fields.wrong("mlp_only_layers", dense, "a list of layers, beside a decoder_sparse_step of at least 1")
    return [i not in dense and (i + 1) % step == 0 for i in range(fields.whole("num_hidden_layers"))]


def _olmoe_config(fields: Fields) -> DecoderConfig:
    eps = fields.number("rms_norm_eps", 1e-5)
    fields.only("clip_qkv", None, "here what is cut off is cut off before norms, there behind them")
    layer = {
        "positions": rope(fields),
        "bias": fields.flag("attention_bias", False),
        "qk_norm": QueryKeyNorm(over="all", eps=eps),
        "mlp": _experts(fields, 64, fields.whole("intermediate_size")),
    }
    return gated_decoder(fields, RmsNorm(eps), lambda i: layer, max_len=4096)


def _experts(fields: Fields, n: int, neurons: int) -> MixtureOfExperts:
    return MixtureOfExperts(
        # of either name, by the version that wrote the file
        fields.whole("num_local_experts", fields.whole("num_experts", n)),
        fields.whole("num_experts_per_tok", 8),
        neurons,
        fields.activation("hidden_act", "silu"),
        renormalised=fields.flag("norm_topk_prob", False),
    )


def _table(fields: Fields, config: Any) -> Table:
    return {
        **separate_experts(config, "model.layers.{i}.mlp.experts", _NAMES),
        **LLAMA_NAMES,
        **query_key_names(config, ("q_norm", "k_norm")),
        "stack.blocks.{i}.attn.projection.qkv": separate_qkv(config),
        "stack.blocks.{i}.mlp.router": "model.layers.{i}.mlp.gate",
    }


QWEN3_MOE, OLMOE = (
    Family(name, (kind,), config, _table, **LLAMA_FILES)
    for name, kind, config in (("Qwen 3 MoE", "qwen3_moe", _qwen_config), ("OLMoE", "olmoe", _olmoe_config))
)
