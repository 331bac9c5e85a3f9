"""What a sweep measures: a number per prompt, from the logits or from any site.

    logit_difference(" Mary", " John")        at the last token of each row; answers may differ by row
    Metric("rest", lambda z: z.norm(dim=-1), site="blocks.3.attn.z", at=At(head=2, pos=-1))

    Metric("norm", lambda x: x.norm(dim=-1), site="final.norm", axes=("pos",))     a number for each position

A metric's function sees many worlds at once (Penzai's word): the base batch as one row of the plan left it, times the
number of rows. Its first two axes are `world batch`, then whatever is read; it returns `world batch`, and behind them
the axes that the metric keeps.
"""

# torch's stubs leave much of its API untyped
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.analysis._run import Run
from glassformer.analysis.prepare import answer_id
from glassformer.arguments import checked
from glassformer.errors import AnalysisUnavailable, ShapeMismatch, nearest
from glassformer.models import Model, ModuleLike, patchify
from glassformer.models.denoiser import VelocityHead
from glassformer.trace import At, Site
from glassformer.words import sentence

Token = str | int
Tokens = Token | Sequence[Token] | Int[Tensor, " batch"]


@dataclass(frozen=True, eq=False)
class Metric:
    """What is measured of every prompt: a number, or numbers along axes.

    Args:
        name: How results call it.
        function: Of what is read, axes `world batch …`, and of the tokens below; returns `world batch` and `axes`.
        tokens: Tokens it asks about, each one for all rows or one per row; it gets them as ids, `batch`.
        pos: For logits: the position looked at, negative ones counted from the end of each row's real tokens; all
            positions (axes `world batch pos vocab`) if None.
        site: What is read, a site or a head's label and quantity (`L1H6.z`); the logits by default.
        at: For other sites: the part that is read.
        axes: Names of the axes that the function leaves behind `world batch`; by default none, a number per prompt.
    """

    name: str
    function: Callable[..., Tensor]
    tokens: tuple[Tokens, ...] = ()
    pos: int | None = -1
    site: str = "logits"
    at: At = field(default_factory=At)
    axes: tuple[str, ...] = ()

    def ids(self, model: ModuleLike, batch: int, device: torch.device) -> list[Int[Tensor, " batch"]]:
        """The tokens as ids, one per row of the batch.

        Raises:
            TextError: A text is several tokens, or unknown.
            TokenOutOfRange: There is no such id.
            ShapeMismatch: There are as many tokens as the batch has no rows.
        """
        return [_ids(model, tokens, batch, self.name).to(device) for tokens in self.tokens]


# a name stands for a measure of the answers that pairs of prompts bring along
MetricLike = Metric | Callable[[Tensor], Tensor] | str
MetricsLike = MetricLike | Sequence[MetricLike] | Mapping[str, MetricLike]


@checked
def logit(answer: Tokens, *, pos: int = -1) -> Metric:
    """Metric "logit of the answer"."""
    return Metric(sentence("logit"), _at, (answer,), pos)


@checked
def logit_difference(answer: Tokens, wrong: Tokens, *, pos: int = -1) -> Metric:
    """Metric "logit of the answer less that of the wrong one": linear in the final stream."""
    return Metric(
        sentence("logit difference"), lambda logits, a, b: _at(logits, a) - _at(logits, b), (answer, wrong), pos
    )


@checked
def probability(answer: Tokens, *, pos: int = -1) -> Metric:
    """Metric "probability of the answer"; it saturates, and hides what pushes a likely answer down."""
    return Metric(sentence("probability"), lambda logits, a: _at(_log_probs(logits), a).exp(), (answer,), pos)


@checked
def log_probability(answer: Tokens, *, pos: int = -1) -> Metric:
    """Metric "log-probability of the answer", in nats."""
    return Metric(sentence("log-probability"), lambda logits, a: _at(_log_probs(logits), a), (answer,), pos)


@checked
def answer_rank(answer: Tokens, *, pos: int = -1) -> Metric:
    """Metric "rank of the answer": 1 is the likeliest; ties do not count."""

    def rank(logits: Tensor, ids: Tensor) -> Tensor:
        return (logits > _at(logits, ids)[..., None]).sum(-1).to(logits.dtype) + 1

    return Metric(sentence("rank"), rank, (answer,), pos)


@checked
def accuracy(answer: Tokens, *, pos: int = -1) -> Metric:
    """Metric "accuracy": 1 where the answer is likelier than every other token, else 0; ties are 0."""

    def right(logits: Tensor, ids: Tensor) -> Tensor:
        return ((logits >= _at(logits, ids)[..., None]).sum(-1) == 1).to(logits.dtype)

    return Metric(sentence("accuracy"), right, (answer,), pos)


# measures of answers by the names they have on the command line; `kl` compares with the clean run
OF_ANSWERS: Mapping[str, Callable[..., Metric]] = {
    "logit-difference": logit_difference,
    "logit": logit,
    "probability": probability,
    "log-probability": log_probability,
    "rank": answer_rank,
    "accuracy": accuracy,
}
KL = "kl"
NAMES = (*OF_ANSWERS, KL)


