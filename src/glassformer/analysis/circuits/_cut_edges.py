"""Cutting edges: an edit that gives each receiver at a site a stream of its own.

    x_r = x + sum over senders u of  mask[r, u] (what u writes elsewhere - what u writes in this pass)

The site is what receivers of one kind read (`attn.key_in`, `mlp.in`, the stream that ends in the logits). Where norms
follow a sub-layer, what has changed is carried through them. Rows of the mask are worlds side by side in one batch.

Source: Conmy et al. 2023, "Towards Automated Circuit Discovery", section 3; Goldowsky-Dill et al. 2023, "Localizing
Model Behavior with Path Patching", section 2.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from glassformer.models import SubLayer
from glassformer.models.norms import Norm
from glassformer.trace import Edit

# booleans, or how much of an edge is cut
Mask = Shaped[Tensor, "world receiver sender"]


def normed(
    norm: Norm | None, x: Float[Tensor, "*n d_model"], scale: Tensor | None = None
) -> Float[Tensor, "*n d_model"]:
    """Apply a norm over any axes in front; with `scale`, it divides by that."""
    if norm is None:
        return x
    if scale is not None and not norm.identity:
        return norm.affine(x, scale)
    return norm(x.reshape(-1, *x.shape[-2:])).reshape(x.shape)


@dataclasses.dataclass(frozen=True, eq=False)
class Recording:
    """What one run left behind for circuits: no worlds, one row per prompt.

    Args:
        writes: What every sender of the stream wrote, `batch sender pos d_model`.
        sites: The stream entering each block and at the end; where norms follow sub-layers, what those wrote in all.
        source: An encoder's output, `batch key d_model`.
    """

    writes: Tensor
    sites: Mapping[str, Tensor]
    source: Tensor | None


@dataclasses.dataclass(frozen=True, eq=False)
class Exchange:
    """What stands on cut edges in one pass, and where to find what they would carry.

    Args:
        steps: Sub-layers in the order of the forward pass.
        columns: Which senders each step has, -1 for what enters the stream.
        names: Site of what those write.
        instead: What all senders write on cut edges, `batch sender pos d_model`.
        source: An encoder's output on cut edges.
        known: A run that agrees with the pass in everything before it begins.
        first: The first sub-layer that the pass runs.
        frozen: Norms behind sub-layers keep the scales of the known run.
        constant: What senders write in the pass counts as a constant where gradients are taken.
    """

    steps: Sequence[SubLayer]
    columns: Mapping[int, slice]
    names: Mapping[int, Sequence[str]]
    instead: Tensor
    source: Tensor | None
    known: Recording
    first: int
    frozen: bool = False
    constant: bool = False

    @cached_property
    def shared(self) -> Tensor:
        """What a cut adds in every world alike: less what is known of senders before the pass."""
        before = self.columns[self.first].start if self.first in self.columns else self.instead.shape[1]
        if not before:
            return self.instead
        return torch.cat((self.instead[:, :before] - self.known.writes[:, :before], self.instead[:, before:]), 1)

    def entry(self, step: int) -> str:
        """Return the site of the stream that enters a step's block."""
        return self.steps[step].block.at_resid[0]

    def out(self, step: int) -> str:
        return self.steps[step].at_out

    def is_known(self, step: int) -> bool:
        return step < self.first

    def value(self, name: str, rows: int, earlier: Mapping[str, Tensor]) -> Tensor:
        """Return a site's value in each row of the pass."""
        if name in earlier:
            return earlier[name]
        known = self.known.sites[name]
        return known.repeat(rows // len(known), *[1] * (known.ndim - 1))

    def written(self, step: int, earlier: Mapping[str, Tensor]) -> Float[Tensor, "row sender pos d_model"]:
        """Return what the senders of a step write in this pass."""
        values = [earlier[name] for name in self.names[step]]
        return values[0] if values[0].ndim == 4 else torch.stack(values, 1)

    def swap(
        self,
        into: Float[Tensor, "row receiver pos d_model"],
        mask: Float[Tensor, "world receiver sender"],
        steps: Sequence[int],
        earlier: Mapping[str, Tensor],
    ) -> None:
        """Add to what receivers read the change by their cut edges from the senders of consecutive steps."""
        worlds, batch = len(mask), len(self.instead)
        flat = into.view(worlds, batch, into.shape[1], -1)
        columns = slice(self.columns[steps[0]].start, self.columns[steps[-1]].stop)
        weight = mask[:, :, columns]
        for b in range(batch):
            given = self.shared[b, columns].flatten(1)
            flat[:, b].baddbmm_(weight, given.expand(worlds, -1, -1))
        for step in steps:
            own = mask[:, :, self.columns[step]]
            if self.is_known(step) or not own.any():
                continue
            here = self.written(step, earlier).flatten(2)
            here = here.detach() if self.constant else here
            into.view(len(into), into.shape[1], -1).baddbmm_(own.repeat_interleave(batch, 0), here, alpha=-1)


@dataclasses.dataclass(frozen=True, eq=False)
class CutEdges(Edit):
    """Cut edges into the receivers at one site.

    Args:
        mask: Which edges are cut, or how much of them, `world receiver sender`; the batch is `world batch`, flattened.
        exchange: What stands on them.
        depth: How many sub-layers have written to what the site shows.
        source: Column of an encoder's output, if the site shows that.
    """

    mask: Mask
    exchange: Exchange
    depth: int
    source: int | None = None

    @cached_property
    def receivers(self) -> list[int]:
        """Which receivers have an edge cut, in any world."""
        return self.mask.any(0).any(-1).nonzero().flatten().tolist()

    @cached_property
    def steps(self) -> list[int]:
        """Which steps write what is cut."""
        if self.source is not None:
            return []
        used = self.mask.any(0).any(0)
        return [i for i, columns in self.exchange.columns.items() if i < self.depth and bool(used[columns].any())]

    @cached_property
    def start(self) -> int | None:
        """The step from which on a stream of its own is worked out, if norms behind sub-layers follow; else None."""
        steps = self.exchange.steps
        if not self.steps:
            return None
        begun = max(self.steps[0], 0)
        begun = next(i for i, step in enumerate(steps) if step.block is steps[begun].block) if begun < len(steps) else 0
        behind = any(step.behind for step in steps[begun : self.depth])
        return begun if behind else None

    @property
    def reads(self) -> tuple[str, ...]:
        return self._reads

    @cached_property
    def _reads(self) -> tuple[str, ...]:
        exchange = self.exchange
        found = [name for i in self.steps if not exchange.is_known(i) for name in exchange.names[i]]
        if self.start is not None:
            found += [exchange.out(i) for i in range(self.start, self.depth) if not exchange.is_known(i)]
            found += [] if exchange.is_known(self.start) else [exchange.entry(self.start)]
        return tuple(dict.fromkeys(found))

    def entries(self, axis: str, size: int) -> list[int]:
        return self.receivers if axis.endswith("head") else super().entries(axis, size)

    def change(self, part: Tensor, whole: Tensor, site: Any, earlier: Mapping[str, Tensor]) -> Tensor:
        # no address: the part is the site's value
        per_head = part.ndim == 4
        every = part if per_head else part.unsqueeze(1)
        if len(self.receivers) == every.shape[1]:
            own = self.streams(every.clone(), earlier)
        else:
            own = every.clone()
            own[:, self.receivers] = self.streams(every[:, self.receivers].contiguous(), earlier)
        return own if per_head else own[:, 0]

    def streams(
        self, x: Float[Tensor, "row receiver pos d_model"], earlier: Mapping[str, Tensor]
    ) -> Float[Tensor, "row receiver pos d_model"]:
        """Return what receivers with a cut read; `x`, what they read without, may be overwritten."""
        exchange, mask = self.exchange, self.mask[:, self.receivers].to(x)
        if self.source is not None:
            return self._of_source(x, mask[:, :, self.source])
        if self.start is not None:
            along = self._along(x, mask, self.start, earlier)
            if not exchange.frozen:
                return along
            # a world without a cut here has norms of its own
            cut = mask.any(-1).repeat_interleave(len(exchange.instead), 0)[..., None, None]
            return torch.where(cut, along, x)
        exchange.swap(x, mask, range(self.steps[0], self.steps[-1] + 1), earlier)
        return x

    def _along(self, x: Tensor, mask: Tensor, start: int, earlier: Mapping[str, Tensor]) -> Tensor:
        """Return streams from the block of the first cut on, through every norm on the way."""
        exchange = self.exchange
        x = exchange.value(exchange.entry(start), len(x), earlier)[:, None].expand_as(x).clone()
        if -1 in self.steps:
            exchange.swap(x, mask, [-1], earlier)
        for i in range(start, self.depth):
            total = exchange.value(exchange.out(i), len(x), earlier)[:, None].expand_as(x).clone()
            if i in self.steps:
                exchange.swap(total, mask, [i], earlier)
            step = exchange.steps[i]
            x = self._behind(step.stream_norm, step.remainder(x) + self._behind(step.write_norm, total))
        return x

    def _behind(self, norm: Norm | None, x: Tensor) -> Tensor:
        """Return what a norm behind a step makes of what that wrote, or of the sum with the stream."""
        if norm is None or not self.exchange.frozen:
            return normed(norm, x)
        scale = self.exchange.known.sites[norm.at_scale]
        return normed(norm, x, scale.repeat(len(x) // len(scale), 1)[:, None])

    def _of_source(self, x: Tensor, weight: Float[Tensor, "world receiver"]) -> Tensor:
        source = self.exchange.source
        assert source is not None, "asked for where there is one"
        worlds = x.unflatten(0, (len(weight), -1))
        change = source[None, :, None] - worlds
        return (worlds + weight[:, None, :, None, None] * change).flatten(0, 1)
