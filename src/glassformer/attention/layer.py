"""AttentionLayer: project, position, mix, merge. The only such class; mechanisms fill its slots."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.attention.context import Context
from glassformer.attention.mechanisms.softmax import Softmax
from glassformer.attention.mixer import Dims, MixerConfig, Traits
from glassformer.attention.positions import NoPositions, PositionsConfig
from glassformer.attention.projections import Merge, ProjectionConfig, Separate, Smeared
from glassformer.attention.smear import SmearedState
from glassformer.attention.sub_layer import SubLayerConfig, SubLayerModule
from glassformer.config import require
from glassformer.trace import Site, Tape, declare, full_names, site, wants


@dataclass(frozen=True)
class Attention(SubLayerConfig, kind="attention"):
    """One attention layer: four slots and the sizes they share.

    Args:
        n_heads: Query heads.
        n_kv_heads: Key/value heads; `n_heads` by default. Fewer are shared by groups of query heads.
        d_head: Width of a query and key; `d_model / n_heads` by default.
        d_value: Width of a value; `d_head` times the mechanism's streams by default.
        mixer: The mechanism.
        positions: How it learns about distance.
        projection: How queries, keys and values are made.
        merge: From mixed values to what is written.
        cross: Keys and values come from another stack's output.
    """

    n_heads: int
    n_kv_heads: int | None = None
    d_head: int | None = None
    d_value: int | None = None
    mixer: MixerConfig = field(default_factory=Softmax)
    positions: PositionsConfig = field(default_factory=NoPositions)
    projection: ProjectionConfig = field(default_factory=Separate)
    merge: Merge = field(default_factory=Merge)
    cross: bool = False

    def __post_init__(self) -> None:
        for name in ("n_heads", "n_kv_heads", "d_head", "d_value"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"attention: {name} must be at least 1, found {value}.")
        groups = self.n_kv_heads or self.n_heads
        require(
            self.n_heads % groups == 0,
            f"attention: n_heads={self.n_heads} does not group into n_kv_heads={groups}; "
            "n_kv_heads must divide n_heads.",
        )
        require(
            self.mixer.crosses or not self.cross,
            f'attention: mixer "{self.mixer.kind}" as set here goes by distance, which cross-attention does not have; '
            "use one without a window or decay.",
        )
        require(
            not (self.cross and isinstance(self.projection, Smeared)),
            'attention: projection "smeared" mixes keys with those before them, which are another sequence\'s in '
            'cross-attention; use "separate" there.',
        )

    @property
    def role(self) -> str:  # type: ignore[override]
        return "cross" if self.cross else "attn"

    def dims(self, d_model: int, max_len: int, layer: int = 0) -> Dims:
        """Return all sizes with defaults filled in."""
        streams = self.mixer.traits.streams
        d_head = self.d_head
        if d_head is None:
            require(
                d_model % (self.n_heads * streams) == 0,
                f"attention: d_model={d_model} does not divide into n_heads={self.n_heads}"
                + (f" of {streams} streams" if streams > 1 else "")
                + "; change one of them or give d_head.",
            )
            d_head = d_model // (self.n_heads * streams)
        d_value = self.d_value or d_head * streams
        return Dims(d_model, self.n_heads, self.n_kv_heads or self.n_heads, d_head, d_value, max_len, layer)

    def build(self, d_model: int, max_len: int, layer: int, path: str) -> "AttentionLayer":
        return AttentionLayer(self, self.dims(d_model, max_len, layer), path)


class CrossState(NamedTuple):
    """Projected keys and values of the source; both None before the first step."""

    key: Float[Tensor, "batch kv_head key d_head"] | None = None
    value: Float[Tensor, "batch kv_head key d_value"] | None = None


class AttentionLayer(SubLayerModule):
    """Project, position, mix, merge; `source` makes it cross-attention, `state` continues earlier positions."""

    SITES: ClassVar[dict[str, str]] = {
        "query": "batch head pos d_head",
        "key": "batch kv_head key d_head",
        "value": "batch kv_head key d_value",
        "scores": "batch head query key",
        "pattern": "batch head query key",
        "z": "batch head pos d_value",
        "z_scale": "batch head pos",
        "head_out": "batch head pos d_model",
        "out": "batch pos d_model",
    }
    LAZY = ("scores", "pattern", "z_scale", "head_out")

    def __init__(self, config: Attention, dims: Dims, path: str) -> None:
        super().__init__()
        self.config, self.dims, self.path = config, dims, path
        self.at = full_names(path, self.SITES)
        self.positions = config.positions.build(dims)
        self.projection = config.projection.build(dims, config.mixer.traits.streams)  # type: ignore[attr-defined]
        self.mixer = config.mixer.build(dims, path)
        self.merge = config.merge.build(dims)
        require(
            not self.positions.has_bias or config.mixer.traits.has_scores,
            f'attention: positions "{config.positions.kind}" add to scores, but "{config.mixer.kind}" has none.',
        )

    @property
    def traits(self) -> Traits:
        """The mechanism's traits as seen from outside: what norms on z, smeared and clipped keys make of them."""
        traits = self.mixer.traits
        if self.projection.smear is not None or self.projection.clip is not None:
            # a score depends on two keys' inputs, or not linearly on any
            traits = replace(traits, bilinear_scores=False)
        if traits.linear_in_value == "exact" and not self.merge.linear:
            return replace(traits, linear_in_value="scaled")
        return traits

    def forward(
        self,
        x: Float[Tensor, "batch pos d_model"],
        context: Context,
        *,
        source: Float[Tensor, "batch key d_model"] | None = None,
        state: Any = None,
        tape: Tape | None = None,
    ) -> tuple[Float[Tensor, "batch pos d_model"], Any]:
        if self.config.cross:
            assert context.source is not None, "cross-attention needs another stack's output, and what is known of it"
            context = context.source
        else:
            source = None
        at, smear, last = self.at, self.projection.smear, None
        if isinstance(state, CrossState) and state.key is not None:
            x_q, _ = self.positions.inputs(x, x, context)
            q, _ = self.positions.rotate(self.projection.queries(x_q), None, context)
            k, v = state.key, state.value
        else:
            x_v = x if source is None else source
            x_q, x_k = self.positions.inputs(x, x_v, context)
            q, k, v = self.projection(x_q, x_k, x_v)
            if smear is not None:
                previous, state = state if isinstance(state, SmearedState) else (None, state)
                k, last = smear(k, context.positions, previous)
            q, k = self.positions.rotate(q, k, context)
        if self.positions.has_bias:
            context = context.with_bias(self.positions.bias(context).to(q.dtype))
        if isinstance(state, CrossState):
            # as they were before any edit: the next step visits the same keys again, and would edit them twice
            state = CrossState(k, v)
        assert k is not None and v is not None, "keys and values are set together"
        q = site(tape, at.query, q)
        k, v = site(tape, at.key, k), site(tape, at.value, v)
        if isinstance(state, CrossState):
            z, _ = self.mixer(q, k, v, x, context, None, tape)
        else:
            z, state = self.mixer(q, k, v, x, context, state, tape)
        if last is not None and state is not None:
            state = SmearedState(last, state)
        z = site(tape, at.z, z)
        scale = None if self.merge.linear else site(tape, at.z_scale, self.merge.scale(z))
        if wants(tape, at.head_out):
            out = site(tape, at.head_out, self.merge.per_head(z, x, scale)).sum(-3)
            out = out if self.merge.output.bias is None else out + self.merge.output.bias
        else:
            out = self.merge(z, x, scale)
        return site(tape, at.out, out), state

    def begin(self, batch: int, like: Tensor) -> Any:
        """Return the empty state."""
        if self.config.cross:
            return CrossState()
        state = self.mixer.begin(batch, like)
        if self.projection.smear is None:
            return state
        dims, streams = self.dims, self.mixer.traits.streams
        inner = (streams,) if streams > 1 else ()
        return SmearedState(like.new_zeros(batch, *inner, dims.n_kv_heads, 1, dims.d_head), state)

    def keeps(self, length: int) -> bool:
        """Whether the state after `length` positions still holds what it was after fewer; see `cut`."""
        if self.config.cross:
            return True
        return self.projection.smear is None and self.config.mixer.keeps(length)

    def cut(self, state: Any, length: int) -> Any:
        """Return the state as it was after its first `length` positions, if the layer `keeps` that."""
        return state if self.config.cross else self.mixer.cut(state, length)

    def outgrows(self, before: int, after: int) -> bool:
        # keys of another sequence are not turned by how far this one has grown
        return not self.config.cross and self.positions.outgrows(before, after)

    def flops(self, length: int, source_length: int, causal: bool) -> dict[str, int]:
        dims, (n, m) = self.dims, (length, source_length if self.config.cross else length)
        d, streams = dims.d_model, self.mixer.traits.streams
        merged = 2 * n * d * dims.n_heads * dims.d_value
        return {
            "query": 2 * n * d * dims.n_heads * streams * dims.d_head,
            "key": 2 * m * d * dims.n_kv_heads * streams * dims.d_head,
            "value": 2 * m * d * dims.n_kv_heads * dims.d_value,
            "mixing": self.config.mixer.flops(n, m, dims, causal=causal and not self.config.cross),
            "output": merged,
            "output gate": merged if self.merge.gate is not None else 0,
        }

    def state_bytes(self, length: int, source_length: int, dtype: torch.dtype) -> int:
        dims, mixer = self.dims, self.config.mixer
        if self.config.cross:
            held = source_length * dims.n_kv_heads * (mixer.traits.streams * dims.d_head + dims.d_value) * (length > 0)
            return held * dtype.itemsize
        kept = torch.promote_types(dtype, torch.float32) if mixer.wide_state else dtype
        total = mixer.state_numbers(length, dims) * kept.itemsize
        if self.projection.smear is not None:
            # the last key before it was mixed
            total += dims.n_kv_heads * mixer.traits.streams * dims.d_head * dtype.itemsize
        return total

    def sites(self) -> Iterator[Site]:
        """Yield this layer's sites: its own, less those the mechanism lacks, plus the mechanism's."""
        dims, streams = self.dims, self.mixer.traits.streams
        sizes = {"head": dims.n_heads, "kv_head": dims.n_kv_heads, "d_head": dims.d_head, "d_value": dims.d_value}
        sizes |= {"d_model": dims.d_model, "stream": streams}
        axes = dict(self.SITES)
        if streams > 1:
            for name in ("query", "key", "scores"):
                axes[name] = axes[name].replace("batch", "batch stream")
        if not self.mixer.traits.has_scores:
            del axes["scores"]
        if self.mixer.traits.linear_in_value == "no":
            del axes["pattern"]
        if self.merge.linear:
            del axes["z_scale"]
        # what a mixer says of itself lies between the scores (unless it places them too) and the pattern made of them
        before = [name for name in ("query", "key", "value", "scores") if name in axes and name not in self.mixer.SITES]
        own = {name: words for name, words in axes.items() if name not in before}
        ordered = {name: axes[name] for name in before} | dict(self.mixer.SITES) | own
        lazy = (*self.LAZY, *self.mixer.LAZY)
        yield from declare(self.path, ordered, sizes, layer=dims.layer, lazy=lazy)
