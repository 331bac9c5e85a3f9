"""A stack: blocks that share a residual stream; run from any layer, stopped at any layer."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from glassformer.attention import (
    Context,
    Mask,
    SubLayerModule,
    causal,
    documents,
    padding,
)
from glassformer.attention.shared import share_parameters
from glassformer.models.block import Block, BlockConfig, pick
from glassformer.models.evaluation import computed, drops
from glassformer.models.norms import NormConfig
from glassformer.models.sub_layer import SubLayer, sub_layers_of
from glassformer.trace import Site, SiteTable, Tape, splits_of


class State(NamedTuple):
    """What a model carries from earlier positions.

    `start` is where each row's real tokens begin: rows of unequal length are padded on the left. Sources are padded on
    the right, as `source_lengths` says, or on the left, as `source_start` does.
    """

    length: int
    layers: tuple[Any, ...]
    start: Int[Tensor, " batch"] | None = None
    source: Float[Tensor, "batch key d_model"] | None = None
    source_lengths: Int[Tensor, " batch"] | None = None
    source_start: Int[Tensor, " batch"] | None = None


def mapped(state: Any, function: Callable[[Tensor], Any]) -> Any:
    """Return a state, or a part of one, with every tensor in it changed by a function."""
    if isinstance(state, Tensor):
        return function(state)
    if isinstance(state, tuple):
        parts = [mapped(part, function) for part in state]
        return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
    return state


def tensors(state: Any) -> list[Tensor]:
    """Return the tensors in a state, or in a part of one."""
    found: list[Tensor] = []
    mapped(state, lambda value: (found.append(value), value)[1])
    return found


class Stack(nn.Module):
    """An ordered list of blocks and a final norm."""

    blocks: Sequence[Block]  # a module list, whose members torch knows as modules only

    def __init__(
        self, layers: tuple[BlockConfig, ...], d_model: int, max_len: int, final_norm: NormConfig, path: str = ""
    ) -> None:
        super().__init__()
        self.name, self.prefix = path, f"{path}." if path else ""
        blocks = [Block(layer, d_model, max_len, i, f"{self.prefix}blocks.{i}") for i, layer in enumerate(layers)]
        self.blocks = cast("Sequence[Block]", nn.ModuleList(blocks))
        share_parameters(self.modules())
        self.final = final_norm.build(d_model, f"{self.prefix}final", None)

    def forward(
        self,
        x: Float[Tensor, "batch pos d_model"],
        context: Context,
        *,
        source: Tensor | None = None,
        state: tuple[Any, ...] | None = None,
        tape: Tape | None = None,
        start: int = 0,
        at: Int[Tensor, "batch n"] | None = None,
        carry: bool = True,
    ) -> tuple[Float[Tensor, "batch _ d_model"], tuple[Any, ...] | None]:
        """Run blocks from `start` on, then the final norm; return the stream, or what it is `at` some positions.

        A tape that does not need the logits stops after the last block it reads or edits. What comes after the last
        attention is not run at positions that are not asked for, unless the tape looks there. Without `carry` no new
        state is kept.
        """
        if state is not None and tape is not None:
            tape.refuse_state()
        # whatever the mode now: who trains the model may switch it before the last block is reached
        if not drops(self):
            context = replace(context, drops=False)
        states: list[Any] = []
        stop = self.needed(tape)
        # a module list asked for its i-th member takes longer than a norm of a short text
        blocks = list(self.blocks)
        ends = at is not None and start < stop == len(blocks) and self._ends_unseen(tape)
        early = at if ends else None
        for i in range(start, stop):
            own, there = None if state is None else state[i], early if i + 1 == stop else None
            x, new = blocks[i](x, context, source=source, state=own, tape=tape, at=there)
            if carry:
                states.append(new)
            # keys and values of one layer are as large as its stream, several times over
            del new
        x = computed(x, "stream", tape)
        if stop == len(blocks):
            x = self.final(x, tape)
        if early is None:
            x = pick(x, at)
        return x, None if state is None or not carry else (*state[:start], *states, *state[stop:])

    def needed(self, tape: Tape | None) -> int:
        """Return how many blocks have to run for what the tape asks."""
        if tape is None or tape.logits or tape.last is None:
            return len(self.blocks)
        last = tape.table[tape.last]
        return last.layer + 1 if last.stack == self.name and last.layer is not None else len(self.blocks)

    def _ends_unseen(self, tape: Tape | None) -> bool:
        """Whether what follows the last attention runs by position, and the tape neither reads nor edits it."""
        last = self.blocks[-1]
        if not last.ends_by_position():
            return False
        if tape is None or not (tape.reads or tape.edits):
            return True
        later = (*last.last_sites(), *(found.name for found in self.final.sites()))
        return not any(tape.wants(name) for name in later)

    def parts(self) -> Iterator[SubLayerModule]:
        """Yield the sub-layers of all blocks, in the order they run."""
        for block in self.blocks:
            yield from map(block.part, block.names)

    def begin(self, batch: int, like: Tensor) -> tuple[Any, ...]:
        return tuple(block.begin(batch, like) for block in self.blocks)

    def sub_layers(self) -> tuple[SubLayer, ...]:
        """Return the sub-layers in the order they run, each with its place in the residual stream."""
        return tuple(sub_layers_of(list(self.blocks), self.name))

    def sites(self) -> Iterator[Site]:
        for block in self.blocks:
            yield from block.sites()
        yield from self.final.sites()


def make_context(
    batch: int,
    length: int,
    device: torch.device,
    *,
    is_causal: bool,
    lengths: Int[Tensor, " batch"] | None = None,
    document_ids: Int[Tensor, "batch pos"] | None = None,
    past: int = 0,
    start: Int[Tensor, " batch"] | None = None,
    form: str = "auto",
    seed: int = 0,
    marked: Bool[Tensor, "batch pos"] | None = None,
) -> Context:
    """Build the context of self-attention: masks from lengths and documents.

    Positions count real tokens only, and start anew in each document: packed together or alone, it reads the same.
    """
    mask = causal() if is_causal else Mask()
    if document_ids is not None:
        mask = mask & documents(document_ids)
    if lengths is not None:
        mask = mask & padding(lengths)
    key_positions = torch.arange(past + length, device=device)[None]
    if document_ids is not None:
        first = torch.ones_like(document_ids, dtype=torch.bool)
        first[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
        key_positions = key_positions - (key_positions * first).cummax(-1).values
    if start is not None:
        mask = mask & padding(past + length - start, total=past + length, left=True)
        key_positions = (key_positions - start[:, None]).clamp_min(0)
    first = past if document_ids is None and start is None else None
    return Context(mask, key_positions[:, past:], key_positions, form=form, seed=seed, first=first, marked=marked)


def with_source(
    context: Context,
    source_length: int,
    lengths: Int[Tensor, " batch"] | None = None,
    start: Int[Tensor, " batch"] | None = None,
) -> Context:
    """Return a context that also says what cross-attention needs to know of the source; arguments as there."""
    return replace(context, source=cross_context(context, source_length, lengths, start))


def cross_context(
    context: Context,
    source_length: int,
    lengths: Int[Tensor, " batch"] | None,
    start: Int[Tensor, " batch"] | None = None,
) -> Context:
    """Build the context of cross-attention from that of the queries; `lengths` or `start` as for the source itself."""
    keys = torch.arange(source_length, device=context.positions.device).expand(context.positions.shape[0], -1)
    mask = Mask() if lengths is None else padding(lengths)
    if start is not None:
        mask = mask & padding(source_length - start, total=source_length, left=True)
        keys = (keys - start[:, None]).clamp_min(0)
    # one row of positions may stand for all of the queries', and not of the keys'
    positions = context.positions.expand(keys.shape[0], -1)
    return Context(mask, positions, keys, form="parallel", seed=context.seed, crossed=True, first=context.first)


def site_table(model: nn.Module, sites: Callable[[], Iterator[Site]], glob: str) -> SiteTable:
    """Return the sites a glob covers, in the order of the forward pass.

    Every tape asks for the table, so the model keeps it for as long as it consists of the same modules.
    """
    modules = [model]
    for module in modules:
        modules.extend(part for part in module._modules.values() if part is not None)
    kept, shares = model.__dict__.get("_site_table"), getattr(model, "shares", None)
    if kept is None or kept[0] != modules or kept[1].shares is not shares:
        own = {found.name: found for found in sites()}
        parts = (part for part in modules if isinstance(part, SubLayerModule))
        absent = {name: why for part in parts for name, why in part.absent().items()}
        kept = model.__dict__["_site_table"] = modules, SiteTable(own, splits_of(model), shares, absent)
    table = kept[1]
    return table if glob == "*" else SiteTable({name: table[name] for name in table.match(glob)})
