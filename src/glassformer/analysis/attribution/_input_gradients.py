"""Which input vectors move a prediction: gradients at token vectors, or at the stream entering each layer.

    saliency           |dm/dx_k|                                        the L2 norm
    gradient_x_input   x_k . dm/dx_k
    integrated         (x_k - x'_k) . mean over t in (0, 1) of dm/dx at x' + t (x - x')      sums to m(x) - m(x')

m is a logit, a difference of two, or a log-probability; norms and patterns are live. The mean over t is taken by
Gauss-Legendre quadrature or at midpoints, and what it misses of m(x) - m(x') is reported. Norms are singular at zero,
so the baseline x' is the mean token vector unless another is asked for.

Source: Simonyan et al. 2014 (saliency); Sundararajan et al. 2017, "Axiomatic Attribution for Deep Networks"; Yin and
Neubig 2022, "Interpreting Language Models with Contrastive Explanations" (differences).
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy
import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.analysis.places import position_labels
from glassformer.analysis.prepare import answer_id, prepare, require_one_prompt, token_id
from glassformer.analysis.question import question
from glassformer.arguments import Count
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.labelled import Coordinate, Labelled, Result
from glassformer.models import ModelLike, require_model
from glassformer.models.evaluation import evaluating, require_gradients
from glassformer.models.reading import Inputs
from glassformer.numerics.indices import asked, entries
from glassformer.trace import Edit, Set, Tape
from glassformer.words import sentence

Method = Literal["saliency", "gradient_x_input", "integrated"]
Report = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True, eq=False)
class InputGradients(Result):
    """What each token's vector does for the predictions at some positions; norms and patterns live.

    Args:
        values: `query key`, or `layer query key` with the stream entering each layer in place of token vectors; in
            units of the metric (saliency: metric per unit of length). An encoder's tokens, or its outputs, come first.
        metric: m(x) at each query.
        baseline_metric: m(x') at each query; NaN where no baseline is used.
        gap: Sum over keys less m(x) - m(x'), `query` or `layer query`: what the quadrature missed; NaN for methods
            that make no such promise.
        answers: Token id whose logit is in question, for each query.
        against: Token id subtracted, for each query; None without one.
        method: How gradients became numbers.
        metric_name: What is measured of the prediction: `logit`, `logit difference`, `log-probability` (nats), or the
            difference of two of those.
        baseline: What takes the place of every token's vector at the start of the way (x'); empty where nothing does.
        steps: At how many points of the way gradients are taken; 1 where there is no way.
    """

    HEADLINE = ("values",)
    SIGNED = ("values", "metric", "baseline_metric", "gap")

    values: Labelled
    metric: Labelled
    baseline_metric: Labelled
    gap: Labelled
    answers: tuple[int, ...]
    against: tuple[int, ...] | None
    method: Method
    metric_name: str
    baseline: str
    steps: int


@question(
    "Which input vectors is this prediction sensitive to?",
    of="texts",
    holds=("gradients",),
    judge="finite differences on the way from the baseline, and the metric at both ends",
)
def input_gradients(
    model: ModelLike,
    text: Any,
    answer: str | int | Sequence[str | int] | None = None,
    against: str | int | Sequence[str | int] | None = None,
    *,
    target: Any = None,
    positions: Sequence[int] | Tensor | Literal["all"] = (-1,),
    method: Method = "integrated",
    metric: Literal["logit", "log_prob"] = "logit",
    baseline: Literal["mean", "zero"] | str | int | Float[Tensor, " d_model"] = "mean",
    steps: Count = 32,
    points: Literal["gauss", "midpoint"] = "gauss",
    layers: bool = False,
    edit: Iterable[Edit] = (),
    rows_at_once: Count = 64,
    report: Report | None = None,
) -> InputGradients:
    """Attribute the predictions at some positions to the vectors that enter the model, or each layer.

    Args:
        model: A decoder or an encoder-decoder; every mechanism that ships is differentiable.
        text: Text or ids, one row; the source of an encoder-decoder.
        answer: Token whose logit is in question, or one per position; the likeliest next token by default.
        against: Token whose logit is subtracted, or one per position: why this and not that.
        positions: Positions whose next tokens are in question, `all` for a map of the whole sequence.
        method: `integrated`, `gradient_x_input` or `saliency`.
        metric: Logits (behind a cap, if the model caps them), or log-probabilities in nats.
        baseline: x' of integrated gradients: `mean` token vector of the vocabulary, `zero` (norms are singular there:
            look at the gap), a token, or a vector. Positions stay. At a layer, x' is the stream that it leads to.
        steps: Points of the quadrature.
        points: Gauss-Legendre points, or midpoints of equal steps.
        layers: Attribute to the stream entering each layer instead; an encoder's part is then its output.
        edit: Edits of the model under study, such as `frozen_edits(run)`.
        rows_at_once: Copies of the text in one pass.

    Raises:
        AnalysisUnavailable: The model is not one of ours.
        ShapeMismatch: More than one row of text, or a vector of another width.

    Example:
        >>> input_gradients(model, "the keys to the cabinet", " are", " is").values.top(3)
    """
    require_gradients(require_model(model, "input_gradients"), "input_gradients")
    given = prepare(model, text, target)
    question = _ask(model, given, answer, against, positions, metric, list(edit))
    with evaluating(model):
        cuts = _cuts(model, layers)
        vector, named = _baseline(model, baseline) if method == "integrated" else (None, "")
        start, end = _streams(question, cuts, vector), _streams(question, cuts, None)
        share, weight = _quadrature(steps if method == "integrated" else 1, points, end[cuts[0][-1]])
        done, total = 0, len(cuts) * math.ceil(len(question.places) * len(share) / rows_at_once)
        found = list[Tensor]()
        for cut in cuts:
            gradient = [torch.zeros(len(question.places), *end[site].shape[1:]).to(end[site]) for site in cut]
            rows = [(q, s) for q in range(len(question.places)) for s in range(len(share))]
            for first in range(0, len(rows), rows_at_once):
                q, s = torch.tensor(rows[first : first + rows_at_once], device=share.device).unbind(1)
                x = [_between(start[site], end[site], share[s], method) for site in cut]
                for total_at, new in zip(gradient, _gradients(question, cut, x, q)):
                    total_at.index_add_(0, q, new * weight[s, None, None])
                done += 1
                if report is not None:
                    report(done, total)
            found.append(torch.cat([_numbers(g, start[s], end[s], method) for g, s in zip(gradient, cut)], 1))
        reached = _metric_of(question, cuts[0], end)
        left = _metric_of(question, cuts[0], start) if method == "integrated" else reached * math.nan
    return _result(question, model, layers, torch.stack(found), reached, left, method, named, len(share))


@dataclasses.dataclass(frozen=True, eq=False)
class _Differentiated:
    """Which numbers are differentiated: one per place."""

    model: ModelLike
    given: Inputs
    places: Int[Tensor, " query"]
    answers: Int[Tensor, " query"]
    against: Int[Tensor, " query"] | None
    metric: str
    edit: list[Edit]

    def logits(self, rows: int, tape: Tape) -> Float[Tensor, "row pos vocab"]:
        args = [x.expand(rows, *x.shape[1:]) if isinstance(x, Tensor) else x for x in self.given.args]
        kwargs = {k: x.expand(rows, *x.shape[1:]) if isinstance(x, Tensor) else x for k, x in self.given.kwargs.items()}
        return self.model(*args, **kwargs, tape=tape)

    def numbers(self, logits: Float[Tensor, "row pos vocab"], q: Int[Tensor, " row"]) -> Float[Tensor, " row"]:
        """Return m of each row, which asks the q-th question."""
        at = logits[torch.arange(len(q), device=q.device), self.places[q]]
        at = at.log_softmax(-1) if self.metric == "log_prob" else at
        m = at.gather(1, self.answers[q, None])[:, 0]
        return m if self.against is None else m - at.gather(1, self.against[q, None])[:, 0]


def _ask(
    model: ModelLike, given: Inputs, answer: Any, against: Any, positions: Any, metric: str, edit: list[Edit]
) -> _Differentiated:
    n, row = len(given.token_rows[0]), given.shape[0]
    require_one_prompt(row, "input_gradients")
    places = slice(None) if isinstance(positions, str) and positions == "all" else asked(positions, "positions")
    device = given.device
    chosen = entries(places, n, "positions")
    if not chosen:
        raise ShapeMismatch('input_gradients: positions= names none; give one at least, or "all".')
    at = torch.tensor(chosen, device=device)
    question = _Differentiated(model=model, given=given, places=at, answers=at, against=None, metric=metric, edit=edit)
    if answer is None:
        with evaluating(model), torch.no_grad():
            answers = question.logits(1, Tape(model, edit=edit))[0, at].argmax(-1)
    else:
        answers = _ids(model, answer, len(chosen), "answer").to(device)
    other = None if against is None else _ids(model, against, len(chosen), "against").to(device)
    return dataclasses.replace(question, answers=answers, against=other)


def _ids(model: ModelLike, tokens: Any, n: int, name: str) -> Tensor:
    each = [tokens] * n if isinstance(tokens, str | int) else list(tokens)
    if len(each) != n:
        raise ShapeMismatch(
            f"input_gradients: {len(each)} tokens as `{name}` for {n} positions; give one, or one each."
        )
    return torch.tensor([answer_id(model, token) for token in each])


def _cuts(model: ModelLike, layers: bool) -> list[list[str]]:
    """Return sites that everything behind depends on, and on nothing else: at the bottom, or at each layer."""
    if not layers:
        return [[embed.at_token for embed in model.embeddings.values()]]
    blocks = model.output_stack.blocks
    if not len(blocks):
        raise AnalysisUnavailable("input_gradients: the model has no layers; layers=False attributes to its tokens.")
    encoded = [] if model.source is None else [model.stacks[model.source].final.at_out]
    return [[*encoded, block.at_resid[0]] for block in blocks]


def _baseline(model: ModelLike, baseline: Any) -> tuple[Tensor, str]:
    embed = model.output_embed
    with torch.no_grad():
        if isinstance(baseline, Tensor):
            if baseline.shape != embed.weight.shape[1:]:
                raise ShapeMismatch(
                    f"input_gradients: the baseline has shape {tuple(baseline.shape)}; token vectors have "
                    f"d_model={embed.weight.shape[1]}."
                )
            return baseline.to(embed.weight), sentence("a given vector")
        if baseline == "zero":
            return embed.weight.new_zeros(embed.d_model), sentence("zero")
        if embed.patches is not None:
            raise AnalysisUnavailable(
                f"input_gradients: baseline={baseline!r} is of a vocabulary, and this model reads images, which have "
                'none.\n    Give baseline="zero", a vector, or method="gradient_x_input".'
            )
        if baseline == "mean":
            return embed.weight.mean(0) * embed.factor, sentence("mean token vector")
        return embed.weight[token_id(model, baseline)] * embed.factor, sentence("token {token!r}", token=baseline)


@torch.no_grad()
def _streams(question: _Differentiated, cuts: list[list[str]], baseline: Tensor | None) -> dict[str, Tensor]:
    """Return what the text, or the baseline in place of each of its tokens, leaves at every cut."""
    edit = list[Edit](question.edit)
    if baseline is not None:
        edit += [Set(site, baseline) for site in _cuts(question.model, False)[0]]
    tape = Tape(question.model, [site for cut in cuts for site in cut], edit)
    question.logits(1, tape)
    return tape.values


def _quadrature(steps: int, points: str, like: Tensor) -> tuple[Float[Tensor, " step"], Float[Tensor, " step"]]:
    """Return points in (0, 1) and their weights."""
    if steps < 1:
        raise ShapeMismatch(f"input_gradients: steps must be at least 1, found {steps}.")
    if points == "gauss":
        at, weight = numpy.polynomial.legendre.leggauss(steps)
        return torch.from_numpy((at + 1) / 2).to(like), torch.from_numpy(weight / 2).to(like)
    share = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps
    return share.to(like), torch.full_like(share, 1 / steps).to(like)


def _between(start: Tensor, end: Tensor, share: Float[Tensor, " row"], method: Method) -> Tensor:
    if method != "integrated":
        return end.expand(len(share), -1, -1)
    return start + share[:, None, None] * (end - start)


def _gradients(question: _Differentiated, cut: list[str], x: list[Tensor], q: Int[Tensor, " row"]) -> Sequence[Tensor]:
    x = [part.detach().clone().requires_grad_() for part in x]
    with torch.enable_grad():
        tape = Tape(question.model, edit=[*question.edit, *(Set(site, part) for site, part in zip(cut, x))])
        # rows do not see each other, so the gradient of the sum is each row's own
        m = question.numbers(question.logits(len(q), tape), q).sum()
        return torch.autograd.grad(m, x)


def _numbers(gradient: Tensor, start: Tensor, end: Tensor, method: Method) -> Float[Tensor, "query key"]:
    if method == "saliency":
        return gradient.norm(dim=-1)
    return (gradient * (end if method == "gradient_x_input" else end - start)).sum(-1)


@torch.no_grad()
def _metric_of(question: _Differentiated, cut: list[str], at: dict[str, Tensor]) -> Float[Tensor, " query"]:
    tape = Tape(question.model, edit=[*question.edit, *(Set(site, at[site]) for site in cut)])
    logits = question.logits(1, tape)
    n = len(question.places)
    return question.numbers(logits.expand(n, -1, -1), torch.arange(n, device=logits.device))


def _result(
    question: _Differentiated,
    model: ModelLike,
    layers: bool,
    values: Float[Tensor, "layer query key"],
    reached: Tensor,
    left: Tensor,
    method: Method,
    named: str,
    steps: int,
) -> InputGradients:
    given = question.given
    tokens = position_labels(list(given.token_rows[0]))
    keys = position_labels(list(given.source_rows[0]), "source ") + tokens if given.source_rows else tokens
    queries: list[Coordinate] = [tokens[int(place)] for place in question.places]
    gap = values.sum(-1) - (reached - left)
    axes, coords = ("layer", "query", "key"), {"query": queries, "key": keys}
    values, gap = (values, gap) if layers else (values[0], gap[0])
    labels = {"layer": [f"L{i}" for i in range(len(values))]} if layers else {}
    name = "log-probability" if question.metric == "log_prob" else "logit"
    return InputGradients(
        values=Labelled(values, axes[not layers :], coords | labels),
        metric=Labelled(reached, ("query",), {"query": queries}),
        baseline_metric=Labelled(left, ("query",), {"query": queries}),
        gap=Labelled(gap, axes[not layers : 2], {"query": queries} | labels),
        answers=tuple(question.answers.tolist()),
        against=None if question.against is None else tuple(question.against.tolist()),
        method=method,
        metric_name=name if question.against is None else f"{name} difference",
        baseline=named,
        steps=steps,
    )
