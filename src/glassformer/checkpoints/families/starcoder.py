"""StarCoder 1 (GPT-BigCode), GPT-2's layout with one key head for all; and 2, rotary with grouped keys and a window."""

from typing import Any

from glassformer.attention import Softmax
from glassformer.checkpoints.families.family import Family, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.gpt2 import GPT2_NAMES
from glassformer.checkpoints.families.gpt_neox import fused_by_head
from glassformer.checkpoints.families.llama import LLAMA_NAMES, separate_qkv
from glassformer.checkpoints.families.llama_shaped import LLAMA_FILES, gated_decoder
from glassformer.checkpoints.families.rotary import rope
from glassformer.models import DecoderConfig, LayerNorm, Learned, Mlp, block, repeat


def _config_1(fields: Fields) -> DecoderConfig:
    fields.only("add_cross_attention", False, "it reads an encoder that is not there")
    d_model, n_heads = fields.whole("n_embd"), fields.whole("n_head")
    norm = LayerNorm(fields.number("layer_norm_epsilon", 1e-5))
    layer = block(
        Softmax(scale=None if fields.flag("scale_attn_weights", True) else 1.0),
        n_heads=n_heads,
        n_kv_heads=1 if fields.flag("multi_query", True) else n_heads,
        bias=True,
        norm=norm,
        mlp=Mlp(fields.whole("n_inner", 4 * d_model), fields.activation("activation_function", "gelu_pytorch_tanh")),
    )
    return DecoderConfig(
        fields.whole("vocab_size"),
        d_model,
        repeat(layer, fields.whole("n_layer")),
        max_len=fields.whole("n_positions", 1024),
        positions=Learned(),
        final_norm=norm,
        tied=fields.flag("tie_word_embeddings", True),
    )


def _config_2(fields: Fields) -> DecoderConfig:
    bias = fields.flag("use_bias", True)
    layer = {
        "mixer": Softmax(fields.whole("sliding_window") if "sliding_window" in fields else None),
        "positions": rope(fields),
        "bias": bias,
        "mlp": Mlp(fields.whole("intermediate_size"), fields.activation("hidden_act", "gelu_pytorch_tanh"), bias=bias),
    }
    norm = LayerNorm(fields.number("norm_epsilon", 1e-5))
    return gated_decoder(fields, norm, lambda i: layer, tied=True, max_len=4096, n_kv_heads=2)


def _table_1(fields: Fields, config: Any) -> Table:
    ours, theirs = "stack.blocks.{i}", "transformer.h.{i}"
    attention, fused = config.layers[0].parts[0], f"{theirs}.attn.c_attn"
    return GPT2_NAMES | {
        # with one key head the three lie one after another, else those of each head together
        f"{ours}.attn.projection.qkv": fused if attention.n_kv_heads == 1 else fused_by_head(fused, config),
        f"{ours}.attn.merge.output": f"{theirs}.attn.c_proj",
    }


def _table_2(fields: Fields, config: Any) -> Table:
    ours, theirs = "stack.blocks.{i}", "model.layers.{i}"
    return LLAMA_NAMES | {
        f"{ours}.attn.projection.qkv": separate_qkv(config),
        f"{ours}.mlp.input": f"{theirs}.mlp.c_fc",
        f"{ours}.mlp.output": f"{theirs}.mlp.c_proj",
    }


GPT_BIGCODE = Family(
    "GPT-BigCode",
    ("gpt_bigcode",),
    _config_1,
    _table_1,
    prefixes=("transformer.",),
    token_head="classifier",
    ignored=("*.attn.bias", "*.attn.masked_bias"),
    copies={"lm_head.weight": "transformer.wte.weight"},
)
STARCODER2 = Family("StarCoder 2", ("starcoder2",), _config_2, _table_2, **LLAMA_FILES)
