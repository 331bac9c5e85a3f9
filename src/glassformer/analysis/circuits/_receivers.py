"""What sub-layers make of inputs that differ from receiver to receiver: queries from one stream, keys from another.

`project` takes copies of the stream, one per receiver, to queries, keys, values or gates; `attend` takes those to what
every head writes. Together they are the attention layer, cut open between its inputs.
"""

from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.attention import AttentionLayer, Context, HeadNorm
from glassformer.attention.projections import SmearedProjection
from glassformer.models import SubLayer
from glassformer.models.norms import Norm

Slot = Literal["q", "k", "v", "gate", "in"]
_WHICH: dict[str, Any] = {"q": "query", "k": "key", "v": "value"}


def normed(
    norm: Norm | None, x: Float[Tensor, "*n d_model"], like: Tensor | None = None
) -> Float[Tensor, "*n d_model"]:
    """Apply a norm over any axes in front; with `like`, it divides by the scale of that stream."""
    if norm is None:
        return x
    if like is not None and not norm.identity:
        return norm.affine(x, norm.scale(like))
    return norm(x.reshape(-1, *x.shape[-2:])).reshape(x.shape)


def read_norm(step: SubLayer, slot: str) -> Norm | None:
    """Return the norm that a receiver reads through: none in post-norm blocks, nor of an encoder's output."""
    return None if step.crosses and slot in ("k", "v") else step.before


def project(
    step: SubLayer,
    slot: str,
    x: Float[Tensor, "receiver batch pos d_model"],
    index: Tensor,
    context: Context,
    like: Tensor | None = None,
) -> Tensor:
    """Return what receivers of one kind make of a stream each, before keys are smeared and positions rotate.

    Args:
        step: Their sub-layer.
        slot: Their kind.
        x: What each reads, before the norm.
        index: Which heads (or key heads) they are.
        context: Of self-attention, with that of the source inside.
        like: Stream whose scale the norm divides by; that of `x` by default.

    Returns:
        `batch [stream] receiver pos d_head` of queries and keys, `batch receiver pos d_value` of values and gates, and
        `batch pos d_model` of an MLP's input.
    """
    x = normed(read_norm(step, slot), x, like)
    if slot == "in":
        return x[0]
    part = step.attention
    assert part is not None
    if slot == "gate":
        assert part.merge.gate is not None
        gate = part.merge.gate.weight.unflatten(0, (part.dims.n_heads, -1))[index]
        return torch.einsum("rnpd,red->nrpe", x, gate)
    inner = context.source if step.crosses else context
    assert inner is not None
    if slot == "q":
        x = part.positions.inputs(x, x, inner)[0]
    elif slot == "k":
        # the other argument only has to be another tensor: keys of another sequence have positions of their own
        x = part.positions.inputs(x[:, :1, :1], x, inner)[1]
    projection, i = part.projection, ("q", "k", "v").index(slot)
    norm = None if slot == "v" or projection.norms is None else projection.norms[i]
    if norm is not None and norm.couples_heads:
        return _of_all_heads(part, norm, slot, x, index)
    y = torch.einsum("rnpd,rde->nrpe", x, projection.matrix(_WHICH[slot])[index])
    if projection.qkv.bias is not None:
        heads = part.dims.n_heads if slot == "q" else part.dims.n_kv_heads
        y = y + projection.qkv.bias.split(projection.widths)[i].unflatten(0, (heads, -1))[index][:, None]
    y = projection.clipped(y)
    if slot == "v":
        return y
    if (streams := projection.streams) > 1:
        y = y.unflatten(-1, (streams, part.dims.d_head)).permute(0, 3, 1, 2, 4)
    return y if norm is None else norm(y, index)


def _of_all_heads(part: AttentionLayer, norm: HeadNorm, slot: str, x: Tensor, index: Tensor) -> Tensor:
    """Return queries or keys that divide by a scale of all heads: receivers project them all, and keep their own."""
    projection, i = part.projection, ("q", "k").index(slot)
    matrix = projection.matrix(_WHICH[slot])
    y = torch.einsum("rnpd,hde->rnhpe", x, matrix)
    if projection.qkv.bias is not None:
        y = y + projection.qkv.bias.split(projection.widths)[i].unflatten(0, (len(matrix), -1))[:, None]
    y = projection.clipped(y).flatten(0, 1)
    if projection.streams > 1:
        y = y.unflatten(-1, (projection.streams, part.dims.d_head)).movedim(-2, 1)
    y = norm(y).unflatten(0, x.shape[:2])
    return torch.stack([y[r].select(-3, head) for r, head in enumerate(index.tolist())], -3)


def together(
    step: SubLayer, x: Float[Tensor, "batch pos d_model"], source: Tensor | None, context: Context
) -> dict[str, Tensor]:
    """Return what all receivers of an attention layer make of one stream, as `project` does, by kind."""
    part = step.attention
    assert part is not None
    x = normed(read_norm(step, "q"), x)
    inner, x_v = (context.source, source) if step.crosses else (context, x)
    assert inner is not None and x_v is not None
    x_q, x_k = part.positions.inputs(x, x_v, inner)
    q, k, v = part.projection.heads(x_q, x_k, x_v)
    q, k = part.projection.normed(q, k)
    found = {"q": q, "k": k, "v": v}
    if part.merge.gate is not None:
        found["gate"] = part.merge.gate(x).unflatten(-1, (part.dims.n_heads, -1)).transpose(1, 2)
    return found


def attend(step: SubLayer, made: dict[str, Tensor], context: Context) -> Float[Tensor, "batch pos d_z"]:
    """Return what the output matrix reads, from queries, keys, values and gates."""
    part = step.attention
    assert part is not None
    inner = context.source if step.crosses else context
    assert inner is not None
    q, k, v = made["q"], made["k"], made["v"]
    if isinstance(part.projection, SmearedProjection):
        k, _ = part.projection.smear(k, inner.positions, None)
    q, k = part.positions.written(q, k, inner)
    inner = part.positions.within(inner, q.dtype)
    # a mixer that read the stream itself would be a receiver that nobody gave an input
    poison = v.new_full((v.shape[0], q.shape[-2], part.dims.d_model), torch.nan)
    z, _ = part.mixer(q, k, v, poison, inner, None, None)
    flat = part.merge.normed(z, None if part.merge.linear else part.merge.scale(z))
    return part.merge.gated(flat, made["gate"].transpose(1, 2).flatten(-2)) if "gate" in made else flat


def head_axis(slot: str, part: AttentionLayer) -> int:
    """Return the axis of heads in what `project` gives."""
    return 2 if slot in ("q", "k") and part.projection.streams > 1 else 1
