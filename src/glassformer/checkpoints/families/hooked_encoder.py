"""HookedEncoder: TransformerLens' layout of BERT, one matrix per head, norms behind the sum, a masked-language head.

It shares its config with HookedTransformer's layout, and is told from it by the names of its tensors. Positions are
columns, padding on the left included. Pooling layer and next-sentence head are no part of the encoder and left unread.
"""

from typing import Any

from glassformer.checkpoints.families.family import Family, Piece, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.transformer_lens import (
    TRANSFORMER_LENS,
    check_plain,
    hooked_attention,
    hooked_layers,
    hooked_mlp,
)
from glassformer.models import EncoderConfig, LayerNorm, Learned, NoNorm, Readout


def _config(fields: Fields) -> EncoderConfig:
    fields.only("attention_dir", "bidirectional", "a HookedEncoder reads both ways")
    fields.only("positional_embedding_type", "standard", "a HookedEncoder adds learned positions")
    fields.only("attn_only", False, "a HookedEncoder has an MLP in every block")
    check_plain(fields)
    norm = LayerNorm(fields.number("eps", 1e-5))
    return EncoderConfig(
        fields.whole("d_vocab"),
        fields.whole("d_model"),
        tuple(layer.replace(norm=norm, wiring="post") for layer in hooked_layers(fields)),
        max_len=fields.whole("n_ctx"),
        positions=Learned(counts_padding=True),
        n_types=2,
        embed_norm=norm,
        final_norm=NoNorm(),
        readout=Readout("gelu", norm),
        tied=False,
        unembed_bias=True,
    )


def _table(fields: Fields, config: Any) -> Table:
    found: dict[str, Any] = {
        "embed.matrix": "embed.embed.W_E",
        "embed.positions.weight": "embed.pos_embed.W_pos",
        "embed.types": "embed.token_type_embed.W_token_type",
        "unembed.readout.input.weight": Piece("mlm_head.W", transposed=True),
        "unembed.readout.input.bias": "mlm_head.b",
        "unembed.matrix": Piece("unembed.W_U", transposed=True),
        "unembed.bias": "unembed.b_U",
    }
    norms = {
        "embed.norm": "embed.ln",
        "unembed.readout.norm": "mlm_head.ln",
        "stack.blocks.{i}.attn_norm_after": "blocks.{i}.ln1",
        "stack.blocks.{i}.mlp_norm_after": "blocks.{i}.ln2",
    }
    for ours, theirs in norms.items():
        found |= {f"{ours}.weight": f"{theirs}.w", f"{ours}.bias": f"{theirs}.b"}
    return found | dict(hooked_attention(fields, config)) | dict(hooked_mlp(fields))


HOOKED_ENCODER = Family(
    "TransformerLens encoder",
    (),
    _config,
    _table,
    ignored=("*.mask", "*.IGNORE", "pooler.*", "nsp_head.*"),
    recognise=TRANSFORMER_LENS.recognise,
    holds=("embed.embed.W_E",),
)
