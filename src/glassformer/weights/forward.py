"""The forward pass written out from per-head matrices: slow, obvious, and the judge of every fold.

It computes what the model computes, one head at a time in the equations' order, with mechanisms, positions and norms'
scales as the model has them. Nothing is read or edited here; for that there is the model.
"""
# torch does not type the parts of a module
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnnecessaryComparison=false

import dataclasses
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.arguments import checked
from glassformer.attention import Context
from glassformer.attention.positions import QueryKeyOnlyPositions
from glassformer.attention.projections import ProjectionInputs, Reader
from glassformer.models import SubLayer
from glassformer.models.embedding import require_ids
from glassformer.models.evaluation import computed
from glassformer.models.padding import WHOLE, Padding
from glassformer.models.stack import make_context, with_source
from glassformer.numerics.precision import wide_copy
from glassformer.weights.heads import AttentionWeights, MlpWeights
from glassformer.weights.stream import HeadWeights

READERS: tuple[Reader, ...] = ("query", "key", "value", "gate")


@checked
def logits(
    w: HeadWeights,
    tokens: Int[Tensor, "batch pos"],
    source: Int[Tensor, "batch key"] | None = None,
    *,
    lengths: Any = None,
    mask: Any = None,
    source_lengths: Any = None,
    source_mask: Any = None,
) -> Float[Tensor, "batch pos vocab"]:
    """The logits that these matrices give, before any soft cap; of a factored output layer the inner ones.

    Args:
        w: Weights, folded or augmented or as they are.
        tokens: Ids of the stack that ends in the logits.
        source: Ids for the encoder, if there is one.
        lengths: Real tokens in each row, if they are padded on the right.
        mask: 1 for each real token, in place of lengths; padding may be on the left.
        source_lengths: Of the source, as lengths.
        source_mask: Of the source, as mask.

    Raises:
        ShapeMismatch: Lengths or a mask do not fit the ids.
        AnalysisUnavailable: These are the matrices of some blocks only, or of a model that reads images.
    """
    w.require_all_layers("weights.logits", "Ask the model itself.")
    w.require_vocabulary("weights.logits")
    w = _with_wide_modules(w)
    tokens = require_ids(tokens, w.model.embeddings[w.model.output].vocab_size)
    encoded, of_source = None, WHOLE
    if w.model.source is not None:
        assert source is not None, "an encoder-decoder reads a source"
        source = require_ids(source, w.model.embeddings[w.model.source].vocab_size)
        of_source = Padding.said(source, source_lengths, source_mask)
        encoded = _stack(w, w.model.source, source, of_source)
    x = _stack(w, w.stack, tokens, Padding.said(tokens, lengths, mask), encoded, of_source)
    if (readout := w.model.unembed.readout) is not None:
        body, one = (x[..., :-1], x[..., -1:]) if w.augmented else (x, None)
        x = readout(body) if one is None else torch.cat((readout(body), one), -1)
    x = x @ w.U
    return computed(x if w.bU is None else x + w.bU, "logits")


def _with_wide_modules(w: HeadWeights) -> HeadWeights:
    """Return weights whose mechanisms, norms and experts compute in float32 at least, as their matrices are."""
    model = wide_copy(w.model)
    if model is w.model:
        return w
    parts = {layer.path: layer.part for stack in model.stacks for layer in model.sub_layers(stack)}
    return dataclasses.replace(
        w, model=model, attention=tuple(dataclasses.replace(a, module=parts[a.path]) for a in w.attention),
        mlps=tuple(dataclasses.replace(m, module=parts[m.path]) for m in w.mlps),
    )  # fmt: skip


def _stack(
    w: HeadWeights,
    name: str,
    tokens: Tensor,
    padding: Padding,
    encoded: Tensor | None = None,
    of_source: Padding = WHOLE,
) -> Tensor:
    context = make_context(
        tokens.shape[0], tokens.shape[1], tokens.device, is_causal=not w.reads_ahead(name), lengths=padding.told[0],
        start=padding.start,
    )  # fmt: skip
    if encoded is not None:
        context = with_source(context, encoded.shape[1], *of_source.told)
    x, table = w.embeddings[name][tokens], w.tables[name]
    x = w.normed(x if table is None else x + table[context.positions], w.entry_norm(name))
    entry = x
    for layer in w.model.sub_layers(name):
        entry = x if layer.entry == layer.index else entry
        out = _part(w, layer, entry, context, encoded)
        x = w.normed(_remainder(x, layer) + w.normed(out, layer.write_norm), layer.stream_norm)
    return w.normed(x, w.model.stacks[name].final)


def _remainder(x: Tensor, layer: SubLayer) -> Tensor:
    """Return what a sub-layer leaves of the stream; the constant coordinate, if there is one, passes it by."""
    width = layer.block.d_model
    return torch.cat((layer.remainder(x[..., :width]), x[..., width:]), -1)


