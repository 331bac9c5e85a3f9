"""Reformer: hashed and local attention by turns, in reversible layers on two streams.

    y1 = x1 + attention(norm(x2)),    y2 = x2 + mlp(norm(y1))          both begin as the embedding

Here they are the halves of one stream: a block reads one and writes the other, and the last norm reads both. Matrices
that read or write a half hold theirs twice, for both halves, of which a norm or the block leaves one; so they are as
wide as any model's. A checkpoint that names no `hash_seed` hashes anew at every pass of the reference, and with seed 0
here. Texts of any length are read alone; the reference's numbers are those where chunks of both kinds are as long.
"""

from typing import Any

from torch import Tensor

from glassformer.attention import Attention, LocalChunks, Lsh, Tied
from glassformer.checkpoints.families.family import Family, Piece, Table
from glassformer.checkpoints.families.fields import Fields
from glassformer.errors import CheckpointError
from glassformer.models import Axial, BlockConfig, DecoderConfig, LayerNorm, Learned, Mlp, ScaleOnly


def _config(fields: Fields) -> DecoderConfig:
    fields.only("is_decoder", True, "read both ways, its first chunk would meet the last one")
    fields.only("lsh_num_chunks_before", 1, "a hashed chunk meets the one before it")
    fields.only("lsh_num_chunks_after", 0, "a hashed chunk meets the one before it")
    fields.only("tie_word_embeddings", False, "the output layer reads both streams")
    d_model, eps = fields.whole("hidden_size", 256), fields.number("layer_norm_eps", 1e-12)
    mlp = Mlp(fields.whole("feed_forward_size", 512), fields.activation("hidden_act", "relu"))
    blocks = list[BlockConfig]()
    for kind in _layers(fields):
        blocks += [
            BlockConfig(
                (_attention(fields, kind),), LayerNorm(eps, half="second"), "sandwich",
                norm_after=ScaleOnly(half="first"),
            ),
            BlockConfig((mlp,), LayerNorm(eps, half="first"), "sandwich", norm_after=ScaleOnly(half="second")),
        ]  # fmt: skip
    return DecoderConfig(
        fields.whole("vocab_size", 320),
        2 * d_model,
        tuple(blocks),
        max_len=fields.whole("max_position_embeddings", 4096),
        positions=_positions(fields),
        final_norm=LayerNorm(eps),
        tied=False,
    )


def _layers(fields: Fields) -> list[str]:
    found: Any = fields.get("attn_layers", ["local", "lsh"] * 3)
    if not found or any(kind not in ("local", "lsh") for kind in found):
        raise CheckpointError(f'"attn_layers" lists "local" and "lsh"; found {found}.')
    fields.only("num_hidden_layers", len(found), f"attn_layers lists {len(found)}")
    return list(found)


def _attention(fields: Fields, kind: str) -> Attention:
    n_heads, d_head = fields.whole("num_attention_heads", 12), fields.whole("attention_head_size", 64)
    if kind == "local":
        mixer = LocalChunks(
            chunk=fields.whole("local_attn_chunk_length", 64),
            before=fields.whole("local_num_chunks_before", 1),
            after=fields.whole("local_num_chunks_after", 0),
        )
        return Attention(n_heads, d_head=d_head, mixer=mixer)
    buckets: Any = fields.get("num_buckets", None)
    if buckets is None:
        raise CheckpointError(
            '"num_buckets" is not there: the reference takes as many as the first text it reads asks for.\n'
            "    Set it in config.json, to a power of two near twice the length over lsh_attn_chunk_length."
        )
    hashed = Lsh(
        tuple(buckets) if isinstance(buckets, list) else fields.whole("num_buckets"),
        fields.whole("lsh_attn_chunk_length", 64),
        fields.whole("num_hashes", 1),
        "library",
        fields.get("hash_seed", None) or 0,
    )
    return Attention(n_heads, d_head=d_head, mixer=hashed, projection=Tied(key="query"))


def _positions(fields: Fields) -> Axial | Learned:
    if not fields.flag("axial_pos_embds", True):
        return Learned()
    shape, widths = (fields.get(name, given) for name, given in _AXES.items())
    return Axial((shape[0], shape[1]), (widths[0], widths[1]), copies=2)


