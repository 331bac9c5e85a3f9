"""BART and its relatives: encoder-decoders with biases everywhere, on the logits too, that differ in where norms stand
and in what positions are.

family        norms     what enters is normed    positions
BART          behind    yes                      learned, from row 2
PLBART        behind    yes                      learned, from row 2
mBART         before    yes                      learned, from row 2
Blenderbot    before    no                       learned
Pegasus       before    no                       sines, then cosines
Marian        behind    no                       sines, then cosines
M2M-100       before    no                       sines, then cosines, from behind the padding's id; no bias on logits

The sides of Marian may have vocabularies of their own.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from glassformer.checkpoints.families.family import Family, Piece, Table, position_rows
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.heads import head_of
from glassformer.models import (
    BlockConfig,
    EncoderDecoderConfig,
    LayerNorm,
    Learned,
    Mlp,
    Sinusoidal,
    block,
    repeat,
)
from glassformer.models.embedding import PositionEmbedding
from glassformer.models.norms import NoNorm

_NAMES = {"attn": "self_attn", "cross": "encoder_attn"}
_FROM_2, _SINES = Learned(offset=2, counts_padding=True), Sinusoidal("halves", counts_padding=True)


def _bart_config(fields: Fields) -> EncoderDecoderConfig:
    return _config(_with(fields), _FROM_2, normed=True)


def _plbart_config(fields: Fields) -> EncoderDecoderConfig:
    return _config(_with(fields, scale_embedding=True), _FROM_2, normed=True)


def _mbart_config(fields: Fields) -> EncoderDecoderConfig:
    return _config(_with(fields), _FROM_2, normed=True, before=True)


def _blenderbot_config(fields: Fields) -> EncoderDecoderConfig:
    own = _with(fields, decoder_start_token_id=1, max_position_embeddings=128)
    return _config(own, Learned(counts_padding=True), before=True)


def _pegasus_config(fields: Fields) -> EncoderDecoderConfig:
    return _config(_with(fields, decoder_start_token_id=0), _SINES, before=True)


def _marian_config(fields: Fields) -> EncoderDecoderConfig:
    read = fields.whole("vocab_size")
    written = fields.whole("decoder_vocab_size", read)
    if fields.flag("share_encoder_decoder_embeddings", True):
        fields.only("decoder_vocab_size", read, "both sides share their embeddings, and so one vocabulary")
    # padding has logit 0 where real tokens are negative, and would be said most
    never = fields.whole("pad_token_id", written - 1)
    found = _config(_with(fields, decoder_start_token_id=written - 1), _SINES, vocab=written)
    return found.replace(never_ids=(never,), source_vocab_size=None if read == written else read)


def _m2m_config(fields: Fields) -> EncoderDecoderConfig:
    # counted over tokens that are no padding; a token of that id has no position, and is none that is said
    padding = fields.whole("pad_token_id", 1)
    own = _with(fields, scale_embedding=True, activation_function="relu")
    config = _config(own, Sinusoidal("halves", offset=padding + 1, slowest=True), before=True)
    return config.replace(unembed_bias=False, never_ids=(padding,))


def _with(fields: Fields, **defaults: Any) -> Fields:
    """Return a config with what its family means where the file says nothing."""
    meant: dict[str, Any] = {"decoder_start_token_id": 2, **defaults}
    return fields.replaced(**{name: value for name, value in meant.items() if fields.data.get(name) is None})


def _config(
    fields: Fields,
    positions: PositionEmbedding,
    *,
    before: bool = False,
    normed: bool = False,
    vocab: int | None = None,
) -> EncoderDecoderConfig:
    """Return the config of a relative.

    Args:
        fields: The file.
        positions: What is added to token vectors.
        before: Whether norms stand before sub-layers and at each stack's end; else behind each sum.
        normed: Whether what enters the first block is normed.
        vocab: Tokens of the decoder, where they are not those of the encoder.
    """
    tied = fields.flag("tie_word_embeddings", True)
    return EncoderDecoderConfig(
        fields.whole("vocab_size") if vocab is None else vocab,
        fields.whole("d_model"),
        repeat(_layer(fields, "encoder", before), fields.whole("encoder_layers")),
        repeat(_layer(fields, "decoder", before), fields.whole("decoder_layers")),
        max_len=fields.whole("max_position_embeddings", 1024),
        positions=positions,
        final_norm=LayerNorm() if before else NoNorm(),
        tied=tied,
        # nothing tied means that both sides have a matrix of their own too
        shared=tied and fields.flag("share_encoder_decoder_embeddings", True),
        embed_scale=fields.flag("scale_embedding", False),
        embed_norm=LayerNorm() if normed else None,
        # files of the two stacks alone have no bias on logits
        unembed_bias=head_of(fields.data) != "none",
        start_id=fields.whole("decoder_start_token_id"),
    )


def _layer(fields: Fields, side: str, before: bool) -> BlockConfig:
    return block(
        n_heads=fields.whole(f"{side}_attention_heads"),
        bias=True,
        norm=LayerNorm(),
        mlp=Mlp(fields.whole(f"{side}_ffn_dim"), fields.activation("activation_function", "gelu")),
        wiring="pre" if before else "post",
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
            f"{stack}.final": f"model.{stack}.layer_norm",
            f"{ours}.mlp.input": f"{theirs}.fc1",
            f"{ours}.mlp.output": f"{theirs}.fc2",
            **_both_places(f"{ours}.mlp_norm", f"{theirs}.final_layer_norm"),
        }
        for part, name in _NAMES.items():
            pieces = tuple(Piece(f"{theirs}.{name}.{which}_proj", config.d_model) for which in "qkv")
            table |= {
                f"{ours}.{part}.projection.qkv": pieces,
                f"{ours}.{part}.merge.output": f"{theirs}.{name}.out_proj",
                **_both_places(f"{ours}.{part}_norm", f"{theirs}.{name}_layer_norm"),
            }
    return table


def _both_places(ours: str, theirs: str) -> dict[str, str]:
    # one name for norms before parts and behind
    return {ours: theirs, f"{ours}_after": theirs}


def _only_row(theirs: Tensor) -> Tensor:
    return theirs[0]


_COPIES = {
    "model.encoder.embed_tokens.weight": "model.shared.weight",
    "model.decoder.embed_tokens.weight": "model.shared.weight",
    "lm_head.weight": "model.decoder.embed_tokens.weight",
}

# what both sides share lies there all the same when they share nothing
_SHARED = "model.shared.weight"
_SINES_BY_POSITION: Mapping[str, Callable[[Any, int], Tensor]] = {
    "*.embed_positions.weight": position_rows,
    "*.embed_positions.weights": position_rows,
}


def _family(
    name: str,
    kind: str,
    config: Callable[[Fields], EncoderDecoderConfig],
    *ignored: str,
    computed: Mapping[str, Callable[[Any, int], Tensor]] | None = None,
) -> Family:
    return Family(
        name,
        (kind,),
        config,
        _table,
        prefixes=("model.",),
        ignored=(_SHARED, *ignored),
        computed=computed or {},
        copies=_COPIES,
    )


BART = _family("BART", "bart", _bart_config)
BLENDERBOT = _family("Blenderbot", "blenderbot", _blenderbot_config)
M2M100 = _family("M2M-100", "m2m_100", _m2m_config, "final_logits_bias", computed=_SINES_BY_POSITION)
MARIAN = _family("Marian", "marian", _marian_config, computed=_SINES_BY_POSITION)
MBART = _family("mBART", "mbart", _mbart_config)
PEGASUS = _family("Pegasus", "pegasus", _pegasus_config, computed=_SINES_BY_POSITION)
PLBART = _family("PLBART", "plbart", _plbart_config)
