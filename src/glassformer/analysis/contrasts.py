"""From pairs of prompts as a caller gives them to what two runs read, checked to align, and what is measured."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from glassformer.analysis._run import run
from glassformer.analysis.prepare import prepare
from glassformer.analysis.sweep.metrics import (
    Metric,
    MetricsLike,
    logit,
    logit_difference,
    metric_named,
    named_metrics,
    require_numbers,
)
from glassformer.data import Batch, Contrast, Pair, Pairs
from glassformer.data.pairs.contrast import SIDES
from glassformer.errors import AnalysisUnavailable, DataError, ShapeMismatch, TextError
from glassformer.models import Model, ModuleLike, require_module
from glassformer.models.reading import Inputs, encode, rows_of, tokenizer_for, tokenizer_of
from glassformer.numerics.placement import place_of

# a tuple is (clean, corrupt), each as `run` takes it
PromptPairs = Contrast | Pair | Sequence[Any]
# by role, the positions that play it in each prompt
Roles = Mapping[str, tuple[tuple[int, ...], ...]]


@dataclass(frozen=True, eq=False)
class Prompts:
    """Prompts of one run, as the model reads them.

    Args:
        inputs: What `run` and `sweep` take.
        target: The decoder's side, for an encoder-decoder.
        given: The same, prepared.
    """

    inputs: Any
    target: Any
    given: Inputs

    @property
    def rows(self) -> int:
        return self.given.shape[0] or 1

    def lengths(self) -> dict[str, int]:
        """Return positions by stack; empty for a model we know nothing about."""
        if not (n := self.given.shape[1]):
            return {}
        source = self.given.source_ids
        return {"": n} if source is None else {"encoder": source.shape[1], "decoder": n}

    def tokens(self, stack: str) -> Sequence[Sequence[str]]:
        return self.given.source_rows if stack == "encoder" else self.given.token_rows

    def real(self, stack: str) -> Bool[Tensor, "batch pos"]:
        """Return where a stack's rows have real tokens, not padding."""
        rows = self.tokens(stack)
        counts = torch.tensor([len(row) for row in rows])
        return torch.arange(self.lengths()[stack]) < counts[:, None]


def prompts(model: ModuleLike, inputs: Any, target: Any, analysis: str) -> Prompts:
    """Return prompts given in any way that `run` takes, or as a list of texts (padded on the right).

    Raises:
        TextError: A text cannot be read, or an encoder-decoder has no target.
        ShapeMismatch: Token ids are not in rows of one length.
    """
    require_module(model, analysis)
    inputs, target = _texts(model, inputs), target
    if isinstance(model, Model) and model.reads_pairs and target is None and not isinstance(inputs, Batch):
        raise TextError(
            f"{analysis}: every run takes the same text of the decoder; give target=…, or a Batch with a source."
        )
    return Prompts(inputs, target, prepare(model, inputs, target))


def contrast(model: ModuleLike, pairs: PromptPairs, analysis: str) -> Contrast:
    """Return pairs of prompts, given in any way, as one value.

    Raises:
        DataError: They are no pairs; or `Pairs` do not fit the model, which is explained.
    """
    if isinstance(pairs, Contrast):
        return pairs
    if isinstance(pairs, Pair):
        pairs = (pairs,)
    several = isinstance(pairs, Sequence) and not isinstance(pairs, str)
    if several and len(pairs) and all(isinstance(pair, Pair) for pair in pairs):
        known = pairs if isinstance(pairs, Pairs) else Pairs(tuple(pairs))
        found = known.encode(model, pad="right")
        # the tokens of a single pair say more
        return found if len(found) > 1 else dataclasses.replace(found, labels=None)
    if several and len(pairs) == 2:
        return Contrast(pairs[0], pairs[1])
    raise DataError(
        f"{analysis} compares pairs of prompts, and was given {type(pairs).__name__}.\n"
        "    Give (clean, corrupt), a Contrast(clean, corrupt, answer=…, wrong=…), or Pairs."
    )


def aligned(model: ModuleLike, asked: Contrast, analysis: str) -> tuple[Prompts, Prompts]:
    """Return two sets of prompts, checked to agree in number and, row by row, in length.

    Raises:
        ShapeMismatch: They do not; the message says where and how the texts were split.
        TextError: As in `prompts`.
    """
    targets = asked.target, asked.target if asked.corrupt_target is None else asked.corrupt_target
    first, second = (prompts(model, asked.side(side), target, analysis) for side, target in zip(SIDES, targets))
    for stack in first.lengths():
        ours, theirs = first.tokens(stack), second.tokens(stack)
        if len(ours) != len(theirs):
            raise ShapeMismatch(
                f"{analysis}: {len(ours)} clean prompts and {len(theirs)} corrupt ones; give as many of each, in pairs."
            )
        for row, (a, b) in enumerate(zip(ours, theirs)):
            if len(a) != len(b):
                raise ShapeMismatch(_unequal(analysis, row, a, b))
        if first.lengths()[stack] != second.lengths()[stack]:
            raise ShapeMismatch(
                f"{analysis}: clean prompts are padded to {first.lengths()[stack]} tokens and corrupt ones to "
                f"{second.lengths()[stack]}; pad both to the same length."
            )
    return first, second