def _part(w: HeadWeights, layer: SubLayer, entry: Tensor, context: Context, encoded: Tensor | None) -> Tensor:
    x = w.normed(entry, layer.before)
    for m in w.mlps:
        if m.path == layer.path:
            return _mlp(m, x)
    if layer.attention is None:
        # the module itself; the constant coordinate, if there is one, passes it by
        width = layer.block.d_model
        out, _ = layer.part(x[..., :width], context)
        return torch.cat((out, torch.zeros_like(x[..., width:])), -1)
    a = next(a for a in w.attention if a.path == layer.path)
    if a.crosses:
        assert encoded is not None, "cross-attention reads an encoder's output"
        assert context.source is not None, "the context was made with the source"
        return _attend(a, x, encoded, context.source)
    read = entry[..., : layer.block.d_model]
    return _attend(a, x, x, context, read if layer.before is None else layer.before(read))


def _attend(a: AttentionWeights, x: Tensor, source: Tensor, context: Context, read: Tensor | None = None) -> Tensor:
    """Mix; `read` is what the model reads, whatever was folded into the matrices: scales and mechanisms are of that."""
    module = a.module
    given = [_given(a, reader, source if reader in ("key", "value") else x, context, read) for reader in READERS]
    q, k, v = (_project(rows, matrix, bias) for rows, matrix, bias in zip(given, (a.Q, a.K, a.V), (a.bQ, a.bK, a.bV)))
    if read is not None and module.projection.norms_within and not a.scaled:
        scales = (module.projection.scales(which, read) for which in ("query", "key", "value"))
        q, k, v = (_scaled(heads, scale) for heads, scale in zip((q, k, v), scales))
    if (n := module.mixer.traits.value_streams) > 1:
        # batch kv_head key (value_stream d_value) -> batch value_stream kv_head key d_value
        v = v.unflatten(-1, (n, -1)).movedim(-2, 1)
    if isinstance(module.positions, QueryKeyOnlyPositions):
        width = module.dims.d_model
        for which, matrix, keys in (("q", a.Q_position, False), ("k", a.K_position, module.config.cross)):
            rows = module.positions.rows(width, x, context, keys)[0]
            rows = torch.cat((rows, rows.new_zeros(*rows.shape[:-1], 1)), -1) if a.augmented else rows
            placed = _project(rows, matrix, None)
            q, k = (q + placed, k) if which == "q" else (q, k + placed)
    projection, inputs = module.projection, ProjectionInputs(x, source, source, module.positions, context)
    made, _ = projection.before_rotation(tuple(projection.bent(heads) for heads in (q, k, v)), inputs)
    q, k, v = projection.placed(made, inputs)
    mixed = x if read is None else projection.shifted("mix", read, context)
    z, _ = module.mixer(q, k, v, mixed, module.positions.within(context), None, None)
    gate = None
    if a.gate is not None:
        weight, bias = a.gate
        opens = given[READERS.index("gate")]
        gate = opens @ weight if bias is None else opens @ weight + bias
    if a.gain is not None:
        z = (z if a.held else z / module.merge.scale(z, gate)[..., None]) * a.gain[:, None]
    z = z if gate is None else z * module.merge.opened_by_head(gate)
    out = torch.einsum("bhqe,hed->bqd", z, a.O)
    return out if a.bO is None else out + a.bO


def _given(a: AttentionWeights, reader: Reader, x: Tensor, context: Context, read: Tensor | None) -> Tensor:
    """Return what a matrix reads: x, or what the model reads mixed along the text, whose norm nothing is folded of."""
    projection = a.module.projection
    if read is None or not projection.shifts:
        return x
    shifted = projection.shifted(reader, read, context)
    return torch.cat((shifted, torch.ones_like(shifted[..., :1])), -1) if a.augmented else shifted


def _project(x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """Return `batch *stream head pos d`, from matrices `head *stream d_model d`."""
    rows = x[:, None, None] if matrix.ndim == 4 else x[:, None]
    out = rows @ matrix if bias is None else rows @ matrix + bias[..., None, :]
    return out.transpose(1, 2) if matrix.ndim == 4 else out


def _scaled(x: Tensor, scale: Tensor | None) -> Tensor:
    """Return heads, `batch *stream head pos d`, divided by what norms between their matrices divide by."""
    return x if scale is None else x / scale[(slice(None), *[None] * (x.ndim - 3))]


def _mlp(m: MlpWeights, x: Tensor) -> Tensor:
    read = x @ m.W_in if m.b_in is None else x @ m.W_in + m.b_in
    if m.W_gate is None:
        hidden = m.module.activation(read)
    else:
        gate = x @ m.W_gate if m.b_gate is None else x @ m.W_gate + m.b_gate
        hidden = m.module.activation(gate) * read
    out = hidden @ m.W_out
    return out if m.b_out is None else out + m.b_out
