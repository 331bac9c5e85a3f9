"""GPT-J and CodeGen: attention and MLP side by side behind one norm, interleaved rotary positions on part of heads."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from glassformer.attention import Rope
from glassformer.checkpoints.families.family import Family, Piece, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.checkpoints.families.llama import separate_qkv
from glassformer.models import DecoderConfig, LayerNorm, Mlp, block, repeat


def _config(fields: Fields) -> DecoderConfig:
    d_model, n_heads = fields.whole("n_embd"), fields.whole("n_head")
    norm = LayerNorm(fields.number("layer_norm_epsilon", 1e-5))
    layer = block(
        n_heads=n_heads,
        positions=Rope(pairing="interleaved", fraction=_share(fields, d_model // max(n_heads, 1))),
        norm=norm,
        mlp=Mlp(fields.whole("n_inner", 4 * d_model), fields.activation("activation_function", "gelu_new")),
        wiring="parallel",
        shared_norm=True,
    )
    return DecoderConfig(
        fields.whole("vocab_size"),
        d_model,
        repeat(layer, fields.whole("n_layer")),
        max_len=fields.whole("n_positions", 2048),
        final_norm=norm,
        tied=fields.flag("tie_word_embeddings", False),
        unembed_bias=True,
    )


def _share(fields: Fields, d_head: int) -> float:
    """Return the share of each head that turns."""
    turned = fields.whole("rotary_dim", 64)
    if not 2 <= turned <= d_head or turned % 2:
        raise fields.wrong("rotary_dim", turned, f"an even number of at most n_embd / n_head = {d_head}")
    return turned / d_head


def _table(fields: Fields, config: Any) -> Table:
    ours, theirs = "stack.blocks.{i}", "transformer.h.{i}"
    return {
        "embed.matrix": "transformer.wte.weight",
        "stack.final": "transformer.ln_f",
        "unembed.matrix": "lm_head.weight",
        "unembed.bias": "lm_head.bias",
        f"{ours}.attn_norm": f"{theirs}.ln_1",
        f"{ours}.attn.projection.qkv": separate_qkv(config, f"{theirs}.attn"),
        f"{ours}.attn.merge.output": f"{theirs}.attn.out_proj",
        f"{ours}.mlp.input": f"{theirs}.mlp.fc_in",
        f"{ours}.mlp.output": f"{theirs}.mlp.fc_out",
    }


def _codegen_table(fields: Fields, config: Any) -> Table:
    ours, theirs = "stack.blocks.{i}", "transformer.h.{i}"
    return {
        **_table(fields, config),
        f"{ours}.attn.projection.qkv": tuple(
            Piece(f"{theirs}.attn.qkv_proj", 3 * config.d_model, view=_of_quarters(which)) for which in (0, 2, 1)
        ),
    }


def _of_quarters(which: int) -> Callable[[Tensor], Tensor]:
    # written for four cores, each with a quarter of the heads: its queries, values and keys
    return lambda theirs: theirs.unflatten(0, (4, 3, -1))[:, which]


_FILES: dict[str, Any] = {
    "prefixes": ("transformer.",),
    "ignored": ("*.attn.bias", "*.attn.masked_bias", "*.attn.causal_mask", "*.attn.embed_positions"),
    "copies": {"lm_head.weight": "transformer.wte.weight"},
}
GPTJ = Family("GPT-J", ("gptj",), _config, _table, **_FILES)
CODEGEN = Family("CodeGen", ("codegen",), _config, _codegen_table, **_FILES)
