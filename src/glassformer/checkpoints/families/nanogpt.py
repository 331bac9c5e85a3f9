"""nanoGPT: GPT-2 by other means; plain linear maps, biases everywhere or nowhere, the GELU itself.

A folder holds `config.json`, the checkpoint's `model_args` (alone or under that name), and the state dict as
safetensors, with or without the prefix that torch.compile leaves.
"""

from collections.abc import Mapping
from typing import Any

from glassformer.checkpoints.families.family import Family, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.gpt2 import GPT2_NAMES
from glassformer.models import DecoderConfig, LayerNorm, Learned, Mlp, block, repeat


def _is(config: Mapping[str, Any]) -> bool:
    own = _own(config)
    return "model_type" not in config and all(name in own for name in ("n_layer", "n_head", "n_embd", "block_size"))


def _own(config: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = config.get("model_args")
    return inner if isinstance(inner, Mapping) else config


def _config(fields: Fields) -> DecoderConfig:
    fields = Fields(_own(fields.data), fields.where)
    bias = fields.flag("bias", True)
    norm = LayerNorm(bias=bias)
    d_model = fields.whole("n_embd")
    layer = block(n_heads=fields.whole("n_head"), bias=bias, norm=norm, mlp=Mlp(4 * d_model, bias=bias))
    return DecoderConfig(
        fields.whole("vocab_size", 50304),
        d_model,
        repeat(layer, fields.whole("n_layer")),
        max_len=fields.whole("block_size"),
        positions=Learned(),
        final_norm=norm,
    )


def _express(config: DecoderConfig) -> dict[str, Any]:
    attention: Any = config.layers[0].parts[0]
    return {
        "n_layer": len(config.layers),
        "n_head": attention.n_heads,
        "n_embd": config.d_model,
        "block_size": config.max_len,
        "bias": attention.merge.bias,
        "vocab_size": config.vocab_size,
        "dropout": config.layers[0].dropout,
    }


def _table(fields: Fields, config: Any) -> Table:
    ours, theirs = "stack.blocks.{i}", "transformer.h.{i}"
    return GPT2_NAMES | {
        f"{ours}.attn.projection.qkv": f"{theirs}.attn.c_attn",
        f"{ours}.attn.merge.output": f"{theirs}.attn.c_proj",
    }


NANOGPT = Family(
    "nanoGPT",
    (),
    _config,
    _table,
    ignored=("*.attn.bias",),
    copies={"lm_head.weight": "transformer.wte.weight"},
    recognise=_is,
    express=_express,
    writes_copies=True,
)
