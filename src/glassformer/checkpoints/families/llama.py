"""Llama 1 to 3.x: RMSNorm, rotary positions, grouped keys, SwiGLU."""

from typing import Any

from glassformer.checkpoints.families.family import Family, Piece, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.rotary import rope
from glassformer.models import DecoderConfig, Mlp, RmsNorm, block, repeat


def _config(fields: Fields) -> DecoderConfig:
    d_model, n_heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    norm = RmsNorm(fields.number("rms_norm_eps", 1e-6))
    mlp_bias = fields.flag("mlp_bias", False)
    attention_bias = fields.flag("attention_bias", False)
    layer = block(
        n_heads=n_heads,
        n_kv_heads=fields.whole("num_key_value_heads", n_heads),
        d_head=fields.whole("head_dim", d_model // n_heads),
        positions=rope(fields),
        bias=attention_bias,
        norm=norm,
        mlp=Mlp(fields.whole("intermediate_size"), fields.activation("hidden_act", "silu"), True, mlp_bias),
    )
    return DecoderConfig(
        fields.whole("vocab_size"),
        d_model,
        repeat(layer, fields.whole("num_hidden_layers")),
        max_len=fields.whole("max_position_embeddings", 2048),
        final_norm=norm,
        tied=fields.flag("tie_word_embeddings", False),
    )


def _table(fields: Fields, config: Any) -> Table:
    return LLAMA_NAMES | {"stack.blocks.{i}.attn.projection.qkv": separate_qkv(config)}


LLAMA_NAMES: dict[str, Any] = {
    "embed.matrix": "model.embed_tokens.weight",
    "stack.final": "model.norm",
    "unembed.matrix": "lm_head.weight",
    "stack.blocks.{i}.attn_norm": "model.layers.{i}.input_layernorm",
    "stack.blocks.{i}.attn.merge.output": "model.layers.{i}.self_attn.o_proj",
    "stack.blocks.{i}.mlp_norm": "model.layers.{i}.post_attention_layernorm",
    "stack.blocks.{i}.mlp.gate": "model.layers.{i}.mlp.gate_proj",
    "stack.blocks.{i}.mlp.input": "model.layers.{i}.mlp.up_proj",
    "stack.blocks.{i}.mlp.output": "model.layers.{i}.mlp.down_proj",
}


def separate_qkv(config: Any, prefix: str = "model.layers.{i}.self_attn") -> tuple[Piece, ...]:
    """Return query, key and value maps that are stored one by one, as most models store them."""
    attention = config.layers[0].parts[0]
    dims = attention.dims(config.d_model, config.max_len)
    rows = (dims.n_heads * dims.d_head, dims.n_kv_heads * dims.d_head, dims.n_kv_heads * dims.d_value)
    return tuple(Piece(f"{prefix}.{name}_proj", size) for name, size in zip("qkv", rows))


def _express(config: DecoderConfig) -> dict[str, Any]:
    attention: Any = config.layers[0].parts[0]
    mlp: Any = config.layers[0].parts[1]
    dims = attention.dims(config.d_model, config.max_len)
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": mlp.d_mlp or 4 * config.d_model,
        "num_hidden_layers": len(config.layers),
        "num_attention_heads": dims.n_heads,
        "num_key_value_heads": dims.n_kv_heads,
        "head_dim": dims.d_head,
        "hidden_act": mlp.activation,
        "max_position_embeddings": config.max_len,
        "rms_norm_eps": config.layers[0].norm.eps,  # type: ignore[union-attr]
        "rope_parameters": {"rope_type": "default", "rope_theta": attention.positions.base},
        "attention_bias": attention.projection.bias,
        "mlp_bias": mlp.bias,
        "tie_word_embeddings": config.tied,
    }


LLAMA = Family(
    "Llama",
    ("llama",),
    _config,
    _table,
    prefixes=("model.",),
    ignored=("*.rotary_emb.inv_freq",),
    copies={"lm_head.weight": "model.embed_tokens.weight"},
    express=_express,
)