def metric_named(
    name: str, answer: Tokens | None, wrong: Tokens | None, pos: int, reference: Callable[[], Run]
) -> Metric:
    """A metric by its name.

    Args:
        name: One of `NAMES`.
        answer: What it asks about.
        wrong: What a difference is taken to.
        pos: Position looked at.
        reference: Returns the run that `kl` compares with.

    Raises:
        AnalysisUnavailable: There is no such name, or it asks about answers that are not there.
    """
    if name not in NAMES:
        raise AnalysisUnavailable(f'no metric "{name}".{nearest(name, NAMES)} Metrics: {", ".join(NAMES)}.')
    if name == KL:
        return kl_divergence(reference(), pos=pos)
    tokens = (answer, wrong) if name == "logit-difference" else (answer,)
    if any(token is None for token in tokens):
        raise AnalysisUnavailable(
            f'the metric "{name}" asks about {"an answer and a wrong one" if len(tokens) > 1 else "an answer"}, which '
            "these prompts do not bring.\n    Give them: Contrast(clean, corrupt, answer=…, wrong=…)."
        )
    return OF_ANSWERS[name](*tokens, pos=pos)


@checked
def kl_divergence(reference: Run | Float[Tensor, "batch vocab"], *, pos: int = -1) -> Metric:
    """Metric KL(reference || row) of next-token distributions, in nats.

    Args:
        reference: A run on prompts of the same number (its logits at the same position count), or logits.
        pos: Position looked at.
    """
    logits = reference
    if isinstance(reference, Run):
        if reference.logits is None:
            raise ShapeMismatch("kl_divergence: the reference run gave no logits.")
        rows = range(len(reference.logits))
        # rows of a batch end where their real tokens end
        logits = torch.stack([reference.logits[row, reference.place(pos, row)] for row in rows])
    assert isinstance(logits, Tensor)
    target = _log_probs(logits)

    def divergence(found: Tensor) -> Tensor:
        return (target.exp() * (target - _log_probs(found))).nan_to_num(0.0).sum(-1)

    return Metric(sentence("KL divergence"), divergence, (), pos)


@checked
def next_token_loss(targets: Int[Tensor, "batch pos"], weight: Tensor | None = None) -> Metric:
    """Metric "mean cross-entropy per prompt", in nats.

    Args:
        targets: The token that follows each position.
        weight: Which positions count; all by default.
    """

    def loss(logits: Tensor) -> Tensor:
        losses = _losses(logits, targets)
        counted = torch.ones_like(losses) if weight is None else weight.to(losses.dtype).expand_as(losses)
        return (losses * counted).sum(-1) / counted.sum(-1)

    return Metric(sentence("loss"), loss, (), None)


@checked
def token_loss(targets: Int[Tensor, "batch pos"]) -> Metric:
    """Metric "cross-entropy of each token" in nats, which keeps the axis `pos`.

    Args:
        targets: The token that follows each position.
    """
    return Metric(sentence("token loss"), lambda logits: _losses(logits, targets), (), None, axes=("pos",))


@checked
def class_loss(model: Model, targets: Int[Tensor, "batch one"]) -> Metric:
    """Metric "cross-entropy of each class" in nats, which keeps the axis `pos` with one entry.

    Args:
        model: Says which class a whole text, or image, is of.
        targets: The class of each.
    """
    return Metric(
        sentence("class loss"), lambda logits: _losses(model.class_logits(logits)[..., None, :], targets), (), None,
        axes=("pos",),
    )  # fmt: skip


def velocity_loss(model: Model, targets: Float[Tensor, "batch channel row column"]) -> Metric:
    """Metric "squared error of the velocity", a mean over pixels, which keeps the axis `pos` with one entry.

    Args:
        model: One that makes images.
        targets: The velocity of each pixel.
    """
    assert model.patches is not None, "what makes images reads patches"
    wanted = patchify(targets, model.patches.size)
    return Metric(
        sentence("squared error of the velocity"), lambda v: (v - wanted).square().mean((-1, -2))[..., None],
        site=VelocityHead.at, axes=("pos",),
    )  # fmt: skip


def named_metrics(metric: MetricsLike) -> dict[str, Metric]:
    """Return metrics by name; a plain function is a metric of all logits."""
    if isinstance(metric, Mapping):
        pairs = list(metric.items())
    else:
        several = list(metric) if isinstance(metric, Sequence) and not isinstance(metric, str) else [metric]
        pairs = [
            (m if isinstance(m, str) else m.name if isinstance(m, Metric) else getattr(m, "__name__", "metric"), m)
            for m in several
        ]
    if len({name for name, _ in pairs}) < len(pairs) or not pairs:
        raise ShapeMismatch("sweep: give at least one metric, and metrics of different names: {name: metric, …}.")
    found: dict[str, Metric] = {}
    for name, m in pairs:
        if isinstance(m, str):
            raise AnalysisUnavailable(
                f'sweep: the name "{m}" says not which answers: these prompts bring none.\n    Give the metric itself, '
                f"sweep.{OF_ANSWERS.get(m, logit).__name__}(answer, …); names go with pairs of prompts, patch(model, "
                f"pairs, metric)."
            )
        if not isinstance(m, Metric) and not callable(m):
            raise AnalysisUnavailable(f"sweep: a metric is a Metric or a function of logits; found {name}={m!r:.60}.")
        found[name] = m if isinstance(m, Metric) else Metric(name, m, (), None)
    if len({metric.axes for metric in found.values()}) > 1:
        kept = ", ".join(f'"{name}" {" ".join(metric.axes) or "none"}' for name, metric in found.items())
        raise ShapeMismatch(f"sweep: metrics of one sweep keep the same axes; found {kept}. Give each its own sweep.")
    return found