_OUTPUT_BIAS = "lm_head.decoder.bias"
_AXES = {"axial_pos_shape": [64, 64], "axial_pos_embds_dim": [64, 192]}


def _table(fields: Fields, config: Any) -> Table:
    width, top = config.d_model // 2, "reformer.embeddings"
    positions: dict[str, Any] = {
        "embed.positions.rows": Piece(f"{top}.position_embeddings.weights.0", view=_rows, shape=_grid(config, 0)),
        "embed.positions.columns": Piece(f"{top}.position_embeddings.weights.1", view=_columns, shape=_grid(config, 1)),
    }
    if isinstance(config.positions, Learned):
        name = f"{top}.position_embeddings.embedding.weight"
        positions = {"embed.positions.weight": _beside(name, config.max_len, width)}
    found: dict[str, Any] = positions | {
        "embed.matrix": _beside(f"{top}.word_embeddings.weight", config.vocab_size, width),
        "stack.final": "reformer.encoder.layer_norm",
        "unembed.matrix": "lm_head.decoder.weight",
        **({"unembed.bias": _OUTPUT_BIAS} if config.unembed_bias else {}),
    }
    for i in range(0, len(config.layers), 2):
        ours, mlp, theirs = f"stack.blocks.{i}", f"stack.blocks.{i + 1}", f"reformer.encoder.layers.{i // 2}"
        part, hidden = config.layers[i].parts[0], config.layers[i + 1].parts[0].d_mlp
        rows, attention = part.n_heads * part.d_head, f"{theirs}.attention.self_attention"
        if isinstance(part.mixer, Lsh):
            for name, own in (("query", "query_key"), ("value", "value")):
                found[f"{ours}.attn.projection.qkv.{name}.weight"] = _beside(f"{attention}.{own}.weight", rows, width)
        else:
            found[f"{ours}.attn.projection.qkv.weight"] = tuple(
                _beside(f"{attention}.{name}.weight", rows, width) for name in ("query", "key", "value")
            )
        found |= {
            f"{ours}.attn.merge.output.weight": _below(f"{theirs}.attention.output.dense.weight", width, rows),
            f"{ours}.attn_norm": f"{theirs}.attention.layer_norm",
            f"{mlp}.mlp.input.weight": _beside(f"{theirs}.feed_forward.dense.dense.weight", hidden, width),
            f"{mlp}.mlp.input.bias": f"{theirs}.feed_forward.dense.dense.bias",
            f"{mlp}.mlp.output.weight": _below(f"{theirs}.feed_forward.output.dense.weight", width, hidden),
            f"{mlp}.mlp.output.bias": _below(f"{theirs}.feed_forward.output.dense.bias", width),
            f"{mlp}.mlp_norm": f"{theirs}.feed_forward.layer_norm",
        }
    return found


def _beside(name: str, rows: int, width: int) -> Piece:
    """Return theirs twice, for both halves of what is read."""
    return Piece(name, rows, view=lambda theirs: theirs.unsqueeze(1).expand(-1, 2, -1), shape=(rows, width))


def _below(name: str, *shape: int) -> Piece:
    """Return theirs twice, for both halves of what is written."""
    return Piece(name, view=lambda theirs: theirs.expand(2, *theirs.shape), shape=shape)


def _grid(config: Any, axis: int) -> tuple[int, ...]:
    if isinstance(config.positions, Learned):
        return ()
    size, width = config.positions.shape[axis], config.positions.widths[axis]
    return (size, 1, width) if axis == 0 else (1, size, width)


def _rows(theirs: Tensor) -> Tensor:
    return theirs[:, 0]


def _columns(theirs: Tensor) -> Tensor:
    return theirs[0]


REFORMER = Family(
    "Reformer",
    ("reformer",),
    _config,
    _table,
    prefixes=("reformer.",),
    # the second name of the head's bias, of which old files hold both; alone it is added nowhere
    ignored=("*.self_mask_value_*", "*.mask_value_*", "lm_head.bias"),
    output_bias=_OUTPUT_BIAS,
)
