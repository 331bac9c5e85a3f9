"""Granite: Llama's shape with factors on token vectors, scores, what sub-layers write, and logits."""

from typing import Any

from glassformer.attention import Softmax
from glassformer.checkpoints.families.family import Family, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.llama import LLAMA_NAMES, separate_qkv
from glassformer.checkpoints.families.llama_shaped import LLAMA_FILES, gated_decoder, gated_mlp
from glassformer.checkpoints.families.rotary import rope
from glassformer.models import DecoderConfig, RmsNorm, ScaleOnly


def _config(fields: Fields) -> DecoderConfig:
    share = fields.number("residual_multiplier", 1.0)
    layer = {
        "mixer": Softmax(scale=fields.number("attention_multiplier", 1.0)),
        "positions": rope(fields),
        "bias": fields.flag("attention_bias", False),
        "mlp": gated_mlp(fields),
        "wiring": "sandwich",
        "norm_after": ScaleOnly(share),
    }
    divisor = fields.number("logits_scaling", 1.0)
    if divisor == 0:
        raise fields.wrong("logits_scaling", divisor, "a number other than 0")
    return gated_decoder(
        fields,
        RmsNorm(fields.number("rms_norm_eps", 1e-6)),
        lambda i: layer,
        embed_scale=fields.number("embedding_multiplier", 1.0),
        unembed_scale=1 / divisor,
    )


def _table(fields: Fields, config: Any) -> Table:
    return LLAMA_NAMES | {"stack.blocks.{i}.attn.projection.qkv": separate_qkv(config)}


GRANITE = Family("Granite", ("granite",), _config, _table, **LLAMA_FILES)
