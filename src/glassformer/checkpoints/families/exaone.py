"""EXAONE 4: norms behind each sub-layer and none before, norms on each head's queries and keys; where there are
windows, the layers that see everything have no positions."""

from typing import Any

from glassformer.attention import NoPositions, QueryKeyNorm, Softmax
from glassformer.checkpoints.families.family import Family, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.llama import LLAMA_NAMES, separate_qkv
from glassformer.checkpoints.families.llama_shaped import (
    LLAMA_FILES,
    SLIDING,
    gated_decoder,
    layer_kinds,
    query_key_names,
    window_of,
)
from glassformer.checkpoints.families.rotary import rope
from glassformer.models import DecoderConfig, NoNorm, RmsNorm


def _config(fields: Fields) -> DecoderConfig:
    # null is no window, and no field at all is the window of the first model
    sized = fields.filled(sliding_window=4096)
    windowed = "sliding_window" in sized
    period = _period(fields) if windowed and "layer_types" not in fields else 1
    kinds, positions = layer_kinds(sized, lambda i: (i + 1) % period != 0), rope(fields)
    eps = fields.number("rms_norm_eps", 1e-5)
    shared = {"qk_norm": QueryKeyNorm(eps=eps), "wiring": "sandwich", "norm_after": RmsNorm(eps)}

    def layer(i: int) -> dict[str, Any]:
        turned = not windowed or kinds[i] == SLIDING
        mixer = Softmax(window_of(sized, kinds[i]))
        return shared | {"mixer": mixer, "positions": positions if turned else NoPositions()}

    return gated_decoder(fields, NoNorm(), layer, n_kv_heads=32, final_norm=RmsNorm(eps))


def _period(fields: Fields) -> int:
    """Return how many layers there are to one that sees everything: a number, or as many as a pattern has letters."""
    found = fields.get("sliding_window_pattern", 4)
    period = len(found) if isinstance(found, str) else fields.whole("sliding_window_pattern", 4)
    if period < 1 or (isinstance(found, str) and found != "L" * (period - 1) + "G"):
        raise fields.wrong("sliding_window_pattern", found, 'a number of at least 1, or "LLLG" and the like')
    return period


def _table(fields: Fields, config: Any) -> Table:
    return {
        **LLAMA_NAMES,
        **query_key_names(config, ("q_norm", "k_norm")),
        "stack.blocks.{i}.attn.projection.qkv": separate_qkv(config),
        "stack.blocks.{i}.attn_norm_after": "model.layers.{i}.post_attention_layernorm",
        "stack.blocks.{i}.mlp_norm_after": "model.layers.{i}.post_feedforward_layernorm",
    }


EXAONE4 = Family(
    "EXAONE 4",
    ("exaone4",),
    _config,
    _table,
    without_effect={"sliding_window_pattern": "layer_types comes before it, and without a window there is no pattern"},
    **LLAMA_FILES,
)
