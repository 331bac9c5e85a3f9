"""T5: relative position bias, RMSNorm before each part, no biases, scores that are not scaled.

The first version ties all three embeddings and scales what the unembedding reads by 1 / sqrt(d_model); version 1.1 has
a gated MLP, an unembedding of its own, and no such scale.
"""

from typing import Any

from glassformer.attention import RelativeBias, Softmax
from glassformer.checkpoints.families.family import Family, Piece, Table
from glassformer.checkpoints.families.fields import ACTIVATIONS, Fields
from glassformer.models import BlockConfig, EncoderConfig, EncoderDecoderConfig, Mlp, RmsNorm, block, repeat


def _config(fields: Fields) -> EncoderDecoderConfig | EncoderConfig:
    d_model, n_layers = fields.whole("d_model"), fields.whole("num_layers")
    if _is_encoder(fields):
        norm = RmsNorm(fields.number("layer_norm_epsilon", 1e-6))
        layers = repeat(_layer(fields, norm, causal=False), n_layers)
        max_len, size = fields.whole("n_positions", 512), fields.whole("vocab_size")
        return EncoderConfig(size, d_model, layers, max_len=max_len, final_norm=norm, predicts=False)
    tied = fields.flag("tie_word_embeddings", True)
    scaled = fields.flag("scale_decoder_outputs", tied) and fields.get("model_type") == "t5"
    norm = RmsNorm(fields.number("layer_norm_epsilon", 1e-6))
    return EncoderDecoderConfig(
        fields.whole("vocab_size"),
        d_model,
        repeat(_layer(fields, norm, causal=False), n_layers),
        repeat(_layer(fields, norm, causal=True), fields.whole("num_decoder_layers", n_layers)),
        max_len=fields.whole("n_positions", 512),
        positions=None,
        final_norm=norm,
        tied=tied,
        embed_scale=False,
        unembed_scale=d_model**-0.5 if scaled else 1.0,
        start_id=fields.whole("decoder_start_token_id", fields.whole("pad_token_id", 0)),
    )


def _is_encoder(fields: Fields) -> bool:
    """Whether the half that reads is there by itself."""
    return any(str(name).endswith("EncoderModel") for name in fields.get("architectures", []))


def _layer(fields: Fields, norm: RmsNorm, *, causal: bool) -> BlockConfig:
    distance = RelativeBias(
        fields.whole("relative_attention_num_buckets", 32),
        fields.whole("relative_attention_max_distance", 128),
        bidirectional=not causal,
    )
    unscaled = Softmax(scale=1.0)
    layer = block(
        unscaled,
        n_heads=fields.whole("num_heads"),
        d_head=fields.whole("d_kv", 64),
        positions=distance,
        norm=norm,
        mlp=_mlp(fields),
        cross=causal,
    )
    parts: list[Any] = list(layer.parts)
    return layer.replace(parts=tuple(p.replace(mixer=unscaled) if p.role == "cross" else p for p in parts))


def _mlp(fields: Fields) -> Mlp:
    default = "gated-gelu" if fields.get("model_type") == "mt5" else "relu"
    word = str(fields.get("feed_forward_proj", default))
    activation = ACTIVATIONS.get(word.removeprefix("gated-"))
    if activation is None:
        raise fields.wrong("feed_forward_proj", word, f"one of {', '.join(ACTIVATIONS)}, with gated- before it or not")
    # only this one word means the approximation by tanh
    activation = "gelu_tanh" if word == "gated-gelu" else activation
    # the library writes down what it took the word for, and where a file says so goes by that
    if "dense_act_fn" in fields:
        activation = fields.activation("dense_act_fn")
    gated = fields.flag("is_gated_act", word.startswith("gated-"))
    return Mlp(fields.whole("d_ff"), activation, gated, bias=False)  # type: ignore[arg-type]


def _table(fields: Fields, config: Any) -> Table:
    table: dict[str, Any] = {"decoder_embed.matrix": "shared.weight", "unembed.matrix": "lm_head.weight"}
    stacks = {"encoder": "encoder", "decoder": "decoder"}
    if _is_encoder(fields):
        table, stacks = {"embed.matrix": "shared.weight"}, {"stack": "encoder"}
    for own, stack in stacks.items():
        ours, theirs = f"{own}.blocks.{{i}}", f"{stack}.block.{{i}}.layer"
        last = 2 if stack == "decoder" else 1
        table |= _attention(f"{ours}.attn", f"{theirs}.0", "SelfAttention", config)
        if stack == "decoder":
            table |= _attention(f"{ours}.cross", f"{theirs}.1", "EncDecAttention", config)
        table |= {
            f"{ours}.mlp_norm": f"{theirs}.{last}.layer_norm",
            f"{ours}.mlp.gate": f"{theirs}.{last}.DenseReluDense.wi_0",
            f"{ours}.mlp.input": f"{theirs}.{last}.DenseReluDense.wi{'_1' if _mlp(fields).gated else ''}",
            f"{ours}.mlp.output": f"{theirs}.{last}.DenseReluDense.wo",
            f"{own}.final": f"{stack}.final_layer_norm",
        }
    return table


def _attention(ours: str, theirs: str, kind: str, config: Any) -> Table:
    layers = next(iter(config.blocks.values()))
    dims = layers[0].parts[0].dims(config.d_model, config.max_len)
    rows = dims.n_heads * dims.d_head
    return {
        f"{ours}_norm": f"{theirs}.layer_norm",
        f"{ours}.projection.qkv": tuple(Piece(f"{theirs}.{kind}.{name}", rows) for name in "qkv"),
        f"{ours}.merge.output": f"{theirs}.{kind}.o",
        f"{ours}.positions.table": f"{theirs}.{kind}.relative_attention_bias.weight",
    }


T5 = Family(
    "T5",
    ("t5", "mt5"),
    _config,
    _table,
    # written by the first library, and read by none
    ignored=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
    copies={
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
        "lm_head.weight": "shared.weight",
    },
)
