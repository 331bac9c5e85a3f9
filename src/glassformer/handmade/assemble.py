"""From matrices on paper to a decoder: heads as four matrices each, MLPs as three, and what is done to the model."""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.attention import (
    Attention,
    AttentionLayer,
    Merge,
    MixerConfig,
    NoPositions,
    PositionsConfig,
    ProjectionConfig,
    Separate,
    Softmax,
)
from glassformer.attention.linear_map import ScaledMap
from glassformer.config import require
from glassformer.data.tokenizer import symbol_tokenizer
from glassformer.models import BlockConfig, Decoder, DecoderConfig, Learned, Mlp, NoNorm
from glassformer.models.experts import ExpertsLayer
from glassformer.models.mlp import MlpLayer
from glassformer.numerics import decompositions


class HeadMatrices(NamedTuple):
    """The weights of one attention head, row-vector convention: `query = x @ W_Q`, `write = z @ W_O`."""

    query: Float[Tensor, "d_model d_head"]
    key: Float[Tensor, "d_model d_head"]
    value: Float[Tensor, "d_model d_value"]
    output: Float[Tensor, "d_value d_model"]

    @classmethod
    def zero(cls, d_model: int, d_head: int, d_value: int | None = None) -> "HeadMatrices":
        """A head that looks everywhere alike and writes nothing: a blank to fill, or a bystander."""
        d_value = d_value or d_head
        query, key, value = (torch.zeros(d_model, n, dtype=torch.float64) for n in (d_head, d_head, d_value))
        return cls(query, key, value, torch.zeros(d_value, d_model, dtype=torch.float64))


class MlpMatrices(NamedTuple):
    """The weights of one gated MLP, row-vector convention: `relu(x @ gate) * (x @ input) @ output`, without biases.

    A gate that is never negative makes it a product, an input that is one makes it a rectifier.
    """

    gate: Float[Tensor, "d_model neuron"]
    input: Float[Tensor, "d_model neuron"]
    output: Float[Tensor, "neuron d_model"]


def layout(**sizes: int) -> dict[str, slice]:
    """Blocks of coordinates side by side: `layout(token=3, output=3)["output"] == slice(3, 6)`."""
    places: dict[str, slice] = {}
    start = 0
    for name, size in sizes.items():
        places[name] = slice(start, start + size)
        start += size
    return places


def assemble(
    embed: Float[Tensor, "vocab d_model"],
    unembed: Float[Tensor, "output d_model"],
    layers: Sequence[Sequence[HeadMatrices]] = (),
    *,
    symbols: Sequence[str],
    outputs: Sequence[str] | None = None,
    max_len: int,
    positions: Float[Tensor, "max_len d_model"] | None = None,
    mixer: MixerConfig | None = None,
    attention_positions: PositionsConfig | None = None,
    projection: ProjectionConfig | None = None,
    mlps: Sequence[MlpMatrices] = (),
) -> Decoder:
    """Build a decoder from matrices: float64, no norms, no biases, scores as they are, attention alone by default.

    Args:
        embed: W_E.
        unembed: W_U, a row per token.
        layers: The heads of each layer; heads of one layer have one shape.
        symbols: Names of the tokens, in id order; texts are symbols with spaces between.
        outputs: Names of what logits are of, where these are not the tokens; the tokens by default.
        max_len: Longest context.
        positions: Vectors added to the stream, a row per position.
        mixer: The mechanism; softmax of the bare scores by default.
        attention_positions: Positions inside attention.
        projection: How queries, keys and values are made; a plain linear map each by default.
        mlps: The MLP behind each layer's heads; none by default.

    Raises:
        ConfigError: There are MLPs, and not one for each layer.
    """
    require(
        len(mlps) in (0, len(layers)),
        f"assemble: an MLP stands behind the heads of each layer; found {len(mlps)} for {len(layers)} layers.",
    )
    configs = []
    for i, heads in enumerate(layers):
        _, d_head = heads[0].query.shape
        d_value = heads[0].value.shape[1]
        attention = Attention(
            n_heads=len(heads),
            d_head=d_head,
            d_value=None if d_value == d_head else d_value,
            mixer=mixer or Softmax(scale=1.0),
            positions=attention_positions or NoPositions(),
            projection=projection or Separate(),
        )
        behind = [Mlp(mlps[i].gate.shape[1], "relu", gated=True, bias=False)] if mlps else []
        configs.append(BlockConfig((attention, *behind), NoNorm()))
    vocab_size, d_model = embed.shape
    config = DecoderConfig(
        vocab_size,
        d_model,
        tuple(configs),
        max_len=max_len,
        positions=None if positions is None else Learned(),
        final_norm=NoNorm(),
        tied=False,
        output_vocab_size=None if outputs is None else len(unembed),
    )
    model = config.build().double().eval()
    with torch.no_grad():
        model.embed.weight.copy_(embed)
        model.unembed.weight.copy_(unembed)
        if positions is not None:
            _position_table(model).copy_(positions)
        for i, heads in enumerate(layers):
            block = cast(Any, model.stack.blocks[i])
            for h, head in enumerate(heads):
                _write(block.attn, h, head)
            for name, matrix in mlps[i]._asdict().items() if mlps else ():
                getattr(block.mlp, name).weight.copy_(matrix.mT)
    model.tokenizer = symbol_tokenizer(list(symbols))
    if outputs is not None:
        model.output_tokenizer = symbol_tokenizer(list(outputs))
    return model


