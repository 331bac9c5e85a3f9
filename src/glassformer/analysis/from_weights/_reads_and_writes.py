"""What each attention layer writes into a residual stream and reads from it, and which layer comes before which.

A layer has one write, OV seen from the stream's side, and a read for queries, keys and values: QK from either side, OV
from its input. `pair_norms` turns writes and reads into norms of products.
"""
# torch does not type its linear algebra
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis.from_weights._pair_norms import Side, side
from glassformer.errors import AnalysisUnavailable
from glassformer.models import Model, SubLayer
from glassformer.models.norms import Norm
from glassformer.weights import AttentionWeights
from glassformer.weights.heads import Side as LookSide

Form = Literal["product", "read"]
Norms = Mapping[str, tuple[Tensor | None, Tensor | None]]
KINDS = ("Q", "K", "V")
SIDES: tuple[LookSide, ...] = ("query", "key")


@runtime_checkable
class Layers(Protocol):
    """Attention layers in the order of the forward pass, all in memory (`weights.of`) or read one at a time."""

    @property
    def model(self) -> Model: ...
    @property
    def norms(self) -> Norms: ...
    @property
    def folded(self) -> bool: ...
    def __iter__(self) -> Iterator[AttentionWeights]: ...
    def __len__(self) -> int: ...


def comes_before(earlier: SubLayer, later: SubLayer, kind: str) -> bool:
    """Return whether what a layer writes is on the stream that a later one's queries, keys or values read."""
    if later.crosses and kind != "Q":
        # the other stack is done before this one reads it
        return earlier.stack != later.stack
    return later.reads(earlier)


def matrices(layer: AttentionWeights) -> dict[str, Float[Tensor, "kv_head d_model rank"]]:
    """The factors that touch the stream: `write`, `Q`, `K`, `V`. Streams of a head lie side by side.

    Norms of queries and keys are in Q and K, all but their scales, which have no part in a share of norms.
    """
    body = slice(None, -1) if layer.augmented else slice(None)
    q, k = (u if u.ndim == 3 else u.movedim(1, 2).flatten(2) for u in map(layer.looking, SIDES))
    write = layer.written().mT
    return {"write": write[:, body], "Q": q[:, body], "K": k[:, body], "V": layer.V[:, body]}


def sides(
    layer: AttentionWeights,
    form: Form,
    offsets: Sequence[int],
    *,
    rooted: bool,
    half: Float[Tensor, "d_model d_model"] | None = None,
    wanted: Collection[str] = ("write", *KINDS),
) -> tuple[dict[str, Side], dict[str, str]]:
    """Return a layer's write and reads, and why those that are missing are undefined.

    Args:
        layer: The layer.
        form: `product`: reads are QK, its transpose and OV; `read`: W_Q, W_K and W_V alone.
        offsets: How far keys lie before queries, for rotary positions.
        rooted: As in `pair_norms.side`.
        half: A root of the covariance of what the layer reads: rows of the stream are weighted by it.
        wanted: Which of them.
    """
    wide = torch.promote_types(layer.Q.dtype, torch.float32)
    touching = {name: matrix.to(wide) for name, matrix in matrices(layer).items()}
    if form == "product" and layer.Q.ndim == 3:
        touching["Q"] = layer.asked(touching["Q"])
    weighted = touching if half is None else {name: half.to(wide) @ touching[name] for name in KINDS}
    moves = _moves(layer).to(wide)
    made: dict[str, Callable[[], Side]]
    if form == "read":
        made = {name: partial(_alone, touching[name], len(layer.Q), rooted) for name in KINDS}
    else:
        turned = partial(_turns, layer, offsets if layer.module.positions.rotates else ())
        made = {
            "Q": partial(_per_stream, layer, touching["Q"], weighted["K"], turned(-1), rooted),
            "K": partial(_per_stream, layer, touching["K"], weighted["Q"], turned(+1), rooted),
            "V": lambda: side(
                touching["V"] * moves, _outputs(layer, _with_gain(layer, touching["write"])), rooted=rooted
            ),
        }
    made["write"] = lambda: side(
        touching["write"], _with_gain(layer, _inputs(layer, weighted["V"] * moves)), rooted=rooted
    )
    found: dict[str, Side] = {}
    missing: dict[str, str] = {}
    for name in wanted:
        try:
            if name == "write" or (name == "V" and form == "product"):
                layer.moving("composition")
            elif form == "product":
                layer.require_bilinear("composition")
            found[name] = made[name]()
        except AnalysisUnavailable as error:
            missing[name] = str(error)
    return found, missing