def require_numbers(metrics: Mapping[str, Metric], analysis: str) -> None:
    """Raise `ShapeMismatch` for a metric that keeps axes, where an analysis takes one number per prompt."""
    for name, metric in metrics.items():
        if metric.axes:
            raise ShapeMismatch(
                f'{analysis} takes one number per prompt, and the metric "{name}" keeps {" ".join(metric.axes)}.\n'
                "    Reduce them in its function; sweep(…) takes metrics with axes."
            )


def apply_metric(metric: Metric, value: Tensor, ids: Sequence[Tensor]) -> Float[Tensor, "world batch *axes"]:
    """Return what a metric says of a value, checked to have the axes it promised."""
    found: object = metric.function(value, *ids)
    if not isinstance(found, Tensor):
        raise ShapeMismatch(
            f'metric "{metric.name}" returned a {type(found).__name__}; it returns a tensor, one number per world and '
            "prompt."
        )
    if found.shape[:2] != value.shape[:2] or found.ndim != 2 + len(metric.axes):
        promised = f"one number per world and prompt: {tuple(value.shape[:2])}"
        if metric.axes:
            promised = f"world, batch and its axes {' '.join(metric.axes)}: {(*value.shape[:2], *metric.axes)}"
        raise ShapeMismatch(
            f'metric "{metric.name}" returned {tuple(found.shape)} for a value of {tuple(value.shape)}; '
            f"it returns {promised}."
        )
    return found


def stacked(metrics: Mapping[str, Metric], found: Sequence[Tensor]) -> Float[Tensor, "metric world batch *axes"]:
    """Return what several metrics said as one tensor; raises `ShapeMismatch` if their axes differ in size."""
    if len({value.shape for value in found}) > 1:
        sizes = ", ".join(f'"{name}" {tuple(value.shape[2:])}' for name, value in zip(metrics, found))
        raise ShapeMismatch(f"sweep: metrics of one sweep keep axes of one size; found {sizes}.")
    return torch.stack(list(found))


def in_worlds(at: At, value: Tensor, site: Site) -> Tensor:
    """Return a part of a site's value in each of several worlds, `world …`."""
    return at.take(value, dataclasses.replace(site, axes=("world", *site.axes)))


def logits_of(logits: Tensor | None) -> Float[Tensor, "batch pos vocab"]:
    """Return the logits, checked to be there, with an axis for positions."""
    if logits is None or logits.ndim != 3:
        found = "returns no tensor" if logits is None else f"returns {tuple(logits.shape)}"
        raise AnalysisUnavailable(
            f"sweep: metrics of logits need `batch pos vocab`, and the module {found}.\n"
            '    Measure a site: Metric(name, function, site="…").'
        )
    return logits


def positions_of(token_rows: Sequence[Sequence[str]], sizes: Sequence[int], pos: int) -> list[int]:
    """Return a position of each row as an index from 0; negative ones count from the end of its real tokens."""
    batch, length = sizes
    ends = [len(row) for row in token_rows] or [length] * batch
    if any(not -end <= pos < end for end in ends):
        raise ShapeMismatch(f"sweep: a metric looks at position {pos}; the shortest row has {min(ends)}.")
    return [pos % end for end in ends]


def _at(values: Float[Tensor, "world batch vocab"], ids: Int[Tensor, " batch"]) -> Float[Tensor, "world batch"]:
    return values.gather(-1, ids[None, :, None].expand(values.shape[0], -1, 1)).squeeze(-1)


def _losses(logits: Float[Tensor, "world batch pos vocab"], targets: Int[Tensor, "batch pos"]) -> Tensor:
    log_probs = _log_probs(logits)
    return -log_probs.gather(-1, targets.expand(log_probs.shape[:-1])[..., None]).squeeze(-1)


def _log_probs(logits: Tensor) -> Tensor:
    return (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(-1)


def _ids(model: ModuleLike, tokens: Tokens, batch: int, name: str) -> Int[Tensor, " batch"]:
    if isinstance(tokens, (str, int)):
        return torch.tensor(answer_id(model, tokens)).expand(batch)
    ids = [answer_id(model, int(token) if isinstance(token, Tensor) else token) for token in tokens]
    if len(ids) != batch:
        raise ShapeMismatch(f"{name}: {len(ids)} answers for {batch} prompts; give one answer, or one per prompt.")
    return torch.tensor(ids)
