"""AttentionLayer: project, position, mix, merge. The only such class; mechanisms fill its slots."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.attention.context import Context
from glassformer.attention.head_inputs import INPUTS, HeadInputs, Through, tapped, visited
from glassformer.attention.mechanisms.softmax import Softmax
from glassformer.attention.mixer import Dims, MixerConfig, Traits
from glassformer.attention.positions import NoPositions, PositionsConfig
from glassformer.attention.projections import Merge, ProjectionConfig, Separate, Smeared
from glassformer.attention.smear import SmearedState
from glassformer.config import Config, require
from glassformer.trace import Site, Tape, declare, full_names, site, wants


class SubLayerConfig(Config, family=True):
    """What a block is made of: attention, cross-attention, MLP."""

    role: ClassVar[str] = ""


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


class AttentionLayer(nn.Module):
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
        self.at_inputs = {quantity: f"{path}.{quantity}" if path else quantity for quantity in self._inputs()}
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
        inputs: HeadInputs | None = None,
    ) -> tuple[Float[Tensor, "batch pos d_model"], Any]:
        at, smear, last = self.at, self.projection.smear, None
        if isinstance(state, CrossState) and state.key is not None:
            x_q, _ = self.positions.inputs(x, x, context)
            q = self.projection.queries(x_q)
            q = q if inputs is None else self._own(inputs, "query_in", q, context)
            q, _ = self.positions.rotate(q, None, context)
            k, v = state.key, state.value
        else:
            x_v = x if source is None else source
            x_q, x_k = self.positions.inputs(x, x_v, context)
            q, k, v = self.projection(x_q, x_k, x_v)
            if inputs is not None:
                made = zip(("query_in", "key_in", "value_in"), (q, k, v))
                q, k, v = (self._own(inputs, quantity, value, context) for quantity, value in made)
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
        x_mix = x if inputs is None else self._mixed_input(inputs, x)
        if isinstance(state, CrossState):
            z, _ = self.mixer(q, k, v, x_mix, context, None, tape)
        else:
            z, state = self.mixer(q, k, v, x_mix, context, state, tape)
        if last is not None and state is not None:
            state = SmearedState(last, state)
        z = site(tape, at.z, z)
        scale = None if self.merge.linear else site(tape, at.z_scale, self.merge.scale(z))
        gate = None if inputs is None or self.merge.gate is None else self._gate(inputs, x)
        flat = self.merge.prepare(z, x, scale, gate)
        if wants(tape, at.head_out):
            out = site(tape, at.head_out, self.merge.split(flat)).sum(-3)
            out = out if self.merge.output.bias is None else out + self.merge.output.bias
        else:
            out = self.merge.output(flat)
        return site(tape, at.out, out), state

    def head_inputs(
        self,
        x: Float[Tensor, "batch pos d_model"],
        source: Float[Tensor, "batch key d_model"] | None,
        tape: Tape,
        norm: Through,
    ) -> HeadInputs | None:
        """Visit what each head reads; return what `forward` needs if some heads read a stream of their own.

        Args:
            x: What the layer reads, before the norm.
            source: What keys and values of cross-attention are made of.
            tape: Reads and edits.
            norm: What copies of the stream pass before they are projected.
        """
        if not wants(tape, *self.at_inputs.values()):
            return None
        own = visited(tape, self.at_inputs, x, source if self.config.cross else None)
        return HeadInputs(own, norm) if own else None

    def _inputs(self) -> list[str]:
        """Return the quantities of `INPUTS` that this layer has."""
        lacking = {"gate_in"} if self.config.merge.gate is None else set[str]()
        lacking |= set() if self.config.mixer.traits.reads_input else {"mix_in"}
        return [quantity for quantity in INPUTS if quantity not in lacking]

    def _own(self, inputs: HeadInputs, quantity: str, usual: Tensor, context: Context) -> Tensor:
        """Return queries, keys or values, those of heads that read a stream of their own made of that."""
        if quantity not in inputs.own:
            return usual
        of_source = self.config.cross and quantity != "query_in"

        def made(copies: Float[Tensor, "copy batch pos d_model"], heads: Tensor) -> Tensor:
            x = copies if of_source else inputs.norm(copies)
            if quantity == "query_in":
                x = self.positions.inputs(x, x, context)[0]
            elif quantity == "key_in":
                # the other argument only has to be another tensor: keys of another sequence have positions of their own
                x = self.positions.inputs(x[:, :1, :1], x, context)[1]
            return self.projection.of_heads(quantity.removesuffix("_in"), x, heads)

        return inputs.own[quantity].replaced(usual, usual.ndim - 3, made)

    def _gate(self, inputs: HeadInputs, x: Tensor) -> Float[Tensor, "batch pos d_z"]:
        """Return what opens the gate, for heads that read a stream of their own made of that."""
        assert self.merge.gate is not None, "asked for where there is one"
        matrix = self.merge.gate.weight.unflatten(0, (self.dims.n_heads, -1))
        usual = self.merge.gate(x).unflatten(-1, (self.dims.n_heads, -1)).transpose(1, 2)
        if "gate_in" in inputs.own:

            def made(copies: Float[Tensor, "copy batch pos d_model"], heads: Tensor) -> Tensor:
                return torch.einsum("cbpd,ced->bcpe", inputs.norm(copies), matrix[heads])

            usual = inputs.own["gate_in"].replaced(usual, 1, made)
        return usual.transpose(1, 2).flatten(-2)

    def _mixed_input(self, inputs: HeadInputs, x: Float[Tensor, "batch pos d_model"]) -> Tensor:
        """Return what the mechanism itself reads."""
        own = inputs.own.get("mix_in")
        if own is None:
            return x
        through = lambda stream: inputs.norm(stream[None])[0]  # noqa: E731
        return through(own.stream) if own.heads is not None else tapped(x, own.stream, through)

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

    def input_sites(self) -> Iterator[Site]:
        """Yield the sites of what each head reads, before the norm."""
        sizes = {"head": self.dims.n_heads, "kv_head": self.dims.n_kv_heads, "d_model": self.dims.d_model}
        axes = {quantity: INPUTS[quantity] for quantity in self.at_inputs}
        yield from declare(self.path, axes, sizes, layer=self.dims.layer, lazy=tuple(axes))

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
