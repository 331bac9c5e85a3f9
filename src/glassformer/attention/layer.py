"""AttentionLayer: project, mix, merge, and their sites. The only such class; mechanisms fill its slots."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.arguments import Count, Rate
from glassformer.attention.context import Context
from glassformer.attention.head_inputs import INPUTS, HeadInputs, Through, tapped, visited
from glassformer.attention.head_parts import take_heads
from glassformer.attention.mechanisms.softmax import Softmax
from glassformer.attention.merge import Merge
from glassformer.attention.mixer import Dims, MixerConfig, Traits, no_pattern, per_query_head
from glassformer.attention.positions import NoPositions, Positions, PositionsConfig
from glassformer.attention.projections import ProjectionConfig, ProjectionInputs, Separate, Which
from glassformer.attention.sub_layer import Parallel, SubLayerConfig, SubLayerModule
from glassformer.attention.temperature import CoordinateScales
from glassformer.config import UNSAID, require
from glassformer.errors import AnalysisUnavailable
from glassformer.trace import Site, Tape, declare, full_names, site, wants
from glassformer.words import sentence


@dataclass(frozen=True)
class Attention(SubLayerConfig, kind="attention"):
    """One attention layer: four slots and the sizes they share.

    Args:
        n_heads: Query heads.
        n_kv_heads: Key/value heads; `n_heads` by default. Fewer are shared by groups of query heads.
        d_head: Width of a query and key; `d_model / n_heads` by default.
        d_value: Width of a value; by default such that a head's mixed values are as wide as its queries and keys
            together, all streams counted.
        mixer: The mechanism.
        positions: How it learns about distance.
        projection: How queries, keys and values are made.
        merge: From mixed values to what is written.
        cross: Keys and values come from another stack's output.
        grid: Rows and columns of an input with two dimensions, read row by row, for mechanisms and positions that ask
            for them; a model that reads images tells its own.
        outside: Positions before the first of the grid, which stand in none of its rows: a class token. None for none.
        dropout: Rate on the weights of the pattern, in training: behind the site, so `pattern` is what was there
            before, `z` what came of the rest. The pattern is made for it, where the fast route would do without.
    """

    n_heads: Count
    n_kv_heads: Count | None = None
    d_head: Count | None = None
    d_value: Count | None = None
    mixer: MixerConfig = field(default_factory=Softmax)
    positions: PositionsConfig = field(default_factory=NoPositions)
    projection: ProjectionConfig = field(default_factory=Separate)
    merge: Merge = field(default_factory=Merge)
    cross: bool = False
    grid: tuple[Count, Count] | None = None
    dropout: Rate = 0.0
    outside: Count | None = field(default=None, metadata={UNSAID: True})

    def __post_init__(self) -> None:
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
            self.dropout == 0 or self.mixer.traits.linear_in_value != "no",
            f'attention: dropout is on the weights of a pattern, and "{self.mixer.kind}" has none; use the dropout of '
            "the block.",
        )
        require(
            self.projection.crosses or not self.cross,
            f'attention: projection "{self.projection.kind}" mixes keys with those before them, which are another '
            'sequence\'s in cross-attention; use "separate" there.',
        )
        require(
            self.merge.gate is not None or not self.projection.shifts_gate,
            f'attention: projection "{self.projection.kind}" mixes what opens a gate, and there is none; use '
            "Merge(gate=…), or gate=False.",
        )
        require(
            self.mixer.turns_features or not self.positions.doubles,
            f'attention: positions "{self.positions.kind}" turn what a mechanism makes of queries and keys, whose '
            f'products are its weights, of either sign; "{self.mixer.kind}" as set here has others. Use "lightning", '
            'or "linear" with denominator=False.',
        )
        require(
            not (self.mixer.has_own_keys and self.positions.turns_for_each),
            f'attention: positions "{self.positions.kind}" turn a query for each key that it meets, and keys of '
            f'"{self.mixer.kind}" stand at no position; use "rope".',
        )
        require(
            self.positions.crosses or not self.cross,
            f'attention: positions "{self.positions.kind}" go by distance, which cross-attention does not have; use '
            "others there.",
        )
        require(
            not self.outside or not self.mixer.fills_grid,
            f'attention: mixer "{self.mixer.kind}" mixes along rows and columns, and {self.outside} positions stand in '
            'none; leave out the class token (class_token=False, classifies="mean").',
        )

    @property
    def role(self) -> str:  # type: ignore[override]
        return "cross" if self.cross else "attn"

    @property
    def reads_whole(self) -> tuple[int, int] | None:
        return self.grid if self.mixer.mixes_grid else None

    def departures(self, layer: int) -> list[str]:
        """Return where this layer departs from the one that its mechanism's paper builds at this depth, in words.

        Compared is what the paper says of the slots: `merge.norm=None, as published "head"`.
        """
        return [
            sentence(
                "{field}={ours}, as published {theirs}",
                field=f"{slot}.{name}",
                ours=_shown(ours),
                theirs=_shown(theirs),
            )
            for slot, published in self.mixer.as_published(layer).items()
            for name in ("kind", *(field.name for field in fields(published)))
            if (ours := getattr(getattr(self, slot), name, None)) != (theirs := getattr(published, name))
        ]

    def dims(self, d_model: int, max_len: int, layer: int = 0) -> Dims:
        """Return all sizes with defaults filled in."""
        streams = self.mixer.traits.streams if self.mixer.traits.share_width else 1
        d_head = self.d_head
        if d_head is None:
            require(
                d_model % (self.n_heads * streams) == 0,
                f"attention: d_model={d_model} does not divide into n_heads={self.n_heads}"
                + (f" of {streams} streams" if streams > 1 else "")
                + "; change one of them or give d_head.",
            )
            d_head = d_model // (self.n_heads * streams)
        joined = self.mixer.traits.n_joined
        d_value = self.d_value or max(d_head * streams // joined, 1)
        kv_heads = self.n_kv_heads or self.n_heads
        turned = self.projection.turned
        return Dims(
            d_model=d_model,
            n_heads=self.n_heads,
            n_kv_heads=kv_heads,
            d_head=d_head,
            d_value=d_value,
            max_len=max_len,
            layer=layer,
            grid=self.grid,
            outside=self.outside or 0,
            n_joined=joined,
            turned=turned,
            doubled=self.positions.doubles,
        )

    def build(self, d_model: int, max_len: int, layer: int, path: str) -> "AttentionLayer":
        return AttentionLayer(self, self.dims(d_model, max_len, layer), path)


def _shown(value: Any) -> str:
    """Return a setting as a reader meets it: no digits beyond the fourth."""
    return f"{value:.4g}" if isinstance(value, float) else repr(value)


class AttentionState(NamedTuple):
    """What a layer carries: its projection's part, and the mechanism's; None where there is nothing to carry."""

    projection: Any
    mixer: Any


class AttentionLayer(SubLayerModule):
    """Project, mix, merge; keys and values may be of another stack's output, and a state continues earlier positions.

    (q, k, v), kept = projection(read, kept)      with positions, and what precedes them
    z, memory       = mixer(q, k, v)
    out             = merge(z, x)
    """

    SITES: ClassVar[dict[str, str]] = {
        "query": "batch head pos d_head",
        "key": "batch kv_head key d_head",
        "value": "batch kv_head key d_value",
        "scores": "batch head query key",
        "pattern": "batch head query key",
        "z": "batch head pos d_value",
        "gate_read": "batch pos d_model",
        "z_scale": "batch head pos",
        "head_out": "batch head pos d_model",
        "out": "batch pos d_model",
    }
    LAZY = ("scores", "pattern", "z_scale", "gate_read", "head_out")

    def __init__(self, config: Attention, dims: Dims, path: str) -> None:
        super().__init__()
        self.config, self.dims, self.path = config, dims, path
        self.at = full_names(path, self.SITES)
        self.positions = config.positions.build(dims)
        # what a kind holds besides the contract is for those who ask which kind it is
        self.projection: Any = config.projection.build(dims, config.mixer.traits, config.cross)
        self.mixer = config.mixer.build(dims, path)
        self.merge = config.merge.build(dims)
        self.at_inputs = {quantity: f"{path}.{quantity}" if path else quantity for quantity in self._inputs()}
        does = "add to" if self.positions.has_bias else "make" if self.positions.has_scores else ""
        require(
            not does or config.mixer.traits.has_scores,
            f'attention: positions "{config.positions.kind}" {does} scores, but "{config.mixer.kind}" has none.',
        )
        require(
            config.mixer.stores_keys or not self.positions.at_read,
            f'attention: positions turn keys whenever they are read, but "{config.mixer.kind}" stores none; use '
            "at_read=False.",
        )
        require(
            not (self.positions.at_read or config.positions.turns_for_each)
            or not isinstance(getattr(config.mixer, "temperature", None), CoordinateScales),
            f'attention: positions "{config.positions.kind}" as set here turn queries when they meet keys, and scales '
            "(CoordinateScales) are of coordinates that are turned already; use Rope().",
        )
        self.projection.check(self.positions)
        if self.projection.stores_keys and not config.cross:
            self._check_keys_made_anew()

    def _check_keys_made_anew(self) -> None:
        """Check that keys which are made at every step can be placed, and mixed, at every step."""
        kind, place, mixer = self.config.projection.kind, self.config.positions, self.config.mixer
        turns = type(self.positions).rotate is not Positions.rotate and not self.positions.at_read
        require(
            (not turns or self.projection.keeps_turned) and type(self.positions).inputs is Positions.inputs,
            f'attention: projection "{kind}" makes the keys of earlier positions anew, and positions "{place.kind}" '
            "have no part in that; use Rope(at_read=True), a key of its own for them to turn (Latent(rotary=…)), or "
            "positions that add to scores.",
        )
        require(
            mixer.stores_keys and mixer.reach is None,
            f'attention: projection "{kind}" hands over the keys of all earlier positions, and "{mixer.kind}" '
            + ("looks at its last ones only; leave its window out." if mixer.stores_keys else "takes each key once."),
        )

    @property
    def at_write(self) -> str:
        """Site that stands for what a head writes, and for nothing else: z where that is z W_O, head_out elsewhere."""
        return self.at.head_out if self.merge.multiplies else self.at.z

    def by_stream(
        self, pattern: Float[Tensor, "batch *value_stream head query key"], value: Tensor
    ) -> tuple[Float[Tensor, "batch value_stream head query key"], Float[Tensor, "batch value_stream head key d_z"]]:
        """Return patterns and values of a run by value stream, whose products sum to z: see `Mixer.addends`."""
        patterns = pattern if self.mixer.traits.value_streams > 1 else pattern[:, None]
        return patterns, self.mixer.addends(per_query_head(value, pattern))

    @property
    def traits(self) -> Traits:
        """The mechanism's traits as seen from outside: what norms on z make of them, and how scores are made."""
        traits = self.mixer.traits
        departs = self.projection.departs("scores")
        if self.positions.has_scores or (departs is not None and not departs.once_frozen):
            traits = replace(traits, bilinear_scores=False, capped_scores=False)
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
        at, x_v, drops = self.at, x, self.training and context.drops
        if self.config.cross:
            assert context.source is not None and source is not None, "cross-attention reads another stack's output"
            context, x_v = context.source, source
        kept, memory = (None, None) if state is None else state
        if drops and self.config.dropout > 0:
            context = replace(context, dropout=self.config.dropout)
        if inputs is not None and kept is not None and self.projection.shifts:
            raise self._holds_one_stream()
        if inputs is not None and self.mixer.dims.n_heads < self.dims.n_heads:
            raise self._holds_some_heads()
        before, own = kept, None if inputs is None else partial(self._own, inputs, context)
        read = ProjectionInputs(*self.positions.inputs(x, x_v, context), x_v, self.positions, context, own)
        if absorbs := own is None and kept is not None and self._absorbs(x.shape[1], kept, context, tape):
            (q, k, v), kept = self.projection.absorbed(read, kept)
        else:
            (q, k, v), kept = self.projection(read, kept)
        q, k, v = site(tape, at.query, q), site(tape, at.key, k), site(tape, at.value, v)
        x_mix = self.projection.shifted("mix", x if inputs is None else self._mixed_input(inputs, x), context, before)
        z, memory = self.mixer(q, k, v, x_mix, self.positions.within(context), memory, tape)
        z = site(tape, at.z, self.projection.restored(z) if absorbs else z)
        x_gate = self.projection.shifted("gate", x, context, before)
        x_gate = site(tape, at.gate_read, x_gate) if self.config.projection.shifts_gate else x_gate
        gate = self._gate(inputs, x_gate, context)
        scale = None if self.merge.linear else site(tape, at.z_scale, self.merge.scale(z, gate))
        flat = self.merge.prepare(z, x_gate, scale, gate)
        if wants(tape, at.head_out):
            out = self.merge.summed(site(tape, at.head_out, self.merge.split(flat)))
        else:
            out = self.merge.output(flat)
        return site(tape, at.out, out), None if state is None else AttentionState(kept, memory)

    def _absorbs(self, n_new: int, kept: Any, context: Context, tape: Tape | None) -> bool:
        """Whether queries meet what the projection keeps as it lies; not where its keys or values are looked at."""
        traits, at = self.mixer.traits, self.at
        if not (traits.by_products and traits.linear_in_value == "exact") or context.form == "scan":
            return False
        looked_at = wants(tape, at.query, at.key, at.value) or self.mixer.wants_dense(tape)
        return not looked_at and self.projection.absorbs(n_new, kept, self.positions)

    def require_spread(self) -> None:
        config, positions = self.config, self.positions
        by_scores = positions.has_bias or positions.has_scores or positions.at_read
        can = {
            f'mixer "{config.mixer.kind}"': config.mixer.spreads,
            f'projection "{config.projection.kind}"': type(config.projection) is Separate,
            f'positions "{config.positions.kind}"': not (by_scores or positions.by_length or config.positions.doubles),
            "dropout on patterns": config.dropout == 0 or config.mixer.stores_keys,
            "cross-attention": not config.cross,
        }
        found = [name for name, spreads in can.items() if not spreads]
        require(
            not found,
            f'"{self.path}": {" and ".join(found)}, as set here, looks at a text whole, whose positions ranks cannot '
            "share. Softmax(), Linear() and Lightning() with Rope() can be shared so; or let ranks share rows (dp).",
        )

    def take_part(self, part: int, parts: int) -> Mapping[str, Parallel]:
        return take_heads(self, part, parts)

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
        own = visited(tape, self.at_inputs, x, source if self.config.cross else None)
        return HeadInputs(own, norm) if own else None

    def _inputs(self) -> list[str]:
        """Return the quantities of `INPUTS` that this layer has."""
        lacking = {"gate_in"} if self.config.merge.gate is None else set[str]()
        lacking |= set() if self.mixer.traits.reads_input else {"mix_in"}
        return [quantity for quantity in INPUTS if quantity not in lacking]

    def _own(self, inputs: HeadInputs, context: Context, which: Which, usual: Tensor) -> Tensor:
        """Return queries, keys or values, those of heads that read a stream of their own made of that."""
        quantity = f"{which}_in"
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
            return self.projection.of_heads(which, self.projection.shifted(which, x, context), heads)

        return inputs.own[quantity].replaced(usual, usual.ndim - 3, made)

    def _holds_one_stream(self) -> AnalysisUnavailable:
        return AnalysisUnavailable(
            f"layer {self.dims.layer} mixes what heads read with what was read before (shifted), and a state holds "
            "what was read of the stream, not by heads that are given another.\n"
            "    Read the text in one pass, without a state."
        )

    def _holds_some_heads(self) -> AnalysisUnavailable:
        return AnalysisUnavailable(
            f"layer {self.dims.layer}: ranks share its heads; only where one has all are some given another stream.\n"
            "    Edit query, key, value or z there, or the stream that all heads read (resid_pre)."
        )

    def _gate(self, inputs: HeadInputs | None, x: Tensor, context: Context) -> Float[Tensor, "batch pos d_z"] | None:
        """Return what opens the gate, if there is one, for heads that read a stream of their own made of that."""
        if self.merge.gate is None:
            return None
        usual = self.merge.gate(x)
        if inputs is None or "gate_in" not in inputs.own:
            return usual
        matrix, bias = (
            None if rows is None else rows.unflatten(0, (self.dims.n_heads, -1))
            for rows in (self.merge.gate.weight, self.merge.gate.bias)
        )
        assert matrix is not None, "a map has a matrix"

        def made(copies: Float[Tensor, "copy batch pos d_model"], heads: Tensor) -> Tensor:
            read = self.projection.shifted("gate", inputs.norm(copies), context)
            opens = torch.einsum("cbpd,ced->bcpe", read, matrix[heads])
            return opens if bias is None else opens + bias[heads][:, None]

        by_head = usual.unflatten(-1, (self.dims.n_heads, -1)).transpose(1, 2)
        return inputs.own["gate_in"].replaced(by_head, 1, made).transpose(1, 2).flatten(-2)

    def _mixed_input(self, inputs: HeadInputs, x: Float[Tensor, "batch pos d_model"]) -> Tensor:
        """Return what the mechanism itself reads."""
        own = inputs.own.get("mix_in")
        if own is None:
            return x

        def through(stream: Tensor) -> Tensor:
            return inputs.norm(stream[None])[0]

        return through(own.stream) if own.heads is not None else tapped(x, own.stream, through)

    def begin(self, batch: int, like: Tensor) -> AttentionState:
        memory = None if self.projection.stores_keys else self.mixer.begin(batch, like)
        return AttentionState(self.projection.begin(batch, like), memory)

    def keeps(self, length: int) -> bool:
        return self.projection.keeps(length) and (self.projection.stores_keys or self.config.mixer.keeps(length))

    def cut(self, state: AttentionState, length: int) -> AttentionState:
        memory = state.mixer if self.projection.stores_keys else self.mixer.cut(state.mixer, length)
        return AttentionState(self.projection.cut(state.projection, length), memory)

    def outgrows(self, before: int, after: int) -> bool:
        # keys of another sequence are not turned by how far this one has grown
        return not self.config.cross and self.positions.outgrows(before, after)

    def flops(self, length: int, source_length: int, causal: bool) -> dict[str, int]:
        dims, (n, m) = self.dims, (length, source_length if self.config.cross else length)
        d, traits = dims.d_model, self.mixer.traits
        merged = 2 * n * d * dims.n_heads * dims.d_z
        written = merged * self.config.merge.output
        rank = 0 if self.merge.gate is None else self.config.merge.gate_rank
        mixing = self.config.mixer.flops(n, m, dims, causal=causal and not self.config.cross)
        return {
            **self.projection.flops(n, m),
            "mixing": mixing
            + traits.streams * self.positions.extra_flops(n, m, dims, n == m and self.mixer.takes_parts),
            "output": written,
            "output gate": merged if rank is None else 2 * n * rank * (d + dims.n_heads * dims.d_z),
        }

    def state_bytes(self, length: int, source_length: int, dtype: torch.dtype) -> int:
        mixer, kept = self.config.mixer, self.projection.state_numbers(length, source_length) * dtype.itemsize
        if self.projection.stores_keys:
            return kept
        wide = torch.promote_types(dtype, torch.float32) if mixer.wide_state else dtype
        return kept + mixer.state_numbers(length, self.dims) * wide.itemsize

    def input_sites(self, d_model: int, layer: int) -> Iterator[Site]:
        sizes = {"head": self.dims.n_heads, "kv_head": self.dims.n_kv_heads, "d_model": d_model}
        axes = {quantity: INPUTS[quantity] for quantity in self.at_inputs}
        yield from declare(self.path, axes, sizes, layer=layer, lazy=tuple(axes))

    def _lacks(self) -> dict[str, str]:
        """Return why sites of attention are not of this layer, by quantity."""
        mixer, found = self.mixer, dict[str, str]()
        here = f'layer {self.dims.layer} uses "{mixer.config.kind}"'
        if not mixer.traits.has_scores:
            found["scores"] = f"{here}, which makes no scores of queries and keys."
        if mixer.traits.linear_in_value == "no":
            found["pattern"] = str(no_pattern(mixer))
        if self.merge.linear:
            found["z_scale"] = f"layer {self.dims.layer} has no norm of z (Merge(norm=…)), which has a scale."
        if not self.config.projection.shifts_gate:
            kind = self.config.projection.kind
            found["gate_read"] = f'layer {self.dims.layer} uses the projection "{kind}", which shifts no gate.'
        return found

    def absent(self) -> dict[str, str]:
        own = self.mixer.SITES
        return {getattr(self.at, quantity): why for quantity, why in self._lacks().items() if quantity not in own}

    def sites(self) -> Iterator[Site]:
        """Yield this layer's sites: its own, less those the mechanism lacks, plus the mechanism's."""
        dims, traits = self.dims, self.mixer.traits
        sizes = {"head": dims.n_heads, "kv_head": dims.n_kv_heads, "d_head": dims.d_head, "d_value": dims.d_value}
        sizes |= {"d_model": dims.d_model, "stream": traits.streams, "value_stream": traits.value_streams}
        sizes["d_z"] = dims.d_z
        axes = dict(self.SITES)
        if traits.streams > 1:
            for name in ("query", "key", "scores"):
                axes[name] = axes[name].replace("batch", "batch stream")
        if traits.value_streams > 1:
            for name in ("value", "pattern"):
                axes[name] = axes[name].replace("batch", "batch value_stream")
        if dims.n_joined > 1:
            axes["z"] = axes["z"].replace("d_value", "d_z")
        for name in self._lacks():
            del axes[name]
        # what a mixer says of itself lies between the scores (unless it places them too) and the pattern made of them
        usual = {name: words for name, words in axes.items() if name not in self.mixer.SITES}
        before = {name: usual.pop(name) for name in ("query", "key", "value", "scores") if name in usual}
        ordered = before | dict(self.mixer.SITES) | usual
        lazy = (*self.LAZY, *self.mixer.LAZY)
        for found in declare(self.path, ordered, sizes, layer=dims.layer, lazy=lazy):
            reason = self.mixer.READ_ONLY.get(found.quantity)
            yield found if reason is None else replace(found, read_only=reason)
