"""Absorb into the matrices, in a copy, what is linear: gains and biases of norms, means, value biases.

A norm is (x - mean) / scale * gain + bias. Its gain and bias go into whatever reads through it, and so does the
subtraction of the mean: the columns of what reads have none. If everything that reads a stream subtracts the mean, what
writes to it need not have one. Where rows of the pattern sum to one, value biases add a constant to the output. What is
left of each norm is the division by its scale.

What stays in place: in post-norm blocks, the norms, which normalise the stream itself; in sandwich blocks, the norm
behind a sub-layer (its scale depends on what its gain would change); a norm on the sum of token and position vectors;
key biases, which matter under rotary positions; mixtures of experts and what is mixed along a text before matrices
read it (`Shifted`), and the norms these read through.
"""
# torch does not type the parts of a module
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnnecessaryComparison=false

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.errors import AnalysisUnavailable
from glassformer.models import Model, Stack, SubLayer
from glassformer.models.norms import Norm
from glassformer.numerics.decompositions import is_finite
from glassformer.weights.heads import AttentionWeights, MlpWeights
from glassformer.weights.stream import HeadWeights

Gain = tuple[Tensor | None, Tensor | None]


def require_whole(model: Model) -> None:
    """Raise `AnalysisUnavailable` if a norm reads half of the stream."""
    halves = [name for name, norm in model.named_modules() if isinstance(norm, Norm) and norm.inside is not None]
    if halves:
        raise AnalysisUnavailable(
            f"fold: {halves[0]} reads half of the stream, whose mean and size are not those of what others read.\n"
            "    Weights as they are: weights.of(model, fold=False)."
        )


class Reading(NamedTuple):
    """What a norm does to a row once its scale is fixed."""

    gain: Tensor | None = None
    bias: Tensor | None = None
    centred: bool = False


def fold(w: HeadWeights) -> HeadWeights:
    """Return folded copies of the matrices; the model keeps its own.

    The folded matrices give the same log-probabilities (`HeadWeights.logits` does the forward pass). Logits are shifted
    by a constant per position, since the unembedding is centred over the vocabulary, unless logits are soft-capped, or
    there is one alone, which no softmax is taken over.

    Raises:
        AnalysisUnavailable: A weight is NaN or infinite, which folding would spread over all that read it; or a norm
            reads half of the stream.
    """
    _require_finite(w.model)
    require_whole(w.model)
    norms = dict(w.norms)
    attention = [_fold_attention(w, layer, norms) for layer in w.attention]
    mlps = [_fold_mlp(w, layer, norms) for layer in w.mlps]
    embeddings, tables = dict(w.embeddings), dict(w.tables)
    for name in w.embeddings:
        if all_centre(w.model, name):
            # a norm on what enters has a scale that depends on the mean, and writes one of its own
            if w.entry_norm(name) is None:
                embeddings[name] = _centred(embeddings[name])
                table = tables[name]
                tables[name] = None if table is None else _centred(table)
            attention = [centre_write(a) if a.stack == name else a for a in attention]
            mlps = [_centre_mlp(m) if m.stack == name else m for m in mlps]
    # a readout is no matrix that could absorb the norm before it
    read_on = w.model.unembed.readout is not None
    final = Reading() if read_on else _reading(w.final_norm(), norms)
    unembed = _times(final, w.U)
    out_bias = _sum(w.bU, _through(final, w.U))
    # a shift of all logits changes nothing where they are what is linear: not under a cap, nor of inner logits
    if w.model.unembed.at_linear == "logits" and w.shifts:
        unembed = _centred(unembed)
        out_bias = None if out_bias is None else _centred(out_bias)
    # folded into whatever reads through them
    for path in _read_through(w):
        norms[path] = (None, None)
    return dataclasses.replace(
        w, attention=tuple(attention), mlps=tuple(mlps), embeddings=embeddings, tables=tables, U=unembed, bU=out_bias,
        norms=norms, folded=True,
    )  # fmt: skip


def _require_finite(model: Model) -> None:
    for name, value in model.named_parameters():
        if not is_finite(value):
            raise AnalysisUnavailable(
                f'folded weights: "{name}" of this model holds numbers that are NaN or infinite, and folding would '
                "spread them.\n    Load the model anew, or undo what was done to this tensor."
            )


def augment(w: HeadWeights) -> HeadWeights:
    """Return copies with one more coordinate of the stream, always 1, whose rows are the biases.

    QK and OV are then pure products that hold all a bias does. The biases of what is written stay fields.
    """
    attention = [
        dataclasses.replace(
            a, Q=_with_row(a.Q, a.bQ), K=_with_row(a.K, a.bK), V=_with_row(a.V, a.bV), O=_with_column(a.O, 0.0),
            Q_position=_with_row(a.Q_position, None), K_position=_with_row(a.K_position, None),
            bQ=None, bK=None, bV=None, bO=None if a.bO is None else _with_column(a.bO, 0.0),
            after=None if a.after is None else _with_column(a.after, 1.0),
            gate=None if a.gate is None else (_with_row(*a.gate), None), augmented=True,
        )
        for a in w.attention
    ]  # fmt: skip
    mlps = [
        dataclasses.replace(
            m, W_in=_with_row(m.W_in, m.b_in), W_gate=None if m.W_gate is None else _with_row(m.W_gate, m.b_gate),
            W_out=_with_column(m.W_out, 0.0), b_in=None, b_gate=None,
            b_out=None if m.b_out is None else _with_column(m.b_out, 0.0),
        )
        for m in w.mlps
    ]  # fmt: skip
    embeddings = {name: _with_column(rows, 1.0) for name, rows in w.embeddings.items()}
    tables = {name: None if rows is None else _with_column(rows, 0.0) for name, rows in w.tables.items()}
    return dataclasses.replace(
        w, attention=tuple(attention), mlps=tuple(mlps), embeddings=embeddings, tables=tables, U=_with_row(w.U, w.bU),
        bU=None, augmented=True,
    )  # fmt: skip


