"""Every path from the bottom of the stream to one logit, and what it contributes.

    logits = sum over paths of  A_hk … A_h1  source  OV_h1 … OV_hk  W_U

A path starts at a source (token, position, the biases, what an MLP or cross-attention wrote) and passes one head each
in some of the layers above it; its order is the number of heads. With patterns and norm scales frozen the paths of all
orders sum to the logit. They are found from the top: the direction of the logit is pulled back through all heads of a
layer at once, and again from there.

Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits" (path expansion).
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from glassformer.analysis._run import Run
from glassformer.analysis.paths._steps import Step, Steps, step_sites, steps_of
from glassformer.analysis.prepare import answer_id
from glassformer.analysis.question import question
from glassformer.arguments import Natural
from glassformer.errors import AnalysisUnavailable, nearest
from glassformer.labelled import Coordinate, Labelled, Result

# directions pulled back together: a piece holds this many times `pos d_model` numbers for each head of a layer
PIECE = 16


@dataclasses.dataclass(frozen=True)
class Path:
    """One path to a logit.

    Args:
        source: Where it starts: `token`, `position`, `L0 mlp`, `L0 attn bias`, `values bias` (the constant part of what
            the first head moves), ….
        heads: Labels of the heads it passes, first one first.
        value: Its contribution, in logits, norms and patterns frozen.
    """

    source: str
    heads: tuple[str, ...]
    value: float

    @property
    def order(self) -> int:
        return len(self.heads)

    @property
    def label(self) -> str:
        return " > ".join((self.source, *self.heads))


@dataclasses.dataclass(frozen=True, eq=False)
class PathExpansion(Result):
    """A logit, or the difference of two, as a sum over paths; patterns and norm scales frozen.

    Args:
        contributions: In logits, over `path`, largest first by size.
        shares: Of the total; they sum to one with the remainder's, and single ones can exceed it.
        cumulative: Sum of the contributions up to here.
        by_order: Sum of the contributions of each order, `order`, and of all longer paths, `more`.
        paths: What each of them is, in the same order.
        answer: Token id.
        against: Token id subtracted, or None.
        position: Index of the position whose next token is in question.
        total: The (raw, if the model caps logits) logit or difference, as the model computed it.
        remainder: What paths longer than `max_order` add up to.
    """

    HEADLINE = ("contributions", "by_order")
    SIGNED = ("contributions", "shares", "cumulative", "by_order")

    contributions: Labelled
    shares: Labelled
    cumulative: Labelled
    by_order: Labelled
    paths: tuple[Path, ...]
    answer: int
    against: int | None
    position: int
    total: float
    remainder: float

    def __getitem__(self, label: str) -> float:
        """Return one contribution by its path, `token > L0H1 > L1H0`."""
        return float(self.contributions.select(path=label).values)


@question(
    "Which chains of heads add to this logit?",
    reads=step_sites,
    traits=("linear_in_value",),
    holds=("patterns", "norm scales", "gates", "value slopes"),
)
def expand_paths(
    run: Any,
    text: Any = None,
    target: Any = None,
    *,
    answer: str | int | None = None,
    against: str | int | None = None,
    position: int = -1,
    row: int = 0,
    max_order: Natural | None = 2,
) -> PathExpansion:
    """Split one logit into the contributions of all paths that lead to it.

    There are (1 + heads) ^ layers of them; `max_order` bounds how many are named, and the rest is exact in sum. Terms
    that pass different norms were divided by different scales.

    Args:
        max_order: Most heads a path may pass; None for all.

    Raises:
        SiteNotRead: The run lacks a site.
        NoPattern: A mechanism has no pattern that multiplies values.

    Example:
        >>> done = gf.run(model, "a b c a b", read=step_sites(model))
        >>> expand_paths(done, "c").paths[0].label
        'token > L1H3'
    """
    question = _ask(run, answer, against, position, "expand_paths")
    found = sorted(_terms(question, max_order), key=lambda path: -abs(path.value))
    values = torch.tensor([path.value for path in found], dtype=torch.float64)
    remainder = question.total - float(values.sum())
    highest = question.steps.depth if max_order is None else min(max_order, question.steps.depth)
    orders = torch.zeros(highest + 2, dtype=torch.float64)
    orders.index_add_(0, torch.tensor([path.order for path in found]), values)
    orders[-1] = remainder
    axes, coords = ("path",), {"path": [path.label for path in found]}
    return PathExpansion(
        contributions=Labelled(values, axes, coords),
        shares=Labelled(values / question.total, axes, coords),
        cumulative=Labelled(values.cumsum(0), axes, coords),
        by_order=Labelled(orders, ("order",), {"order": [*map(str, range(highest + 1)), "more"]}),
        paths=tuple(found),
        answer=question.answer,
        against=question.against,
        position=question.at,
        total=question.total,
        remainder=remainder,
    )


@question(
    "Which chains of heads add to this logit, one after the other?",
    reads=step_sites,
    traits=("linear_in_value",),
    holds=("patterns", "norm scales", "gates", "value slopes"),
)
def paths(
    run: Any,
    text: Any = None,
    target: Any = None,
    *,
    answer: str | int | None = None,
    against: str | int | None = None,
    position: int = -1,
    row: int = 0,
    max_order: Natural | None = 2,
) -> Iterator[Path]:
    """Yield the paths one by one, as they are found, in bounded memory; see `expand_paths`.

    Args:
        max_order: Most heads a path may pass; None for all.
    """
    # no generator itself: what is wrong is said at the call, not at the first path
    return _terms(_ask(run, answer, against, position, "paths"), max_order)


@question(
    "Which positions does a chain of heads start from?",
    reads=step_sites,
    traits=("linear_in_value",),
    holds=("patterns", "norm scales", "gates", "value slopes"),
)
@torch.no_grad()
def path_sources(
    run: Any,
    text: Any = None,
    target: Any = None,
    *,
    heads: Sequence[str],
    answer: str | int | None = None,
    against: str | int | None = None,
    position: int = -1,
    row: int = 0,
) -> Labelled:
    """Split what comes by some heads in a row by the position it starts from; `key source`, in logits.

    With one head this is the per-source map of a one-layer model: how much looking at each token raised the logit.
    Sources that are no head's constant: the sum over both axes is that of all paths through exactly these heads, less
    the ones that start at `values bias`.

    Args:
        heads: Labels, first head first; none for the direct path.

    Raises:
        AnalysisUnavailable: An unknown head, or heads that cannot follow each other.
    """
    question = _ask(run, answer, against, position, "path_sources")
    steps, u, entry = question.steps, question.direction, len(question.steps.steps)
    for label in reversed(heads):
        u, entry = _through(steps, u, entry, label)
    found: dict[str, Tensor] = {}
    for i, write, above in steps.down(u, entry):
        for name, vectors, at_write in _sources(steps, i):
            found[name] = (vectors * (write if at_write else above))[0].sum(-1)
    names = list(reversed(found))
    keys: list[Coordinate] = [f"{i}:{token}" for i, token in enumerate(run.tokens)]
    values = torch.stack([found[name].expand(u.shape[-2]) for name in names], -1)
    coords = {"source": names} | ({"key": keys} if len(keys) == len(values) else {})
    return Labelled(values, ("key", "source"), coords)


@question(
    "Which positions does each head's share of this logit come from?",
    reads=step_sites,
    traits=("linear_in_value",),
    holds=("patterns", "norm scales", "gates", "value slopes"),
)
@torch.no_grad()
def source_map(
    run: Any,
    text: Any = None,
    target: Any = None,
    *,
    answer: str | int | None = None,
    against: str | int | None = None,
    position: int = -1,
    row: int = 0,
) -> Labelled:
    """Split what every head adds to a logit by the position whose value it moved; `head key`, in logits.

    A row sums to the head's direct contribution. In a one-layer model the rows, the direct path and the output biases
    are the whole logit.
    """
    question = _ask(run, answer, against, position, "source_map")
    steps = question.steps
    directions = {
        i: step.valued(write)
        for i, write, _ in steps.down(question.direction)
        if i >= 0 and (step := steps.steps[i]).n_heads
    }
    labels, values = list[str](), list[Tensor]()
    for i, stream in enumerate(steps.streams()):
        if i in directions:
            found = directions[i] * steps.steps[i].values(stream, bias=True)
            labels += steps.steps[i].labels
            values.append(steps.steps[i].by_position(found.sum(-1)[0]))
    keys: list[Coordinate] = [f"{i}:{token}" for i, token in enumerate(run.tokens)]
    coords: dict[str, list[Coordinate]] = {"head": list(labels)}
    coords |= {"key": keys} if values and len(keys) == values[0].shape[-1] else {}
    matrix = torch.cat(values) if values else steps.token.new_zeros(0, steps.token.shape[1])
    return Labelled(matrix, ("head", "key"), coords)


@dataclasses.dataclass(frozen=True, eq=False)
class _SplitLogit:
    """Which logit is split, and its direction above the last sub-layer, `1 pos d_model`."""

    steps: Steps
    direction: Tensor
    answer: int
    against: int | None
    at: int
    total: float
    constants: tuple[tuple[str, float], ...]


@torch.no_grad()
def _ask(run: Run, answer: str | int | None, against: str | int | None, position: int, analysis: str) -> _SplitLogit:
    steps = steps_of(run, analysis)
    at = run.place(position)
    assert run.logits is not None, "a run of one of our models has logits"
    chosen = int(run.logits[0, at].argmax()) if answer is None else answer_id(run.model, answer)
    other = None if against is None else answer_id(run.model, against)
    unembed = steps.unembed
    u = unembed.direction(torch.tensor(chosen)) - (0 if other is None else unembed.direction(torch.tensor(other)))
    constants = []
    if steps.final.bias is not None:
        constants.append(("final norm bias", float(steps.final.bias @ u)))
    if unembed.bias is not None:
        constants.append(("unembed bias", float(unembed.bias[chosen] - (0 if other is None else unembed.bias[other]))))
    top = u.new_zeros(steps.token.shape)
    top[0, at] = u
    raw = run.logits[0, at] if unembed.cap is None else run[unembed.at_raw].values[0, at]
    total = float(raw[chosen] - (0 if other is None else raw[other]))
    return _SplitLogit(
        steps=steps,
        direction=steps.final.adjoint(top),
        answer=chosen,
        against=other,
        at=at,
        total=total,
        constants=tuple(constants),
    )


def _terms(question: _SplitLogit, max_order: int | None) -> Iterator[Path]:
    yield from (Path(name, (), value) for name, value in question.constants)
    with torch.no_grad():
        above = _Above(question.direction[None], ((),), len(question.steps.steps))
        yield from _below(question.steps, above, question.steps.depth if max_order is None else max_order)


@dataclasses.dataclass(frozen=True, eq=False)
class _Above:
    """Upper ends of some paths, all at one height: directions, `path 1 pos d_model`, and the heads they passed."""

    u: Tensor
    heads: tuple[tuple[str, ...], ...]
    entry: int


def _below(steps: Steps, above: _Above, more: int) -> Iterator[Path]:
    """Yield all paths with these upper ends and at most so many more heads."""
    for i, write, u in steps.down(above.u, above.entry):
        for name, vectors, at_write in _sources(steps, i):
            values = ((write if at_write else u) * vectors).flatten(1).sum(-1)
            yield from (Path(name, heads, value) for heads, value in zip(above.heads, values.tolist()))
        step = steps.steps[i] if i >= 0 else None
        if step is None or not step.n_heads or not more:
            continue
        for start in range(0, len(above.heads), PIECE):
            piece = slice(start, start + PIECE)
            g = step.valued(write[piece])
            passed = [(label, *heads) for label in step.labels for heads in above.heads[piece]]
            constant = step.constant(g)
            if constant is not None:
                values = constant.flatten().tolist()
                yield from (Path("values bias", heads, value) for heads, value in zip(passed, values))
            lower = _Above(step.read(g).flatten(0, 1), tuple(passed), step.entry)
            yield from _below(steps, lower, more - 1)


def _sources(steps: Steps, i: int) -> list[tuple[str, Tensor, bool]]:
    """Return what enters the stream at a sub-layer (-1: at the bottom) whatever heads do: name, vectors, and whether
    it passes the norm behind the sub-layer."""
    if i < 0:
        entries = (("token", steps.token), ("position", steps.position), ("embed norm bias", steps.entry_bias))
        return [(name, vectors, True) for name, vectors in entries if vectors is not None]
    step = steps.steps[i]
    found: list[tuple[str, Tensor | None, bool]] = [
        (step.label, step.recorded, True),
        (f"{step.label} bias", step.bias, True),
        (f"{step.label} norm bias", step.layer.shift, False),
    ]
    return [(name, vectors, at_write) for name, vectors, at_write in found if vectors is not None]


def _through(steps: Steps, u: Tensor, entry: int, label: str) -> tuple[Tensor, int]:
    for i, write, _ in steps.down(u, entry):
        step: Step | None = steps.steps[i] if i >= 0 else None
        if step is not None and label in step.labels:
            return step.read(step.valued(write))[step.labels.index(label)], step.entry
    known = [name for step in steps.steps[:entry] for name in step.labels]
    raise AnalysisUnavailable(
        f'path_sources: no head "{label}" that what follows on the path reads from.{nearest(label, known)}\n'
        f"    Heads there: {', '.join(known) or 'none'}."
    )
