"""BART and Marian: encoder-decoders with norms behind the sum and biases everywhere, on the logits too.

BART learns its positions and norms what enters the first block; Marian's positions are sines, then cosines, and its
sides may have vocabularies of their own.
"""

from typing import Any

from torch import Tensor

from glassformer.checkpoints.families.family import Family, Piece, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.models import (
    BlockConfig,
    EncoderDecoderConfig,
    LayerNorm,
    Learned,
    Mlp,
    NormConfig,
    Sinusoidal,
    block,
    repeat,
)
from glassformer.models.embedding import PositionEmbedding
from glassformer.models.norms import NoNorm

_BARE = ("BartModel", "MarianModel")
_NAMES = {"attn": "self_attn", "cross": "encoder_attn"}


def _bart_config(fields: Fields) -> EncoderDecoderConfig:
    return _config(fields, Learned(offset=2), LayerNorm(), start=2, vocab=fields.whole("vocab_size"))


def _marian_config(fields: Fields) -> EncoderDecoderConfig:
    read = fields.whole("vocab_size")
    written = fields.whole("decoder_vocab_size", read)
    if fields.flag("share_encoder_decoder_embeddings", True):
        fields.only("decoder_vocab_size", read, "both sides share their embeddings, and so one vocabulary")
    # padding has logit 0 where real tokens are negative, and would be said most
    never = fields.whole("pad_token_id", written - 1)
    found = _config(fields, Sinusoidal("halves"), None, start=written - 1, vocab=written)
    return found.replace(never_ids=(never,), source_vocab_size=None if read == written else read)


def _config(
    fields: Fields, positions: PositionEmbedding, embed_norm: NormConfig | None, *, start: int, vocab: int
) -> EncoderDecoderConfig:
    tied = fields.flag("tie_word_embeddings", True)
    # files of the two stacks alone have no bias on logits
    bare = any(name in _BARE for name in fields.get("architectures", []))
    return EncoderDecoderConfig(
        vocab,
        fields.whole("d_model"),
        repeat(_layer(fields, "encoder"), fields.whole("encoder_layers")),
        repeat(_layer(fields, "decoder"), fields.whole("decoder_layers")),
        max_len=fields.whole("max_position_embeddings", 1024),
        positions=positions,
        final_norm=NoNorm(),
        tied=tied,
        # nothing tied means that both sides have a matrix of their own too
        shared=tied and fields.flag("share_encoder_decoder_embeddings", True),
        embed_scale=fields.flag("scale_embedding", False),
        embed_norm=embed_norm,
        unembed_bias=not bare,
        start_id=fields.whole("decoder_start_token_id", start),
    )


def _layer(fields: Fields, side: str) -> BlockConfig:
    return block(
        n_heads=fields.whole(f"{side}_attention_heads"),
        bias=True,
        norm=LayerNorm(),
        mlp=Mlp(fields.whole(f"{side}_ffn_dim"), fields.activation("activation_function", "gelu")),
        wiring="post",
        cross=side == "decoder",
    )


def _table(fields: Fields, config: Any) -> Table:
    separate = not config.shared
    table: dict[str, Any] = {
        "decoder_embed.matrix": "model.decoder.embed_tokens.weight" if separate else "model.shared.weight",
        "encoder_embed.matrix": "model.encoder.embed_tokens.weight",
        "unembed.matrix": "lm_head.weight",
        "unembed.bias": Piece("final_logits_bias", view=_only_row, shape=(1, config.n_outputs)),
    }
    for stack in ("encoder", "decoder"):
        ours, theirs = f"{stack}.blocks.{{i}}", f"model.{stack}.layers.{{i}}"
        table |= {
            f"{stack}_embed.positions.weight": f"model.{stack}.embed_positions.weight",
            f"{stack}_embed.norm": f"model.{stack}.layernorm_embedding",
            f"{ours}.mlp.input": f"{theirs}.fc1",
            f"{ours}.mlp.output": f"{theirs}.fc2",
            f"{ours}.mlp_norm_after": f"{theirs}.final_layer_norm",
        }
        for part, name in _NAMES.items():
            pieces = tuple(Piece(f"{theirs}.{name}.{which}_proj", config.d_model) for which in "qkv")
            table |= {
                f"{ours}.{part}.projection.qkv": pieces,
                f"{ours}.{part}.merge.output": f"{theirs}.{name}.out_proj",
                f"{ours}.{part}_norm_after": f"{theirs}.{name}_layer_norm",
            }
    return table


def _only_row(theirs: Tensor) -> Tensor:
    return theirs[0]


_COPIES = {
    "model.encoder.embed_tokens.weight": "model.shared.weight",
    "model.decoder.embed_tokens.weight": "model.shared.weight",
    "lm_head.weight": "model.shared.weight",
}

# what both sides share lies there all the same when they share nothing
_SHARED = "model.shared.weight"

BART = Family("BART", ("bart",), _bart_config, _table, prefixes=("model.",), ignored=(_SHARED,), copies=_COPIES)

MARIAN = Family(
    "Marian",
    ("marian",),
    _marian_config,
    _table,
    prefixes=("model.",),
    ignored=(_SHARED, "*.embed_positions.weight"),
    copies=_COPIES,
)
