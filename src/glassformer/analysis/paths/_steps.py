"""The stack that ends in the logits, with patterns and norm scales of a run held fixed: sub-layers as affine maps.

Each `Step` applies its sub-layer forwards, to an addend of the stream, or backwards, to a direction of the stream
above it; all heads in one product, any axes in front. `Steps` walks them in order. MLPs and cross-attention (whose
values come from another stack) are no linear maps of the stream: they take part as the write that was recorded.
"""

import dataclasses
from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.analysis._run import Run
from glassformer.analysis.components import head_labels, require_pattern, vector_sites
from glassformer.analysis.frozen.norm import FrozenNorm
from glassformer.attention import AttentionLayer, per_query_head
from glassformer.errors import AnalysisUnavailable
from glassformer.models import ModelLike, SubLayer, require_model
from glassformer.models.embedding import Unembedding

Stream = Float[Tensor, "*n batch pos d_model"]
Mixed = Float[Tensor, "*n batch head pos d_z"]
# where values are found: at each position, once for each value stream
Placed = Float[Tensor, "*n batch head place d_z"]


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """One sub-layer, frozen.

    Args:
        layer: The sub-layer, and where it lies.
        before: The norm it reads through.
        on_write: The norm that its write passes before it is added.
        on_stream: The norm that the whole stream passes behind it.
        pattern: Of self-attention, `batch head query key`; of several value streams side by side, `(value_stream key)`.
        factor: What mixed values are multiplied by (gain and gate), `batch head pos d_z`; None for one.
        scale: What they are divided by first, `batch head pos`; None for one.
        recorded: What any other sub-layer wrote, `batch pos d_model`.
        opened: What a gate multiplies mixed values by before their norm, `batch head pos d_z`; None where none does.
        value_factor: What values are multiplied by behind their matrix, `batch head place d_z`: one over what a norm
            between their matrices divides by, or the slope of a covariance; None for one.
        value_shift: What is added to them before that; None for nothing.
    """

    layer: SubLayer
    before: FrozenNorm
    on_write: FrozenNorm
    on_stream: FrozenNorm
    pattern: Tensor | None = None
    factor: Tensor | None = None
    scale: Tensor | None = None
    recorded: Tensor | None = None
    opened: Tensor | None = None
    value_factor: Tensor | None = None
    value_shift: Tensor | None = None

    @property
    def attention(self) -> AttentionLayer | None:
        """The layer if it is self-attention, which is split into heads."""
        return self.layer.self_attention

    @property
    def n_heads(self) -> int:
        return 0 if self.attention is None else self.attention.dims.n_heads

    @property
    def labels(self) -> list[str]:
        """Names of its heads."""
        return [] if self.attention is None else head_labels(self.layer)

    @property
    def pattern_labels(self) -> list[str]:
        """Names of its patterns: those of its heads or, where they have several values, `L0H1/0` for each of them."""
        n = 1 if self.attention is None else self.attention.mixer.traits.value_streams
        return self.labels if n == 1 else [f"{label}/{i}" for label in self.labels for i in range(n)]

    @property
    def label(self) -> str:
        return self.layer.label

    @property
    def entry(self) -> int:
        """How many sub-layers have written to the stream it reads."""
        return self.layer.entry

    def mix(self, x: Stream, *, bias: bool = False, live: bool = False, value: int | None = None) -> Mixed:
        """Return the mixed values of every head, ready for the output matrix, from an addend of what is read.

        Args:
            x: An addend of the stream; the whole stream with `bias`.
            bias: Add what the norm's and the values' biases give.
            live: Norms divide by the scale of what they are given. Gates stay as they were.
            value: Which of several values of each head; None for all of them, which add up.
        """
        values, (factor, _) = self.values(x, bias=bias, live=live), self._held(x, bias, live)
        values, pattern = values if factor is None else values * factor, self._attention[1]
        if value is not None:
            own = self._places(value)
            values, pattern = values[..., own, :], pattern[..., own]
        return self._scaled(pattern @ values, live)

    def pattern_of(self, row: int) -> Float[Tensor, "batch query key"]:
        """Return one pattern, in the order of `pattern_labels`."""
        part, pattern = self._attention
        head, value = divmod(row, part.mixer.traits.value_streams)
        return pattern[:, head, :, self._places(value)]

    def _places(self, value: int) -> slice:
        """Return the places of one value of each head among those of all."""
        part, pattern = self._attention
        n = pattern.shape[-1] // part.mixer.traits.value_streams
        return slice(value * n, (value + 1) * n)

    def values(self, x: Stream, *, bias: bool = False, live: bool = False) -> Placed:
        """Return what every head finds at each position, before any mixing and less `value_factor`; as for `mix`.

        They are addends of z: of several value streams one after the other, `(value_stream pos)`.
        """
        part, pattern = self._attention
        read = self.before(x, bias=bias, live=live)
        values = torch.einsum("...td,shde->...shte", read, _value_matrices(part))
        own, shift = (_value_bias(part), self._held(x, bias, live)[1]) if bias else (None, None)
        values = per_query_head(values if own is None else values + own[..., None, :], pattern)
        values = values.movedim(-4, -3).flatten(-3, -2)
        return values if shift is None else values + shift

    def by_position(self, each: Float[Tensor, "*n places"]) -> Float[Tensor, "*n pos"]:
        """Return what there is of each place of `values` by position: sums over value streams."""
        return each.unflatten(-1, (self._attention[0].mixer.traits.value_streams, -1)).sum(-2)

    def constant(self, g: Placed) -> Float[Tensor, "head n"] | None:
        """Return what the part of `values` that is the same at every position adds along directions of them."""
        part, _ = self._attention
        norm, own = self.before.bias, _value_bias(part)
        shift = None if norm is None else norm @ _value_matrices(part)
        each = own if shift is None else shift if own is None else own + shift
        held = None if self.value_shift is None else torch.einsum("nbhpe,bhpe->hn", g, self.value_shift)
        if each is None:
            return held
        each = self._per_query_head(each, 1)
        found = torch.einsum("n b h s t e, s h e -> h n", g.unflatten(-2, (len(each), -1)), each)
        return found if held is None else found + held

    def write(self, z: Mixed) -> Stream:
        """Return what all heads together write, output bias aside."""
        part, _ = self._attention
        return torch.einsum("...hte,hed->...td", z, part.merge.matrix())

    def write_per_head(self, z: Mixed, heads: slice = slice(None)) -> Float[Tensor, "*n batch some pos d_model"]:
        """Return what each head writes, or each of some."""
        part, _ = self._attention
        return z[..., heads, :, :] @ part.merge.matrix()[heads]

    @property
    def bias(self) -> Float[Tensor, " d_model"] | None:
        """What attention writes whatever it reads: its output bias."""
        return None if self.attention is None else self.attention.merge.output.bias

    def behind(self, write: Stream, *, bias: bool = False, live: bool = False) -> Stream:
        """Return a write as it enters the stream: through the norm on it in a sandwich block."""
        return self.on_write(write, bias=bias, live=live)

    def passed(self, x: Stream, written: Stream | None = None, *, bias: bool = False, live: bool = False) -> Stream:
        """Return an addend of the stream below as it is above the sub-layer.

        Args:
            x: The addend, or the whole stream.
            written: What enters the stream here, as `behind` gives it; nothing by default.
            bias: Whether the norm on the stream adds its bias, as it does to a whole stream.
            live: Whether it divides by the scale of what it is given.
        """
        x = self.layer.remainder(x)
        return self.on_stream(x if written is None else x + written, bias=bias, live=live)

    def written(self, u: Stream) -> Stream:
        """Return a direction of the stream above as a direction of what the sub-layer writes."""
        return self.on_write.adjoint(self.on_stream.adjoint(u))

    def below(self, u: Stream) -> Stream:
        """Return a direction of the stream above as a direction of the stream it is added to."""
        return self.layer.remainder(self.on_stream.adjoint(u))

    def mixed(self, u: Stream) -> Mixed:
        """Return a direction of what is written as a direction of what `mix` returns."""
        part, _ = self._attention
        return torch.einsum("...td,hed->...hte", u, part.merge.matrix())

    def valued(self, u: Stream) -> Placed:
        """Return a direction of what is written as a direction of each head's `values`, where they come from."""
        g = self._attention[1].mT @ self._scaled(self.mixed(u), False)
        return g if self.value_factor is None else g * self.value_factor

    def read(self, g: Placed) -> Float[Tensor, "head *n batch pos d_model"]:
        """Return a direction of each head's values as a direction of the stream that the head reads; heads in front."""
        part, _ = self._attention
        matrices = self._per_query_head(_value_matrices(part), 1)
        u = torch.einsum("...hste,shde->h...td", g.unflatten(-2, (len(matrices), -1)), matrices)
        return self.before.adjoint(u)

    @property
    def _attention(self) -> tuple[AttentionLayer, Tensor]:
        assert self.attention is not None and self.pattern is not None, "only self-attention is split into heads"
        return self.attention, self.pattern

    def _per_query_head(self, each: Tensor, axis: int) -> Tensor:
        return each.repeat_interleave(self.n_heads // each.shape[axis], axis)

    def _held(self, x: Stream, bias: bool, live: bool) -> tuple[Tensor | None, Tensor | None]:
        """Return `value_factor` and `value_shift`; as they would be where x is read, with `live`."""
        if self.value_factor is None or not live:
            return self.value_factor, self.value_shift
        return _value_map(self._attention[0], self.before(x, bias=bias, live=True))

    def _scaled(self, z: Mixed, live: bool) -> Mixed:
        part, _ = self._attention
        scale = self.scale
        if scale is not None and live:
            normed = z if self.opened is None else z * self.opened
            scale = part.merge.size(normed.flatten(0, -4)).view(z.shape[:-1])
        z = z if scale is None else z / scale[..., None]
        return z if self.factor is None else z * self.factor


@dataclasses.dataclass(frozen=True, eq=False)
class Steps:
    """All sub-layers in order, what enters the stack, and what reads it at the end.

    Args:
        steps: The sub-layers.
        token: Token vectors as they enter the stack, `batch pos d_model`.
        position: Position vectors likewise, or None.
        final: The norm before the unembedding.
        unembed: The unembedding.
        entry_bias: What a norm on token and position vectors adds by its bias, or None.
    """

    steps: tuple[Step, ...]
    token: Tensor
    position: Tensor | None
    final: FrozenNorm
    unembed: Unembedding
    entry_bias: Float[Tensor, " d_model"] | None = None

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    @property
    def start(self) -> Float[Tensor, "batch pos d_model"]:
        """What enters the stack."""
        x = self.token if self.position is None else self.token + self.position
        return x if self.entry_bias is None else x + self.entry_bias

    @property
    def depth(self) -> int:
        """The most heads a path can pass: attention sub-layers, those that read one stream counted once."""
        return len({step.entry for step in self.steps if step.n_heads})

    @property
    def left_whole(self) -> list[str]:
        """Labels of sub-layers that take part as they were recorded."""
        return [step.label for step in self.steps if step.attention is None]

    def logits(self, x: Stream, *, live: bool = False) -> Float[Tensor, "*n batch pos vocab"]:
        """Return the logits of a whole stream, capped if the model caps them."""
        return self.unembed.logits(self.final(x, bias=True, live=live))

    def loss(self, x: Stream, targets: Int[Tensor, "batch pos"], *, live: bool = False) -> Float[Tensor, "batch pos"]:
        """Return the loss of each target under a whole stream, in nats."""
        return -self.unembed.log_prob(self.final(x, bias=True, live=live), targets)

    def streams(self, *, heads: bool = True) -> list[Float[Tensor, "batch pos d_model"]]:
        """Return what each sub-layer reads; without `heads`, as it would be if no head wrote anything."""
        x, streams, read = self.start, [self.start], list[Tensor]()
        for step in self.steps:
            read.append(streams[step.entry])
            if step.recorded is not None:
                out = step.recorded
            else:
                out = step.write(step.mix(read[-1], bias=True)) if heads else torch.zeros_like(x)
            out = out if step.bias is None else out + step.bias
            x = step.passed(x, step.behind(out, bias=True), bias=True)
            streams.append(x)
        return read

    def down(self, u: Stream, entry: int | None = None) -> Iterator[tuple[int, Stream, Stream]]:
        """Carry a direction of the stream down, from above the first `entry` sub-layers.

        Yields:
            For each sub-layer, last one first: its index, the direction of what it writes, and of the stream above it.
            At the end index -1 with the direction of what enters the stack, twice.
        """
        for i in reversed(range(len(self.steps) if entry is None else entry)):
            yield i, self.steps[i].written(u), u
            u = self.steps[i].below(u)
        yield -1, u, u


def step_sites(model: ModelLike) -> list[str]:
    """Return the sites that a frozen stack is made of, to be passed as `read=`.

    Raises:
        NoPattern: A mechanism has no pattern that multiplies values.
    """
    model = require_model(model)
    found, final = vector_sites(model.output_embed), model.output_stack.final
    for layer in model.sub_layers():
        found += [norm.at_scale for norm in layer.norms]
        part = layer.self_attention
        if part is None:
            found.append(layer.at_out)
            continue
        require_pattern(part, "a path through heads")
        found.append(part.at.pattern)
        found += [*layer.multiplier_sites, *([layer.at_read] if _holds_values(part) else [])]
    found += [final.at_scale] if not final.identity else []
    return found + ([] if model.unembed.cap is None else [model.unembed.at_raw])


def steps_of(run: Run, analysis: str) -> Steps:
    """Return the frozen stack of a run that read `step_sites(model)`.

    Raises:
        SiteNotRead: The run lacks a site.
        NoPattern: A mechanism has no pattern that multiplies values.
    """
    model = require_model(run.model, analysis)
    require_steps(model, analysis)
    run.require(step_sites(model), analysis)

    def read(site: str) -> Tensor:
        return run[site].values.detach()

    steps: list[Step] = []
    for layer in model.sub_layers():
        before, on_write, on_stream = (
            FrozenNorm.of(norm, read) for norm in (layer.before, layer.write_norm, layer.stream_norm)
        )
        part = layer.self_attention
        if part is None:
            steps.append(Step(layer, before, on_write, on_stream, recorded=read(layer.at_out)))
            continue
        pattern, scale = _side_by_side(part, read), None if part.merge.linear else read(part.at.z_scale)
        gate = None if part.merge.gate is None else read(layer.at_gate)
        value_factor, value_shift = _value_map(part, read(layer.at_read)) if _holds_values(part) else (None, None)
        factor = _factor(part, pattern, gate)
        opened = None if gate is None or not part.merge.gates_first else part.merge.openings(gate).detach()
        steps.append(
            Step(
                layer, before, on_write, on_stream, pattern=pattern, factor=factor, scale=scale,
                opened=opened, value_factor=value_factor, value_shift=value_shift,
            )
        )  # fmt: skip
    embed = model.output_embed
    entry, final = FrozenNorm.of(embed.norm, read), FrozenNorm.of(model.output_stack.final, read)
    position = None if embed.positions is None else entry(read(embed.at_position))
    return Steps(tuple(steps), entry(read(embed.at_token)), position, final, model.unembed, entry.bias)


def require_steps(model: ModelLike, analysis: str) -> None:
    """Raise unless every self-attention layer below the logits has a pattern that multiplies linear values.

    Raises:
        NoPattern: One has no such pattern.
        AnalysisUnavailable: Values of one are no sums even with scales frozen, or the logits are no linear function of
            the stream, norms frozen.
    """
    require_model(model, analysis).unembed.require_linear(analysis)
    for layer in model.sub_layers():
        if (part := layer.self_attention) is not None:
            require_pattern(part, analysis)
            _require_linear_values(part, analysis)


def _require_linear_values(part: AttentionLayer, analysis: str) -> None:
    if not part.projection.values_by_position:
        raise AnalysisUnavailable(
            f"{analysis}: layer {part.dims.layer} mixes values with those just before them "
            f"({part.config.projection.kind}), so they are no maps of single positions.\n"
            "    Direct logit attribution needs none: analysis.attribution.direct_logit_attribution(run)."
        )
    departs = part.projection.departs("values")
    if departs is not None and not departs.once_frozen:
        raise AnalysisUnavailable(
            f"{analysis}: layer {part.dims.layer} {departs.how}, so they are no sum over what was written to the "
            "stream.\n    Direct logit attribution needs none: analysis.attribution.direct_logit_attribution(run)."
        )


def require_attention_only(steps: Steps, analysis: str, advice: str) -> None:
    """Raise `AnalysisUnavailable` if some sub-layer is not split into heads."""
    if steps.left_whole:
        raise AnalysisUnavailable(
            f"{analysis} is exact for stacks of self-attention; this one also has {', '.join(steps.left_whole)}.\n"
            f"    {advice}"
        )


def _side_by_side(part: AttentionLayer, read: Callable[[str], Tensor]) -> Float[Tensor, "batch head query places"]:
    """Return patterns of all value streams over all places of `Step.values`."""
    pattern = read(part.at.pattern)
    return pattern if part.mixer.traits.value_streams == 1 else pattern.movedim(1, -2).flatten(-2)


def _value_matrices(part: AttentionLayer) -> Float[Tensor, "value_stream kv_head d_model d_z"]:
    """Return what makes values of what is read, as addends of z."""
    return _addends(part, part.projection.matrix("value"))


def _value_bias(part: AttentionLayer) -> Float[Tensor, "value_stream kv_head d_z"] | None:
    bias = part.projection.qkv.bias
    if bias is None:
        return None
    return _addends(part, bias.split(part.projection.widths)[2].unflatten(0, (part.dims.n_kv_heads, 1, -1)))[..., 0, :]


def _addends(part: AttentionLayer, rows: Float[Tensor, "kv_head n d_values"]) -> Tensor:
    # values of several streams lie side by side
    n = part.mixer.traits.value_streams
    return part.mixer.addends(rows if n == 1 else rows.unflatten(-1, (n, -1)).movedim(-2, 0))


def _holds_values(part: AttentionLayer) -> bool:
    """Whether values are affine in what is read only with numbers of a run held."""
    departs = part.projection.departs("values")
    return departs is not None and departs.once_frozen


@torch.no_grad()
def _value_map(part: AttentionLayer, x: Stream) -> tuple[Placed, Placed | None]:
    """Return what values are multiplied by behind their matrix, and what is added before, where a stream is read."""
    held, n = part.projection.held_values(x), part.mixer.traits.value_streams

    def placed(u: Tensor) -> Placed:
        # z may hold several values side by side: each is as wide as it is, then
        u = u if n == 1 else u.expand(*u.shape[:-4], n, *u.shape[-3:-1], part.dims.d_value)
        heads = part.mixer.addends(u).repeat_interleave(part.dims.n_heads // u.shape[-3], -3)
        return heads.movedim(-4, -3).flatten(-3, -2)

    return placed(1 / held.scale), None if held.shift is None else placed(held.shift * held.scale)


def _factor(part: AttentionLayer, pattern: Tensor, gate: Tensor | None) -> Tensor | None:
    """Return gain and gate on mixed values, what its norm divides by left out."""
    if not part.merge.multiplies:
        return None
    ones = pattern.new_ones(pattern.shape[:3])
    return part.merge.multiplier(ones.mT if gate is None else gate, None if part.merge.linear else ones).detach()
