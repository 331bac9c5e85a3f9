"""Mistral, Llama's blocks with a sliding window; and Mixtral, those with a mixture of experts in place of the MLP."""

from typing import Any

from glassformer.attention import Softmax
from glassformer.checkpoints.families.experts import separate_experts
from glassformer.checkpoints.families.family import Family, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.llama import LLAMA_NAMES, separate_qkv
from glassformer.checkpoints.families.llama_shaped import (
    LLAMA_FILES,
    express_llama,
    express_mlp,
    gated_decoder,
)
from glassformer.checkpoints.families.rotary import rope
from glassformer.models import DecoderConfig, MixtureOfExperts, RmsNorm


def _mistral_config(fields: Fields) -> DecoderConfig:
    # null is no window, and no field at all is the window of the first model
    windowed = "sliding_window" in fields or not fields.says("sliding_window")
    window = fields.whole("sliding_window", 4096) if windowed else None
    layer = {"mixer": Softmax(window), "positions": rope(fields)}
    return _decoder(fields, layer, eps=1e-6)


def _mixtral_config(fields: Fields) -> DecoderConfig:
    experts = MixtureOfExperts(
        fields.whole("num_local_experts", 8),
        fields.whole("num_experts_per_tok", 2),
        fields.whole("intermediate_size"),
        fields.activation("hidden_act", "silu"),
    )
    window = fields.whole("sliding_window") if "sliding_window" in fields else None
    layer = {"mixer": Softmax(window), "positions": rope(fields, base=1e6), "mlp": experts}
    return _decoder(fields, layer, eps=1e-5)


def _decoder(fields: Fields, layer: dict[str, Any], eps: float) -> DecoderConfig:
    norm = RmsNorm(fields.number("rms_norm_eps", eps))
    return gated_decoder(fields, norm, lambda i: layer, max_len=4096 * 32, n_kv_heads=8)


def _mistral_table(fields: Fields, config: Any) -> Table:
    return LLAMA_NAMES | {"stack.blocks.{i}.attn.projection.qkv": separate_qkv(config)}


def _mixtral_table(fields: Fields, config: Any) -> Table:
    theirs = "model.layers.{i}.block_sparse_moe"
    return {
        **separate_experts(config, f"{theirs}.experts", {"gate": "w1", "input": "w3", "output": "w2"}),
        **LLAMA_NAMES,
        "stack.blocks.{i}.attn.projection.qkv": separate_qkv(config),
        "stack.blocks.{i}.mlp.router": f"{theirs}.gate",
    }


def _express_mistral(config: DecoderConfig) -> dict[str, Any]:
    attention: Any = config.layers[0].parts[0]
    return {
        "model_type": "mistral",
        "architectures": ["MistralForCausalLM"],
        "sliding_window": attention.mixer.window,
        **express_llama(config),
        **express_mlp(config),
    }


def _express_mixtral(config: DecoderConfig) -> dict[str, Any]:
    experts: Any = config.layers[0].parts[1]
    return _express_mistral(config) | {
        "model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"],
        "num_local_experts": experts.n_experts,
        "num_experts_per_tok": experts.n_chosen,
    }


MISTRAL, MIXTRAL = (
    Family(
        name,
        (name.lower(),),
        config,
        table,
        express=express,
        **LLAMA_FILES,
    )
    for name, config, table, express in (
        ("Mistral", _mistral_config, _mistral_table, _express_mistral),
        ("Mixtral", _mixtral_config, _mixtral_table, _express_mixtral),
    )
)
