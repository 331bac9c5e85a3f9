"""Phi-3: Llama's blocks with fused maps, rotary positions on all or a part of each head, and frequencies by length."""

from typing import Any

from glassformer.attention import Softmax
from glassformer.checkpoints.families.family import Family, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.llama import LLAMA_NAMES
from glassformer.checkpoints.families.llama_shaped import (
    LLAMA_FILES,
    fused_gates,
    gated_decoder,
)
from glassformer.checkpoints.families.rotary import rope, turned_share
from glassformer.models import DecoderConfig, RmsNorm

# what files written before the scaling had a name of its own call it
ALIASES = {"su": "longrope", "yarn": "longrope"}


def _config(fields: Fields) -> DecoderConfig:
    window = fields.whole("sliding_window") if "sliding_window" in fields else None
    positions = rope(fields, aliases=ALIASES, fraction=turned_share(fields))
    layer = {"mixer": Softmax(window), "positions": positions}
    return gated_decoder(fields, RmsNorm(fields.number("rms_norm_eps", 1e-5)), lambda i: layer, max_len=4096)


def _table(fields: Fields, config: Any) -> Table:
    fused = {"stack.blocks.{i}.attn.projection.qkv": "model.layers.{i}.self_attn.qkv_proj"}
    return LLAMA_NAMES | fused | fused_gates(config)


PHI3 = Family(
    "Phi-3",
    ("phi3",),
    _config,
    _table,
    **LLAMA_FILES,
)
