"""Two passes: the first decides which expert a prompt gets, the second answers with its weights.

    prompt  ->  strategy  ->  W'  ->  answer

Rows of a batch are grouped by expert, one generation for each, and the model's weights are as they were afterwards, bit
for bit, whatever happens on the way.

Source: Sun, Cetin, Tang 2025, "Transformer-Squared: Self-adaptive LLMs", section 3.3.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from glassformer.adaptation._adapter import Adapter, require_bare
from glassformer.adaptation._batches import adapted, by_adapter
from glassformer.adaptation._strategies import Strategy, require_experts
from glassformer.arguments import Count, checked
from glassformer.config import require
from glassformer.labelled import Labelled, Result
from glassformer.models import GREEDY, ModelLike, generate, require_model
from glassformer.models.evaluation import evaluating
from glassformer.provenance import Note, distinct
from glassformer.provenance.binding import Binding


@dataclass(frozen=True, eq=False)
class AdaptedAnswers(Result):
    """What experts answered, and how they were chosen.

    Args:
        prompts: What was asked.
        chosen: The expert that answered each prompt; `none` for the model's own weights, `mixture` for all of them.
        said: What the model wrote when it was asked which task each prompt is of; empty where it was not asked.
        answers: What was written behind the prompts, without the end.
        probability: Of each answer to the question which task a prompt is of, `batch answer`, `anything else` the last;
            None where the model was not asked.
        coefficients: How much each expert's changes count, `expert` or `matrix expert`; None where nothing is mixed.
        search: Share of the examples that the best mixture answered right, `step`; None where nothing is mixed.
    """

    HEADLINE = ("probability", "coefficients", "search")

    prompts: tuple[str, ...]
    chosen: tuple[str, ...]
    said: tuple[str, ...]
    answers: tuple[str, ...]
    probability: Labelled | None
    coefficients: Labelled | None
    search: Labelled | None


@checked
def adapted_answers(
    model: ModelLike,
    experts: Mapping[str, Adapter],
    strategy: Strategy,
    prompts: Sequence[str],
    *,
    max_new_tokens: Count | None = None,
) -> AdaptedAnswers:
    """Answer prompts by experts that are chosen for them, the likeliest token at a time.

    Args:
        model: A decoder, with no adapter attached.
        experts: Experts by what they are called: by the kind of their task, where the model is asked which it is.
        strategy: How they are chosen: `AskedTask`, `FewShot`.
        prompts: Texts.
        max_new_tokens: Where an answer without an end is cut off; by default 64, as far as the context has room.

    Raises:
        ConfigError: An adapter is attached, no answer chooses an expert, or experts cannot be mixed.
        UnknownSite: The model lacks a matrix of an expert.
        ShapeMismatch: A matrix has another shape.
        TextError: A prompt is empty or mostly unknown to the model, or there is none.

    Example:
        adapted_answers(model, {"sorting": expert.adapter}, AskedTask(WhichTask()), ["4 2 , 7 ="]).answers
    """
    model, prompts = require_model(model, "adapted_answers"), list(prompts)
    require_bare(model)
    require(len(prompts) > 0, "adapted_answers: there are no prompts; give one or more.")
    require_experts(experts, model)
    decision = strategy.decide(model, experts, prompts)
    answers, notes = [""] * len(prompts), list[Note]()
    for adapter, rows in by_adapter(decision.adapters).items():
        with adapted(model, adapter), evaluating(model):
            found = generate(model, [prompts[row] for row in rows], GREEDY, max_new_tokens=max_new_tokens)
        for row, text in zip(rows, found.texts, strict=True):
            answers[row] = text
        notes += found.notes
    return (
        AdaptedAnswers(
            prompts=tuple(prompts), chosen=decision.chosen, said=decision.said, answers=tuple(answers),
            probability=decision.probability, coefficients=decision.coefficients, search=decision.search,
        )
        .noted(*distinct(notes))
        .bound(Binding("adapted_answers", model, prompts))
    )  # fmt: skip
