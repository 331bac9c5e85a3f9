"""Masks, and the facts about one forward pass that all layers share.

A mask is a conjunction of terms: `causal() & window(128) & documents(ids) & padding(lengths)`; `a | b` makes one term
that either side satisfies. One description, three lowerings: dense booleans, a causal flag for fused kernels, and the
predicate that block-sparse kernels take. Queries and keys are counted by their index among all keys, earlier state
included. True means: may attend.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.errors import AnalysisUnavailable

COUNTED = 1 << 17  # pairs of query and key whose mask is made at a time, to be counted


class Term(ABC):
    """One condition on (batch, query, key)."""

    batch: int = 1
    # whether every position may attend to itself
    reflexive: ClassVar[bool] = False

    @abstractmethod
    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """Return whether query `q` may see key `k` in row `b`; all three are integer tensors that broadcast."""

    @abstractmethod
    def excerpt(self, run: "Run") -> "Term | None":
        """Return the condition within a run, positions counted from its start; None if it hides nothing there."""

    def until(self, stop: int) -> "Term":
        """Return the condition on the positions before `stop`, counted as they were."""
        return self


class Rule(ABC):
    """Which keys a mechanism looks at of those a mask allows; every position looks at itself at least."""

    # whether it goes by how far apart query and key are, and not by where they are in their text
    by_distance: ClassVar[bool] = True

    @property
    def n_heads(self) -> int:
        """How many heads it tells apart."""
        return 1

    @abstractmethod
    def allows(self, q: Tensor, k: Tensor) -> Tensor:
        """Return whether a query at `q` looks at a key at `k`, `b 1 query 1` and `b 1 1 key`.

        They are positions or, where only distance counts, index among all keys. Where heads differ in it, so does what
        is returned, `b head query key`.
        """


class Run(NamedTuple):
    """Consecutive positions, `start` up to `stop`, of rows that stand together."""

    row: int
    n_rows: int
    start: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start

    def of_rows(self, values: Tensor) -> Tensor:
        """Return the values of the run's rows; one row stands for all there are."""
        return values if values.shape[0] == 1 else values[self.row : self.row + self.n_rows]

    def of_positions(self, values: Tensor) -> Tensor:
        """Return values `b … pos` of the run's rows at its positions."""
        return self.of_rows(values)[..., self.start : self.stop]


@dataclass(frozen=True)
class Causal(Term):
    reflexive: ClassVar[bool] = True

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return k <= q

    def excerpt(self, run: Run) -> "Causal":
        return self


@dataclass(frozen=True)
class Window(Term):
    size: int
    reflexive: ClassVar[bool] = True

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q - k).abs() < self.size

    def excerpt(self, run: Run) -> "Window | None":
        return self if self.size < run.length else None


@dataclass(frozen=True, eq=False)
class Documents(Term):
    """Positions see each other within a document: as many in a row as have one id."""

    ids: Int[Tensor, "batch key"]
    # each position's document, counted from 0 in each row
    number: Int[Tensor, "batch key"] = field(init=False)
    reflexive: ClassVar[bool] = True

    def __post_init__(self) -> None:
        begins = self.ids[:, 1:] != self.ids[:, :-1]
        # a row without positions has no document
        number = torch.nn.functional.pad(begins.cumsum(-1), (1, 0))[:, : self.ids.shape[1]]
        object.__setattr__(self, "number", number)

    @property
    def batch(self) -> int:  # type: ignore[override]
        return self.ids.shape[0]

    @cached_property
    def bounds(self) -> tuple[tuple[int, ...], ...]:
        """Where documents begin and end in each row: 0, …, how many positions there are."""
        begins, length = self.number.diff(dim=-1) != 0, self.ids.shape[1]
        found: list[list[int]] = [[0] for _ in range(self.batch)]
        for row, position in begins.nonzero().tolist():
            found[row].append(position + 1)
        return tuple((*row, length) for row in found)

    def runs(self, batch: int) -> list[Run]:
        """Return the documents of a batch, row by row; rows that are one document each stand together."""
        found: list[Run] = []
        for row in range(batch):
            bounds = self.bounds[row if self.batch > 1 else 0]
            if len(bounds) == 2 and found and found[-1].length == bounds[-1]:
                found[-1] = found[-1]._replace(n_rows=found[-1].n_rows + 1)
            else:
                found.extend(Run(row, 1, *pair) for pair in pairwise(bounds))
        return found

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.number[b, q] == self.number[b, k]

    def until(self, stop: int) -> "Documents":
        return Documents(self.ids[:, :stop])

    def excerpt(self, run: Run) -> "Documents | None":
        number = run.of_positions(self.number)
        return None if bool((number[:, 0] == number[:, -1]).all()) else Documents(number)


