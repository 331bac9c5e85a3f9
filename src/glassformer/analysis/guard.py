"""Is there anything to find? What is asked before anything is called found on pairs of prompts.

    the task          the right answer beats the wrong one on more than half of the clean prompts, and on average
    the difference    clean and corrupt differ by more than that difference varies from pair to pair

Numbers are numbers either way. Where one of the two does not hold, that is the answer, and nothing is ranked.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.analysis.contrasts import PromptPairs, aligned, contrast, measured
from glassformer.analysis.sweep import logit_difference, sweep
from glassformer.analysis.sweep.metrics import Metric, MetricsLike
from glassformer.data import Counterfactuals
from glassformer.errors import AnalysisUnavailable
from glassformer.models import ModuleLike
from glassformer.provenance import Note
from glassformer.words import Sentence, listed, sentence

# so many deviations a mean of few pairs has to be from zero: Student's t at 1 %, over the root of their number; from
# eleven pairs on that is less than one deviation, which is what is asked of all
_FEW = {2: 45.0, 3: 5.73, 4: 2.92, 5: 2.06, 6: 1.65, 7: 1.40, 8: 1.24, 9: 1.12, 10: 1.03}
TASK = sentence("logit difference")


def beyond_spread(gaps: Float[Tensor, "*some n"]) -> Bool[Tensor, "*some"]:
    """Whether differences are further from zero on average than they vary; one alone counts, if it is a number.

    What is NaN is left out.
    """
    gaps = gaps.double()
    n = gaps.isfinite().sum(-1)
    mean = gaps.nanmean(-1)
    off = (gaps - mean[..., None]).square().nansum(-1)
    spread = (off / (n - 1).clamp_min(1)).sqrt()
    least = torch.ones_like(mean)
    for few, deviations in _FEW.items():
        least[n == few] = deviations
    return (mean.abs() > least * spread) & (mean != 0)


def guard(
    model: ModuleLike, pairs: PromptPairs | Counterfactuals, metric: MetricsLike | None = None
) -> tuple[Note, ...]:
    """Return why nothing can be called found on pairs of prompts, as notes that deny; none if something can.

    Args:
        model: What is asked.
        pairs: As analyses of pairs take them. Without answers, nothing says what the task is, and what is measured
            alone decides.
        metric: What is measured, beside the logit difference of the answers.
    """
    if isinstance(pairs, Counterfactuals):
        return _base_notes(model, pairs)
    asked = contrast(model, pairs, "guard")
    first, second = aligned(model, asked, "guard")
    answer, wrong, task = asked.answer, asked.wrong, dict[str, Metric]()
    if answer is not None and wrong is not None:
        task = {TASK: logit_difference(answer, wrong, pos=asked.pos)}
    try:
        metrics = measured(model, asked, metric, "guard")
    except AnalysisUnavailable:
        # an analysis that goes by the whole distribution needs neither answers nor a metric
        metrics = {}
    every = metrics | task
    if not every:
        return ()
    clean, corrupt = (sweep(model, side.inputs, [[]], every, target=side.target).base for side in (first, second))
    found = task_notes(clean.values[list(every).index(TASK)]) if task else ()
    return (*found, *_difference_notes(every, clean.values - corrupt.values))


def _base_notes(model: ModuleLike, pairs: Counterfactuals) -> tuple[Note, ...]:
    """Return why a model has no variable that an exchange could set: it does not do the task on base prompts."""
    asked = pairs.contrast()
    _, base = aligned(model, asked, "guard")
    task = logit_difference(pairs.before, pairs.answer, pos=pairs.pos)
    found = sweep(model, base.inputs, [[]], task, target=base.target).base.values[0]
    first, second = task.ids(model, len(found), found.device)
    # where the variable does not matter, nothing tells right from wrong
    gaps = found[first != second]
    if not len(gaps):
        return ()
    notes = task_notes(gaps)
    if notes or bool(beyond_spread(gaps)):
        return notes
    seen = sentence(
        "On base prompts the answer is ahead of the counterfactual one by no more than {n} pairs vary: {gap} (mean ± "
        "deviation).", n=len(gaps), gap=_with_spread(gaps),
    )  # fmt: skip
    return (_not_answered(seen),)


def _not_answered(seen: Sentence) -> Note:
    """Return the note that a model does not answer what it is asked, by what was seen of it."""
    return Note(
        seen,
        sentence("What carries an answer that is not given cannot be found: the numbers are numbers, and no more."),
        sentence("Ask about prompts that the model answers, or ask another model."),
        denies=True,
    )


def task_notes(differences: Float[Tensor, " n"]) -> tuple[Note, ...]:
    """Return why a model does not do a task, as a note that denies; none if it does.

    Args:
        differences: Logit of the right answer less that of the wrong one, prompt by prompt.
    """
    n, right = len(differences), int((differences > 0).sum())
    mean = float(differences.double().mean())
    if 2 * right > n and mean > 0:
        return ()
    seen = sentence(
        "The model prefers the right answer to the wrong one on {right} of {n} clean prompts, by {gap} logits: it does "
        "not do this task.",
        right=right, n=n, gap=_with_spread(differences),
    )  # fmt: skip
    return (_not_answered(seen),)


def answer_notes(probability: float, n: int) -> tuple[Note, ...]:
    """Return why a model has no answer to a prompt, as a note that denies; none if it has.

    An answer has twice the odds of an even guess, or more.

    Args:
        probability: Of what is taken for its answer.
        n: Tokens that it may answer with.
    """
    if probability > 2 / (n + 1):
        return ()
    seen = sentence(
        "The answer has a probability of {probability}, and an even guess among {n} tokens {even}: the model has no "
        "answer to this prompt.",
        probability=f"{probability:.2g}", n=n, even=f"{1 / n:.2g}",
    )  # fmt: skip
    return (_not_answered(seen),)


def _difference_notes(metrics: Mapping[str, Any], gaps: Float[Tensor, "metric n"]) -> list[Note]:
    holds = beyond_spread(gaps).tolist()
    lost = [i for i, differs in enumerate(holds) if not differs]
    if not lost:
        return []
    n, names = gaps.shape[1], list(metrics)
    said = [sentence("{metric} {gap}", metric=sentence(names[i]), gap=_with_spread(gaps[i])) for i in lost]
    seen = sentence(
        "Clean and corrupt prompts differ by no more than {n} pairs vary: {gaps} (mean ± deviation).",
        n=n, gaps=listed(said),
    )  # fmt: skip
    if n == 1:
        seen = sentence("Clean and corrupt prompt do not differ: {gaps}.", gaps=listed(said))
    elif all(abs(mean) > spread for mean, spread in zip(gaps[lost].mean(-1).tolist(), gaps[lost].std(-1).tolist())):
        return [
            Note(
                sentence(
                    "By {n} pairs, the difference between clean and corrupt prompts cannot be told from none: {gaps} "
                    "(mean ± deviation).", n=n, gaps=listed(said),
                ),
                sentence("So few pairs agree by chance, too: the numbers are numbers, and no more."),
                sentence("At this mean and deviation {n} pairs would tell: give more.", n=_enough(gaps[lost])),
                denies=True,
            )
        ]  # fmt: skip
    return [
        Note(
            seen,
            sentence("There is no difference that anything could carry: the numbers are numbers, and no more."),
            sentence("Try prompts that differ in what decides the answer, or more of them."),
            denies=True,
        )
    ]


def _enough(gaps: Float[Tensor, "metric n"]) -> int:
    """Return the least number of pairs by which differences of these means and deviations count."""
    deviations = float((gaps.double().mean(-1).abs() / gaps.double().std(-1)).min())
    return next((n for n, least in _FEW.items() if least < deviations), max(_FEW) + 1)


def _with_spread(values: Float[Tensor, " n"]) -> str:
    values = values.double()
    spread = float(values.std()) if len(values) > 1 else math.nan
    return f"{float(values.mean()):+.3f}" + ("" if math.isnan(spread) else f" ± {spread:.3f}")
