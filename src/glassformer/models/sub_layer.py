"""Sub-layers in the order they run, each with its place in the residual stream.

    x = stream at `at_stream`;  out = part(before(x))
    no norm behind         x' = x + out                at `at_write`: out
    norm on the write      x' = x + after(out)         at `at_write`: after(out)
    norm on the stream     x' = after(x + out)         at `at_write`: out
    on the sphere          x' = norm(x + step)         at `at_write`: step = rate (norm(out) - x)

Sub-layers of one block that all read the same stream have the same `entry`: what one of them writes, the others do not
read. Whoever asks how a block is wired asks here.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from glassformer.attention import AttentionLayer, SubLayerModule
from glassformer.models.block import Block
from glassformer.models.norms import Norm


@dataclass(frozen=True, eq=False)
class SubLayer:
    """One sub-layer of a stack: what it is, what it reads, and where its write goes.

    Args:
        block: Block it lies in.
        name: Its name there: `attn`, `cross`, `mlp`, `attn_1`.
        part: The module.
        stack: Name of the stack; empty where a model has only one.
        index: Its place among all sub-layers of the stack.
        place: Its place in the block.
        entry: How many sub-layers have written to the stream it reads.
        before: The norm it reads through; None if it reads the stream as it is.
        write_norm: The norm that its write passes before it is added; on the sphere its gain is the rate.
        stream_norm: The norm that the whole stream passes behind it, and so does everything written earlier.
        at_stream: Site of the stream it reads, before any norm.
        at_read: Site of what it reads: the norm's output, or the stream.
        at_out: Site of what it returns.
        at_write: Site of what is added to the stream: behind a norm on the write, else what it returns; on the sphere
            the step, which holds what the stream loses too.
        at_sum: Site of the stream and its write together; None if no norm acts on them.
        at_behind: Site of the stream behind it, and behind those that add to the same stream.
    """

    block: Block
    name: str
    part: SubLayerModule
    stack: str
    index: int
    place: int
    entry: int
    before: Norm | None
    write_norm: Norm | None
    stream_norm: Norm | None
    at_stream: str
    at_read: str
    at_out: str
    at_write: str
    at_sum: str | None
    at_behind: str

    @property
    def layer(self) -> int:
        """Index of the block."""
        return self.block.layer

    @property
    def path(self) -> str:
        return f"{self.block.path}.{self.name}"

    @property
    def role(self) -> str:
        """What it does in the block, whichever of its kind it is: `attn`, `cross`, `mlp`, …."""
        return self.block.config.parts[self.place].role

    @property
    def block_label(self) -> str:
        """How its block is called in results: `L3`, `enc L3`."""
        return f"{'enc ' if self.stack == 'encoder' else ''}L{self.layer}"

    @property
    def label(self) -> str:
        """How it is called in results: `L3 mlp`, `enc L3 mlp`."""
        return f"{self.block_label} {self.name}"

    @property
    def ordinal(self) -> int:
        """How many of its role stand before it in the block."""
        return [part.role for part in self.block.config.parts[: self.place]].count(self.role)

    @property
    def attention(self) -> AttentionLayer | None:
        """The layer, if it is attention."""
        return self.part if isinstance(self.part, AttentionLayer) else None

    @property
    def self_attention(self) -> AttentionLayer | None:
        """The layer, if it is attention to the stack's own positions."""
        return None if self.crosses else self.attention

    @property
    def at_gate(self) -> str:
        """Site of what an output gate reads."""
        part = self.attention
        return part.at.gate_read if part is not None and part.config.projection.shifts_gate else self.at_read

    @property
    def multiplier_sites(self) -> list[str]:
        """Sites that `multiplier` reads: scale of a norm on mixed values, what a gate reads; none without either."""
        if self.attention is None or not self.attention.merge.multiplies:
            return []
        merge = self.attention.merge
        scale = [] if merge.linear else [self.attention.at.z_scale]
        return scale if merge.gate is None else [*scale, self.at_gate]

    def multiplier(self, read: Callable[[str], Tensor]) -> Float[Tensor, "batch head pos d_z"] | None:
        """Return what mixed values were multiplied by before the output matrix, in a run; None for nothing.

        Args:
            read: Returns what the run has of a site, `multiplier_sites` among them.
        """
        if self.attention is None or not self.attention.merge.multiplies:
            return None
        merge = self.attention.merge
        scale = None if merge.linear else read(self.attention.at.z_scale)
        # without a gate only how many positions there are
        x = read(self.at_gate) if scale is None or merge.gate is not None else scale.mT
        return merge.multiplier(x, scale).detach()

    @property
    def crosses(self) -> bool:
        """Whether it is cross-attention: its keys and values are those of another stack."""
        return isinstance(self.part, AttentionLayer) and self.part.config.cross

    @property
    def behind(self) -> list[Norm]:
        """The norms behind it: of its write, and of the stream."""
        return [norm for norm in (self.write_norm, self.stream_norm) if norm is not None]

    @property
    def shift(self) -> Float[Tensor, " d_model"] | None:
        """What the last norm behind it adds by its bias; None for nothing."""
        return self.behind[-1].shift if self.behind else None

    @property
    def rate(self) -> Float[Tensor, " d_model"] | None:
        """The share of each coordinate of the stream that it takes away, on the sphere; None for nothing."""
        return None if self.write_norm is None or self.stream_norm is None else self.write_norm.gain

    def remainder(self, x: Float[Tensor, "*n d_model"]) -> Float[Tensor, "*n d_model"]:
        """Return what it leaves of the stream, or of an addend or a direction of it: itself but on the sphere."""
        return x if self.rate is None else x * (1 - self.rate.detach()).to(x.device)

    def reads(self, earlier: "SubLayer") -> bool:
        """Whether what another sub-layer writes is on the stream that this one reads."""
        return earlier.stack == self.stack and earlier.index < self.entry

    @property
    def norms(self) -> list[Norm]:
        """The norms around it that have a scale."""
        before = [] if self.before is None else [self.before]
        return [norm for norm in (*before, *self.behind) if not norm.identity]


