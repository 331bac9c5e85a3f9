"""A block: an ordered tuple of sub-layers on one residual stream.

pre        x <- x + f(norm(x))
post       x <- norm(x + f(x)),  or norm(x + f(before(x)))
sandwich   x <- x + norm'(f(norm(x)))
parallel   x <- x + sum of f(norm(x)) over the sub-layers, each with a norm of its own or all with the first one's
spherical  x <- norm(x + rate (norm(f(x)) - x)),  norm(x) = x / |x|

In the last, each sub-layer moves the stream towards a point of the unit sphere by a learned rate for each coordinate
(eigen learning rates), and the stream stays on the sphere. Source: Loshchilov et al. 2024, "nGPT" (2410.01131),
section 2.2.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.arguments import Rate
from glassformer.attention import Context, HeadInputs, SubLayerConfig, SubLayerModule
from glassformer.config import UNSAID, Config, require
from glassformer.errors import AnalysisUnavailable
from glassformer.models.norms import LayerNorm, Norm, NormConfig, ScaleOnly, UnitNorm
from glassformer.trace import Site, Tape, changes, declare, site, wants
from glassformer.words import Sentence, sentence

Wiring = Literal["pre", "post", "sandwich", "parallel", "spherical"]
_EQUATIONS: dict[Wiring, str] = {
    "pre": "x ← x + f(N(x))",
    "post": "x ← N(x + f(x))",
    "sandwich": "x ← x + N′(f(N(x)))",
    "parallel": "x ← x + Σ f(N(x))",
    "spherical": "x ← N(x + α · (N(f(x)) − x))",
}


@dataclass(frozen=True)
class BlockConfig(Config):
    """One block.

    Args:
        parts: Sub-layers in order; no MLP makes an attention-only block.
        norm: The norm each sub-layer reads (or, post-norm and spherical, the sum) through.
        wiring: How sub-layers, norms and the stream are connected.
        dropout: Rate on what each sub-layer writes, in training.
        norm_after: In sandwich blocks, the norm behind each sub-layer, or a `ScaleOnly` in its place; the same kind as
            `norm` by default. In spherical blocks the `UnitNorm` there, whose gain is the rate. Several are those of
            the sub-layers in order.
        shared_norm: In parallel blocks, all sub-layers read through the first one's parameters, stored once. Each still
            has sites of its own, which hold the same values: an edit at `attn.norm` leaves `mlp.norm` as it is.
        norm_before: In post-norm blocks, what every sub-layer reads through in a norm's place; see `deep_norm`.
    """

    parts: tuple[SubLayerConfig, ...]
    norm: NormConfig = field(default_factory=LayerNorm)
    wiring: Wiring = "pre"
    dropout: Rate = 0.0
    norm_after: NormConfig | tuple[NormConfig, ...] | None = None
    shared_norm: bool = False
    norm_before: ScaleOnly | None = field(default=None, metadata={UNSAID: True})

    def __post_init__(self) -> None:
        require(len(self.parts) > 0, "block: parts must not be empty.")
        require(
            self.norm_after is None or self.wiring in ("sandwich", "spherical"),
            f'block: norm_after belongs to sandwich blocks, and spherical ones; found wiring "{self.wiring}". Use '
            'wiring="sandwich".',
        )
        require(
            not isinstance(self.norm_after, tuple) or len(self.norm_after) == len(self.parts),
            f"block: several norm_after are one for each of {len(self.parts)} parts; found {len(self.norms_after)}.",
        )
        require(
            not self.shared_norm or self.wiring == "parallel",
            f'block: shared_norm belongs to parallel blocks; found wiring "{self.wiring}". Use wiring="parallel".',
        )
        require(
            self.norm_before is None or self.wiring == "post",
            f'block: norm_before belongs to post-norm blocks; found wiring "{self.wiring}". Use wiring="post".',
        )
        require(
            not isinstance(self.norm, ScaleOnly),
            'block: scale_only brings nothing to a standard size; it stands behind sub-layers, wiring="sandwich", '
            "norm_after=ScaleOnly(factor).",
        )
        if self.wiring == "spherical":
            require(
                self.norm == UnitNorm()
                and all(isinstance(after, UnitNorm) and after.gain is not None for after in self.norms_after),
                "block: a stream on the sphere has length 1, norm=UnitNorm(), and moves by rates, "
                f"norm_after=UnitNorm(gain=LearnedScale(…)); found norm={self.norm.described}, norm_after="
                f"{', '.join(after.described for after in self.norms_after)}. See normalised_block.",
            )
        behind = () if self.norm_after is None else self.norms_after
        writes_half = [after for after in behind if getattr(after, "half", None) is not None]
        halved = getattr(self.norm, "half", None) is not None, len(writes_half) > 0
        require(
            not any(halved) or self.wiring in ("pre", "sandwich"),
            f'block: a half of the stream is read and written in wiring "pre" and "sandwich"; found "{self.wiring}".',
        )
        require(
            all(isinstance(after, ScaleOnly) for after in writes_half),
            "block: what writes into a half of the stream passes ScaleOnly(half=…), no norm.",
        )
        require(
            not halved[0] or self.wiring == "pre" or self.norm_after is not None,
            "block: a norm of a half behind a sub-layer would leave the other half without what is written; give "
            "norm_after.",
        )

    @property
    def norms_after(self) -> tuple[NormConfig, ...]:
        """The norm behind each sub-layer of a post-norm or sandwich block, in order."""
        found = self.norm_after or self.norm
        return found if isinstance(found, tuple) else (found,) * len(self.parts)

    @property
    def described(self) -> Sentence:
        """How sub-layers, norms and the stream are connected, in words for people."""
        return sentence("{wiring} norm", wiring=self.wiring)

    @property
    def equation(self) -> str:
        """What a sub-layer f does to the stream x, through the norms N."""
        return _EQUATIONS[self.wiring]

    def on_grid(self, grid: tuple[int, int], outside: int) -> Self:
        """Return the block as it stands in a model that reads a grid, see `SubLayerConfig.on_grid`."""
        return self.replace(parts=tuple(part.on_grid(grid, outside) for part in self.parts))

    def names(self) -> list[str]:
        """Return one name per part: its role, numbered from the second of its kind."""
        roles = [part.role for part in self.parts]
        return [role if (n := roles[:i].count(role)) == 0 else f"{role}_{n}" for i, role in enumerate(roles)]


def check_reads_both_ways(what: str, layers: Sequence[BlockConfig]) -> None:
    """Raise `ConfigError` if a sub-layer looks backwards only, in a stack whose positions see each other."""
    found = [(i, part.kind) for i, layer in enumerate(layers) for part in layer.parts if part.only_backwards]
    require(
        not found,
        f"{what}: layer {found[:1]} looks at earlier positions only, but an encoder reads both ways; use attention.",
    )


class Block(nn.Module):
    """Runs its sub-layers and says the stream's name before, between and after them."""

    def __init__(self, config: BlockConfig, d_model: int, max_len: int, layer: int, path: str) -> None:
        super().__init__()
        self.config, self.d_model, self.layer, self.path = config, d_model, layer, path
        self.names = config.names()
        self.wiring = config.wiring
        before = config.norm_before if self.wiring in ("post", "spherical") else config.norm
        self.reads_through = before is not None
        for name, part, behind in zip(self.names, config.parts, config.norms_after):
            part_path = f"{path}.{name}"
            self.add_module(name, part.build(d_model, max_len, layer, part_path))
            if before is not None:
                tied = self.norm(self.names[0]) if config.shared_norm and name != self.names[0] else None
                self.add_module(f"{name}_norm", before.build(d_model, part_path, layer, tied=tied))
            if self.wiring == "spherical":
                self.add_module(f"{name}_norm_out", behind.build(d_model, part_path, layer, ("out_norm", "out_scale")))
            if self.wiring in ("post", "sandwich", "spherical"):
                on_write = self.wiring == "sandwich"
                after = ("write", "write_scale") if on_write else ("sum_norm", "sum_scale")
                which = config.norm if self.wiring == "spherical" else behind
                self.add_module(f"{name}_norm_after", which.build(d_model, part_path, layer, after))
        n_mid = 0 if self.wiring == "parallel" else len(self.names) - 1
        mids = ["resid_mid"] if n_mid == 1 else [f"resid_mid_{i}" for i in range(n_mid)]
        self.stream_names = ("resid_pre", *mids, "resid_post")
        self.at_resid = [f"{path}.{name}" for name in self.stream_names]
        self.at_sum = [f"{path}.{name}.sum" for name in self.names]
        self.at_write = [f"{path}.{name}.write" for name in self.names]
        self.at_in = {name: f"{path}.{name}.in" for name in self.names}

    def part(self, name: str) -> SubLayerModule:
        """Return a sub-layer by its name."""
        # straight from the table: an attribute look-up takes ten times as long, four times per block and pass
        return self._modules[name]  # type: ignore[return-value]

    def norm(self, name: str) -> Norm:
        """Return the norm a sub-layer reads through; absent in most post-norm blocks."""
        return self._modules[f"{name}_norm"]  # type: ignore[return-value]

    def norm_after(self, name: str) -> Norm | None:
        """Return the norm after a sub-layer: of its write in sandwich blocks, of the sum in post-norm and spherical."""
        return self._modules.get(f"{name}_norm_after")  # type: ignore[return-value]

    def norm_out(self, name: str) -> Norm | None:
        """Return the norm of what a sub-layer returns, whose gain is the rate, in spherical blocks."""
        return self._modules.get(f"{name}_norm_out")  # type: ignore[return-value]

    def forward(
        self,
        x: Float[Tensor, "batch pos d_model"],
        context: Context,
        *,
        source: Tensor | None = None,
        state: tuple[Any, ...] | None = None,
        tape: Tape | None = None,
        at: Int[Tensor, "batch n"] | None = None,
    ) -> tuple[Float[Tensor, "batch _ d_model"], tuple[Any, ...] | None]:
        """Run the sub-layers; with `at`, the last of them only at those positions, and return the stream there.

        A tape that does not need the logits stops after the last sub-layer it reads or edits.
        """
        x = entry = site(tape, self.at_resid[0], x)
        states: list[Any] = []
        names = self.names if tape is None else self.names[: self.needed(tape)]
        for i, name in enumerate(names):
            if at is not None and i + 1 == len(self.names):
                x, entry = pick(x, at), pick(entry, at)
            read, inputs = entry if self.wiring == "parallel" else x, None
            if tape is not None:
                read, inputs = self._inputs(name, read, source, tape)
            read = self.norm(name)(read, tape) if self.reads_through else read
            out, new = self._run(name, read, context, source, None if state is None else state[i], tape, inputs)
            states.append(new)
            if self.training and self.config.dropout > 0 and context.drops:
                out = F.dropout(out, self.config.dropout)
            if self.wiring == "post":
                x = self.norm_after(name)(site(tape, self.at_sum[i], x + out), tape)  # type: ignore[misc]
            elif self.wiring == "sandwich":
                x = x + self.norm_after(name)(out, tape)  # type: ignore[misc]
            elif self.wiring == "spherical":
                step = site(tape, self.at_write[i], self._step(name, x, out, tape))
                x = self.norm_after(name)(site(tape, self.at_sum[i], x + step), tape)  # type: ignore[misc]
            else:
                x = x + out
            if self.wiring != "parallel" and i + 1 < len(self.names):
                x = site(tape, self.at_resid[i + 1], x)
        if len(names) == len(self.names):
            x = site(tape, self.at_resid[-1], x)
        return x, None if state is None else tuple(states)

    def needed(self, tape: Tape) -> int:
        """Return how many sub-layers have to run for what a tape asks."""
        last = None if tape.logits or tape.last is None else tape.table[tape.last]
        if last is None or not last.name.startswith(f"{self.path}."):
            return len(self.names)
        if last.part:
            return self.names.index(last.part.partition(".")[0]) + 1
        return len(self.names) if last.name == self.at_resid[-1] else self.at_resid.index(last.name)

    def _run(
        self,
        name: str,
        x: Tensor,
        context: Context,
        source: Tensor | None,
        state: Any,
        tape: Tape | None,
        inputs: HeadInputs | None,
    ) -> tuple[Tensor, Any]:
        if tape is not None and state is None and self._is_replaced(name, tape):
            # not worked out: the edit has all of it, and needs but the shape
            return site(tape, f"{self.path}.{name}.out", x), None
        own = {} if inputs is None else {"inputs": inputs}
        return self.part(name)(x, context, source=source, state=state, tape=tape, **own)

    def _step(self, name: str, x: Tensor, out: Tensor, tape: Tape | None) -> Tensor:
        """Return what a spherical block adds: the way to the norm of what was returned, by the rate."""
        norm = self.norm_out(name)
        assert norm is not None and norm.gain is not None, "spherical blocks have rates"
        return norm(out, tape) - norm.gain * x

    def _is_replaced(self, name: str, tape: Tape) -> bool:
        """Whether an edit puts another value in place of what a sub-layer writes, and the tape does not look inside."""
        out = f"{self.path}.{name}.out"
        if not tape.replaces(out):
            return False
        return not any(tape.wants(found.name) for found in self.part(name).sites() if found.name != out)

    def _inputs(self, name: str, x: Tensor, source: Tensor | None, tape: Tape) -> tuple[Tensor, HeadInputs | None]:
        """Visit what a sub-layer reads before its norm: the stream, and what each head reads of it."""
        layer: Any = self.part(name)
        if not layer.at_inputs:
            return site(tape, self.at_in[name], x), None
        if not wants(tape, *layer.at_inputs.values()):
            return x, None
        norm = self.norm(name) if self.reads_through else None
        # an edited scale holds for all copies
        held = norm is not None and changes(tape, norm.at_scale)
        # the graph keeps this function: with the tape in it, it would keep itself, by way of values that were read
        scales = tape.held if held else None

        def through(copies: Float[Tensor, "copy batch pos d_model"]) -> Float[Tensor, "copy batch pos d_model"]:
            if norm is None:
                return copies
            if scales is not None:
                return norm.affine(copies, scales[norm.at_scale])
            return norm(copies.flatten(0, 1)).unflatten(0, copies.shape[:2])

        inputs = layer.head_inputs(x, source, tape, through)
        if inputs is not None and norm is not None:
            if changes(tape, norm.at_out):
                raise _behind_a_norm(norm.at_out, layer.at_inputs[next(iter(inputs.own))])
            if held:
                tape.hold(norm.at_scale)
        return x, inputs

    def ends_by_position(self) -> bool:
        """Whether the last sub-layer runs at each position by itself."""
        return self.part(self.names[-1]).by_position

    def last_sites(self) -> Iterator[str]:
        """Yield the sites from the last sub-layer on."""
        name = self.names[-1]
        parts = [self.norm(name)] if self.reads_through else []
        behind = [norm for norm in (self.norm_out(name), self.norm_after(name)) if norm is not None]
        yield from (found.name for found in self.part(name).input_sites(self.d_model, self.layer))
        for part in (*parts, self.part(name), *behind):
            yield from (found.name for found in part.sites())  # type: ignore[operator]
        yield from (self.at_write[-1], self.at_sum[-1], self.at_resid[-1])

    def around_inputs(self) -> Iterator[tuple[set[str], set[str]]]:
        """Yield the sites of norms, each pair with those of what heads read before: edits of both are not independent.

        An edited scale holds for every stream that a head reads, and an edited output would not be reached by any.
        """
        for name in self.names:
            part = self.part(name)
            if part.at_inputs and self.reads_through:
                norm = self.norm(name)
                yield {norm.at_out, norm.at_scale}, set(part.at_inputs.values())

    def begin(self, batch: int, like: Tensor) -> tuple[Any, ...]:
        """Return the empty state: one entry per sub-layer, None where there is nothing to carry."""
        return tuple(self.part(name).begin(batch, like) for name in self.names)

    def sites(self) -> Iterator[Site]:
        sizes, words = {"d_model": self.d_model}, "batch pos d_model"
        resid = self.stream_names
        yield from declare(self.path, {resid[0]: words}, sizes, layer=self.layer)
        for i, name in enumerate(self.names):
            yield from self.part(name).input_sites(self.d_model, self.layer)
            if self.reads_through:
                yield from self.norm(name).sites()
            yield from self.part(name).sites()
            if (norm := self.norm_out(name)) is not None:
                yield from norm.sites()
                yield from declare(f"{self.path}.{name}", {"write": words}, sizes, layer=self.layer)
            if self.wiring in ("post", "spherical"):
                yield from declare(f"{self.path}.{name}", {"sum": words}, sizes, layer=self.layer)
            if (after := self.norm_after(name)) is not None:
                yield from after.sites()
            if self.wiring != "parallel" and i + 1 < len(self.names):
                yield from declare(self.path, {resid[i + 1]: words}, sizes, layer=self.layer)
        yield from declare(self.path, {resid[-1]: words}, sizes, layer=self.layer)


def _behind_a_norm(norm: str, given: str) -> AnalysisUnavailable:
    return AnalysisUnavailable(
        f'edits at "{norm}" and at "{given}": what each head reads passes the norm by itself, and an edit '
        "of the norm's output would not reach it.\n    Edit one of the two, or the norm's scale."
    )


def pick(x: Float[Tensor, "batch pos d_model"], at: Int[Tensor, "batch n"] | None) -> Float[Tensor, "batch n d_model"]:
    """Return the rows at some positions; all of them if none are named."""
    return x if at is None else x.gather(1, at[..., None].expand(-1, -1, x.shape[-1]))
