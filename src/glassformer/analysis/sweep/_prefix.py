"""What the rows of a sweep share: the base run, the stream where they start, what earlier positions leave behind."""

from collections.abc import Collection, Iterable
from functools import cached_property

import torch
from torch import Tensor

from glassformer.analysis.sweep._schedule import Entry
from glassformer.attention import AttentionLayer
from glassformer.models import EncoderDecoder, Model, SubLayer
from glassformer.models.block import pick
from glassformer.models.reading import Inputs
from glassformer.models.stack import Stack, State, mapped, tensors
from glassformer.numerics.placement import work_memory
from glassformer.trace import Edit, Site, Tape

TOKENS = -1
# how many positions at most a matrix state is kept for
SNAPSHOTS = 16
# memory beyond which a pass on a CPU gets no faster
PASS_BYTES = 1 << 30


class Prefix:
    """The base run of a sweep, and passes that go on from it.

    Args:
        model: A decoder or an encoder-decoder.
        given: What the base reads.
        edits: Edits of the base run.
        memory: Bytes that a pass and what is kept of earlier positions may take; a part of what is free by default.
    """

    def __init__(self, model: Model, given: Inputs, edits: list[Edit], memory: int | None = None) -> None:
        self.model, self.given, self.edits, self.memory = model, given, edits, memory
        table = model.sites()
        # an edit of a part changes the whole
        self.changed = {table[edit.site].whole or edit.site for edit in edits}
        self.stacks: list[tuple[str, Stack]] = list(model.stacks.items())
        self.logits: Tensor
        self.sites: dict[str, Tensor] = {}
        self.streams: dict[Entry, Tensor] = {}
        self.encoded: Tensor | None = None
        self._states: dict[int, State] = {}
        self._full: State | None = None

    @property
    def last(self) -> Entry:
        """Where nothing but the final norm and the unembedding is left to run."""
        return self._known(Entry(len(self.stacks) - 1, len(self.stacks[-1][1].blocks)))

    def entry(self, site: Site) -> Entry:
        """Return where a pass has to begin so that it comes by a site."""
        for i, (name, stack) in enumerate(self.stacks):
            if site.stack != name:
                continue
            if site.part == "embed":
                return Entry(i, TOKENS)
            if site.layer is not None:
                return self._known(Entry(i, site.layer))
            if site.part == "final":
                return self._known(Entry(i, len(stack.blocks)))
        return self.last

    def _known(self, entry: Entry) -> Entry:
        """Return the entry, or the tokens where the stream that enters there is seen only after an edit of it."""
        site = self.stream_site(entry)
        hidden = site is None or (entry.layer == 0 and site in self.changed)
        return Entry(entry.stack, TOKENS) if hidden else entry

    def stream_site(self, entry: Entry) -> str | None:
        """Return the site of the stream that enters a layer, as it is before the edits of that layer."""
        name, stack = self.stacks[entry.stack]
        prefix = f"{name}." if name else ""
        if entry.layer > 0:
            return f"{prefix}blocks.{entry.layer - 1}.resid_post"
        return f"{prefix}blocks.0.resid_pre" if len(stack.blocks) else None

    def layers_from(self, entry: Entry) -> int:
        """Return how many blocks run from an entry on."""
        later = [len(stack.blocks) for _, stack in self.stacks[entry.stack :]]
        return sum(later) - max(entry.layer, 0)

    def joins(self, entry: Entry) -> bool:
        """Whether rows that begin at an entry can come into a pass that began at an earlier one, or be joined there."""
        return entry.stack == len(self.stacks) - 1 and entry.layer != TOKENS

    def carries(self, entry: Entry, touched: Iterable[Site]) -> bool:
        """Whether a pass from this entry may begin at a later position, with what earlier ones leave behind.

        Args:
            entry: Where the pass begins.
            touched: Sites that it edits or reads.
        """
        first = Entry(len(self.stacks) - 1, 0)
        # what reads both ways leaves nothing behind that later edits do not change
        if self.model.reads_whole():
            return False
        if entry.stack != first.stack or TOKENS in (entry.layer, self._known(first).layer):
            return False
        if self.given.kwargs.get("documents") is not None:
            return False
        # a state that holds no earlier positions is made by running up to each of them: that would cut edits in two
        # so is one of keys that would have been turned otherwise in a shorter pass
        by_length = any(part.positions.by_length for _, part in self._attention)
        whole = self._keeps_all or not (self.edits or by_length)
        return whole and all(self._told(site) for site in touched if self.entry(site) >= entry)

    def run(
        self, entries: Collection[Entry], positions: Collection[int], sites: Collection[str], at: Tensor | None
    ) -> None:
        """Run the base: once for streams, sites and logits (`at` some positions), and again for states if need be."""
        first = Entry(len(self.stacks) - 1, 0)
        later = any(positions)
        begun = {entry for entry in (*entries, *([first] if later else ())) if entry.layer != TOKENS}
        streams = {entry: name for entry in begun if (name := self.stream_site(entry)) is not None}
        encoded = [self.stacks[0][1].final.at_out] if len(self.stacks) > 1 else []
        last = [] if at is None else [self.stacks[-1][1].final.at_out]
        read, grad = {*streams.values(), *sites, *encoded, *last}, torch.is_grad_enabled()
        tape = Tape(self.model, read, self.edits, grad=grad, logits=at is None)
        found = self.model(*self.given.args, **self.given.kwargs, tape=tape)
        self.logits = found if at is None else self.model.unembed(pick(found, at), None)
        self.sites = {name: tape.values[name][None] for name in sites}
        self.streams = {entry: tape.values[name] for entry, name in streams.items()}
        self.encoded = tape.values[encoded[0]] if encoded else None
        if later:
            self._carry(self.streams[first], sorted(set(positions) - {0}))

    def reachable(self, position: int) -> int:
        """Return the last position, up to the one asked for, that a pass can begin at."""
        if self._full is not None:
            return position
        return max((at for at in self._states if at <= position), default=0)

    def resume(
        self, entry: Entry, start: int, worlds: int, at: Tensor | None, tape: Tape, under_way: Tensor | None = None
    ) -> Tensor:
        """Run `worlds` copies of the base batch from an entry and a position on; return logits, `at` some positions.

        Args:
            entry: Where they begin.
            start: The first position that is run.
            worlds: How many there are, those under way among them.
            at: Positions, counted from the first, whose logits are returned; all of them by default.
            tape: Reads and edits.
            under_way: The stream at the entry of worlds that began earlier: the first ones.
        """

        def copies(value: Tensor, count: int = worlds) -> Tensor:
            return value.expand(count, *value.shape[1:]) if len(value) == 1 else repeated(value, count)

        given = {name: None if value is None else copies(value) for name, value in self.given.kwargs.items()}
        if entry.layer == TOKENS:
            logits = self.model(*(copies(ids) for ids in self.given.args), **given, tape=tape)
            return pick(logits, at) if tape.logits else logits
        base = self.streams[entry][:, start:]
        if under_way is None:
            resid = copies(base)
        else:
            resid = torch.cat((under_way, copies(base, worlds - len(under_way) // len(base))))
        if entry.stack < len(self.stacks) - 1:
            assert isinstance(self.model, EncoderDecoder), "only these have a stack before another"
            return self.model.resume_encoder(entry.layer, resid, copies(self.given.args[1]), **given, at=at, tape=tape)
        if self.encoded is not None:
            given["encoded"] = copies(self.encoded)
        if not start:
            return self.model.resume(entry.layer, resid, **given, at=at, tape=tape)
        state = self._state(start)
        # layers that are not run: what they carry is not copied
        run = range(entry.layer, self.stacks[-1][1].needed(tape))
        layers = [mapped(layer, copies) if i in run else None for i, layer in enumerate(state.layers)]
        state = State(start, tuple(layers))
        return self.model.resume(entry.layer, resid, **given, state=state, at=at, tape=tape, carry=False)

    def stream_into(self, entry: Entry) -> str:
        """Return the site of the stream that rows which join at an entry come into."""
        name = self.stream_site(entry)
        assert name is not None, "rows join where there is a stream"
        return name

    def budget(self) -> int:
        """Return how many bytes a pass may take; by default a part of what is free, and on a CPU no more than helps."""
        return work_memory(self.logits.device, PASS_BYTES) if self.memory is None else self.memory

    def _state(self, position: int) -> State:
        if self._full is None:
            return self._states[position]
        parts = [[block.part(name) for name in block.names] for block in self.model.output_stack.blocks]
        layers = tuple(
            tuple(part.cut(held, position) for part, held in zip(own, state))
            for own, state in zip(parts, self._full.layers)
        )
        return State(position, layers)

    def _carry(self, resid: Tensor, positions: list[int]) -> None:
        """Run the base from the first block on and keep what it carries at these positions."""
        batch, stack = len(resid), self.stacks[-1][1]
        given = dict(self.given.kwargs) | ({} if self.encoded is None else {"encoded": self.encoded})
        nowhere = torch.zeros(batch, 1, dtype=torch.long, device=resid.device)
        state = State(0, stack.begin(batch, resid))
        if self._keeps_all:
            table, last = self.model.sites(), self.model.output
            inside = [e for e in self.edits if table[e.site].stack == last and table[e.site].layer is not None]
            tape = Tape(self.model, edit=inside)
            self._full = self.model.resume(0, resid, **given, state=state, at=nowhere, tape=tape)[1]
            return
        per_state = sum(value.numel() * value.element_size() for value in tensors(state.layers)) or 1
        most = max(1, min(SNAPSHOTS, self.budget() // 2 // per_state))
        for place in positions[:: -(-len(positions) // most)]:
            new = resid[:, state.length : place]
            _, state = self.model.resume(0, new, **given, state=state, at=nowhere)
            self._states[place] = state

    @property
    def _length(self) -> int:
        return self.given.shape[1]

    @cached_property
    def _keeps_all(self) -> bool:
        return all(part.keeps(self._length) for part in self.stacks[-1][1].parts())

    def _told(self, site: Site) -> bool:
        """Whether a site looks the same to a pass that begins later, but for the positions it lacks."""
        at = site.stack, site.layer, site.part
        part = next((part for one, part in self._attention if (one.stack, one.layer, one.name) == at), None)
        if "query" not in site.axes:
            # keys that are made of what is kept are all there in every pass
            anew = "key" in site.axes and part is not None and part.projection.stores_keys
            return not anew and (site.axes == () or "pos" in site.axes or "key" in site.axes)
        return part is None or (part.traits.has_scores and part.keeps(self._length))

    @cached_property
    def _attention(self) -> list[tuple[SubLayer, AttentionLayer]]:
        every = [layer for stack in self.model.stacks for layer in self.model.sub_layers(stack)]
        return [(layer, layer.attention) for layer in every if layer.attention is not None]


def repeated(value: Tensor, worlds: int) -> Tensor:
    """The batch once per world, worlds outermost."""
    return value.repeat(worlds, *[1] * (value.ndim - 1))