@dataclass(frozen=True, eq=False)
class Padding(Term):
    """Real keys lie in [start, stop)."""

    start: Int[Tensor, " batch"]
    stop: Int[Tensor, " batch"]

    @property
    def batch(self) -> int:  # type: ignore[override]
        return self.start.shape[0]

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k >= self.start[b]) & (k < self.stop[b])

    def excerpt(self, run: Run) -> "Padding | None":
        start, stop = run.of_rows(self.start), run.of_rows(self.stop)
        hidden = (start > run.start) | (stop < run.stop)
        return Padding(start - run.start, stop - run.start) if bool(hidden.any()) else None


@dataclass(frozen=True, eq=False)
class Either(Term):
    left: "Mask"
    right: "Mask"

    @property
    def batch(self) -> int:  # type: ignore[override]
        return max(self.left.batch, self.right.batch)

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.left.allows(b, q, k) | self.right.allows(b, q, k)

    def until(self, stop: int) -> "Either":
        return Either(self.left.until(stop), self.right.until(stop))

    def excerpt(self, run: Run) -> "Either | None":
        left, right = self.left.excerpt(run), self.right.excerpt(run)
        return Either(left, right) if left.terms and right.terms else None


@dataclass(frozen=True, eq=False)
class Mask:
    """A conjunction of terms; no terms means everything may attend to everything."""

    terms: tuple[Term, ...] = ()

    def __and__(self, other: "Mask") -> "Mask":
        return Mask(self.terms + other.terms)

    def __or__(self, other: "Mask") -> "Mask":
        return Mask((Either(self, other),))

    @property
    def batch(self) -> int:
        return max([1, *[term.batch for term in self.terms]])

    @property
    def is_causal(self) -> bool:
        """Exactly the lower triangle, so a fused kernel's causal flag says it all."""
        return len(self.terms) > 0 and all(isinstance(term, Causal) for term in self.terms)

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """Return the predicate's value; the signature is that of FlexAttention's `mask_mod` without the head."""
        shape = torch.broadcast_shapes(b.shape, q.shape, k.shape)
        allowed = torch.ones(shape, dtype=torch.bool, device=q.device)
        for term in self.terms:
            allowed = allowed & term.allows(b, q, k)
        return allowed

    def excerpt(self, run: Run) -> "Mask":
        """Return the mask within a run, positions counted from its start."""
        return Mask(tuple(inside for term in self.terms if (inside := term.excerpt(run)) is not None))

    def until(self, stop: int) -> "Mask":
        """Return the mask of the positions before `stop`, counted as they were."""
        return Mask(tuple(term.until(stop) for term in self.terms))

    def dense(self, n_queries: int, n_keys: int, device: torch.device | str = "cpu") -> Bool[Tensor, "b 1 query key"]:
        """Return booleans for the last `n_queries` of `n_keys` positions (`b` is 1 unless a term differs by row)."""
        b = torch.arange(self.batch, device=device)[:, None, None, None]
        q = torch.arange(n_keys - n_queries, n_keys, device=device)[:, None]
        return self._grid(b, q, torch.arange(n_keys, device=device))

    def rectangle(
        self, n_queries: int, n_keys: int, device: torch.device | str = "cpu"
    ) -> Bool[Tensor, "b 1 query key"]:
        """Like `dense`, for queries that are no continuation of the keys (cross-attention): both count from 0."""
        b = torch.arange(self.batch, device=device)[:, None, None, None]
        return self._grid(b, torch.arange(n_queries, device=device)[:, None], torch.arange(n_keys, device=device))

    def _grid(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.allows(b, q, k).expand(self.batch, 1, q.shape[0], k.shape[0])

    def blocks(self, n_queries: int, n_keys: int, size: int) -> Int[Tensor, "b query_block key_block"]:
        """Return per tile: 0 nothing allowed, 1 some of it, 2 all of it. Short last tiles count what they have."""
        allowed = self.dense(n_queries, n_keys)[:, 0].float()
        rows, columns = -(-n_queries // size) * size - n_queries, -(-n_keys // size) * size - n_keys
        tiles = torch.nn.functional.pad(allowed, (0, columns, 0, rows)).unfold(1, size, size).unfold(2, size, size)
        real = torch.nn.functional.pad(torch.ones_like(allowed), (0, columns, 0, rows))
        some = tiles.sum((-1, -2))
        return (some > 0).long() + (some == real.unfold(1, size, size).unfold(2, size, size).sum((-1, -2))).long()

    def only(self, *kinds: type[Term], mechanism: str) -> dict[type[Term], list[Any]]:
        """Return the terms by class, or raise if the mechanism cannot honour one of them."""
        found: dict[type[Term], list[Any]] = {kind: [] for kind in kinds}
        for term in self.terms:
            if type(term) not in found:
                able = ", ".join(kind.__name__.lower() for kind in kinds)
                raise AnalysisUnavailable(
                    f'"{mechanism}" cannot apply a {type(term).__name__.lower()} mask on this route; it knows {able}.'
                )
            found[type(term)].append(term)
        return found


def causal() -> Mask:
    """Each position sees itself and what came before."""
    return Mask((Causal(),))


def window(size: int) -> Mask:
    """Positions less than `size` apart see each other; with `causal()`, the last `size` keys including one's own."""
    return Mask((Window(size),))


def documents(ids: Int[Tensor, "batch key"]) -> Mask:
    """Positions of one document see each other: for several documents packed into one row.

    A document is as many positions in a row as have one id; where an id comes again, it is another document's.
    """
    return Mask((Documents(ids),))


def padding(lengths: Int[Tensor, " batch"], *, total: int | None = None, left: bool = False) -> Mask:
    """Hide what lies beyond each row's length; with `left`, what lies before the last `length` of `total` keys."""
    if not left:
        return Mask((Padding(torch.zeros_like(lengths), lengths),))
    assert total is not None, "left padding is counted from the row's end"
    return Mask((Padding(total - lengths, torch.full_like(lengths, torch.iinfo(torch.int64).max)),))


@runtime_checkable
class Spread(Protocol):
    """Processes that share the positions of texts: each has some of every text, and mixes them with those of all.

    What is mixed looks back only, within documents.
    """

    def own(self, x: Tensor) -> Tensor:
        """What this process has of a tensor with all positions on its last axis."""
        ...

    def softmax(
        self,
        q: Float[Tensor, "batch head pos d_head"],
        k: Float[Tensor, "batch kv_head pos d_head"],
        v: Float[Tensor, "batch kv_head pos d_value"],
        scale: float,
        documents: "Documents | None",
        dropout: float,
    ) -> Float[Tensor, "batch head pos d_value"]:
        """Values mixed by the softmax of products, times a scale, with dropout on the pattern.

        Documents are those of all positions.
        """
        ...

    def linear(
        self,
        q: Float[Tensor, "batch head pos feature"],
        k: Float[Tensor, "batch head pos feature"],
        v: Float[Tensor, "batch head pos value"],
        keep: Float[Tensor, " head"],
        documents: "Documents | None",
    ) -> Float[Tensor, "batch head pos value"]:
        """Values mixed by products of features; `keep` is what each head keeps of its memory at each position."""
        ...


@dataclass(frozen=True, eq=False)
class Context:
    """Facts about one forward pass shared by all its layers.

    Args:
        mask: Who may attend to whom.
        positions: Index of each query token for position encodings, padding not counted.
        key_positions: The same for every key, those in the state included.
        source: The context of cross-attention, if there is any.
        form: `auto` (scan with state, dense if a lazy site is wanted, else fused), `parallel` (never scan), `scan`.
        seed: Source of any random draw a mechanism makes (hash rounds), so that it never depends on the route.
        encoding: The layer's position encoding, if it adds to scores, makes them itself, or turns keys that are read or
            features of queries and keys.
        crossed: Queries and keys come from different sequences.
        dropout: Rate on the weights of the layer's pattern; 0 in evaluation.
        drops: Whether dropout is live where a block is in training mode.
        first: First of the new positions, if they count up from it by one in every row; None if they may not.
        rule: Which keys the mechanism looks at of those that the mask allows; None for all.
        marked: Which keys the pass says are global tokens, for mechanisms that have them; None for none.
        spread: Processes that share the positions of this pass; None where one has them all. The mask is of all then,
            the rest of those that this process has.
        memo: Values that all layers of this pass share (dense masks, rotation tables).
    """

    mask: Mask
    positions: Int[Tensor, "b pos"]
    key_positions: Int[Tensor, "b key"]
    source: "Context | None" = None
    form: str = "auto"
    seed: int = 0
    encoding: Any = None
    crossed: bool = False
    dropout: float = 0.0
    drops: bool = True
    first: int | None = None
    rule: Rule | None = None
    marked: Bool[Tensor, "batch key"] | None = None
    spread: Spread | None = None
    memo: dict[Any, Any] = field(default_factory=dict)

    @property
    def biased(self) -> bool:
        """Whether the layer's positions add to its scores."""
        return self.encoding is not None and self.encoding.has_bias

    @property
    def bias(self) -> Float[Tensor, "b head query key"] | None:
        """What the layer's positions add to its scores."""
        return self.encoding.bias(self) if self.biased else None

    @property
    def makes_scores(self) -> bool:
        """Whether the layer's positions make something else of a score of queries and keys."""
        return self.encoding is not None and self.encoding.has_scores

    @property
    def makes_scores_in_parts(self) -> bool:
        """Whether the scores that the layer's positions make are products, if each of its own queries and keys."""
        return self.makes_scores and self.encoding.has_parts(self)

    def scores(self, score: Callable[[Tensor, Tensor], Tensor], q: Tensor, k: Tensor) -> Tensor:
        """Return the score of every query with every key, or what the layer's positions make of it."""
        return self.encoding.scores(score, q, k, self) if self.makes_scores else score(q, k)

    def read(self, k: Float[Tensor, "*n key d_head"]) -> Float[Tensor, "*n key d_head"]:
        """Return the last keys, those in the state included, as queries meet them."""
        return self.encoding.read(k, self) if self.encoding is not None and self.encoding.at_read else k

    def met(
        self, q: Float[Tensor, "batch head query d_head"], k: Float[Tensor, "batch head key d_head"]
    ) -> tuple[Float[Tensor, "batch head query d_feature"], Float[Tensor, "batch head key d_feature"]]:
        """Return features of queries and keys, keys by query head, or what the layer's positions make of them."""
        if self.encoding is None or not self.encoding.config.doubles:
            return q, k
        return self.encoding.doubled(q, k, self)

    @property
    def documents(self) -> Documents | None:
        """The documents that rows are packed of, if they are."""
        found = [term for term in self.mask.terms if isinstance(term, Documents)]
        return found[0] if len(found) == 1 and not self.crossed else None

    def numbered(self, n_queries: int) -> Int[Tensor, "b pos_and_one"] | None:
        """Return which document each of the last positions is of, and that of the position before them first.

        None if rows are of one document each.
        """
        if (documents := self.documents) is None:
            return None
        return torch.nn.functional.pad(documents.number, (1, 0))[:, -n_queries - 1 :]

    def texts(self, batch: int) -> "list[Context]":
        """Return the contexts of the documents of a batch; where there are none, that of whole rows."""
        documents = self.documents
        return [self] if documents is None else [self.excerpt(run) for run in documents.runs(batch)]

    def excerpt(self, run: Run) -> "Context":
        """Return the context of a run: of some rows of a pass, and some consecutive positions."""
        if run not in self.memo:
            positions, keys = run.of_positions(self.positions), run.of_positions(self.key_positions)
            counted = positions[:1, :1] + torch.arange(run.length, device=positions.device)
            first = int(positions[0, 0]) if torch.equal(positions, counted.expand_as(positions)) else None
            self.memo[run] = self.mask.excerpt(run), positions, keys, first, {}
        mask, positions, keys, first, memo = self.memo[run]
        marked = None if self.marked is None else run.of_positions(self.marked)
        return replace(self, mask=mask, positions=positions, key_positions=keys, first=first, marked=marked, memo=memo)

    def piece(self, start: int, stop: int) -> "Context":
        """Return the context of some of the new positions, as a state that holds those before them continues."""
        n, total = self.positions.shape[-1], self.key_positions.shape[-1]
        if (start, stop) == (0, n):
            return self
        if ("piece", start, stop) not in self.memo:
            keys = total - n + stop
            marked = None if self.marked is None else self.marked[:, :keys]
            self.memo["piece", start, stop] = replace(
                self,
                mask=self.mask.until(keys),
                positions=self.positions[:, start:stop],
                key_positions=self.key_positions[:, :keys],
                first=None if self.first is None else self.first + start,
                marked=marked,
                memo={},
            )
        return self.memo["piece", start, stop]

    def spread_over(self, spread: Spread) -> "Context":
        """Return the context of a process that shares the positions of this one with others."""
        own = spread.own(self.positions)
        return replace(self, positions=own, key_positions=own, first=None, spread=spread, memo={})

    def ruled(self, rule: Rule | None) -> "Context":
        """Return the context with a mechanism's rule in it."""
        return self if rule is None else replace(self, rule=rule)

    @property
    def sees_itself(self) -> bool:
        """Whether every query may surely attend to one key at least: its own."""
        return not self.crossed and all(term.reflexive for term in self.mask.terms)

    @property
    def is_causal(self) -> bool:
        return self.mask.is_causal and not self.crossed and self.rule is None

    @property
    def looks_back(self) -> bool:
        """Whether no position attends to a later one, whatever else hides keys."""
        return not self.crossed and any(isinstance(term, Causal) for term in self.mask.terms)

    @property
    def begins(self) -> Bool[Tensor, "b pos"] | None:
        """Which of the new positions have nothing before them; None where that holds of the first of all at most.

        So it is of the first position of a packed document, of padding on the left and of the first token behind it.
        """
        return None if self.first is not None else self.positions == 0

    @property
    def ends(self) -> Bool[Tensor, "b pos"] | None:
        """Which of the new positions may not see the one behind them; None where that holds of the last of all alone.

        So it is of the last of a packed document, of the last real token of a row and of every one under a causal mask.
        """
        if not self.mask.terms:
            return None
        if "ends" not in self.memo:
            n, total, device = self.positions.shape[-1], self.key_positions.shape[-1], self.positions.device
            b = torch.arange(self.mask.batch, device=device)[:, None]
            q = torch.arange(total - n, total - 1, device=device)
            self.memo["ends"] = torch.nn.functional.pad(~self.mask.allows(b, q, q + 1), (0, 1), value=True)
        return self.memo["ends"]

    def reaches(self, back: int) -> Bool[Tensor, "b pos"] | None:
        """Which of the new positions may see the one so many before them; None if all may for which there is one."""
        if all(isinstance(term, Causal) for term in self.mask.terms):
            return None
        if ("reaches", back) not in self.memo:
            n, total, device = self.positions.shape[-1], self.key_positions.shape[-1], self.positions.device
            b, q = torch.arange(self.mask.batch, device=device)[:, None], torch.arange(total - n, total, device=device)
            allowed = self.mask.allows(b, q, (q - back).clamp_min(0)) & (q >= back)
            self.memo["reaches", back] = allowed
        return self.memo["reaches", back]

    def new_positions(self, keys: bool) -> Int[Tensor, "b pos"]:
        """Return the positions of the tokens projected in this pass, as queries or (in cross-attention) as keys."""
        return self.key_positions if keys else self.positions

    def length(self, keys: bool) -> Int[Tensor, ""]:
        """Return how many positions this pass reaches over, those in the state included: the largest, plus one.

        It is one number for all rows of a batch.
        """
        counted = self.positions if self.crossed and not keys else self.key_positions
        return counted.max() + 1

    def allowed(self, n_queries: int, n_keys: int, size: int | None = None) -> Bool[Tensor, "b h query key"] | None:
        """Return the dense mask of the last keys, narrowed to a window if given; None if everything is allowed.

        It is one for all heads, unless a rule tells them apart.
        """
        mask = self.mask if size is None else self.mask & window(size)
        if not mask.terms and self.rule is None:
            return None
        key = ("allowed", n_queries, n_keys, size, self.rule)
        if key not in self.memo:
            # a rolling state keeps fewer keys than there are positions: columns are aligned at the end
            total = max(n_keys, self.key_positions.shape[-1])
            lower = mask.rectangle if self.crossed else mask.dense
            allowed = lower(n_queries, total, self.positions.device)[..., total - n_keys :]
            if self.rule is not None:
                allowed = allowed & self.rule.allows(*self.places(n_queries, n_keys, self.rule))
            self.memo[key] = allowed
        return self.memo[key]

    def places(
        self, n_queries: int, n_keys: int, rule: Rule
    ) -> tuple[Int[Tensor, "b 1 query 1"], Int[Tensor, "b 1 1 key"]]:
        """Return where the last queries and keys are, as a rule counts them."""
        if not rule.by_distance:
            return self.positions[:, None, -n_queries:, None], self.key_positions[:, None, None, -n_keys:]
        total, device = max(n_keys, self.key_positions.shape[-1]), self.positions.device
        q, k = (torch.arange(total - n, total, device=device) for n in (n_queries, n_keys))
        return q[None, None, :, None], k[None, None, None]

    def visible(self, n_queries: int, size: int | None = None) -> Int[Tensor, "b h query"]:
        """Return how many keys each of the last queries may attend to, within a window if given.

        Rows of the mask are made some at a time and counted: the mask of a long text is never whole. It is one number
        for all heads, unless a rule tells them apart.
        """
        key = ("visible", n_queries, size, self.rule)
        if key not in self.memo:
            mask = self.mask if size is None else self.mask & window(size)
            # those that have left a rolling state are counted, and are outside the window
            total = self.key_positions.shape[-1]
            first, device = 0 if self.crossed else total - n_queries, self.positions.device
            b = torch.arange(mask.batch, device=device)[:, None, None, None]
            queries, keys = torch.arange(n_queries, device=device), torch.arange(total, device=device)
            counted, n_heads = [], 1 if self.rule is None else self.rule.n_heads
            for i in queries.split(max(1, COUNTED // max(1, mask.batch * n_heads * total))):
                allowed = mask.allows(b, first + i[:, None], keys).expand(mask.batch, 1, len(i), total)
                if self.rule is not None:
                    q, k = self.places(n_queries, total, self.rule)
                    allowed = allowed & self.rule.allows(q[:, :, i], k)
                counted.append(allowed.sum(-1))
            self.memo[key] = torch.cat(counted, -1)
        return self.memo[key]

    def real_keys(self, n_keys: int, mechanism: str) -> Bool[Tensor, "b key"] | None:
        """Return which of the last keys are no padding, for mechanisms that hide a key by zeroing it."""
        terms = [term for term in self.mask.terms if isinstance(term, Padding)]
        if not terms:
            return None
        total = max(n_keys, self.key_positions.shape[-1])
        k = torch.arange(total - n_keys, total, device=self.positions.device)
        b = torch.arange(self.mask.batch, device=self.positions.device)[:, None]
        return Mask(tuple(terms)).allows(b, k, k)
