"""GPT-Neo: GPT-2's layout with scores that are not scaled, and windows on the local layers."""

from typing import Any

from glassformer.attention import Merge, Softmax
from glassformer.checkpoints.families.family import Family, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.gpt2 import GPT2_NAMES
from glassformer.checkpoints.families.llama import separate_qkv
from glassformer.models import DecoderConfig, LayerNorm, Learned, Mlp, block


def _config(fields: Fields) -> DecoderConfig:
    d_model, n_heads = fields.whole("hidden_size"), fields.whole("num_heads")
    norm = LayerNorm(fields.number("layer_norm_epsilon", 1e-5))
    mlp = Mlp(fields.whole("intermediate_size", 4 * d_model), fields.activation("activation_function", "gelu_new"))
    windows = {"global": None, "local": fields.whole("window_size", 256)}
    layers = tuple(
        block(Softmax(window=windows[kind], scale=1.0), n_heads=n_heads, merge=Merge(bias=True), norm=norm, mlp=mlp)
        for kind in _kinds(fields)
    )
    return DecoderConfig(
        fields.whole("vocab_size"),
        d_model,
        layers,
        max_len=fields.whole("max_position_embeddings", 2048),
        positions=Learned(),
        final_norm=norm,
        tied=fields.flag("tie_word_embeddings", True),
    )


def _kinds(fields: Fields) -> list[str]:
    """Return `global` or `local` for each layer, from patterns and how often each is repeated."""
    n_layers = fields.whole("num_layers")
    patterns = fields.get("attention_types", [[["global", "local"], 12]])
    try:
        # no list longer than asked for, however often a pattern is to be repeated
        kinds = [kind for pattern, times in patterns for _ in range(min(times, n_layers + 1)) for kind in pattern]
    except (TypeError, ValueError):
        kinds = []
    if len(kinds) != n_layers or any(kind not in ("global", "local") for kind in kinds):
        raise fields.wrong(
            "attention_types", patterns, f'patterns of "global" and "local" for num_layers={n_layers} layers'
        )
    if (written := fields.get("attention_layers", kinds)) != kinds:
        raise fields.wrong("attention_layers", written, f"attention_types written out, {kinds}")
    return kinds


def _table(fields: Fields, config: Any) -> Table:
    ours, theirs = "stack.blocks.{i}", "transformer.h.{i}"
    return GPT2_NAMES | {
        f"{ours}.attn.projection.qkv": separate_qkv(config, f"{theirs}.attn.attention"),
        f"{ours}.attn.merge.output": f"{theirs}.attn.attention.out_proj",
    }


GPT_NEO = Family(
    "GPT-Neo",
    ("gpt_neo",),
    _config,
    _table,
    prefixes=("transformer.",),
    ignored=("*.attn.attention.bias", "*.attn.attention.masked_bias"),
    copies={"lm_head.weight": "transformer.wte.weight"},
    token_head="classifier",
)
