"""StableLM: Llama's shape with LayerNorm, a part of each head rotary, and optionally biases, norms for each head, and
attention and MLP side by side behind one norm."""

from typing import Any

import torch
from torch import Tensor

from glassformer.attention import Merge, QueryKeyNorm
from glassformer.checkpoints.families.family import Family, Piece, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.llama import LLAMA_NAMES, separate_qkv
from glassformer.checkpoints.families.llama_shaped import (
    LLAMA_FILES,
    express_shaped,
    gated_decoder,
)
from glassformer.checkpoints.families.rotary import rope, turned_share
from glassformer.models import DecoderConfig, LayerNorm


def _config(fields: Fields) -> DecoderConfig:
    eps = fields.number("layer_norm_eps", 1e-5)
    layer: dict[str, Any] = {
        "positions": rope(fields, fraction=turned_share(fields, 0.25)),
        "bias": fields.flag("use_qkv_bias", False),
        "merge": Merge(),
    }
    if fields.flag("qk_layernorm", False):
        layer["qk_norm"] = QueryKeyNorm(gains="own", centred=True, eps=eps)
    if fields.flag("use_parallel_residual", False):
        layer |= {"wiring": "parallel", "shared_norm": True}
    return gated_decoder(fields, LayerNorm(eps), lambda i: layer, max_len=4096)


def _express(config: DecoderConfig) -> dict[str, Any]:
    first: Any = config.layers[0]
    projection, eps = first.parts[0].projection, first.norm.eps
    found = express_shaped(config, "stablelm", "StableLmForCausalLM", layer_norm_eps=eps)
    for name in ("head_dim", "layer_types", "sliding_window", "attention_bias", "rms_norm_eps"):
        del found[name]
    return found | {
        "use_qkv_bias": projection.bias,
        "qk_layernorm": projection.qk_norm is not False,
        "use_parallel_residual": first.wiring == "parallel",
        "partial_rotary_factor": first.parts[0].positions.fraction,
    }


def _table(fields: Fields, config: Any) -> Table:
    attention = config.layers[0].parts[0]
    dims = attention.dims(config.d_model, config.max_len)
    norms = {
        f"stack.blocks.{{i}}.attn.projection.norms.{n}": tuple(
            Piece(f"model.layers.{{i}}.self_attn.{name}_layernorm.norms.{head}", 1, view=_row, shape=(dims.d_head,))
            for head in range(heads)
        )
        for n, (name, heads) in enumerate((("q", dims.n_heads), ("k", dims.n_kv_heads)))
    }
    return LLAMA_NAMES | norms | {"stack.blocks.{i}.attn.projection.qkv": separate_qkv(config)}


def _row(gain: Tensor) -> Tensor:
    return torch.atleast_2d(gain)


STABLELM = Family(
    "StableLM",
    ("stablelm",),
    _config,
    _table,
    express=_express,
    **LLAMA_FILES,
)