def sub_layers_of(blocks: Sequence[Block], stack: str) -> Iterator[SubLayer]:
    """Yield the sub-layers of a stack's blocks in order."""
    index = 0
    for block in blocks:
        first = index
        for place, name in enumerate(block.names):
            yield _sub_layer(block, name, stack, index, place, first)
            index += 1


def _sub_layer(block: Block, name: str, stack: str, index: int, place: int, first: int) -> SubLayer:
    together = block.wiring == "parallel"
    before, after = block.norm(name) if block.reads_through else None, block.norm_after(name)
    write_norm = after if block.wiring == "sandwich" else block.norm_out(name)
    stream_norm = None if block.wiring == "sandwich" else after
    at_write = f"{block.path}.{name}.out" if write_norm is None else block.at_write[place]
    stream, out = block.at_resid[0 if together else place], f"{block.path}.{name}.out"
    return SubLayer(
        block, name, block.part(name), stack, index, place,
        entry=first if together else index,
        before=before,
        write_norm=write_norm,
        stream_norm=stream_norm,
        at_stream=stream,
        at_read=stream if before is None else before.at_out,
        at_out=out,
        at_write=at_write,
        at_sum=None if stream_norm is None else block.at_sum[place],
        at_behind=block.at_resid[-1 if together else place + 1],
    )  # fmt: skip


def written_before(layers: Sequence[SubLayer], site: str) -> list[SubLayer]:
    """The sub-layers that have written to the stream at a place of it."""
    earlier: list[SubLayer] = []
    for layer in layers:
        places = layer.block.at_resid
        if site not in places or places.index(layer.at_behind) <= places.index(site):
            earlier.append(layer)
        if site in places and layer.place == len(layer.block.names) - 1:
            break
    return earlier
