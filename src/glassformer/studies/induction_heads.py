"""Do induction heads carry in-context learning? Six lines of evidence, as far as run folders tell.

    1 co-occurrence     they appear when in-context learning does
    2 co-perturbation   an architecture in which they form earlier learns in context earlier
    3 ablation          without them there is less of it
    4 generality        they match prefixes beyond plain repetition
    5 mechanism         they work by what an earlier head wrote into their keys, and copy
    6 scale             the same holds at every size

Each has a grade: what kind of evidence it is, and how strong here. Where a run folder alone cannot tell, the section
says why instead.

Source: Olsson et al. 2022. The thresholds behind the grades are ours and are stated with them.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch

from glassformer.analysis._run import run
from glassformer.analysis.causal._head_ablation import Ablation, ablate, ablate_each
from glassformer.analysis.from_weights._composition import composition
from glassformer.analysis.heads._evaluate import HeadEvaluation, evaluate_heads
from glassformer.analysis.heads._roles import head_roles, head_scores, heads, pattern_sites, repeated_tokens
from glassformer.analysis.learning._phase_change import PhaseChange, Trajectory, phase_change, trajectory
from glassformer.analysis.learning._run_folder import History, read_history
from glassformer.analysis.losses import icl_or_nan, loss_by_position
from glassformer.attention.projections import SmearedProjection
from glassformer.data import Batch
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Result
from glassformer.models import ModelLike
from glassformer.trace import At, Scale

Grade = Literal["strong", "medium", "weak", "none", "not available"]
TITLES = ("co-occurrence", "co-perturbation", "ablation", "generality", "mechanism", "scale")


@dataclasses.dataclass(frozen=True)
class Argument:
    """One line of evidence.

    Args:
        title: One of `TITLES`.
        grade: How strong the evidence is in these runs, or `not available`.
        kind: What sort of evidence it would be: `correlational`, `interventional`, `causal`, `mechanistic`.
        finding: In a sentence or two, with the threshold that the grade rests on; or why there is none.
        numbers: What the sentence says, by name.
    """

    title: str
    grade: Grade
    kind: str
    finding: str
    numbers: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class SixArguments(Result):
    """The case for induction heads in one run.

    Args:
        arguments: In the order of `TITLES`.
        induction_heads: Heads whose prefix matching is above the threshold, at the last checkpoint.
        threshold: That threshold.
        icl_share: Share of the in-context-learning score that is gone without these heads; NaN if there are none, or no
            score.
        trajectory: The run over its checkpoints, or None.
        phase: Where it turns, or None.
        ablation: Every head ablated by itself at the last checkpoint.
        evaluation: Every head in every setting, at the last checkpoint.
    """

    arguments: tuple[Argument, ...]
    induction_heads: tuple[str, ...]
    threshold: float
    icl_share: float
    trajectory: Trajectory | None
    phase: PhaseChange | None
    ablation: Ablation
    evaluation: HeadEvaluation

    def __getitem__(self, title: str) -> Argument:
        return next(argument for argument in self.arguments if argument.title == title)


def six_arguments(
    folder: str | Path,
    others: Sequence[str | Path] = (),
    *batches: Batch,
    threshold: float = 0.4,
    n_batches: int = 16,
    steps: Sequence[int] | None = None,
) -> SixArguments:
    """Examine a run, and if given further ones, for the six arguments.

    Args:
        folder: The run; with `keep=[…]` it has the checkpoints that argument 1 needs.
        others: Runs to compare with: the same recipe with smeared keys (argument 2), other sizes (argument 6).
        batches: Rows to measure on; the run's own held-out text by default.
        threshold: Prefix matching from which a head counts as an induction head; a habit of the field, no more.
        n_batches: How many held-out batches, where no rows are given.
        steps: Checkpoints to measure for argument 1; all by default.

    Raises:
        RunFolderError: A folder is no run's.
        AnalysisUnavailable: The model is no decoder with patterns (head_scores says which).
    """
    history = read_history(folder)
    compared = [read_history(other) for other in others]
    rows = list(batches) or history.batches(n_batches)
    model = history.model(history.steps[-1])
    evaluation = evaluate_heads(model, torch.cat([batch.tokens for batch in rows]))
    each = ablate_each(model, *rows)
    prefix = evaluation.scores.select(setting="repeated", evaluator="prefix_matching")
    induction = tuple(str(h) for h, x in zip(prefix.labels("head"), prefix.values.tolist()) if x >= threshold)
    together = ablate(model, induction, *rows) if induction else None
    share = math.nan if together is None else float(together.icl_share.values)
    try:
        path = trajectory(history, *rows, steps=steps)
        phase = phase_change(path)
        first = _co_occurrence(path, phase)
    except AnalysisUnavailable as error:
        path = phase = None
        first = _missing("co-occurrence", "correlational", str(error).split("\n")[0])
    arguments = (
        first,
        _co_perturbation(history, compared, phase),
        _ablation(induction, threshold, together, each, share),
        _generality(evaluation, induction),
        _mechanism(model, evaluation, induction),
        _scale([history, *compared], rows),
    )
    return SixArguments(arguments, induction, threshold, share, path, phase, each, evaluation)


def _missing(title: str, kind: str, why: str) -> Argument:
    return Argument(title, "not available", kind, why, {})


def _co_occurrence(path: Trajectory, phase: PhaseChange) -> Argument:
    ends = {str(m): ends for m, ends in zip(phase.steepest.labels("measure"), phase.steepest.values.tolist())}
    (low, high), final = phase.window, float(path.measures.values[-1, 2])
    heads, reach = ends["prefix_matching"], phase.bump
    overlap = heads[1] >= low and heads[0] <= high
    # the bump shows the change in the loss itself, where it is not as noisy as in a difference of two losses
    inside = reach[0] < heads[1] and heads[0] < reach[1]
    numbers = {
        "icl_score_window": list(phase.window), "prefix_matching_steepest": heads, "loss_bump": list(reach),
        "loss_bump_height": phase.bump_height, "prefix_matching_at_the_end": final,
        "correlation_of_changes": float(phase.together.select(measure="prefix_matching").values),
    }  # fmt: skip
    grade: Grade = "none" if final < 0.4 else "medium" if overlap or inside else "weak"
    finding = (
        f"Prefix matching rises fastest between steps {heads[0]} and {heads[1]}; the in-context-learning score falls "
        f"fastest between {low} and {high}; the loss has a bump of {phase.bump_height:.3f} nats between {reach[0]} and "
        f"{reach[1]}. Medium if prefix matching rises inside either; more than correlation this cannot be."
    )
    return Argument("co-occurrence", grade, "correlational", finding, numbers)


def _co_perturbation(history: History, others: Sequence[History], phase: PhaseChange | None) -> Argument:
    smeared = [other for other in others if _smeared(other) and not _smeared(history)]
    if not smeared:
        return _missing(
            "co-perturbation", "interventional",
            "It takes a run whose architecture makes induction heads easier to form: give one with smeared keys, such "
            "as attn-only-1l-smeared or this recipe with block(smeared=True), among the others.",
        )  # fmt: skip
    if phase is None:
        return _missing("co-perturbation", "interventional", "This run has no checkpoints to compare with.")
    numbers: dict[str, Any] = {history.name: _rise(history)}
    for other in smeared:
        numbers[other.name] = _rise(other)
    own, theirs = numbers[history.name], [numbers[other.name] for other in smeared]
    earlier = [n["prefix_matching_above_half"] for n in theirs if n["prefix_matching_above_half"] is not None]
    grade: Grade = "none"
    if earlier and (own["prefix_matching_above_half"] or math.inf) > min(earlier):
        grade = "medium"
    said = "; ".join(f"{name} at step {n['prefix_matching_above_half']}" for name, n in numbers.items())
    finding = (
        f"The best head's prefix matching first exceeds a half: {said} (None: never). In-context-learning scores at "
        "the end: "
        + ", ".join(f"{name} {n['icl_score']:.3f}" for name, n in numbers.items())
        + ". Medium if smeared keys make it earlier; one seed each."
    )
    return Argument("co-perturbation", grade, "interventional", finding, numbers)


def _ablation(
    induction: tuple[str, ...], threshold: float, together: Ablation | None, each: Ablation, share: float
) -> Argument:
    if together is None:
        return _missing("ablation", "causal", f"No head's prefix matching reaches {threshold}: nothing to ablate.")
    others = [
        float(x) for h, x in zip(each.icl_change.labels("heads"), each.icl_change.values) if str(h) not in induction
    ]
    middle = sorted(others)[len(others) // 2] if others else math.nan
    change = float(together.icl_change.values)
    numbers = {
        "heads": list(induction), "icl_score": each.icl, "icl_change": change, "icl_share": share,
        "loss_change": float(together.loss_change.values),
        "loss_change_spread": float(together.loss_change_spread.values), "median_icl_change_of_other_heads": middle,
    }  # fmt: skip
    grade: Grade = "strong" if share > 0.5 else "medium" if share > 0.2 else "weak" if share > 0.05 else "none"
    finding = (
        f"Without {', '.join(induction)} the in-context-learning score goes from {each.icl:.3f} to "
        f"{each.icl + change:.3f} nats ({share:.0%} of it); ablating another head alone changes it by {middle:+.3f} "
        "(median). Strong above one half, medium above a fifth; zero ablation, norms live."
    )
    return Argument("ablation", grade, "causal", finding, numbers)


def _generality(evaluation: HeadEvaluation, induction: tuple[str, ...]) -> Argument:
    if not induction:
        return _missing("generality", "correlational", "There is no induction head to follow elsewhere.")
    found = {
        str(s): max(float(evaluation.scores.select(setting=str(s), head=h, evaluator="prefix_matching").values)
                    for h in induction)
        for s in evaluation.scores.labels("setting")
    }  # fmt: skip
    grade: Grade = "medium" if min(found.values()) >= 0.4 else "weak"
    finding = (
        "Prefix matching of the best: "
        + ", ".join(f"{setting} {value:.2f}" for setting, value in found.items())
        + ". Medium if 0.4 or more everywhere. Whether they also match by meaning (translations, patterns) takes "
        "prompts that a run folder does not hold."
    )
    return Argument("generality", grade, "correlational", finding, found)


def _mechanism(model: ModelLike, evaluation: HeadEvaluation, induction: tuple[str, ...]) -> Argument:
    if not induction:
        return _missing("mechanism", "mechanistic", "There is no induction head to take apart.")
    plain = evaluation.scores.select(setting="repeated")
    best = max(induction, key=lambda h: float(plain.select(head=h, evaluator="prefix_matching").values))
    earlier = [h for h in map(str, plain.labels("head")) if int(h[1 : h.index("H")]) < int(best[1 : best.index("H")])]
    copying = float(plain.select(head=best, evaluator="copying").values)
    numbers: dict[str, Any] = {
        "head": best, "prefix_matching": float(plain.select(head=best, evaluator="prefix_matching").values),
        "copying": copying,
    }  # fmt: skip
    if not earlier:
        smeared = any(isinstance(m, SmearedProjection) for m in model.modules())
        shown = "its keys are smeared" if smeared else "no earlier head could have told it"
        return Argument(
            "mechanism", "weak", "mechanistic",
            f"{best} lies in the first layer: {shown}. Its copying score is {copying:.2f}.", numbers,
        )  # fmt: skip
    source = max(earlier, key=lambda h: float(plain.select(head=h, evaluator="previous_token").values))
    numbers["source"] = source
    numbers["previous_token"] = float(plain.select(head=source, evaluator="previous_token").values)
    numbers["prefix_matching_without_source"] = _prefix_without(model, source, best)
    numbers |= _composition(model, source, best)
    lost = numbers["prefix_matching"] - numbers["prefix_matching_without_source"]
    grade: Grade = "strong" if lost > 0.5 * numbers["prefix_matching"] else "weak"
    finding = (
        f"{best} matches prefixes ({numbers['prefix_matching']:.2f}); without {source}, which of all earlier "
        f"heads attends most to the previous token ({numbers['previous_token']:.2f}), it does so at "
        f"{numbers['prefix_matching_without_source']:.2f}. Its copying score is {copying:.2f}. Strong if more than "
        f"half of the matching goes. {numbers['composition']}"
    )
    return Argument("mechanism", grade, "mechanistic", finding, numbers)


def _composition(model: ModelLike, source: str, head: str) -> dict[str, Any]:
    """Return K-composition of two heads in standard deviations above random matrices, in words too."""
    try:
        found = composition(model)
    except AnalysisUnavailable as error:
        return {"composition": f"No composition from weights: {str(error).splitlines()[0]}"}
    place = {"kind": "K", "earlier": source, "later": head}
    score, above = (float(x.select(**place).values) for x in (found.scores, found.excess()))
    if math.isnan(score):
        return {"composition": "K-composition is not defined for this pair."}
    said = f"Their K-composition is {score:.3f}, {above:.1f} standard deviations above random matrices."
    return {"k_composition": score, "k_composition_deviations": above, "composition": said}


def _scale(histories: Sequence[History], rows: Sequence[Batch]) -> Argument:
    if len(histories) < 2:
        return _missing("scale", "correlational", "It takes runs of several sizes: give the others.")
    numbers: dict[str, Any] = {}
    for history in histories:
        model = history.model(history.steps[-1])
        losses = loss_by_position(model, *rows)
        prefix = head_scores(model).best("induction")[1]
        size = sum(p.numel() for p in model.parameters())
        numbers[history.name] = {"parameters": size, "icl_score": icl_or_nan(losses), "prefix_matching": prefix}
    sizes = {found["parameters"] for found in numbers.values()}
    ordered = sorted(numbers.values(), key=lambda n: -n["prefix_matching"])
    agree = all(a["icl_score"] <= b["icl_score"] for a, b in pairwise(ordered))
    grade: Grade = "weak" if agree and len(sizes) > 1 else "none"
    finding = (
        "; ".join(
            f"{name}: {n['parameters']:,} parameters, score {n['icl_score']:.3f}, prefix matching "
            f"{n['prefix_matching']:.2f}"
            for name, n in numbers.items()
        )
        + ". Weak if the order by prefix matching is the order by score; runs this small say nothing of large models."
    )
    return Argument("scale", grade, "correlational", finding, numbers)


def _rise(history: History) -> dict[str, Any]:
    """Return when prefix matching first exceeded a half, and the last score, from what was logged."""
    prefix, score = history.logged("prefix_matching"), history.logged("icl_score")
    above = [step for step, value in prefix.items() if value > 0.5]
    return {
        "prefix_matching_above_half": min(above, default=None),
        "icl_score": list(score.values())[-1] if score else math.nan,
    }


def _smeared(history: History) -> bool:
    layers = history.config["model"].get("layers", [])
    return any(
        part.get("projection", {}).get("kind") == "smeared" for layer in layers for part in layer.get("parts", [])
    )


def _prefix_without(model: ModelLike, source: str, head: str) -> float:
    """Return a head's prefix matching on repeated random tokens while another head writes nothing."""
    gone = next(h for h in heads(model) if h.label == source)
    silent = Scale(f"{gone.path}.head_out", 0.0, at=At(head=gone.head))
    done = run(model, repeated_tokens(model), read=pattern_sites(model), edit=[silent])
    return float(head_roles(done).scores.select(head=head, role="induction").values)
