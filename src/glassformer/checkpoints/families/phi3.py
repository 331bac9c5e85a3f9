"""Phi-3: Llama's blocks with fused maps, rotary positions on all or a part of each head, and frequencies by length."""

from typing import Any

from glassformer.attention import Softmax
from glassformer.checkpoints.families.family import Family, Piece, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.llama import LLAMA_NAMES, gated_mlp
from glassformer.checkpoints.families.rotary import rope, turned_share
from glassformer.models import DecoderConfig, RmsNorm, block, repeat

# what files written before the scaling had a name of its own call it
ALIASES = {"su": "longrope", "yarn": "longrope"}


def _config(fields: Fields) -> DecoderConfig:
    d_model, n_heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    norm = RmsNorm(fields.number("rms_norm_eps", 1e-5))
    layer = block(
        Softmax(window=fields.whole("sliding_window") if "sliding_window" in fields else None),
        n_heads=n_heads,
        n_kv_heads=fields.whole("num_key_value_heads", n_heads),
        d_head=fields.whole("head_dim", d_model // n_heads),
        positions=rope(fields, aliases=ALIASES, fraction=turned_share(fields)),
        norm=norm,
        mlp=gated_mlp(fields),
    )
    return DecoderConfig(
        fields.whole("vocab_size"),
        d_model,
        repeat(layer, fields.whole("num_hidden_layers")),
        max_len=fields.whole("max_position_embeddings", 4096),
        final_norm=norm,
        tied=fields.flag("tie_word_embeddings", False),
    )


def _table(fields: Fields, config: Any) -> Table:
    neurons = config.layers[0].parts[1].d_mlp
    both = "model.layers.{i}.mlp.gate_up_proj"
    return LLAMA_NAMES | {
        "stack.blocks.{i}.attn.projection.qkv": "model.layers.{i}.self_attn.qkv_proj",
        "stack.blocks.{i}.mlp.gate": Piece(both, 2 * neurons, view=lambda theirs: theirs[:neurons]),
        "stack.blocks.{i}.mlp.input": Piece(both, 2 * neurons, view=lambda theirs: theirs[neurons:]),
    }


PHI3 = Family(
    "Phi-3",
    ("phi3",),
    _config,
    _table,
    prefixes=("model.",),
    ignored=("*.rotary_emb.inv_freq",),
    copies={"lm_head.weight": "model.embed_tokens.weight"},
)
