"""BERT, RoBERTa and DistilBERT: encoders with norms behind the sum, on the embeddings too, and a masked-language head.

A checkpoint without that head (`BertModel`) gives an encoder that predicts nothing. Pooling layers and heads for whole
texts, which some files hold beside it, are no part of the encoder and are left unread, unless it is one of classes.
"""

from collections.abc import Sequence
from typing import Any

from glassformer.attention import MixerConfig, Softmax
from glassformer.checkpoints.families.family import Family, Piece, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.heads import TextHead
from glassformer.models import EncoderConfig, LayerNorm, Learned, Mlp, NoNorm, Readout, block

# fields that say what an encoder does anyway
BOTH_WAYS = {"is_causal": "an encoder reads both ways whatever it says"}

_PREDICTING = ("ForMaskedLM", "ForPreTraining", "LMHeadModel")


def _config(fields: Fields) -> EncoderConfig:
    fields.only("position_embedding_type", "absolute", "positions are added to the stream")
    fields.only("is_decoder", False, "an encoder reads both ways")
    fields.only("add_cross_attention", False, "it reads another stack that is not there")
    own = fields.activation("hidden_act", "gelu")
    if fields.get("model_type") == "bert":
        positions, activation = Learned(counts_padding=True), own
    else:
        # counted from the padding token's id, which stands for no position
        positions, activation = Learned(fields.whole("pad_token_id", 1) + 1), "gelu"
    return encoder(
        fields,
        d_model=fields.whole("hidden_size"),
        n_heads=fields.whole("num_attention_heads"),
        mixers=(Softmax(),) * fields.whole("num_hidden_layers"),
        mlp=Mlp(fields.whole("intermediate_size"), own),
        n_types=fields.whole("type_vocab_size", 2),
        norm=LayerNorm(fields.number("layer_norm_eps", 1e-12)),
        positions=positions,
        activation=activation,
    )


def _distil_config(fields: Fields) -> EncoderConfig:
    activation = fields.activation("activation", "gelu")
    return encoder(
        fields,
        d_model=fields.whole("dim"),
        n_heads=fields.whole("n_heads"),
        mixers=(Softmax(),) * fields.whole("n_layers"),
        mlp=Mlp(fields.whole("hidden_dim"), activation),
        n_types=0,
        norm=LayerNorm(1e-12),
        positions=Learned(counts_padding=True),
        activation=activation,
    )


def encoder(
    fields: Fields, *, d_model: int, n_heads: int, mixers: Sequence[MixerConfig], mlp: Mlp, n_types: int,
    norm: LayerNorm, positions: Learned, activation: Any, longest: int = 512,
) -> EncoderConfig:  # fmt: skip
    """Return an encoder with a block for each mechanism, and a masked-language head where the config names one."""
    named = fields.get("architectures", ["ForMaskedLM"])
    predicts = any(str(name).endswith(_PREDICTING) for name in named)
    layers = [block(mixer, n_heads=n_heads, bias=True, norm=norm, mlp=mlp, wiring="post") for mixer in mixers]
    return EncoderConfig(
        fields.whole("vocab_size"),
        d_model,
        tuple(layers),
        max_len=fields.whole("max_position_embeddings", longest) - positions.offset,
        positions=positions,
        n_types=n_types,
        embed_norm=norm,
        final_norm=NoNorm(),
        predicts=predicts,
        readout=Readout(activation, norm) if predicts else None,
        tied=fields.flag("tie_word_embeddings", True),
        unembed_bias=predicts,
    )


def embeddings(root: str) -> dict[str, Any]:
    """Return the rows of what is added up to enter the first block."""
    return {
        "embed.matrix": f"{root}.embeddings.word_embeddings.weight",
        "embed.positions.weight": f"{root}.embeddings.position_embeddings.weight",
        "embed.types": f"{root}.embeddings.token_type_embeddings.weight",
        "embed.norm": f"{root}.embeddings.LayerNorm",
    }


