"""GLM 4 in its two forms: Llama's shape with fused gates and interleaved rotary positions on a part of each head; the
later one (glm4) adds a norm behind each sub-layer."""

from typing import Any

from glassformer.attention import Merge
from glassformer.checkpoints.families.family import Family, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.llama import LLAMA_NAMES, separate_qkv
from glassformer.checkpoints.families.llama_shaped import LLAMA_FILES, fused_gates, gated_decoder
from glassformer.checkpoints.families.rotary import rope, turned_share
from glassformer.models import DecoderConfig, RmsNorm


def _config(fields: Fields, **more: Any) -> DecoderConfig:
    # the head's width has a default of its own, not a share of the model's
    fields = fields.filled(head_dim=128)
    layer: dict[str, Any] = {
        "positions": rope(fields, fraction=turned_share(fields, 0.5), pairing="interleaved"),
        "bias": fields.flag("attention_bias", True),
        "merge": Merge(),
        **more,
    }
    norm = RmsNorm(fields.number("rms_norm_eps", 1.5625e-7))
    return gated_decoder(fields, norm, lambda i: layer, max_len=131_072, n_kv_heads=2)


def _config_4(fields: Fields) -> DecoderConfig:
    return _config(fields, wiring="sandwich")


def _table(fields: Fields, config: Any) -> Table:
    return {
        **LLAMA_NAMES,
        **fused_gates(config),
        "stack.blocks.{i}.attn.projection.qkv": separate_qkv(config),
        # in the later form only, which alone has such norms
        "stack.blocks.{i}.attn_norm_after": "model.layers.{i}.post_self_attn_layernorm",
        "stack.blocks.{i}.mlp_norm_after": "model.layers.{i}.post_mlp_layernorm",
    }


GLM, GLM4 = (
    Family(name, (kind,), config, _table, **LLAMA_FILES)
    for name, kind, config in (("GLM", "glm", _config), ("GLM 4", "glm4", _config_4))
)
