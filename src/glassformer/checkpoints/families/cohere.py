"""Cohere (Command R) and its second version: attention and gated MLP side by side behind one LayerNorm without bias,
interleaved rotary positions, a factor on the logits.

The first may norm each head's queries and keys, with gains of its own; the second has a window and rotary positions in
three layers of four, and neither in the fourth.
"""

from typing import Any

from glassformer.attention import NoPositions, QueryKeyNorm, Softmax
from glassformer.checkpoints.families.family import Family, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.llama import LLAMA_NAMES, separate_qkv
from glassformer.checkpoints.families.llama_shaped import (
    LLAMA_FILES,
    SLIDING,
    gated_decoder,
    periodic_kinds,
    query_key_names,
    window_of,
)
from glassformer.checkpoints.families.rotary import rope
from glassformer.models import DecoderConfig, LayerNorm


def _config_1(fields: Fields) -> DecoderConfig:
    eps = fields.number("layer_norm_eps", 1e-5)
    norm = QueryKeyNorm(gains="own", centred=True, eps=eps) if fields.flag("use_qk_norm", False) else False
    positions = rope(fields, base=500_000.0, pairing="interleaved")
    return _decoder(fields, eps, lambda i: {"positions": positions, "qk_norm": norm})


def _config_2(fields: Fields) -> DecoderConfig:
    kinds = periodic_kinds(fields, 4)
    positions = {SLIDING: rope(fields, pairing="interleaved")}

    def layer(i: int) -> dict[str, Any]:
        mixer = Softmax(window_of(fields, kinds[i]))
        return {"mixer": mixer, "positions": positions.get(kinds[i], NoPositions())}

    return _decoder(fields, fields.number("layer_norm_eps", 1e-5), layer)


def _decoder(fields: Fields, eps: float, layer: Any) -> DecoderConfig:
    shared = {"bias": fields.flag("attention_bias", False), "wiring": "parallel", "shared_norm": True}
    return gated_decoder(
        fields,
        LayerNorm(eps, bias=False),
        lambda i: shared | layer(i),
        tied=True,
        max_len=8192,
        unembed_scale=fields.number("logit_scale", 0.0625),
    )


def _table(fields: Fields, config: Any) -> Table:
    norms = query_key_names(config, ("q_norm", "k_norm"))
    return LLAMA_NAMES | norms | {"stack.blocks.{i}.attn.projection.qkv": separate_qkv(config)}


COHERE, COHERE2 = (
    Family(name, (kind,), config, _table, **LLAMA_FILES)
    for name, kind, config in (("Cohere", "cohere", _config_1), ("Cohere 2", "cohere2", _config_2))
)
