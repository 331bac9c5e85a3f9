"""The stack that ends in the logits, with patterns and norm scales of a run held fixed: sub-layers as affine maps.

Each `Step` applies its sub-layer forwards, to an addend of the stream, or backwards, to a direction of the stream
above it; all heads in one product, any axes in front. `Steps` walks them in order. MLPs and cross-attention (whose
values come from another stack) are no linear maps of the stream: they take part as the write that was recorded.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.analysis._run import Run
from glassformer.analysis.components import decoder_side, vector_sites
from glassformer.attention import AttentionLayer, per_query_head
from glassformer.errors import AnalysisUnavailable, NoPattern
from glassformer.models import Block
from glassformer.models.embedding import Unembedding
from glassformer.models.norms import Norm
from glassformer.weights import head_label

Stream = Float[Tensor, "*n batch pos d_model"]
Mixed = Float[Tensor, "*n batch head pos d_value"]


@dataclasses.dataclass(frozen=True, eq=False)
class FrozenNorm:
    """A norm and the scale it divided by, `batch pos`; no norm is the identity."""

    norm: Norm | None
    scale: Tensor | None

    def __call__(self, x: Stream, *, bias: bool = False, live: bool = False) -> Stream:
        """Apply it to an addend of the stream; with `bias` (and, if wanted, a live scale) to a whole stream."""
        norm = self.norm
        if norm is None or norm.identity:
            return x
        scale = norm.scale(x) if live else self.scale
        assert scale is not None, "a norm with a gain has a scale"
        return norm.affine(x, scale) if bias else norm.linear(x, scale)

    def adjoint(self, u: Stream) -> Stream:
        """Return a direction behind it as a direction before it."""
        norm = self.norm
        if norm is None or norm.identity:
            return u
        assert self.scale is not None
        return norm.transposed(u / self.scale[..., None])

    @property
    def bias(self) -> Float[Tensor, " d_model"] | None:
        return None if self.norm is None else self.norm.shift

    def rows(self, rows: slice) -> "FrozenNorm":
        return FrozenNorm(self.norm, None if self.scale is None else self.scale[rows])


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """One sub-layer.

    Args:
        block: Where it lies.
        name: Its name there.
        entry: How many sub-layers have written to the stream it reads; all of a parallel block read what enters it.
        before: The norm it reads through.
        after: The norm behind it: of its write in a sandwich block, of the whole stream in a post-norm block.
        attention: The layer if it is self-attention; then `pattern` is set, else `recorded`.
        pattern: `batch head query key`.
        factor: What mixed values are multiplied by (gain and gate), `batch head pos d_value`; None for one.
        scale: What they are divided by first, `batch head pos`; None for one.
        recorded: What it wrote, `batch pos d_model`.
    """

    block: Block
    name: str
    entry: int
    before: FrozenNorm
    after: FrozenNorm
    attention: AttentionLayer | None = None
    pattern: Tensor | None = None
    factor: Tensor | None = None
    scale: Tensor | None = None
    recorded: Tensor | None = None

    @property
    def n_heads(self) -> int:
        return 0 if self.attention is None else self.attention.dims.n_heads

    @property
    def labels(self) -> list[str]:
        """Names of its heads."""
        return [head_label("", self.name, self.block.layer, h) for h in range(self.n_heads)]

    @property
    def label(self) -> str:
        return f"L{self.block.layer} {self.name}"

    @property
    def post(self) -> bool:
        return self.block.wiring == "post"

    def mix(self, x: Stream, *, bias: bool = False, live: bool = False) -> Mixed:
        """Return the mixed values of every head, ready for the output matrix, from an addend of what is read.

        Args:
            x: An addend of the stream; the whole stream with `bias`.
            bias: Add what the norm's and the values' biases give.
            live: Norms divide by the scale of what they are given. Gates stay as they were.
        """
        values = self.values(x, bias=bias, live=live)
        return self._scaled(self._attention[1] @ values, live)

    def values(self, x: Stream, *, bias: bool = False, live: bool = False) -> Mixed:
        """Return what every head finds at each position, before any mixing; arguments as for `mix`."""
        part, pattern = self._attention
        x = self.before(x, bias=bias, live=live)
        values = torch.einsum("...td,hde->...hte", x, part.projection.matrix("value"))
        own = _value_bias(part) if bias else None
        return per_query_head(values if own is None else values + own[:, None], pattern)

    def constant_values(self) -> Float[Tensor, "head d_value"] | None:
        """Return the part of each head's values that is the same at every position, or None."""
        part, _ = self._attention
        norm, own = self.before.bias, _value_bias(part)
        shift = None if norm is None else norm @ part.projection.matrix("value")
        each = own if shift is None else shift if own is None else own + shift
        return None if each is None else self._per_query_head(each)

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
        """Return a write as it enters the stream: through the norm behind it in a sandwich block."""
        return write if self.post else self.after(write, bias=bias, live=live)

    def passed(self, x: Stream, *, bias: bool = False, live: bool = False) -> Stream:
        """Return an addend of the stream above the sub-layer: through its norm in a post-norm block."""
        return self.after(x, bias=bias, live=live) if self.post else x

    def written(self, u: Stream) -> Stream:
        """Return a direction of the stream above as a direction of what the sub-layer writes."""
        return self.after.adjoint(u)

    def below(self, u: Stream) -> Stream:
        """Return a direction of the stream above as a direction of the stream it is added to."""
        return self.after.adjoint(u) if self.post else u

    def mixed(self, u: Stream) -> Mixed:
        """Return a direction of what is written as a direction of what `mix` returns."""
        part, _ = self._attention
        return torch.einsum("...td,hed->...hte", u, part.merge.matrix())

    def valued(self, u: Stream) -> Mixed:
        """Return a direction of what is written as a direction of each head's values, where they come from."""
        return self._attention[1].mT @ self._scaled(self.mixed(u), False)

    def read(self, g: Mixed) -> Float[Tensor, "head *n batch pos d_model"]:
        """Return a direction of each head's values as a direction of the stream that the head reads; heads in front."""
        part, _ = self._attention
        u = torch.einsum("...hte,hde->h...td", g, self._per_query_head(part.projection.matrix("value")))
        return self.before.adjoint(u)

    def rows(self, rows: slice) -> "Step":
        """Return the step for some rows of the batch."""
        kept = {f: getattr(self, f) for f in ("pattern", "factor", "scale", "recorded")}
        kept = {f: None if t is None else t[rows] for f, t in kept.items()}
        return dataclasses.replace(self, before=self.before.rows(rows), after=self.after.rows(rows), **kept)

    @property
    def _attention(self) -> tuple[AttentionLayer, Tensor]:
        assert self.attention is not None and self.pattern is not None, "only self-attention is split into heads"
        return self.attention, self.pattern

    def _per_query_head(self, each: Tensor) -> Tensor:
        return each.repeat_interleave(self.n_heads // each.shape[0], 0)

    def _scaled(self, z: Mixed, live: bool) -> Mixed:
        part, _ = self._attention
        scale = self.scale
        if scale is not None and live:
            scale = part.merge.scale(z.flatten(0, -4)).view(z.shape[:-1])
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
        """The most heads a path can pass: attention sub-layers, those of a parallel block counted once."""
        entries = {s.entry if s.block.wiring == "parallel" else i for i, s in enumerate(self.steps) if s.n_heads}
        return len(entries)

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
            x = step.passed(x + step.behind(out, bias=True), bias=True)
            streams.append(x)
        return read

    def row(self, row: int) -> "Steps":
        """Return the steps of one row, which keeps its axis."""
        rows = slice(row, row + 1)
        position = None if self.position is None else self.position[rows]
        steps = tuple(step.rows(rows) for step in self.steps)
        return dataclasses.replace(
            self, steps=steps, token=self.token[rows], position=position, final=self.final.rows(rows)
        )

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


def step_sites(model: Any) -> list[str]:
    """Return the sites that a frozen stack is made of, to be passed as `read=`."""
    stack, embed = decoder_side(model)
    found = vector_sites(embed)
    for block in stack.blocks:
        assert isinstance(block, Block), "a stack is made of blocks"
        for name in block.names:
            found += [n.at_scale for n in _norms(block, name) if n is not None and not n.identity]
            part = _self_attention(block, name)
            if part is None:
                found.append(f"{block.path}.{name}.out")
                continue
            found.append(part.at.pattern)
            found += [] if part.merge.linear else [part.at.z_scale]
            found += [] if part.merge.gate is None else [_read_by(block, name)]
    found += [stack.final.at_scale] if not stack.final.identity else []
    return found + ([] if model.unembed.cap is None else [model.unembed.at_raw])


def steps_of(run: Run, analysis: str) -> Steps:
    """Return the frozen stack of a run that read `step_sites(model)`.

    Raises:
        SiteNotRead: The run lacks a site.
        NoPattern: A mechanism has no pattern that multiplies values.
    """
    stack, embed = decoder_side(run.model)
    require_steps(run.model, analysis)
    run.require(step_sites(run.model), analysis)
    steps: list[Step] = []
    for block in stack.blocks:
        assert isinstance(block, Block)
        entry = len(steps)
        for name in block.names:
            before, after = (_frozen(run, norm) for norm in _norms(block, name))
            at = entry if block.wiring == "parallel" else len(steps)
            part = _self_attention(block, name)
            if part is None:
                recorded = _value(run, f"{block.path}.{name}.out")
                steps.append(Step(block, name, at, before, after, recorded=recorded))
                continue
            scale = None if part.merge.linear else _value(run, part.at.z_scale)
            pattern, factor = _value(run, part.at.pattern), _factor(run, block, name, part)
            steps.append(Step(block, name, at, before, after, part, pattern, factor, scale))
    entry = _frozen(run, embed.norm)
    position = None if embed.positions is None else entry(_value(run, embed.at_position))
    token, final = entry(_value(run, embed.at_token)), _frozen(run, stack.final)
    return Steps(tuple(steps), token, position, final, run.model.unembed, entry.bias)


def require_steps(model: Any, analysis: str) -> None:
    """Raise unless every self-attention layer below the logits has a pattern that multiplies linear values.

    Raises:
        NoPattern: One has no such pattern.
        AnalysisUnavailable: One clips its values, or the logits are no linear function of the stream, norms frozen.
    """
    model.unembed.require_linear(analysis)
    for block in decoder_side(model)[0].blocks:
        for name in block.names:  # type: ignore[union-attr]
            part = _self_attention(block, name)  # type: ignore[arg-type]
            if part is not None:
                require_pattern(part, analysis)
                _require_linear_values(part, analysis)


def require_pattern(part: AttentionLayer, analysis: str) -> None:
    """Raise `NoPattern` unless mixed values are a pattern times values, up to a scale."""
    linear = part.traits.linear_in_value
    if linear not in ("exact", "scaled"):
        raise NoPattern(
            f'{analysis}: layer {part.dims.layer} uses "{part.config.mixer.kind}" (linear_in_value="{linear}"), which '
            "has no pattern that multiplies values.\n"
            "    Direct logit attribution needs none: analysis.attribution.direct_logit_attribution(run)."
        )


def _require_linear_values(part: AttentionLayer, analysis: str) -> None:
    if not part.projection.values_by_position:
        raise AnalysisUnavailable(
            f"{analysis}: layer {part.dims.layer} mixes values with those just before them "
            f"({part.config.projection.kind}), so they are no maps of single positions.\n"
            "    Direct logit attribution needs none: analysis.attribution.direct_logit_attribution(run)."
        )
    if (clip := part.projection.clip) is not None:
        raise AnalysisUnavailable(
            f"{analysis}: layer {part.dims.layer} cuts its values off at {clip:g} (clip), so they are no sum over what "
            "was written to the stream.\n"
            "    Direct logit attribution needs none: analysis.attribution.direct_logit_attribution(run)."
        )


def require_attention_only(steps: Steps, analysis: str, advice: str) -> None:
    """Raise `AnalysisUnavailable` if some sub-layer is not split into heads."""
    if steps.left_whole:
        raise AnalysisUnavailable(
            f"{analysis} is exact for stacks of self-attention; this one also has {', '.join(steps.left_whole)}.\n"
            f"    {advice}"
        )


def _norms(block: Block, name: str) -> tuple[Norm | None, Norm | None]:
    return (None if block.wiring == "post" else block.norm(name)), block.norm_after(name)


def _frozen(run: Run, norm: Norm | None) -> FrozenNorm:
    return FrozenNorm(norm, None if norm is None or norm.identity else _value(run, norm.at_scale))


def _self_attention(block: Block, name: str) -> AttentionLayer | None:
    part = block.part(name)
    return part if isinstance(part, AttentionLayer) and not part.config.cross else None


def _read_by(block: Block, name: str) -> str:
    return block.at_resid[block.names.index(name)] if block.wiring == "post" else block.norm(name).at_out


def _value(run: Run, site: str) -> Tensor:
    return run[site].values.detach()


def _value_bias(part: AttentionLayer) -> Float[Tensor, "kv_head d_value"] | None:
    bias = part.projection.qkv.bias
    return None if bias is None else bias.split(part.projection.widths)[2].unflatten(0, (-1, part.dims.d_value))


def _factor(run: Run, block: Block, name: str, part: AttentionLayer) -> Tensor | None:
    """Return gain and gate on mixed values: what merging makes of ones that need no scaling."""
    if part.merge.linear and part.merge.gate is None:
        return None
    pattern = _value(run, part.at.pattern)
    ones = pattern.new_ones(*pattern.shape[:3], part.dims.d_value)
    x = ones if part.merge.gate is None else _value(run, _read_by(block, name))
    scale = None if part.merge.linear else ones[..., 0]
    return part.merge.prepare(ones, x, scale).detach().unflatten(-1, ones.shape[1::2]).transpose(1, 2)
