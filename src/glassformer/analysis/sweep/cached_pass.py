"""A forward pass of which the stream between blocks is kept: all else is read, or changed, from there on.

    cached = CachedPass(model, "When Mary and John went out, John gave a drink to")
    cached.read(["L1H6.pattern"])["L1H6.pattern"]       through block 1 and no other
    other = cached.under([Scale("L1H6.z", 0.0)])        through the blocks from 1 on
    other.logits([-1])

A stream is `d_model` numbers per token and layer; patterns, queries, keys, values and hidden layers are many times
that, and come back for the price of their own block. Numbers are those of `gf.run`, bit by bit where a pass takes the
same route: a pattern that is read makes a layer take the dense one.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis._run import Run, run_of_tape, text_position
from glassformer.analysis.prepare import prepare
from glassformer.analysis.sweep._prefix import TOKENS, Prefix
from glassformer.analysis.sweep._resolve import placed
from glassformer.analysis.sweep._schedule import Entry
from glassformer.analysis.sweep.plan import EditLike
from glassformer.arguments import checked
from glassformer.models import Model, ModelLike, require_model
from glassformer.models.block import pick
from glassformer.models.evaluation import evaluating
from glassformer.models.reading import Inputs
from glassformer.numerics.precision import without_autocast
from glassformer.trace import Edit, Site, Tape

# positions whose logits are made at once where only what is made of them is kept
_AT_ONCE = 256


class CachedPass:
    """One pass over a text, under edits; streams are kept, sites are read on demand.

    Args:
        model: A model of ours.
        inputs: What it reads, as in `run`; or `Inputs` that were read before.
        target: Text or ids of the decoder, for an encoder-decoder.
        edit: Edits, as in `run`.

    Raises:
        UnknownSite, UnknownAxis, ShapeMismatch, TextError: As `run`.
    """

    @checked
    def __init__(self, model: ModelLike, inputs: Any, target: Any = None, *, edit: Sequence[EditLike] = ()) -> None:
        require_model(model, "CachedPass")
        with _at_rest(model):
            given = inputs if isinstance(inputs, Inputs) else prepare(model, inputs, target)
            self._begin(model, given, placed(edit, model.sites(), given), None)

    def under(self, edit: Sequence[EditLike]) -> "CachedPass":
        """The pass over the same text under other edits, which take the place of its own.

        It runs from the first block in which an edit is another one; what comes before is shared.
        """
        found = CachedPass.__new__(CachedPass)
        with _at_rest(self.model):
            found._begin(self.model, self.inputs, placed(edit, self.model.sites(), self.inputs), self)
        return found

    def _begin(
        self, model: Model, given: Inputs, edits: Sequence[tuple[Site, Edit]], base: "CachedPass | None"
    ) -> None:
        self.model, self.inputs, self.edits = model, given, list(edits)
        self._prefix = Prefix(model, given, [edit for _, edit in edits])
        self._order = {name: place for place, name in enumerate(model.sites())}
        every = [Entry(i, layer) for i, (_, s) in enumerate(self._prefix.stacks) for layer in range(len(s.blocks) + 1)]
        self._streams = {entry: name for entry in every if (name := self._prefix.stream_site(entry)) is not None}
        self._ends = [stack.final.at_out for _, stack in self._prefix.stacks]
        self.began = Entry(0, TOKENS) if base is None else base._first_change(self)
        self.streams: dict[str, Tensor] = {} if base is None else base._before(self.began)
        self._share()
        asked = [name for name in (*self._streams.values(), *self._ends) if name not in self.streams]
        if asked:
            tape, _ = self._pass(self.began, asked, logits=False)
            self.streams |= tape.values
            self._share()

    @property
    def blocks_run(self) -> int:
        """How many blocks ran for it: all, or those from the first that differs from the pass it came from."""
        return self._prefix.layers_from(self.began)

    @property
    def nbytes(self) -> int:
        """Bytes of what it keeps, what it shares with others included."""
        return sum(value.nbytes for value in self.streams.values())

    def read(self, names: Collection[str], *, logits: bool = False) -> Run:
        """Return a run that read these sites, by one pass from the block of the first to that of the last.

        Args:
            names: Sites, globs, short names, or heads (`L1H6.pattern`).
            logits: Whether it has logits too, of all positions.
        """
        with _at_rest(self.model):
            table = self.model.sites()
            sites = [one.site for name in names for one in table.locate(name)]
            here = {site.name for site in sites}
            if here <= self.streams.keys():
                tape = Tape(self.model, names, logits=False)
                for name in here:
                    tape.visit(name, self.streams[name])
            else:
                tape, _ = self._pass(min(map(self._prefix.entry, sites)), names, logits=False)
            output = self._logits(None) if logits and self.model.predicts else None
            found = run_of_tape(self.model, self.inputs, tape, output)
        return found

    def logits(self, positions: Sequence[int] | None = None) -> Float[Tensor, "batch pos vocab"]:
        """Return the logits at some positions, negative ones counted from the end, or at all of them.

        Raises:
            ShapeMismatch: There is no such position.
            AnalysisUnavailable: The model gives none.
        """
        with _at_rest(self.model):
            return self._logits(positions)

    def of_logits(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Return what a function makes of the logits of each position, joined along positions; never all are held.

        Args:
            function: Of `batch pos vocab`; keeps the first two axes.
        """
        length = self.streams[self._ends[-1]].shape[1]
        starts = range(0, length, _AT_ONCE)
        return torch.cat([function(self.logits(range(i, min(i + _AT_ONCE, length)))) for i in starts], 1)

    def _logits(self, positions: Sequence[int] | None) -> Tensor:
        _ = self.model.unembed
        at = None
        if positions is not None:
            stream = self.streams[self._ends[-1]]
            places = [text_position(position, stream.shape[1]) for position in positions]
            at = torch.tensor(places, device=stream.device).expand(len(stream), -1)
        # who edits logits or what they are made of counts positions of the whole text
        whole = self.model.makes_logits_for(site.name for site, _ in self.edits)
        _, found = self._pass(self._prefix.last, (), logits=True, at=None if whole else at)
        return pick(found, at) if whole else found

    def _pass(
        self, begin: Entry, names: Collection[str], *, logits: bool, at: Tensor | None = None
    ) -> tuple[Tape, Tensor]:
        """Run from an entry, as far as is asked for, under the edits that lie in between."""
        table = self.model.sites()
        logits = logits or self.model.makes_logits_for(one.site.name for name in names for one in table.locate(name))
        asked = [self._order[one.site.name] for name in names for one in table.locate(name)]
        last = len(self._order) if logits else max(asked)
        edits = [(site, edit) for site, edit in self.edits if self._order[site.name] <= last]
        # what an edit looks at has to be come by
        looked = [table[name] for _, edit in edits for name in edit.reads]
        begin = _whole_if_first(min([begin, *map(self._prefix.entry, looked)]))
        inside = [edit for site, edit in edits if self._prefix.entry(site) >= begin]
        tape = Tape(self.model, names, inside, logits=logits)
        return tape, self._prefix.resume(begin, 0, 1, at, tape)

    def _share(self) -> None:
        """Let passes go on from what is kept."""
        streams = self.streams
        self._prefix.streams = {entry: streams[name] for entry, name in self._streams.items() if name in streams}
        self._prefix.encoded = streams.get(self._ends[0]) if len(self._ends) > 1 else None

    def _first_change(self, other: "CachedPass") -> Entry:
        """Return where a pass under other edits has to begin; behind all blocks if they are the same."""
        mine, others = _by_site(self.edits), _by_site(other.edits)
        table = self.model.sites()
        differ = [table[name] for name in {*mine, *others} if not _alike(mine.get(name, []), others.get(name, []))]
        # a stream that either edits as it enters is kept as edited
        entries = [one._prefix.entry(site) for one in (self, other) for site in differ]
        return _whole_if_first(min(entries, default=self._prefix.last))

    def _before(self, entry: Entry) -> dict[str, Tensor]:
        """Return the streams that a pass from an entry on does not make."""
        if entry.layer == TOKENS:
            return {}
        before = [name for at, name in self._streams.items() if at <= entry]
        before += [end for i, end in enumerate(self._ends) if i < entry.stack]
        return {name: self.streams[name] for name in before}


def _whole_if_first(entry: Entry) -> Entry:
    """Return where a pass begins: who begins at the tokens of one stack runs all of them."""
    return Entry(0, TOKENS) if entry.layer == TOKENS else entry


def _by_site(edits: Sequence[tuple[Site, Edit]]) -> dict[str, list[Edit]]:
    found: dict[str, list[Edit]] = defaultdict(list)
    for site, edit in edits:
        found[site.name].append(edit)
    return found


def _alike(edits: Sequence[Edit], others: Sequence[Edit]) -> bool:
    return len(edits) == len(others) and all(one.does_as(other) for one, other in zip(edits, others))


@contextmanager
def _at_rest(model: Model) -> Iterator[None]:
    """Let passes be evaluations, without gradients and autocast."""
    with evaluating(model), torch.no_grad(), without_autocast():
        yield
