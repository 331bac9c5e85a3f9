"""Longformer: RoBERTa whose attention is to a window, and to global tokens by matrices of their own.

Which tokens are global is no part of a checkpoint: as it is opened none are, as in the reference called without a
`global_attention_mask`. A pass names them, `model(tokens, marked=…)`, and `n_global` of the mechanism the first ones.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from glassformer.attention import Longformer
from glassformer.checkpoints.families.bert import BOTH_WAYS, encoder, head, layers
from glassformer.checkpoints.families.family import Family, Piece, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.errors import CheckpointError
from glassformer.models import EncoderConfig, LayerNorm, Learned, Mlp


def _config(fields: Fields) -> EncoderConfig:
    return encoder(
        fields,
        d_model=fields.whole("hidden_size"),
        n_heads=fields.whole("num_attention_heads"),
        # theirs is two-sided, without the token itself
        mixers=[Longformer(window // 2 + 1) for window in _windows(fields)],
        mlp=Mlp(fields.whole("intermediate_size"), fields.activation("hidden_act", "gelu")),
        n_types=fields.whole("type_vocab_size", 2),
        norm=LayerNorm(fields.number("layer_norm_eps", 1e-12)),
        # counted from the padding token's id, which stands for no position
        positions=Learned(fields.whole("pad_token_id", 1) + 1),
        activation="gelu",
    )


def _windows(fields: Fields) -> list[int]:
    """Return the window of every layer."""
    given, n_layers = fields.get("attention_window", 512), fields.whole("num_hidden_layers")
    windows = given if isinstance(given, list) else [given] * n_layers
    if len(windows) != n_layers or not all(isinstance(one, int) and one > 0 and one % 2 == 0 for one in windows):
        raise CheckpointError(
            f'"attention_window" is a positive even number, or one for each of {n_layers} layers; found {given}.'
        )
    return windows


def _table(fields: Fields, config: Any) -> Table:
    root, n_heads, theirs = "longformer", config.layers[0].parts[0].n_heads, "encoder.layer.{i}.attention.self"

    def of_head(at: int) -> Callable[[Tensor], Tensor]:
        return lambda rows: rows.unflatten(0, (n_heads, -1))[at]

    # the two streams of a head lie side by side
    streams = tuple(
        Piece(f"{root}.{theirs}.{name}{stream}", config.d_model, view=of_head(at))
        for name in ("query", "key", "value")
        for at in range(n_heads)
        for stream in ("", "_global")
    )
    return layers(root, config) | {"stack.blocks.{i}.attn.projection.qkv": streams} | head(config)


LONGFORMER = Family(
    "Longformer",
    ("longformer",),
    _config,
    _table,
    prefixes=("longformer.",),
    without_effect=BOTH_WAYS,
    ignored=("*embeddings.position_ids", "*pooler.dense.*", "lm_head.bias"),
    copies={
        "lm_head.decoder.weight": "longformer.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    token_head="classifier",
)