def layers(root: str, config: Any) -> dict[str, Any]:
    """Return the rows of embeddings and blocks."""
    ours, theirs = "stack.blocks.{i}", f"{root}.encoder.layer.{{i}}"
    parts = tuple(Piece(f"{theirs}.attention.self.{name}", config.d_model) for name in ("query", "key", "value"))
    return embeddings(root) | {
        f"{ours}.attn.projection.qkv": parts,
        f"{ours}.attn.merge.output": f"{theirs}.attention.output.dense",
        f"{ours}.attn_norm_after": f"{theirs}.attention.output.LayerNorm",
        f"{ours}.mlp.input": f"{theirs}.intermediate.dense",
        f"{ours}.mlp.output": f"{theirs}.output.dense",
        f"{ours}.mlp_norm_after": f"{theirs}.output.LayerNorm",
    }


def predicting(fields: Fields, config: Any) -> Table:
    """Return the rows of an encoder and its masked-language head, as BERT names them."""
    return layers("bert", config) | {
        "unembed.readout.input": "cls.predictions.transform.dense",
        "unembed.readout.norm": "cls.predictions.transform.LayerNorm",
        "unembed.bias": "cls.predictions.bias" if config.tied else "cls.predictions.decoder.bias",
        "unembed.matrix": "cls.predictions.decoder.weight",
    }


def _roberta_table(fields: Fields, config: Any) -> Table:
    return layers("roberta", config) | head(config)


def head(config: Any) -> dict[str, Any]:
    """Return the rows of a masked-language head, as RoBERTa names them."""
    return {
        "unembed.readout.input": "lm_head.dense",
        "unembed.readout.norm": "lm_head.layer_norm",
        "unembed.bias": "lm_head.bias" if config.tied else "lm_head.decoder.bias",
        "unembed.matrix": "lm_head.decoder.weight",
    }


def _distil_table(fields: Fields, config: Any) -> Table:
    ours, theirs = "stack.blocks.{i}", "distilbert.transformer.layer.{i}"
    return embeddings("distilbert") | {
        f"{ours}.attn.projection.qkv": tuple(Piece(f"{theirs}.attention.{n}_lin", config.d_model) for n in "qkv"),
        f"{ours}.attn.merge.output": f"{theirs}.attention.out_lin",
        f"{ours}.attn_norm_after": f"{theirs}.sa_layer_norm",
        f"{ours}.mlp.input": f"{theirs}.ffn.lin1",
        f"{ours}.mlp.output": f"{theirs}.ffn.lin2",
        f"{ours}.mlp_norm_after": f"{theirs}.output_layer_norm",
        "unembed.readout.input": "vocab_transform",
        "unembed.readout.norm": "vocab_layer_norm",
        "unembed.bias": "vocab_projector.bias",
        "unembed.matrix": "vocab_projector.weight",
    }


BERT = Family(
    "BERT",
    ("bert",),
    _config,
    predicting,
    prefixes=("bert.",),
    text_head=TextHead("bert.pooler.dense", "classifier"),
    token_head="classifier",
    without_effect=BOTH_WAYS,
    endings={"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"},
    # an untied head has a bias of its own, and leaves the shared one unread
    ignored=("*embeddings.position_ids", "*pooler.dense.*", "cls.seq_relationship.*", "cls.predictions.bias"),
    copies={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
)

ROBERTA = Family(
    "RoBERTa",
    ("roberta", "xlm-roberta", "camembert"),
    _config,
    _roberta_table,
    prefixes=("roberta.",),
    text_head=TextHead("classifier.dense", "classifier.out_proj"),
    token_head="classifier",
    without_effect=BOTH_WAYS,
    ignored=("*embeddings.position_ids", "*pooler.dense.*", "lm_head.bias"),
    copies={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
)

DISTILBERT = Family(
    "DistilBERT",
    ("distilbert",),
    _distil_config,
    _distil_table,
    prefixes=("distilbert.",),
    text_head=TextHead("pre_classifier", "classifier", "relu"),
    token_head="classifier",
    without_effect=BOTH_WAYS,
    copies={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
)
