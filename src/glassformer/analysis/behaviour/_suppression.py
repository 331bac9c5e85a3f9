"""Do the last layers push the right answer down, by which parts, and what does it buy?

Answers are the tokens that really come next. Depth by depth the logit lens tells how likely they are; direct logit
attribution (norms frozen) splits their logit, less the mean logit, into what each head and MLP of the last layers adds,
and negative parts are the suppression. Two routes are examined:

    heads   rest on the first token, whose value as written raises frequent tokens
    MLPs    move the stream x towards the mean direction of the answers to come,  e = sum over w of frequency(w) W_U[w]

Then parts are taken out, and probability, loss and calibration are measured: what lowers the answer's probability may
well lower the loss.

Source: Lv et al. 2024, "Interpreting Key Mechanisms of Factual Recall in Transformer-Based Language Models"
(suppression in the last layer). How the two routes are put in numbers is ours.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis.behaviour._answers import MeasuredPass, averaged, forward, measured, rests
from glassformer.analysis.behaviour._outcomes import OUTCOMES, Scored, change_errors, outcome, scored
from glassformer.analysis.losses import joined
from glassformer.analysis.prepare import next_tokens
from glassformer.analysis.question import question
from glassformer.attention import AttentionLayer
from glassformer.data import Batch
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.labelled import Labelled, Result
from glassformer.models import Block, ModelLike, require_model
from glassformer.models.evaluation import evaluating
from glassformer.trace import At, Edit, Set, Tape

Value = Literal["zero", "mean"]


@dataclasses.dataclass(frozen=True, eq=False)
class Suppression(Result):
    """What the last layers do to the tokens that come next.

    Args:
        by_depth: Logit lens over counted tokens, `depth measure`: mean probability and mean loss (nats) of the answer,
            median of its rank (1 is the likeliest).
        contributions: Mean direct effect on the answer's logit less the mean logit, `component`: everything before the
            last layers, their heads, biases and MLPs, and constants. They sum to the mean of that difference.
        negative: Mean of the negative parts only, `component`.
        spread: Standard deviation of the contribution over tokens, `component`.
        head_route: `head measure`: `first_mass`, mean weight on position 0 (queries from the second on), and
            `frequent`, correlation over tokens of what the first position's value as written adds to logits with the
            log of the token's frequency. NaN where a head has no pattern whose rows sum to one.
        mlp_route: `mlp measure`: cosine of what the MLP writes with e - x, projection of it on `e / |e|`, means over
            tokens.
        interventions: `intervention outcome`: probability of the answer, loss in nats, accuracy, expected calibration
            error over 15 bins; first of the model as it is.
        change_spread: Standard error over rows of the change of probability and loss, `intervention outcome`; NaN with
            one row.
        value: What takes the place of what is taken out.
        last: How many last layers.
        tokens: How many were counted.
        norms: Direct effects hold norm scales fixed; interventions are live.
        left_out: Interventions that are not defined here, and why.
    """

    HEADLINE = ("by_depth", "contributions", "interventions")
    SIGNED = ("contributions", "negative", "head_route", "mlp_route")

    by_depth: Labelled
    contributions: Labelled
    negative: Labelled
    spread: Labelled
    head_route: Labelled
    mlp_route: Labelled
    interventions: Labelled
    change_spread: Labelled
    value: Value
    last: int
    tokens: int
    norms: str
    left_out: Mapping[str, str]

    @property
    def suppressors(self) -> list[str]:
        """Heads and MLPs whose mean contribution is negative, most negative first."""
        pairs = zip(self.contributions.labels("component"), self.contributions.values.tolist())
        parts = [(value, str(label)) for label, value in pairs if value < 0 and str(label)[0] == "L"]
        return [label for _, label in sorted(parts)]


@question("What do the last layers do to the right answer?", of="texts", holds=("norm scales", "readout"))
@torch.no_grad()
def suppression(
    model: ModelLike,
    *inputs: Any,
    last: int = 1,
    value: Value = "mean",
    frequencies: Float[Tensor, " vocab"] | None = None,
    only_correct: bool = False,
    report: Callable[[int, int], None] | None = None,
) -> Suppression:
    """Examine what the last layers of a model do to the right answer.

    Args:
        inputs: Batches, texts, or rows of ids, one or several at a time and of any lengths; their next tokens are the
            answers.
        last: How many last layers are examined.
        value: What takes the place of a part that is taken out: `mean` over these inputs, or `zero`.
        frequencies: Of all tokens, in any unit; counted in these inputs by default.
        only_correct: Count only tokens that the model puts first. It biases what is found: such answers can only lose.

    Raises:
        ShapeMismatch: No input, or no such number of layers.
        AnalysisUnavailable: The model is not one of ours, an encoder-decoder is given something else than batches, or
            no token counts.
    """
    blocks = list(require_model(model, "suppression").output_stack.blocks)
    if not inputs:
        raise ShapeMismatch("suppression: give at least one text or batch.")
    if not 1 <= last <= len(blocks):
        raise ShapeMismatch(f"suppression: last={last}; the model has {len(blocks)} layers.")
    batches = [next_tokens(model, given, "suppression") for given in inputs]
    frequency = _frequencies(model, batches, frequencies)
    plan, left_out = _plan(blocks[-last:])
    total, done = len(batches) * (1 + len(plan)), 0

    def tick() -> None:
        nonlocal done
        done += 1
        if report is not None:
            report(done, total)

    with evaluating(model):
        clean = list[MeasuredPass]()
        for batch in batches:
            clean.append(measured(model, blocks, last, batch, frequency, only_correct))
            tick()
        if not any(bool(known.counted.any()) for known in clean):
            raise AnalysisUnavailable("suppression: no token counts; give longer texts, or only_correct=False.")
        means = _means(clean) if value == "mean" else {}
        outcomes, rows = list[Tensor](), list[Tensor]()
        for found in _with_each_taken_out(model, batches, clean, plan, means, tick):
            outcomes.append(outcome(found))
            rows.append(torch.stack([joined([getattr(s, n) for s in found], 0) for n in ("probability", "loss")]))
    names = ["as it is", *plan]
    counted = joined([known.counted for known in clean]).double()
    over = (("intervention", "outcome"), {"intervention": names, "outcome": OUTCOMES})
    return Suppression(
        **averaged(blocks, clean), interventions=Labelled(torch.stack(outcomes), *over),
        change_spread=Labelled(change_errors(rows, counted), *over), value=value, last=last, tokens=int(counted.sum()),
        norms="frozen", left_out=left_out,
    )  # fmt: skip


_Plan = dict[str, list[tuple[str, At]]]


def _with_each_taken_out(
    model: ModelLike,
    batches: Sequence[Batch],
    clean: Sequence[MeasuredPass],
    plan: _Plan,
    means: Mapping[str, Tensor],
    tick: Callable[[], None],
) -> Iterator[list[Scored]]:
    """Yield the answers of every batch from the model as it is, then from each intervention of the plan."""
    yield [scored(known.logits, batch, known.counted) for batch, known in zip(batches, clean)]
    for edits in plan.values():
        edit = [_Set(site, where, means.get(site)).edit() for site, where in edits]
        found = list[Scored]()
        for batch, known in zip(batches, clean):
            # in a row of one token there is no query behind the first
            there = [one for one in edit if not one.at or batch.tokens.shape[1] > 1]
            found.append(scored(forward(model, batch, Tape(model, edit=there)), batch, known.counted))
            tick()
        yield found


def _plan(examined: list[Block]) -> tuple[_Plan, dict[str, str]]:
    """Return what is taken out: sites and parts of them, by name."""
    found: _Plan = {}
    left_out = dict[str, str]()
    cut, whole = list[tuple[str, At]](), list[tuple[str, At]]()
    for block in examined:
        for name in block.names:
            site, part = f"{block.path}.{name}.out", block.part(name)
            found[f"without L{block.layer} {name}"] = [(site, At())]
            whole.append((site, At()))
            if not isinstance(part, AttentionLayer) or part.config.cross:
                continue
            if rests(part) and part.mixer.traits.has_scores:
                cut.append((part.at.scores, At(query=slice(1, None), key=0)))
            else:
                left_out[f"L{block.layer} {name}: first key cut"] = f'"{part.config.mixer.kind}" has no such scores'
    if len(whole) > 1:
        found["without all of them"] = whole
    if cut:
        found["first key cut"] = cut
    return found, left_out


@dataclasses.dataclass(frozen=True, eq=False)
class _Set:
    site: str
    where: At
    mean: Tensor | None

    def edit(self) -> Edit:
        if self.where:
            return Set(self.site, -math.inf, at=self.where)
        return Set(self.site, 0.0 if self.mean is None else self.mean)


def _means(clean: Sequence[MeasuredPass]) -> dict[str, Float[Tensor, " d_model"]]:
    return {site: torch.cat([known.out[site] for known in clean]).mean(0) for site in clean[0].out}


def _frequencies(model: ModelLike, batches: Sequence[Batch], given: Tensor | None) -> Float[Tensor, " vocab"]:
    size, weight = model.config.n_outputs, model.unembed.weight
    if given is None:
        answers = torch.cat([batch.targets[batch.weight.bool()] for batch in batches])
        given = torch.bincount(answers.flatten(), minlength=size)
    if given.shape != (size,) or bool((given < 0).any()) or not bool(given.sum() > 0):
        raise ShapeMismatch(
            f"suppression: frequencies are {size} non-negative numbers, one per token of the vocabulary."
        )
    return given.to(weight.device, torch.float64) / given.sum()