def plant(model: Decoder, layer: int, head: HeadMatrices) -> Decoder:
    """A copy of a model with one more head, the last of its layer.

    Raises:
        ConfigError: The head's matrices do not have the layer's shapes, or the layer is not one of plain heads: biases,
            norms, gates, sinks, shared keys, ALiBi, or other parts beside attention.
    """
    old = _attention(model, layer)
    config, dims = old.config, old.dims
    shapes = [(dims.d_model, dims.d_head)] * 2 + [(dims.d_model, dims.d_value), (dims.d_value, dims.d_model)]
    require(
        [tuple(matrix.shape) for matrix in head] == shapes,
        f"plant: the head's matrices are {[tuple(m.shape) for m in head]}; layer {layer} takes {shapes}.",
    )
    require(
        (config.projection, config.merge) == (Separate(), Merge())
        and (dims.n_kv_heads, old.mixer.traits.streams) == (dims.n_heads, 1)
        and not old.positions.has_bias
        and not list(old.mixer.parameters()),
        f"plant: layer {layer} has biases, norms, gates or sinks of its own, heads that share keys, or a position bias "
        "that goes by the number of heads; it takes plain heads only.",
    )
    wider = config.replace(n_heads=dims.n_heads + 1, n_kv_heads=None, d_head=dims.d_head, d_value=dims.d_value)
    blocks = list(model.config.layers)
    blocks[layer] = blocks[layer].replace(
        parts=tuple(wider if part == config else part for part in blocks[layer].parts)
    )
    planted = model.config.replace(layers=tuple(blocks)).build().to(model.embed.weight.dtype).eval()
    known = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in planted.named_parameters():
            if parameter.shape == known[name].shape:
                parameter.copy_(known[name])
        new = _attention(planted, layer)
        for which in ("query", "key", "value"):
            new.projection.matrix(which)[:-1] = old.projection.matrix(which)
        new.merge.matrix()[:-1] = old.merge.matrix()
        _write(new, dims.n_heads, head)
    planted.tokenizer, planted.own_tokenizers, planted.name = model.tokenizer, dict(model.own_tokenizers), model.name
    return planted


