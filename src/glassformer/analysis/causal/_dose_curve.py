"""Dose curves of steering: what a vector does to what it is meant for, and what it costs everywhere else.

    effect(d) = metric of prompts under d times the vector, less the metric without it
    damage(d) = loss of other texts under the same edit, less their loss without it, in nats

Beside it stand vectors of the same length at random: whoever pushes a stream far enough moves any answer.

Source: Turner et al. 2023, "Activation Addition: Steering Language Models Without Optimization" (2308.10248); Rimsky et
al. 2023, "Steering Llama 2 via Contrastive Activation Addition" (2312.06681), section 5 (effect by multiplier, and what
it does to other abilities).
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis.prepare import next_tokens
from glassformer.analysis.question import question
from glassformer.analysis.sweep import next_token_loss, sweep
from glassformer.analysis.sweep.metrics import MetricLike, named_metrics, require_numbers
from glassformer.analysis.uncertainty import interval, mean
from glassformer.arguments import Count, Several
from glassformer.errors import ShapeMismatch
from glassformer.labelled import Labelled, Result
from glassformer.models import ModelLike, require_model
from glassformer.provenance import Note, tell
from glassformer.trace import Add, AddWhere
from glassformer.words import sentence

Steering = Add | AddWhere


@dataclasses.dataclass(frozen=True, eq=False)
class DoseCurve(Result):
    """What steering does by dose, to prompts and to other texts.

    Args:
        effects: What each dose adds to the metric of each prompt, `dose batch`.
        damages: What it adds to the mean loss of each text, in nats, `dose text`.
        random_effects: Mean effect of vectors of the same length at random, `draw dose`.
        random_damages: Their mean damage, `draw dose`.
        loss: Mean loss of the texts without steering, in nats.
    """

    HEADLINE = ("effect", "damage")
    SIGNED = ("effects", "damages", "effect", "damage")

    effects: Labelled
    damages: Labelled
    random_effects: Labelled
    random_damages: Labelled
    loss: float

    @property
    def effect(self) -> Labelled:
        """Mean effect over prompts, `dose`."""
        return mean(self.effects)

    @property
    def effect_low(self) -> Labelled:
        """Lower end of its 95 % interval over prompts drawn again, `dose`."""
        return interval(self.effects).select(bound="low")

    @property
    def effect_high(self) -> Labelled:
        """Upper end of the same."""
        return interval(self.effects).select(bound="high")

    @property
    def damage(self) -> Labelled:
        """Mean damage over texts, in nats, `dose`."""
        return mean(self.damages)

    @property
    def damage_low(self) -> Labelled:
        """Lower end of its 95 % interval over texts drawn again, `dose`."""
        return interval(self.damages).select(bound="low")

    @property
    def damage_high(self) -> Labelled:
        """Upper end of the same."""
        return interval(self.damages).select(bound="high")

    @property
    def beyond_random(self) -> float:
        """Share of the random vectors that move the metric less than the vector does, each at its best dose."""
        own, others = self.effect.values.abs().max(), self.random_effects.values.abs().amax(-1)
        return float((others < own).double().mean())

    def _title(self) -> str:
        return "Steering by dose"


@question("What does steering do by dose, and what does it cost?", of="texts")
def dose_curve(
    model: ModelLike,
    inputs: Any,
    metric: MetricLike,
    steering: Steering,
    doses: Several[float],
    texts: Any,
    *,
    target: Any = None,
    draws: Count = 19,
    seed: int = 0,
    report: Callable[[int, int], None] | None = None,
) -> DoseCurve:
    """Measure a vector that is added, in several doses, on prompts and on other texts.

    Args:
        model: One that predicts next tokens.
        inputs: Prompts, as `run` takes them.
        metric: What the vector is meant to move; one number per prompt.
        steering: The edit at a dose of one: `Add(site, vector)`, or `AddWhere`, which adds where something holds. Its
            `at` goes for prompts and texts alike.
        doses: What the vector is multiplied by; negative ones push the other way.
        texts: Texts the vector has no business with, whose next tokens are predicted under the same edit.
        draws: Random vectors of the same length; more of them tell less of an effect from none.
        seed: Of the draws.
        report: Called with (done, total) rows of the prompts.

    Raises:
        ShapeMismatch: The edit adds no vector, or a metric keeps axes.
        AnalysisUnavailable: The model predicts no next tokens.
        UnknownSite: There is no such site.
    """
    require_model(model, "dose_curve")
    metrics = named_metrics(metric)
    require_numbers(metrics, "dose_curve")
    vector = _vector(steering)
    generator = torch.Generator().manual_seed(seed)
    others = torch.randn(draws, len(vector), generator=generator, dtype=torch.float64).to(vector)
    vectors = [vector, *(torch.nn.functional.normalize(others, dim=-1) * vector.norm())]
    plan = [[dataclasses.replace(steering, value=dose * one)] for one in vectors for dose in doses]
    batch = next_tokens(model, texts, "dose_curve")
    moved = sweep(model, inputs, plan, metrics, target=target, report=report)
    lost = sweep(model, batch, plan, next_token_loss(batch.targets, batch.weight))
    effects, damages = (_by_vector(found.change.values[0], len(vectors)) for found in (moved, lost))
    coords = {"dose": [float(dose) for dose in doses]}
    found = DoseCurve(
        effects=Labelled(effects[0], ("dose", "batch"), coords),
        damages=Labelled(damages[0], ("dose", "text"), coords),
        random_effects=Labelled(effects[1:].nanmean(-1), ("draw", "dose"), coords),
        random_damages=Labelled(damages[1:].nanmean(-1), ("draw", "dose"), coords),
        loss=float(lost.base.values.nanmean()),
    )
    tell(_notes(found))
    return found


def _vector(steering: Steering) -> Float[Tensor, " width"]:
    """Return what an edit adds; raises `ShapeMismatch` unless it is one vector that is not zero."""
    given = steering.value
    value = given.values if isinstance(given, Labelled) else given
    if not isinstance(value, Tensor) or value.ndim != 1 or not bool(value.any()):
        raise ShapeMismatch(
            f'dose_curve takes multiples of one vector, Add("{steering.site}", vector), not all zero; '
            f"found {type(value).__name__}"
            + (f" of {'x'.join(map(str, value.shape))}." if isinstance(value, Tensor) else ".")
        )
    return value.detach()


def _by_vector(change: Float[Tensor, "row batch"], n: int) -> Float[Tensor, "vector dose batch"]:
    return change.double().unflatten(0, (n, -1))


def _notes(found: DoseCurve) -> Sequence[Note]:
    """Return why a vector cannot be said to steer, as a note that denies; none if it can."""
    draws = found.random_effects.size("draw")
    if found.beyond_random == 1:
        return ()
    return (
        Note(
            sentence(
                "Of {n} random vectors of the same length {more} move the metric as far.",
                n=draws, more=round(draws * (1 - found.beyond_random)),
            ),
            sentence("That the vector stands for anything cannot be told from that any push would do."),
            sentence("Try a smaller dose, or another place."),
            denies=True,
        ),
    )  # fmt: skip