def _moves(layer: AttentionWeights) -> Float[Tensor, " d_values"]:
    """Return ones at the values of a head that have an OV circuit, zeros at those that have none."""
    found = layer.V.new_zeros(layer.V.shape[-1])
    width = layer.module.dims.d_value
    for value in defined_values(layer):
        found[slice(None) if value is None else slice(value * width, (value + 1) * width)] = 1
    return found


def defined_values(layer: AttentionWeights) -> list[int | None]:
    """Return which values of a layer's heads have an OV circuit; [None] for that of heads that have one value."""
    try:
        return [one.value for one in layer.moving("composition")]
    except AnalysisUnavailable:
        return []


def norms_passed(model: Model, earlier: SubLayer, later: SubLayer) -> list[Norm]:
    """Return the norms that stand on the stream itself between a write and a read.

    Raises:
        AnalysisUnavailable: The stream is on the sphere, where a write and what was written before pass other maps.
    """
    layers = model.sub_layers(earlier.stack)[earlier.index :]
    between = [one for one in layers if later.stack != earlier.stack or one.index < later.entry]
    moved = next((one for one in between if one.rate is not None), None)
    if moved is not None:
        raise AnalysisUnavailable(
            f'composition: {moved.label} moves the stream on a sphere (wiring="spherical"), and takes away a share of '
            "what was written before: gains alone do not say what is left of it.\n"
            "    At one text: analysis.paths.virtual_heads(run)."
        )
    return [one.stream_norm for one in between if one.stream_norm is not None]


def carried(factor: Float[Tensor, "head d_model n"], norm: Norm, norms: Norms) -> Float[Tensor, "head d_model n"]:
    """Return what is left of a write behind a norm on the stream, up to the norm's scale."""
    factor = factor - factor.mean(1, keepdim=True) if norm.centred else factor
    gain = norms.get(norm.at_out, (None, None))[0]
    return factor if gain is None else factor * gain[:, None]


def _turns(layer: AttentionWeights, offsets: Sequence[int], sign: int) -> list[Any]:
    return [partial(layer.module.positions.turned, offset=sign * offset) for offset in offsets]


def _with_gain(layer: AttentionWeights, matrix: Tensor) -> Tensor:
    if layer.gain is None:
        return matrix
    matrix = matrix[layer.group] if len(matrix) < len(layer.gain) else matrix
    return matrix * layer.gain[:, None].to(matrix.dtype)


def _inputs(
    layer: AttentionWeights, values: Float[Tensor, "kv_head d_model d_values"]
) -> Float[Tensor, "kv_head n d_z"]:
    """Return what mixed values are made of: of several in a head each by itself, below each other."""
    n = layer.module.mixer.traits.value_streams
    if n == 1:
        return values
    return layer.module.mixer.addends(values.unflatten(-1, (n, -1)).movedim(-2, 0)).movedim(0, 1).flatten(1, 2)


def _outputs(layer: AttentionWeights, write: Float[Tensor, "head d_model d_z"]) -> Float[Tensor, "head n d_values"]:
    """Return what becomes of values: of several in a head each by itself, below each other."""
    traits, width = layer.module.mixer.traits, layer.module.dims.d_value
    n = traits.value_streams
    parts = write.chunk(n, -1) if traits.value_merge == "concat" else [write] * n
    return torch.cat([F.pad(part, (i * width, (n - 1 - i) * width)) for i, part in enumerate(parts)], -2)


def _alone(matrix: Tensor, heads: int, rooted: bool) -> Side:
    """Return a matrix by itself, once for each query head that uses it."""
    found = side(matrix, None, rooted=rooted)
    return Side(matrix, found.core.expand(-1, heads // len(matrix), -1, -1), rooted)


def _per_stream(layer: AttentionWeights, matrix: Tensor, other: Tensor, turns: Sequence[Any], rooted: bool) -> Side:
    """Return the reads of both maps of a head side by side: their squared norms add up."""
    n_streams = layer.module.mixer.traits.streams
    chunks = zip(matrix.chunk(n_streams, -1), other.chunk(n_streams, -1))
    parts = [side(m, o, rooted=rooted, turns=turns) for m, o in chunks]
    if n_streams == 1:
        return parts[0]
    cores = torch.cat([p.core for p in parts], -2)
    blocks = [torch.zeros_like(cores) for _ in parts]
    at = 0
    for part, block in zip(parts, blocks):
        height = part.core.shape[-2]
        block[..., at : at + height, :] = part.core
        at += height
    return Side(matrix, torch.cat(blocks, -1), rooted)