def places_by_role(asked: Contrast, first: Prompts) -> dict[str, Roles]:
    """Return by stack what each position of several prompts is, where its number does not say that of all of them.

    A position is of one role in all prompts if their lengths are equal and so are the places of every role. Of rows
    without roles, who stacked them to one length or labelled their positions says so. Otherwise each is called by its
    role, by the nearest role to its left (`behind-subject`), `before` all of them, or `last`.

    Args:
        asked: The prompts, with the roles of their words, if any are known.
        first: The clean ones, checked to align with the corrupt ones.

    Raises:
        ShapeMismatch: Prompts have different lengths and no roles; the message says how they get some.
    """
    found: dict[str, Roles] = {}
    for stack in first.lengths() if first.rows > 1 else ():
        counts = [len(row) for row in first.tokens(stack)]
        roles = {} if stack == "encoder" else asked.roles
        alike = len(set(counts)) == 1
        fixed = alike and all(len(set(where)) == 1 for where in roles.values())
        if fixed or (not roles and asked.labels is not None):
            continue
        if not roles:
            raise ShapeMismatch(
                f"positions of prompts of {min(counts)} to {max(counts)} tokens play different parts, and a mean over "
                "prompts by position would mix them.\n"
                '    Give Pairs, whose words have roles; prompts of one length; sites without positions, as "z"; or '
                "ask about each pair by itself: [patch(model, pair) for pair in pairs]."
            )
        found[stack] = _named_throughout(roles, counts)
    return found


def _named_throughout(roles: Roles, counts: Sequence[int]) -> Roles:
    """Return roles, and names for the positions of prompts of some lengths that have none."""
    places = {role: [list(row) for row in where] for role, where in roles.items()}
    for row, count in enumerate(counts):
        taken = {p: role for role, where in roles.items() for p in where[row]}
        name = "before"
        for p in range(count):
            if p in taken:
                name = f"behind-{taken[p]}"
                continue
            own = "last" if p == count - 1 else name
            places.setdefault(own, [[] for _ in counts])[row].append(p)

    def depth(role: str) -> float:
        shares = [p / count for where, count in zip(places[role], counts) for p in where]
        return sum(shares) / len(shares) if shares else 1.0

    return {role: tuple(map(tuple, places[role])) for role in sorted(places, key=depth)}


def measured(model: ModuleLike, asked: Contrast, metric: MetricsLike | None, analysis: str) -> dict[str, Metric]:
    """Return metrics of one number per prompt, by name; by default what the answers are for.

    That is the logit difference of answer and wrong answer, or the logit of the answer if there is no wrong one. A
    metric may be given by its name on the command line, `logit-difference`; it is of the answers of the pairs.

    Raises:
        AnalysisUnavailable: There is neither a metric nor an answer, or no metric of that name.
        ShapeMismatch: A metric keeps axes.
    """
    if metric is None:
        if asked.answer is None:
            raise AnalysisUnavailable(
                f"{analysis}: nothing says what to measure. Give a metric, such as logit_difference(answer, wrong), "
                "or answers: Contrast(clean, corrupt, answer=…, wrong=…)."
            )
        answer, wrong = asked.answer, asked.wrong
        both = wrong is not None
        metric = logit_difference(answer, wrong, pos=asked.pos) if both else logit(answer, pos=asked.pos)
    metrics = named_metrics(_by_name(model, asked, metric))
    require_numbers(metrics, analysis)
    return metrics


def _by_name(model: ModuleLike, asked: Contrast, metric: MetricsLike) -> MetricsLike:
    """Return metrics with those given by name in their place."""

    def known(one: Any) -> Any:
        if not isinstance(one, str):
            return one
        return metric_named(one, asked.answer, asked.wrong, asked.pos, lambda: run(model, asked.clean, asked.target))

    if isinstance(metric, Mapping):
        return {name: known(one) for name, one in metric.items()}
    if isinstance(metric, Sequence) and not isinstance(metric, str):
        return [known(one) for one in metric]
    return known(metric)


def _texts(model: ModuleLike, inputs: Any) -> Any:
    texts = isinstance(inputs, list | tuple) and any(isinstance(row, str) for row in inputs)
    rows = inputs if isinstance(inputs, list) and all(isinstance(row, list | tuple) for row in inputs) else []
    if isinstance(model, Model) or not (texts or rows):
        return inputs
    if texts:
        tokenizer = tokenizer_for(model, tokenizer_of(model))
        rows = [encode(tokenizer, row) if isinstance(row, str) else row for row in rows_of(inputs)]
    if len({len(row) for row in rows}) > 1:
        raise TextError(
            f"texts of {min(map(len, rows))} to {max(map(len, rows))} tokens, and how this module is told of "
            "padding is not known.\n    Give texts of one length, or the arguments it takes."
        )
    return torch.tensor(rows, device=place_of(model))


def _unequal(analysis: str, row: int, ours: Sequence[str], theirs: Sequence[str]) -> str:
    same = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
    shown = [" ".join(repr(token) for token in tokens[same : same + 8]) or "nothing" for tokens in (ours, theirs)]
    return (
        f"{analysis}: prompt {row} has {len(ours)} tokens clean and {len(theirs)} corrupt. "
        f"They part at position {same}:\n"
        f"    clean   {shown[0]}\n    corrupt {shown[1]}\n"
        "    Values are copied position by position: choose words that are as many tokens."
    )
