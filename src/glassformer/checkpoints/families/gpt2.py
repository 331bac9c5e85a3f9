"""GPT-2: learned positions, LayerNorm before each part, tanh GELU, biases everywhere, one tied matrix."""

from typing import Any

from glassformer.attention import Softmax
from glassformer.checkpoints.families.family import Family, Piece, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.models import DecoderConfig, LayerNorm, Learned, Mlp, block


def _config(fields: Fields) -> DecoderConfig:
    d_model = fields.whole("n_embd")
    fields.only("add_cross_attention", False, "it reads an encoder that is not there")
    n_heads, n_layers = fields.whole("n_head"), fields.whole("n_layer")
    norm = LayerNorm(fields.number("layer_norm_epsilon", 1e-5))
    mlp = Mlp(fields.whole("n_inner", 4 * d_model), fields.activation("activation_function", "gelu_new"))
    scales = _scales(fields, d_model // max(n_heads, 1), n_layers)
    layers = (block(Softmax(scale=scale), n_heads=n_heads, bias=True, norm=norm, mlp=mlp) for scale in scales)
    return DecoderConfig(
        fields.whole("vocab_size"),
        d_model,
        tuple(layers),
        max_len=fields.whole("n_positions", 1024),
        positions=Learned(),
        final_norm=norm,
        tied=fields.flag("tie_word_embeddings", True),
    )


def _scales(fields: Fields, d_head: int, n_layers: int) -> list[float | None]:
    """Return what the scores of each layer are multiplied by; None for 1 / sqrt(d_head)."""
    by_width = fields.flag("scale_attn_weights", True)
    if not fields.flag("scale_attn_by_inverse_layer_idx", False):
        return [None if by_width else 1.0] * n_layers
    return [(d_head**-0.5 if by_width else 1.0) / (layer + 1) for layer in range(n_layers)]


def _express(config: DecoderConfig) -> dict[str, Any]:
    attention: Any = config.layers[0].parts[0]
    mlp: Any = config.layers[0].parts[1]
    norm: Any = config.layers[0].norm
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": config.vocab_size,
        "n_embd": config.d_model,
        "n_layer": len(config.layers),
        "n_head": attention.n_heads,
        "n_inner": mlp.d_mlp or 4 * config.d_model,
        "n_positions": config.max_len,
        "activation_function": {"gelu_tanh": "gelu_new"}.get(mlp.activation, mlp.activation),
        "layer_norm_epsilon": norm.eps,
        "tie_word_embeddings": config.tied,
    }


# what GPT-2's relatives call alike
GPT2_NAMES: dict[str, Any] = {
    "embed.matrix": "transformer.wte.weight",
    "embed.positions.weight": "transformer.wpe.weight",
    "stack.final": "transformer.ln_f",
    "unembed.matrix": "lm_head.weight",
    "stack.blocks.{i}.attn_norm": "transformer.h.{i}.ln_1",
    "stack.blocks.{i}.mlp_norm": "transformer.h.{i}.ln_2",
    "stack.blocks.{i}.mlp.input": "transformer.h.{i}.mlp.c_fc",
    "stack.blocks.{i}.mlp.output": "transformer.h.{i}.mlp.c_proj",
}


def _table(fields: Fields, config: Any) -> Table:
    ours, theirs = "stack.blocks.{i}", "transformer.h.{i}"
    return GPT2_NAMES | {
        f"{ours}.attn.projection.qkv": Piece(f"{theirs}.attn.c_attn", transposed=True),
        f"{ours}.attn.merge.output": Piece(f"{theirs}.attn.c_proj", transposed=True),
        f"{ours}.mlp.input": Piece(f"{theirs}.mlp.c_fc", transposed=True),
        f"{ours}.mlp.output": Piece(f"{theirs}.mlp.c_proj", transposed=True),
    }


GPT2 = Family(
    "GPT-2",
    ("gpt2",),
    _config,
    _table,
    prefixes=("transformer.",),
    ignored=("*.attn.bias", "*.attn.masked_bias"),
    copies={"lm_head.weight": "transformer.wte.weight"},
    express=_express,
    token_head="classifier",
)
