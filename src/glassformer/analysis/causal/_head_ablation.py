"""Ablation of heads: how much of the loss, and of in-context learning, goes through them.

    full                 what the heads write is replaced; everything downstream reacts
    pattern_preserving   the same with every pattern held at what it was, so that only paths through values lose them

With norms held too (`norms="frozen"`) and no MLPs, pattern-preserving ablation takes away exactly the paths through the
heads. What a head writes is replaced by nothing, or by its mean over all tokens that count.

What single values and other parts are worth to any metric, and by which kind of ablation, is in `ablation_table`.

Layers below an ablated head are not run again, and all heads of a layer are rows of one batch.

Source: Olsson et al. 2022, argument 3.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.analysis._run import evaluating
from glassformer.analysis.causal._site_grid import write_site
from glassformer.analysis.components import require_next_tokens
from glassformer.analysis.heads._roles import Head, heads
from glassformer.analysis.learning._in_context import icl_or_nan
from glassformer.analysis.losses import joined, losses_of, token_losses
from glassformer.analysis.prepare import token_ids
from glassformer.attention import AttentionLayer
from glassformer.data import Batch
from glassformer.data.batch import next_token_batch
from glassformer.errors import AnalysisUnavailable, NoPattern, ShapeMismatch, nearest
from glassformer.labelled import Labelled, Result
from glassformer.models import Decoder
from glassformer.models.parts import Norm
from glassformer.trace import At, Edit, Set, Tape

Kind = Literal["full", "pattern_preserving"]
Value = Literal["zero", "mean"]
Norms = Literal["live", "frozen"]
Report = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True, eq=False)
class Ablation(Result):
    """What replacing some sets of heads does; a change is the ablated model's number less the whole model's.

    Args:
        loss_change: Nats per token, over `heads`; positive where the heads help.
        loss_change_spread: Standard error over rows; NaN with one row.
        icl_change: Change of the in-context-learning score in nats; positive where the heads carry in-context learning
            (the score is negative where there is any). NaN where the rows are too short for a score.
        loss_by_position: Of the ablated models in nats, `heads pos`.
        loss: Of the whole model.
        icl: In-context-learning score of the whole model; NaN if undefined.
        kind: `full` or `pattern_preserving`.
        value: `zero` or `mean`.
        norms: `live` or `frozen`.
        rows: How many were averaged over.
    """

    loss_change: Labelled
    loss_change_spread: Labelled
    icl_change: Labelled
    loss_by_position: Labelled
    loss: float
    icl: float
    kind: Kind
    value: Value
    norms: Norms
    rows: int

    @property
    def icl_share(self) -> Labelled:
        """The share of the in-context-learning score that is gone: 1 if nothing of it is left."""
        return dataclasses.replace(self.icl_change, values=-self.icl_change.values / self.icl)


def ablate(
    model: Any,
    chosen: str | Iterable[str],
    *inputs: Any,
    kind: Kind = "full",
    value: Value = "zero",
    norms: Norms = "live",
) -> Ablation:
    """Ablate one set of heads together.

    Args:
        model: A decoder or an encoder-decoder.
        chosen: Labels of heads (`L1H6`), of any layers.
        inputs: Batches, a text, or rows of token ids.
        kind: Whether later patterns react.
        value: What takes the place of the heads' writes.
        norms: Whether the scales of norms react.

    Raises:
        AnalysisUnavailable: There is no such head.
        NoPattern: Patterns are to be preserved, and a layer has none.

    Source: Olsson et al. 2022, argument 3.
    """
    labels = [chosen] if isinstance(chosen, str) else list(chosen)
    return _ablate(model, {" ".join(labels): _find(model, labels)}, inputs, kind, value, norms)


def ablate_each(
    model: Any,
    *inputs: Any,
    chosen: Sequence[str] | None = None,
    kind: Kind = "full",
    value: Value = "zero",
    norms: Norms = "live",
    report: Report | None = None,
) -> Ablation:
    """Ablate each head by itself: all of them, or those chosen; arguments and errors as in `ablate`.

    `report` is called as it goes with passes done and in all: one for every head and batch.
    """
    labels = [head.label for head in heads(model)] if chosen is None else list(chosen)
    return _ablate(model, {label: _find(model, [label]) for label in labels}, inputs, kind, value, norms, report)


@dataclasses.dataclass(frozen=True, eq=False)
class BeforeAfter(Result):
    """Whether ablating heads undoes what training did between two moments, token by token.

    Args:
        cosine: Between the rise of every token's loss by ablation and by going back in time; 1 if they are alike.
        projection: The rise by ablation along the rise by going back, in units of the latter: 1 if it undoes all of it.
        rise_by_ablation: Mean over tokens, in nats.
        rise_by_going_back: Mean over tokens, in nats.
        heads: What was ablated.
        kind: `full` or `pattern_preserving`.
        tokens: How many were compared.
    """

    cosine: float
    projection: float
    rise_by_ablation: float
    rise_by_going_back: float
    heads: tuple[str, ...]
    kind: Kind
    tokens: int


def before_after(
    before: Any,
    after: Any,
    chosen: str | Iterable[str],
    *inputs: Any,
    kind: Kind = "pattern_preserving",
    value: Value = "zero",
    norms: Norms = "live",
) -> BeforeAfter:
    """Compare what heads do for each token's loss with what changed between two checkpoints of a run.

    Args:
        before: The model at the earlier moment.
        after: The model at the later one; its heads are ablated.
        chosen: As in `ablate`, like the other arguments and errors.
        inputs: As in `ablate`.
        kind: As in `ablate`.
        value: As in `ablate`.
        norms: As in `ablate`.

    Source: Olsson et al. 2022, argument 3 (before-and-after vectors); normalising them is our choice.
    """
    labels = (chosen,) if isinstance(chosen, str) else tuple(chosen)
    batches, whole, found, weight = _losses(after, {" ".join(labels): _find(after, labels)}, inputs, kind, value, norms)
    earlier = token_losses(before, *batches)[0][weight].double()
    back, lost = earlier - whole[weight].double(), found[0][weight].double() - whole[weight].double()
    return BeforeAfter(
        float(lost @ back / (lost.norm() * back.norm())), float(lost @ back / (back @ back)), float(lost.mean()),
        float(back.mean()), labels, kind, int(weight.sum()),
    )  # fmt: skip


def _find(model: Any, labels: Sequence[str]) -> list[Head]:
    known = {head.label: head for head in heads(model)}
    for label in labels:
        if label not in known:
            raise AnalysisUnavailable(f'ablate: no head "{label}".{nearest(label, known)} Heads: {", ".join(known)}.')
    return [known[label] for label in labels]


def _ablate(
    model: Any,
    sets: dict[str, list[Head]],
    inputs: Sequence[Any],
    kind: Kind,
    value: Value,
    norms: Norms,
    report: Report | None = None,
) -> Ablation:
    _, whole, found, weight = _losses(model, sets, inputs, kind, value, norms, report)
    return _summary(whole, found, weight, list(sets), kind, value, norms)


def _losses(
    model: Any,
    sets: dict[str, list[Head]],
    inputs: Sequence[Any],
    kind: Kind,
    value: Value,
    norms: Norms,
    report: Report | None = None,
) -> tuple[list[Batch], Float[Tensor, "row pos"], Float[Tensor, "set row pos"], Bool[Tensor, "row pos"]]:
    """Return the batches, and of all their rows the whole model's losses, the ablated ones', and what counts."""
    require_next_tokens(model, "ablate")
    batches = [_batch(model, given) for given in inputs]
    if not batches:
        raise ShapeMismatch("ablate: give at least one batch.")
    if kind == "pattern_preserving" and (lacking := [h for h in heads(model) if h.reading is None]):
        raise NoPattern(
            f'ablate: kind="pattern_preserving" holds patterns, and {lacking[0].label} ("{lacking[0].mechanism}") has '
            'none.\n    kind="full" needs no pattern.'
        )
    if not sets:
        raise AnalysisUnavailable("ablate: the model has no heads.")
    with evaluating(model), torch.no_grad():
        surgery = _Surgery(model, kind, value, norms, batches, [h for members in sets.values() for h in members])
        done, total = 0, len(batches) * len(sets)

        def passed(n: int) -> None:
            nonlocal done
            done += n
            if report is not None:
                report(done, total)

        whole, found = zip(*(surgery.losses(batch, list(sets.values()), passed) for batch in batches), strict=True)
    return batches, joined(whole), joined(found, 1), joined([batch.weight for batch in batches])


def _summary(
    whole: Float[Tensor, "row pos"],
    found: Float[Tensor, "set row pos"],
    weight: Bool[Tensor, "row pos"],
    names: list[str],
    kind: Kind,
    value: Value,
    norms: Norms,
) -> Ablation:
    counted = weight.to(whole.dtype)
    change = ((found - whole) * counted).sum((1, 2)) / counted.sum()
    # each row pulls by how many tokens it has: the error of a ratio of sums
    off = ((found - whole) * counted).sum(2) - change[:, None] * counted.sum(1)
    n = len(whole)
    spread = off.square().sum(1).sqrt() / counted.sum() * (n / (n - 1)) ** 0.5 if n > 1 else change * math.nan
    places = range(1, whole.shape[1] + 1)
    by_position = Labelled((found * counted).sum(1) / counted.sum(0), ("heads", "pos"), {"heads": names, "pos": places})
    icl = icl_or_nan(Labelled((whole * counted).sum(0) / counted.sum(0), ("pos",)))
    changes = torch.tensor(
        [icl_or_nan(by_position.select(heads=i)) - icl for i in range(len(names))], dtype=whole.dtype
    )
    over = (("heads",), {"heads": names})
    return Ablation(
        Labelled(change, *over), Labelled(spread, *over), Labelled(changes, *over), by_position,
        float((whole * counted).sum() / counted.sum()), icl, kind, value, norms, n,
    )  # fmt: skip


class _Surgery:
    """Runs a batch whole, then again for every set of heads, from the first layer that changes."""

    def __init__(
        self,
        model: Any,
        kind: Kind,
        value: Value,
        norms: Norms,
        batches: Sequence[Batch],
        touched: Sequence[Head],
    ) -> None:
        self.model = model
        self.patterns = [f"{path}.pattern" for path in _paths(heads(model))] if kind == "pattern_preserving" else []
        self.scales = _scales(model) if norms == "frozen" else []
        self.means: dict[str, Float[Tensor, "head 1 d"]] = {}
        if value == "mean":
            self._measure(batches, _paths(touched))

    def losses(
        self, batch: Batch, sets: Sequence[list[Head]], passed: Callable[[int], None], rows_at_once: int = 128
    ) -> tuple[Float[Tensor, "row pos"], Float[Tensor, "set row pos"]]:
        held = [*self.patterns, *self.scales]
        entries = [f"blocks.{i}.resid_pre" for i in range(self.layers)]
        clean = Tape(self.model, [*held, *entries])
        whole = losses_of(self._forward(batch, clean), batch)
        found = whole.new_zeros(len(sets), *whole.shape)
        at_once = max(1, rows_at_once // len(batch.tokens))
        for start, group in self._groups(sets, at_once):
            copies = len(group)
            edits = [Set(name, _repeat(clean.values[name], copies)) for name in held if self._later(name, start)]
            edits += self._replacing([sets[i] for i in group], len(batch.tokens))
            tape = Tape(self.model, edit=edits)
            many = Batch(**{name: _repeat(value, copies) for name, value in batch.tensors().items()})
            if self.layers:
                resid = _repeat(clean.values[f"blocks.{start}.resid_pre"], copies)
                logits = self.model.resume(start, resid, lengths=many.lengths, documents=many.documents, tape=tape)
            else:
                logits = self._forward(many, tape)
            found[group] = losses_of(logits, many).unflatten(0, (copies, -1))
            passed(copies)
        return whole, found

    @property
    def layers(self) -> int:
        """How many layers a pass can be resumed at; none in an encoder-decoder."""
        return len(self.model.stack.blocks) if isinstance(self.model, Decoder) else 0

    def _groups(self, sets: Sequence[list[Head]], at_once: int) -> Iterator[tuple[int, list[int]]]:
        """Yield (first layer to run, sets that start there), a few sets at a time."""
        starts = [min(head.layer for head in members) if self.layers else 0 for members in sets]
        for start in sorted(set(starts)):
            members = [i for i, first in enumerate(starts) if first == start]
            for first in range(0, len(members), at_once):
                yield start, members[first : first + at_once]

    def _later(self, name: str, start: int) -> bool:
        layer = self.model.sites()[name].layer
        return not self.layers or layer is None or layer >= start

    def _replacing(self, sets: Sequence[list[Head]], rows: int) -> list[Edit]:
        edits: list[Edit] = []
        for s, members in enumerate(sets):
            where = slice(s * rows, (s + 1) * rows)
            for path in _paths(members):
                index = [head.head for head in members if head.path == path]
                at, mean = At(batch=where, head=index), self.means.get(path)
                edits.append(Set(self._site(path), 0.0 if mean is None else mean[None, index], at=at))
        return edits

    def _site(self, path: str) -> str:
        """Return where a head is replaced: at z where that replaces its write and nothing else, else at its write."""
        return f"{path}.{write_site(self._layer(path))}"

    def _layer(self, path: str) -> AttentionLayer:
        for stack in self.model.stacks.values():
            for block in stack.blocks:
                for name in block.names:
                    if f"{block.path}.{name}" == path:
                        return block.part(name)
        raise AssertionError("heads are found in the model")

    def _measure(self, batches: Sequence[Batch], paths: Sequence[str]) -> None:
        totals: dict[str, Tensor] = {}
        count = 0.0
        for batch in batches:
            tape = Tape(self.model, [self._site(path) for path in paths])
            self._forward(batch, tape)
            count += float(batch.weight.sum())
            for path in paths:
                value = tape.values[self._site(path)]
                weight = batch.weight if value.shape[2] == batch.weight.shape[1] else _source_weight(batch)
                total = (value * weight[:, None, :, None]).sum((0, 2)) / weight.sum() * batch.weight.sum()
                totals[path] = totals.get(path, 0.0) + total
        self.means = {path: (total / count)[:, None] for path, total in totals.items()}

    def _forward(self, batch: Batch, tape: Tape) -> Tensor:
        if isinstance(self.model, Decoder):
            return self.model(batch.tokens, lengths=batch.lengths, documents=batch.documents, tape=tape)
        return self.model(
            batch.source, batch.tokens, lengths=batch.lengths, source_lengths=batch.source_lengths, tape=tape
        )


def _source_weight(batch: Batch) -> Bool[Tensor, "batch source_pos"]:
    assert batch.source is not None, "only an encoder has positions of another length"
    if batch.source_lengths is None:
        return torch.ones_like(batch.source, dtype=torch.bool)
    return torch.arange(batch.source.shape[1], device=batch.source.device) < batch.source_lengths[:, None]


def _scales(model: Any) -> list[str]:
    """Return the sites of every scale that something is divided by, z included."""
    found = [module.at_scale for module in model.modules() if isinstance(module, Norm) and not module.identity]
    found += [m.at.z_scale for m in model.modules() if isinstance(m, AttentionLayer) and not m.merge.linear]
    return found


def _paths(chosen: Sequence[Head]) -> list[str]:
    return list(dict.fromkeys(head.path for head in chosen))


def _repeat(value: Tensor, copies: int) -> Tensor:
    return value.repeat(copies, *[1] * (value.ndim - 1))


def _batch(model: Any, given: Any) -> Batch:
    if isinstance(given, Batch):
        return given
    if not isinstance(model, Decoder):
        raise AnalysisUnavailable("ablate: an encoder-decoder reads pairs; give a Batch with source and tokens.")
    return next_token_batch(token_ids(model, given))
