"""RWKV (version 4): time mixing of one head per channel, channel mixing, and a norm behind the token vectors.

In evaluation the reference halves the stream every `rescale_every` blocks, and what is written to it accordingly, so
that half precision does not overflow. A norm divides that out again but for its eps, which is added to the square of
the smaller stream: here the stream is whole, and eps larger by a factor of four for each time.
"""

from typing import Any

from glassformer.attention import Rwkv4, Shifted
from glassformer.checkpoints.families.family import Family, Piece, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.models import ChannelMixing, DecoderConfig, LayerNorm, block

LAST_EPS = 1e-5  # of the norm behind the last block, whatever the config says of the others


def _config(fields: Fields) -> DecoderConfig:
    d_model, n_layers = fields.whole("hidden_size"), fields.whole("num_hidden_layers")
    eps, halved = fields.number("layer_norm_epsilon", 1e-5), fields.whole("rescale_every", 6)
    if halved < 0:
        raise fields.wrong("rescale_every", halved, "a number of blocks, or 0 for never")
    width = fields.whole("attention_hidden_size", d_model)
    mlp = ChannelMixing(fields.whole("intermediate_size", 4 * d_model))

    def of_whole(eps: float, layer: int) -> LayerNorm:
        return LayerNorm(eps * 4 ** (layer // halved) if halved else eps)

    return DecoderConfig(
        fields.whole("vocab_size"),
        d_model,
        tuple(
            block(Rwkv4(), n_heads=width, d_head=1, projection=Shifted(), mlp=mlp, norm=of_whole(eps, layer))
            for layer in range(n_layers)
        ),
        max_len=fields.whole("context_length", 1024),
        embed_norm=LayerNorm(eps),
        final_norm=of_whole(LAST_EPS, n_layers),
        tied=fields.flag("tie_word_embeddings", False),
    )


def _table(fields: Fields, config: Any) -> Table:
    width, row = config.layers[0].parts[0].n_heads, (1, 1, config.d_model)
    ours, theirs = "stack.blocks.{i}", "rwkv.blocks.{i}"
    time, channel = f"{theirs}.attention", f"{theirs}.feed_forward"
    return {
        "embed.matrix": "rwkv.embeddings.weight",
        "embed.norm": "rwkv.blocks.0.pre_ln",
        "stack.final": "rwkv.ln_out",
        "unembed.matrix": "head.weight",
        f"{ours}.attn_norm": f"{theirs}.ln1",
        f"{ours}.attn.projection.qkv": tuple(Piece(f"{time}.{name}", width) for name in ("receptance", "key", "value")),
        f"{ours}.attn.projection.shift.share": tuple(
            Piece(f"{time}.time_mix_{name}", 1, shape=row) for name in ("receptance", "key", "value")
        ),
        f"{ours}.attn.mixer.rate": f"{time}.time_decay",
        f"{ours}.attn.mixer.bonus": f"{time}.time_first",
        f"{ours}.attn.merge.output": f"{time}.output",
        f"{ours}.mlp_norm": f"{theirs}.ln2",
        f"{ours}.mlp.shift.share": tuple(
            Piece(f"{channel}.time_mix_{name}", 1, shape=row) for name in ("key", "receptance")
        ),
        f"{ours}.mlp.key": f"{channel}.key",
        f"{ours}.mlp.gate": f"{channel}.receptance",
        f"{ours}.mlp.value": f"{channel}.value",
    }


RWKV = Family("RWKV", ("rwkv",), _config, _table, prefixes=("rwkv.",), copies={"head.weight": "rwkv.embeddings.weight"})
