"""Ablation of heads: how much of the loss, and of in-context learning, goes through them.

    full                 what the heads write is replaced; everything downstream reacts
    pattern_preserving   the same with every pattern held at what it was, so that only paths through values lose them

With norms held too (`norms="frozen"`) and no MLPs, pattern-preserving ablation takes away exactly the paths through the
heads. What a head writes is replaced by nothing, or by its mean over all tokens that count.

What single values and other parts are worth to any metric, and by which kind of ablation, is in `ablation_table`.

Each set of heads is a row of one sweep, and what is held is taken from a run of the same batch.

Source: Olsson et al. 2022, argument 3.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.analysis._run import run
from glassformer.analysis.heads.roles import Head, heads, layer_of
from glassformer.analysis.losses import icl_or_nan, joined, token_losses
from glassformer.analysis.prepare import next_tokens
from glassformer.analysis.question import question
from glassformer.analysis.sweep import sweep
from glassformer.analysis.sweep.metrics import Metric, class_loss, token_loss, velocity_loss
from glassformer.analysis.sweep.plan import Donor, Plan
from glassformer.attention import AttentionLayer
from glassformer.data import Batch
from glassformer.errors import AnalysisUnavailable, NoPattern, ShapeMismatch, nearest
from glassformer.labelled import Labelled, Result
from glassformer.models import ModelLike, require_model
from glassformer.models.norms import Norm
from glassformer.numerics.placement import place_of
from glassformer.trace import At, Edit, Read, Set

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

    HEADLINE = ("loss_change", "icl_change")
    SIGNED = ("loss_change", "icl_change")

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


@dataclasses.dataclass(frozen=True)
class _Method:
    """How heads are ablated: whether later patterns react, what takes the place of writes, whether norms react."""

    kind: Kind
    value: Value
    norms: Norms

    def require(self, model: ModelLike) -> None:
        """Raise `NoPattern` if patterns are to be held, and some head has none."""
        lacking = [head for head in heads(model) if not layer_of(model, head).traits.has_patterns]
        if self.kind == "pattern_preserving" and lacking:
            raise NoPattern(
                f'ablate: kind="pattern_preserving" holds patterns, and {lacking[0].label} ("{lacking[0].mechanism}") '
                'has none.\n    kind="full" needs no pattern.'
            )

    def held(self, model: ModelLike) -> list[str]:
        """Return the sites that keep what they have in the whole model."""
        layers = _layers(model)
        found = [f"{path}.pattern" for path in layers] if self.kind == "pattern_preserving" else []
        if self.norms == "frozen":
            # every scale that something is divided by, z included
            found += [module.at_scale for module in model.modules() if isinstance(module, Norm) and not module.identity]
            found += [layer.at.z_scale for layer in layers.values() if not layer.merge.linear]
        return found


@question(
    "What does a set of heads do for the loss?",
    of="texts",
    judge="plain passes with what heads hand to the output matrix set to zero",
)
def ablate(
    model: ModelLike,
    chosen: str | Iterable[str],
    *inputs: Any,
    kind: Kind = "full",
    value: Value = "zero",
    norms: Norms = "live",
) -> Ablation:
    """Ablate one set of heads together.

    Args:
        model: A decoder, an encoder or an encoder-decoder.
        chosen: Labels of heads (`L1H6`), of any layers.
        inputs: Batches, texts, or rows of token ids, one or several at a time and of any lengths. An encoder-decoder
            takes batches with sources; an encoder takes batches in which what `weight` counts is masked in `tokens`,
            and `targets` say what stood there: its loss is that of masked tokens, and it has no in-context-learning
            score.
        kind: Whether later patterns react.
        value: What takes the place of the heads' writes.
        norms: Whether the scales of norms react.

    Raises:
        AnalysisUnavailable: There is no such head, or an encoder is asked for next tokens, which it sees.
        NoPattern: Patterns are to be preserved, and a layer has none.

    Source: Olsson et al. 2022, argument 3.
    """
    require_model(model, "ablate")
    labels = _labels(chosen, "ablate")
    return _ablate(model, {" ".join(labels): _find(model, labels)}, inputs, _Method(kind, value, norms))


@question(
    "What does each head by itself do for the loss?",
    of="texts",
    judge="plain passes with what a head hands to the output matrix set to zero",
)
def ablate_each(
    model: ModelLike,
    *inputs: Any,
    chosen: Sequence[str] | None = None,
    kind: Kind = "full",
    value: Value = "zero",
    norms: Norms = "live",
    report: Report | None = None,
    save_to: str | Path | None = None,
) -> Ablation:
    """Ablate each head by itself: all of them, or those chosen; errors as in `ablate`.

    Args:
        model: A decoder, an encoder or an encoder-decoder.
        inputs: As in `ablate`.
        chosen: Labels of heads; all by default.
        kind: Whether later patterns react.
        value: What takes the place of a head's write.
        norms: Whether the scales of norms react.
        report: Called with passes done and passes in all: one for every head and batch.
        save_to: Folder for finished passes, a file for each batch. What was interrupted goes on from it; files of
            another model, text or choice of heads are refused.
    """
    labels = [head.label for head in heads(model)] if chosen is None else list(chosen)
    sets = {label: _find(model, [label]) for label in labels}
    return _ablate(model, sets, inputs, _Method(kind, value, norms), report, None if save_to is None else Path(save_to))


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

    HEADLINE = ("cosine", "projection", "rise_by_ablation", "rise_by_going_back")

    cosine: float
    projection: float
    rise_by_ablation: float
    rise_by_going_back: float
    heads: tuple[str, ...]
    kind: Kind
    tokens: int


@question("Do these heads explain what changed between two checkpoints?", of="texts", holds=("patterns",))
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
    require_model(before, "before_after")
    require_model(after, "before_after")
    labels = _labels(chosen, "before_after")
    sets = {" ".join(labels): _find(after, labels)}
    batches, whole, found, weight = _losses(after, sets, inputs, _Method(kind, value, norms))
    earlier = token_losses(before, *batches)[0][weight].double()
    back, lost = earlier - whole[weight].double(), found[0][weight].double() - whole[weight].double()
    return BeforeAfter(
        cosine=float(lost @ back / (lost.norm() * back.norm())),
        projection=float(lost @ back / (back @ back)),
        rise_by_ablation=float(lost.mean()),
        rise_by_going_back=float(back.mean()),
        heads=labels,
        kind=kind,
        tokens=int(weight.sum()),
    )


def _labels(chosen: str | Iterable[str], analysis: str) -> tuple[str, ...]:
    """Return labels of heads, one or several."""
    if not isinstance(chosen, Iterable):
        raise AnalysisUnavailable(
            f"{analysis}: heads are named by their labels, L1H6, one or several; found {type(chosen).__name__}."
        )
    return (chosen,) if isinstance(chosen, str) else tuple(chosen)


def _find(model: ModelLike, labels: Sequence[str]) -> list[Head]:
    known = {head.label: head for head in heads(model)}
    for label in labels:
        if label not in known:
            raise AnalysisUnavailable(f'ablate: no head "{label}".{nearest(label, known)} Heads: {", ".join(known)}.')
    return [known[label] for label in labels]


def _ablate(
    model: ModelLike,
    sets: dict[str, list[Head]],
    inputs: Sequence[Any],
    method: _Method,
    report: Report | None = None,
    save_to: Path | None = None,
) -> Ablation:
    _, whole, found, weight = _losses(model, sets, inputs, method, report, save_to)
    summary = _summary(whole, found, weight, list(sets), method)
    if require_model(model, "ablate").predicts_next:
        return summary
    # masked tokens have no order in which context could help them
    unknown = dataclasses.replace(summary.icl_change, values=torch.full_like(summary.icl_change.values, math.nan))
    return dataclasses.replace(summary, icl_change=unknown, icl=math.nan)


def _losses(
    model: ModelLike,
    sets: dict[str, list[Head]],
    inputs: Sequence[Any],
    method: _Method,
    report: Report | None = None,
    save_to: Path | None = None,
) -> tuple[list[Batch], Float[Tensor, "row pos"], Float[Tensor, "set row pos"], Bool[Tensor, "row pos"]]:
    """Return the batches, and of all their rows the whole model's losses, the ablated ones', and what counts."""
    batches = _batches(model, inputs)
    method.require(model)
    if not sets:
        raise AnalysisUnavailable("ablate: the model has no heads.")
    replaced = {path: layer.at_write for path, layer in _layers(model).items()}
    means = _means(model, batches, sets.values(), replaced) if method.value == "mean" else {}
    plan = Plan([_replacing(members, replaced, means) for members in sets.values()], {"heads": list(sets)})
    held = method.held(model)
    whole, found = list[Tensor](), list[Tensor]()
    for i, batch in enumerate(batches):
        before = i * len(sets)

        def passed(done: int, _: int, before: int = before) -> None:
            if report is not None:
                report(before + done, len(batches) * len(sets))

        donor = Donor(batch)
        # what is held is held in the base too, where it changes nothing; rows then hold what they come by
        swept = sweep(
            model, batch, plan, _loss(model, batch), base_edit=[Set(name, donor) for name in held], report=passed,
            save_to=None if save_to is None else save_to / file_of_batch(i),
        )  # fmt: skip
        whole.append(swept.base.values[0])
        found.append(swept.values.values[0])
    return batches, joined(whole), joined(found, 1), joined([batch.weight for batch in batches])


def _loss(model: ModelLike, batch: Batch) -> Metric:
    """Return what is measured: the loss of each token, or of the class of each image, or of its velocity."""
    if model.config.denoises is not None:
        return velocity_loss(model, batch.targets)
    return token_loss(batch.targets) if model.patches is None else class_loss(model, batch.targets)


def file_of_batch(i: int) -> str:
    """Return the name of the file for the passes on a batch, in the folder they are saved to."""
    return f"batch-{i}.safetensors"


def _batches(model: ModelLike, inputs: Sequence[Any]) -> list[Batch]:
    """Return the inputs as batches; raises `ShapeMismatch` if there are none."""
    ahead = not require_model(model, "ablate").predicts_next
    batches = [_masked(model, given) if ahead else next_tokens(model, given, "ablate") for given in inputs]
    if not batches:
        raise ShapeMismatch("ablate: give at least one batch.")
    return batches


def _masked(model: ModelLike, given: Any) -> Batch:
    """Return a batch for an encoder; raise unless it asks for tokens that the encoder does not see."""
    if not isinstance(given, Batch):
        raise AnalysisUnavailable(
            "ablate asks an encoder for masked tokens, and a text says of none that it is masked.\n"
            "    Give a Batch: tokens with masks, targets that say what stood there, weight where there is a mask."
        )
    batch = given.to(place_of(model))
    if model.patches is not None:
        return batch
    after = batch.targets[:, :-1] == batch.tokens[:, 1:]
    if bool(after[batch.weight[:, :-1]].all()):
        raise AnalysisUnavailable(
            "ablate: the targets of this Batch are next tokens; an encoder reads both ways, so it sees them.\n"
            "    Give a Batch: tokens with masks, targets that say what stood there, weight where there is a mask."
        )
    return batch


def _summary(
    whole: Float[Tensor, "row pos"],
    found: Float[Tensor, "set row pos"],
    weight: Bool[Tensor, "row pos"],
    names: list[str],
    method: _Method,
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
        loss_change=Labelled(change, *over),
        loss_change_spread=Labelled(spread, *over),
        icl_change=Labelled(changes, *over),
        loss_by_position=by_position,
        loss=float((whole * counted).sum() / counted.sum()),
        icl=icl,
        kind=method.kind,
        value=method.value,
        norms=method.norms,
        rows=n,
    )


def _replacing(
    members: Sequence[Head], replaced: Mapping[str, str], means: Mapping[str, Float[Tensor, "head 1 d"]]
) -> list[Edit]:
    """Return the edits that take away what some heads write: at z where that goes nowhere else, else at the write."""
    edits: list[Edit] = []
    for path in dict.fromkeys(head.path for head in members):
        index = [head.head for head in members if head.path == path]
        value = means[path][None, index] if path in means else 0.0
        edits.append(Set(replaced[path], value, at=At(head=index)))
    return edits


def _means(
    model: ModelLike, batches: Sequence[Batch], sets: Iterable[Sequence[Head]], replaced: Mapping[str, str]
) -> dict[str, Float[Tensor, "head 1 d"]]:
    """Return the mean over all tokens that count of what each head of the touched layers writes."""
    stacks = {head.path: head.stack for members in sets for head in members}
    totals = dict.fromkeys(stacks, torch.tensor(0.0, device=place_of(model)))
    for batch in batches:
        weights = {
            path: _source_weight(batch) if stack == "encoder" else batch.weight for path, stack in stacks.items()
        }
        done = run(model, batch, read=[Read(replaced[path], reduce=_mean_over(weights[path])) for path in stacks])
        for path in stacks:
            totals[path] = totals[path] + done[replaced[path]].values * batch.weight.sum()
    count = sum(int(batch.weight.sum()) for batch in batches)
    return {path: (total / count)[:, None] for path, total in totals.items()}


def _mean_over(weight: Bool[Tensor, "batch pos"]) -> Callable[[Tensor], Tensor]:
    return lambda value: (value * weight[:, None, :, None]).sum((0, 2)) / weight.sum()


def _layers(model: ModelLike) -> dict[str, AttentionLayer]:
    """Return attention layers by path, in the order of their heads."""
    layers = {part.path: part for part in model.modules() if isinstance(part, AttentionLayer)}
    return {path: layers[path] for path in dict.fromkeys(head.path for head in heads(model))}


def _source_weight(batch: Batch) -> Bool[Tensor, "batch source_pos"]:
    assert batch.source is not None, "only an encoder has positions of another length"
    if batch.source_lengths is None:
        return torch.ones_like(batch.source, dtype=torch.bool)
    return torch.arange(batch.source.shape[1], device=batch.source.device) < batch.source_lengths[:, None]