def rotated(model: Decoder, seed: int = 0) -> Decoder:
    """A copy whose stream is turned by a random rotation R: what writes becomes W R, what reads R' W.

    The model's function does not change (logits to rounding), nor does any norm, eigenvalue or composition score;
    single coordinates of the stream stop meaning anything.

    Raises:
        ConfigError: The model has a norm, positions that are no parameters, or queries, keys, values or outputs without
            a matrix, which all know the coordinates; or token vectors of another width than the stream.

    Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits" (no privileged basis).
    """
    parts = [part for layer in model.config.layers for part in layer.parts]
    attention = [part for part in parts if isinstance(part, Attention)]
    added = [part.positions.kind for part in attention]
    config = model.config
    norms = [n for layer in config.layers for n in (layer.norm, *layer.norms_after)] + [
        config.final_norm, config.embed_norm,
    ]  # fmt: skip
    table = model.embed.positions
    require(
        all(norm is None or isinstance(norm, NoNorm) for norm in norms)
        and config.d_embed is None
        and "query_key_only" not in added
        and not any(part.projection.reads_coordinates or not part.merge.output for part in attention)
        and (table is None or table.weight is not None),
        "rotated: norms, sinusoidal and query-key-only positions, and queries, keys or values that are the stream "
        "itself go by the coordinates of the stream, which a rotation mixes, and vectors narrower than the stream are "
        "none of it; it takes models without them.",
    )
    turned = model.config.build().to(model.embed.weight.dtype).eval()
    turned.load_state_dict(model.state_dict())
    d_model = model.config.d_model
    generator = torch.Generator().manual_seed(seed)
    q, r = decompositions.qr(torch.randn(d_model, d_model, generator=generator, dtype=torch.float64))
    # with the signs of r's diagonal taken out, rotations are drawn uniformly
    rotation = (q * r.diagonal().sign()).to(model.embed.weight.dtype)
    with torch.no_grad():
        # the rows of these hold stream vectors: writes, or what a dot product with the stream reads
        matrices = [turned.embed.stored] + ([] if model.config.tied else [turned.unembed.stored])
        matrices += [] if table is None else [_position_table(turned)]
        for module in turned.modules():
            if isinstance(module, AttentionLayer):
                matrices += [map.weight for map in module.projection.reads]
                matrices.append(module.merge.output.weight.mT)
                matrices += [b for b in [module.merge.output.bias] if b is not None]
                matrices += [] if module.merge.gate is None else [module.merge.gate.weight]
            if isinstance(module, MlpLayer | ExpertsLayer):
                matrices += [_stored(module.input), module.output.weight.mT]
                matrices += [b for b in [module.output.bias] if b is not None]
                matrices += [] if module.gate is None else [_stored(module.gate)]
            if isinstance(module, ExpertsLayer):
                matrices.append(module.router.weight)
                shared = (module.shared_input, module.shared_gate)
                matrices += [map.weight for map in shared if map is not None]
                matrices += [] if module.shared_output is None else [module.shared_output.weight.mT]
        for matrix in matrices:
            matrix.copy_(matrix @ rotation)
    turned.tokenizer, turned.own_tokenizers, turned.name = model.tokenizer, dict(model.own_tokenizers), model.name
    return turned


def _stored(reads: Any) -> Tensor:
    """Return the matrix of a map as it is stored: factors of its outputs know no coordinates of the stream."""
    return reads.unscaled.weight if isinstance(reads, ScaledMap) else reads.weight


def _attention(model: Decoder, layer: int) -> AttentionLayer:
    block = cast(Any, model.stack.blocks[layer])
    require(
        len(block.names) == 1 and isinstance(block.attn, AttentionLayer),
        f"layer {layer} has the parts {', '.join(block.names)}; hand-made heads live in layers of attention alone.",
    )
    return block.attn


def _position_table(model: Decoder) -> Tensor:
    table = model.embed.positions
    assert table is not None and table.weight is not None, "a learned table has weights"
    return table.weight


def _write(layer: AttentionLayer, h: int, head: HeadMatrices) -> None:
    for which, matrix in zip(("query", "key", "value"), head):
        layer.projection.matrix(which)[h] = matrix
    layer.merge.matrix()[h] = head.output
