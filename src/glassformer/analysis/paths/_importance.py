"""How much of a model's loss do paths of each order explain: the direct path, single heads, heads behind heads.

A path goes from the bottom of the stream to the logits and passes some heads on its way; its order is how many. With
patterns frozen, the stream made of all paths of order n or less follows from the one of order n - 1:

    stream_n(layer) = start + sum over earlier layers of  heads(stream_{n-1}(there))

so one sweep up the stack carries all orders side by side. What order n is worth is the fall of the loss from
stream_{n-1} to stream_n. Freezing patterns is what isolates it: Q- and K-composition act through patterns, so what is
left between heads is V-composition.

Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits" (term importance analysis).
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis._run import run
from glassformer.analysis.paths._steps import Steps, require_attention_only, require_steps, step_sites, steps_of
from glassformer.analysis.prepare import next_tokens
from glassformer.analysis.question import question
from glassformer.arguments import Natural
from glassformer.data import Batch
from glassformer.errors import AnalysisUnavailable, nearest
from glassformer.labelled import Labelled, Result
from glassformer.models import ModelLike

SCALES = ("frozen", "live")


@dataclasses.dataclass(frozen=True, eq=False)
class Importance(Result):
    """What paths of each order are worth, in nats.

    `scale` says how norms divide: `frozen`, by what they divided by in the full model, so that paths add up; `live`, by
    the scale of the truncated stream itself.

    Args:
        losses: Mean loss with paths up to an order, `order scale`; the last is that of the full model.
        gains: How far the loss falls with this order, `order scale`; the first is measured from guessing evenly.
        errors: Standard error of each gain over the rows of text, `order scale`; NaN for a single row.
        terms: Number of paths of the order, `order`, biases counted with what they come along with.
        gains_per_term: `order scale`.
        groups: What heads of a group are worth as paths of order one, frozen scale, `group given`: `direct`, added to
            the direct path alone; `others`, added to it and all other heads of order one.
        uniform: Loss of guessing evenly, ln of the vocabulary's size.
        full: Loss of the model.
        tokens: Number of tokens the means are over.
        approximate: Whether sub-layers that are no sum of heads took part, as they were recorded.
        left_whole: Which.
    """

    HEADLINE = ("losses", "gains", "groups")
    SIGNED = ("gains", "gains_per_term", "groups")

    losses: Labelled
    gains: Labelled
    errors: Labelled
    terms: Labelled
    gains_per_term: Labelled
    groups: Labelled
    uniform: float
    full: float
    tokens: int
    approximate: bool
    left_whole: tuple[str, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class World:
    """One truncated stream of a sweep.

    Args:
        parent: Index of the world whose stream its heads read; None for no heads.
        heads: Labels of the heads that write; None for all.
    """

    parent: int | None = None
    heads: frozenset[str] | None = None


@question(
    "What are chains of each length worth?", of="texts", holds=("patterns", "norm scales", "gates", "value slopes")
)
@torch.no_grad()
def importance(
    model: ModelLike,
    *batches: Any,
    max_order: Natural | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
    others: Literal["refuse", "recorded"] = "refuse",
) -> Importance:
    """Measure what paths of order 0, 1, 2, … are worth on some text, patterns frozen to those of the full model.

    Args:
        model: A decoder of attention layers; with `others="recorded"`, any model of ours.
        batches: Text with targets, whose `weight` says what counts; or for a decoder texts or ids, one or several at a
            time and of any lengths. One forward pass each.
        max_order: Highest order by itself; what is left is one last entry, `more`. All orders by default.
        groups: Heads to be measured together as paths of order one, by name; the heads of each layer by default.
        others: MLPs and cross-attention depend on paths of every order and are not linear. `recorded` adds what they
            wrote in the full model to the direct path: approximate, as that holds what heads before them did.

    Raises:
        AnalysisUnavailable: The model has sub-layers besides self-attention, a group names an unknown head, or logits
            are so large that a nat is less than their last digit.
        NoPattern: A mechanism has no pattern.

    Example:
        >>> found = importance(gf.load("attn-only-2l"), data.batch(0, "heldout"))
        >>> found.gains.select(scale="frozen")
    """
    if not batches:
        raise AnalysisUnavailable("importance: no text was given; pass one batch or more, as in data.batch(0).")
    if max_order is not None and max_order < 1:
        raise AnalysisUnavailable(f"importance: max_order is at least 1, or None for all orders; found {max_order}.")
    require_steps(model, "importance")
    losses: list[Tensor] = []
    rows = []
    names: dict[str, frozenset[str]] = {}
    steps = None
    for given in batches:
        batch = next_tokens(model, given, "importance")
        done = run(model, batch, read=step_sites(model))
        steps = steps_of(done, "importance")
        if others == "refuse":
            require_attention_only(
                steps, "importance",
                'importance(…, others="recorded") adds what those wrote to the direct path (approximate); '
                "analysis.attribution.direct_logit_attribution(run) splits one logit exactly.",
            )  # fmt: skip
        names = _groups(steps, groups)
        assert done.logits is not None
        found = _losses(steps, list(names.values()), max_order, batch, done.logits)
        losses.append(found)
        rows.append(batch.weight.sum(-1))
    assert steps is not None
    found = _summary(steps, list(names), torch.cat(losses, -1), torch.cat(rows).double(), max_order)
    _require_resolved(found, torch.finfo(steps.start.dtype).eps)
    return found


def _require_resolved(found: Importance, eps: float) -> None:
    """Raise `AnalysisUnavailable` if a last digit of the logits is worth more than what losses are compared by."""
    largest = float(found.losses.values.abs().max())
    if not largest * eps < 1:
        raise AnalysisUnavailable(
            f"importance: the losses go up to {largest:.1e} nats, where the last digit of a logit is worth "
            f"{largest * eps:.1e}: there is nothing to compare. The weights are too large for this; look at the "
            "model's loss first: analysis.losses.loss_by_position."
        )


def term_counts(steps: Steps) -> list[int]:
    """Return the number of paths of each order, from 0 to the depth of the stack."""
    counts, block_entry, waiting = [1], -1, 0

    def close(counts: list[int], heads: int) -> list[int]:
        # a path passes at most one of the heads that read the same stream
        return [a + heads * b for a, b in zip([*counts, 0], [0, *counts])] if heads else counts

    for step in steps:
        if step.entry != block_entry:
            counts, waiting = close(counts, waiting), 0
        block_entry, waiting = step.entry, waiting + step.n_heads
    return close(counts, waiting)


@torch.no_grad()
def sweep(steps: Steps, worlds: Sequence[World], *, live: bool = False) -> Float[Tensor, "world batch pos d_model"]:
    """The stream that the final norm reads, in every world, from one pass up the stack.

    Args:
        steps: The frozen stack.
        worlds: Each after its parent.
        live: Norms divide by the scale of the world's own stream; gates on mixed values stay as they were.
    """
    read = sorted({w.parent for w in worlds if w.parent is not None})
    at = torch.tensor([read.index(w.parent) if w.parent is not None else 0 for w in worlds])
    x = entry = steps.start.expand(len(worlds), *steps.start.shape)
    for i, step in enumerate(steps):
        entry = x if step.entry == i else entry
        if step.recorded is not None:
            out = step.recorded.expand_as(x)
        elif read:
            z = step.mix(entry[read], bias=True, live=live)[at] * _mask(step.labels, worlds).to(x)
            out = step.write(z)
        else:
            out = torch.zeros_like(x)
        out = out if step.bias is None else out + step.bias
        x = step.passed(x, step.behind(out, bias=True, live=live), bias=True, live=live)
    return x


def order_worlds(depth: int) -> list[World]:
    """Return worlds with all paths up to each order, from 0 to `depth`."""
    return [World(n - 1 if n else None) for n in range(depth + 1)]


def _mask(labels: Sequence[str], worlds: Sequence[World]) -> Float[Tensor, "world 1 head 1 1"]:
    rows = [[float(w.parent is not None and (w.heads is None or label in w.heads)) for label in labels] for w in worlds]
    return torch.tensor(rows)[:, None, :, None, None]


def _groups(steps: Steps, groups: Mapping[str, Sequence[str]] | None) -> dict[str, frozenset[str]]:
    if groups is None:
        return {step.label: frozenset(step.labels) for step in steps if step.n_heads}
    known = [label for step in steps for label in step.labels]
    for label in [label for group in groups.values() for label in group]:
        if label not in known:
            raise AnalysisUnavailable(f'importance: no head "{label}".{nearest(label, known)}')
    return {name: frozenset(group) for name, group in groups.items()}


def _losses(
    steps: Steps, groups: list[frozenset[str]], max_order: int | None, batch: Batch, logits: Tensor
) -> Float[Tensor, "world row"]:
    """Return the summed loss of each row: orders frozen, the full model, orders live, groups alone, all but each."""
    orders = order_worlds(_highest(steps, max_order))
    every = frozenset(label for step in steps for label in step.labels)
    apart = [World(0, g) for g in groups] + [World(0, every - g) for g in groups]
    target, weight = batch.targets, batch.weight
    # a world may read any world before it: the groups all read order zero
    frozen = sweep(steps, [*orders, *apart])
    live = sweep(steps, orders, live=True)
    full = -logits.log_softmax(-1).gather(-1, target[..., None]).squeeze(-1)
    found = [steps.loss(x, target) for x in frozen[: len(orders)]]
    found += [full, *(steps.loss(x, target, live=True) for x in live)]
    found += [steps.loss(x, target) for x in frozen[len(orders) :]]
    return torch.stack([(row.double() * weight).sum(-1) for row in found])


def _highest(steps: Steps, max_order: int | None) -> int:
    return steps.depth if max_order is None else min(max_order, steps.depth)


def _summary(steps: Steps, names: list[str], sums: Tensor, tokens: Tensor, max_order: int | None) -> Importance:
    highest = _highest(steps, max_order)
    n, total = highest + 1, tokens.sum()
    uniform = math.log(steps.unembed.vocab_size)
    full, mean = sums[n], sums.sum(-1) / total
    counts = term_counts(steps)
    more = highest < steps.depth
    orders = [str(i) for i in range(n)] + (["more"] if more else [])
    terms = torch.tensor(counts[:n] + ([sum(counts[n:])] if more else []), device=sums.device).double()
    # order scale row; losses of a row are sums over its tokens
    by_row = torch.stack((sums[:n], sums[n + 1 : 2 * n + 1]), 1)
    by_row = torch.cat((by_row, full.expand(1, 2, -1))) if more else by_row
    before = torch.cat(((uniform * tokens).expand(1, 2, -1), by_row[:-1]))
    gains = (before - by_row).sum(-1) / total
    # ratio of sums: spread of each row's deviation from what its number of tokens would give
    spread = (before - by_row) - gains[..., None] * tokens
    used = int((tokens > 0).sum())
    errors = spread.square().sum(-1).sqrt() / total * math.sqrt(used / (used - 1) if used > 1 else math.nan)
    alone, without = mean[2 * n + 1 :].unflatten(0, (2, len(names))) if names else mean.new_zeros(2, 0)
    one = mean[min(1, highest)]
    split = torch.stack((mean[0] - alone, without - one), -1)
    axes, coords = ("order", "scale"), {"order": orders, "scale": list(SCALES)}
    return Importance(
        losses=Labelled(by_row.sum(-1) / total, axes, coords),
        gains=Labelled(gains, axes, coords),
        errors=Labelled(errors, axes, coords),
        terms=Labelled(terms, ("order",), {"order": orders}),
        gains_per_term=Labelled(gains / terms[:, None], axes, coords),
        groups=Labelled(split, ("group", "given"), {"group": names, "given": ["direct", "others"]}),
        uniform=uniform,
        full=float(mean[n]),
        tokens=int(total),
        approximate=bool(steps.left_whole),
        left_whole=tuple(steps.left_whole),
    )