def _fold_attention(w: HeadWeights, a: AttentionWeights, norms: dict[str, Gain]) -> AttentionWeights:
    own = _reading_of(w, a, norms)
    other = own if not a.crosses else _reading(_source(w.model).final, norms)
    return fold_attention(a, own, other)


def fold_attention(a: AttentionWeights, own: Reading, other: Reading) -> AttentionWeights:
    """Return an attention layer with what norms do to its input absorbed, and its value biases where they are constant.

    Args:
        a: The layer.
        own: Of the norm its queries read through.
        other: Of the norm its keys and values read through: the same, but in cross-attention.
    """
    folded = dataclasses.replace(
        a, Q=_times(own, a.Q), bQ=_sum(a.bQ, _through(own, a.Q)),
        K=_times(other, a.K), bK=_sum(a.bK, _through(other, a.K)),
        V=_times(other, a.V), bV=_sum(a.bV, _through(other, a.V)),
        gate=None if a.gate is None else (_times(own, a.gate[0]), _sum(a.gate[1], _through(own, a.gate[0]))),
    )  # fmt: skip
    constant_values = a.module.mixer.traits.rows_sum_to_one and a.module.projection.departs("values") is None
    if not constant_values or a.gate is not None or a.gain is not None or folded.bV is None:
        return folded
    constant = torch.einsum("he,hed->d", folded.bV[folded.group], a.O)
    return dataclasses.replace(folded, bV=None, bO=_sum(a.bO, constant))


def _fold_mlp(w: HeadWeights, m: MlpWeights, norms: dict[str, Gain]) -> MlpWeights:
    own = _reading_of(w, m, norms)
    return dataclasses.replace(
        m, W_in=_times(own, m.W_in), b_in=_sum(m.b_in, _through(own, m.W_in)),
        W_gate=None if m.W_gate is None else _times(own, m.W_gate),
        b_gate=None if m.W_gate is None else _sum(m.b_gate, _through(own, m.W_gate)),
    )  # fmt: skip


def _reading_of(w: HeadWeights, part: AttentionWeights | MlpWeights, norms: dict[str, Gain]) -> Reading:
    layer = w.sub_layers[part.path]
    return Reading() if layer.before is None or _shifts(layer) else _reading(layer.before, norms)


def _shifts(layer: SubLayer) -> bool:
    """Whether what is read through a norm is mixed along the text, zeros before it, and then read by matrices."""
    return layer.attention is not None and layer.attention.projection.shifts


def _source(model: Model) -> Stack:
    assert model.source is not None, "what crosses has a source"
    return model.stacks[model.source]


def _reading(norm: Norm, norms: dict[str, Gain]) -> Reading:
    return Reading(*norms.get(norm.at_out, (None, None)), norm.centred)


def _read_through(w: HeadWeights) -> list[str]:
    """Return the norms that `fold` absorbs, as the paths of their outputs."""
    found: list[Norm] = []
    last = None if w.model.unembed.readout is None else w.final_norm()
    # sub-layers that stay modules go on reading through their norms
    opaque = {layer.path for layer in w.opaque} | {path for path, layer in w.sub_layers.items() if _shifts(layer)}
    for stack in w.model.stacks.values():
        found += [] if stack.final is last else [stack.final]
        read = [layer.before for layer in stack.sub_layers() if layer.path not in opaque]
        found += [norm for norm in read if norm is not None]
    return [norm.at_out for norm in found if norm.at_out in w.norms]


def all_centre(model: Model, stack: str) -> bool:
    """Return whether everything that reads a stream subtracts its mean first, and nothing comes in between."""
    layers = model.sub_layers(stack)
    reads = [model.stacks[stack].final, *(layer.before for layer in layers)]
    behind = [norm for layer in layers for norm in (layer.write_norm, layer.stream_norm)]
    return all(norm is not None and norm.centred for norm in reads) and all(norm is None for norm in behind)


def centre_write(a: AttentionWeights) -> AttentionWeights:
    """Return a layer that writes no mean."""
    return dataclasses.replace(a, O=_centred(a.O), bO=None if a.bO is None else _centred(a.bO))


def _centre_mlp(m: MlpWeights) -> MlpWeights:
    return dataclasses.replace(m, W_out=_centred(m.W_out), b_out=None if m.b_out is None else _centred(m.b_out))


def _times(reading: Reading, matrix: Tensor) -> Tensor:
    matrix = matrix if reading.gain is None else matrix * reading.gain[:, None]
    return matrix - matrix.mean(-2, keepdim=True) if reading.centred else matrix


def _through(reading: Reading, matrix: Tensor) -> Tensor | None:
    return None if reading.bias is None else reading.bias @ matrix


def _sum(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    return second if first is None else first if second is None else first + second


def _centred(rows: Tensor) -> Tensor:
    return rows - rows.mean(-1, keepdim=True)


def _with_row(matrix: Tensor, row: Tensor | None) -> Tensor:
    last = torch.zeros_like(matrix[..., :1, :]) if row is None else row[..., None, :]
    return torch.cat((matrix, last), -2)


def _with_column(matrix: Tensor, value: float) -> Tensor:
    return torch.cat((matrix, torch.full_like(matrix[..., :1], value)), -1)
