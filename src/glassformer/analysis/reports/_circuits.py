"""Circuits of a model, one report: which heads do what, which read which, by which rules, and how much it matters.

Evidence from weights stands beside evidence from activations, and neither is taken for the other: weights say what a
head could do with what it might be given, activations what it did on the rows that were run. What is not defined for a
model is listed with the reason.

Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"; Olsson et al. 2022, "In-context
Learning and Induction Heads".
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from glassformer import weights
from glassformer.analysis.causal import Ablation, ablate, ablate_each
from glassformer.analysis.drawn_anew import drawn_anew
from glassformer.analysis.from_weights import (
    Composition,
    Copying,
    InductionCircuits,
    PositionalHeads,
    composition,
    copying,
    induction_circuits,
    positional_heads,
)
from glassformer.analysis.frozen import with_gates, with_scales
from glassformer.analysis.heads import evaluate_heads, head_scores
from glassformer.analysis.heads.roles import heads as heads_of, patterned, repeated_inputs, repeated_tokens, repeats_for
from glassformer.analysis.learning import in_context_learning
from glassformer.analysis.paths import Importance, importance
from glassformer.analysis.question import question
from glassformer.analysis.reports._circuits_findings import (
    copies_from,
    doubts,
    findings,
    induction_heads,
    stands_out,
    verdict,
)
from glassformer.analysis.reports._saved_steps import SavedSteps
from glassformer.analysis.reports.circuits_document import (
    Circuits,
    EdgeFacts,
    HeadCircuits,
    InductionFacts,
    JointFacts,
    LossFacts,
    OrderFacts,
    PairEntry,
    Spectrum,
    StrongestPairs,
    TrigramFacts,
    Unavailable,
)
from glassformer.analysis.reports.model_facts import model_facts
from glassformer.analysis.subspaces import Bandwidth, bandwidth
from glassformer.analysis.vocabulary import skip_trigrams, token_pairs
from glassformer.arguments import Count, Several
from glassformer.data import Batch
from glassformer.errors import AnalysisUnavailable, CheckpointError, GlassformerError, NoPattern
from glassformer.labelled import Labelled
from glassformer.models import Model, ModelLike, require_model
from glassformer.weights import HeadWeights
from glassformer.words import sentence

T = TypeVar("T")

NOTHING = 1e-3  # logits, scores, and rules worth less are not listed
ANALYSES = 11  # that are asked, one after the other


@question(
    "Which circuits is the model made of?",
    of="weights",
    holds=("gates",),
    judge="its roles, copying, composition and ablations, each by loops, whole matrices and plain passes",
)
def circuits(
    model: ModelLike,
    *rows: Batch,
    heads: Several[str] | None = None,
    tokens: Sequence[int] | Tensor | None = None,
    k: Count = 12,
    seed: int = 0,
    report: Callable[[int, int, str], None] | None = None,
    save_to: str | Path | None = None,
) -> Circuits:
    """Find the circuits of a model.

    Args:
        model: A decoder, an encoder or an encoder-decoder; what is not defined for it is listed with the reason. Gates
            on mixed values are held at their means over repeated random tokens.
        rows: Batches of text, for losses, ablations and term importance; without them these are left out. For an
            encoder as `ablate` takes them, with masked tokens as targets.
        heads: Labels of the heads whose token pairs are listed; by default those that stand out.
        tokens: Ids that count in tables of tokens (leave out rare ones, see `frequent_tokens`); all by default.
        k: Entries per table.
        report: Called as it goes with steps done, steps in all and the analysis that is under way: one step each, but
            one for every head that is ablated.
        save_to: Folder for finished steps and finished ablations. A report that was interrupted goes on from it; files
            of another model, other rows or other arguments are refused.

    Raises:
        CheckpointError: `save_to` holds what was found of another model, rows or arguments, or is damaged.
        AnalysisUnavailable: The model is none of ours, or a head is unknown.

    Example:
        >>> analysis.reports.circuits(gf.load("attn-only-2l")).findings[0]
    """
    model = require_model(model, "circuits")
    repeats = repeats_for(model)
    drawn = repeated_inputs(model, seed=seed, repeats=repeats)
    w = with_scales(with_gates(weights.of(model, fold=True), *drawn), *drawn)
    for label in heads or ():
        w[label]
    # a step for every head that is ablated
    n_steps = len(heads_of(model)) if rows else 1
    arguments = {"heads": heads, "tokens": tokens, "k": k}
    saved = SavedSteps(None if save_to is None else Path(save_to), model, rows, arguments, seed)
    asked = _Asked(report, ANALYSES - 1 + n_steps, saved)
    # what holds most comes first, while little else is held
    trigrams, chance = asked("skip-trigrams", lambda: _trigrams(model, w, tokens, k, seed)) or ((), 0.0)
    widths = asked("bandwidth", lambda: _widths(bandwidth(w))) or {}
    # what follows reads heads alone
    w = dataclasses.replace(w, mlps=())
    spectra = asked("copying by eigenvalues", lambda: _spectra(copying(w, _of_one_value(w)))) or ()
    placed = asked("heads that go by position", lambda: _offsets(positional_heads(w))) or {}
    edges = asked("composition", lambda: _edges(composition(w, seed=seed), 3 * k)) or ()
    roles = asked("what heads attend to", lambda: _roles(model, seed, repeats)) or {}
    if any(map(model.reads_ahead, model.stacks)):
        asked.unavailable.append(Unavailable("prefix matching", _reads_ahead(model)))
    through, wired = asked(
        "induction from weights",
        lambda: _induction(induction_circuits(w, seed=seed), len(heads_of(model)), k, roles, spectra),
    ) or ({}, ())
    removed = asked(
        "ablation",
        lambda: ablate_each(model, *_given(rows, "ablation"), report=asked.within, save_to=save_to),
        steps=n_steps,
        # which has a file of its own
        kept=False,
    )
    orders = asked("term importance", lambda: _orders(importance(model, *_given(rows, "term importance"))))
    losses = asked("loss by position", lambda: _losses(model, _given(rows, "loss by position")))

    facts = _heads(model, seed, repeats, spectra, placed, widths, roles, through, removed)
    together = [head.label for head in induction_heads(facts)]
    chosen = [head.label for head in facts if head.verdict][:8] if heads is None else list(heads)
    found = Circuits(
        model=model_facts(model),
        findings=(),
        heads=facts,
        edges=edges,
        induction=wired,
        trigrams=trigrams,
        eigenvalues=spectra,
        pairs=asked("token pairs", lambda: tuple(_pairs(w, label, tokens, k) for label in chosen)) or (),
        importance=orders or (),
        losses=losses or (),
        ablated_loss=None if removed is None else removed.loss,
        ablated_icl=None if removed is None else _known(removed.icl),
        together=_together(model, together, rows) if removed is not None and len(together) > 1 else None,
        unavailable=tuple(asked.unavailable),
    )
    return found.replace(findings=findings(found, chance))


class _Asked:
    """Asks one analysis after the other; what is not defined becomes an entry, not an end."""

    def __init__(self, report: Callable[[int, int, str], None] | None, total: int, saved: SavedSteps) -> None:
        self.report, self.total, self.saved = report, total, saved
        self.done, self.steps, self.name = 0, 0, ""
        self.unavailable: list[Unavailable] = []

    def __call__(self, name: str, analysis: Callable[[], T], *, steps: int = 1, kept: bool = True) -> T | None:
        self.name, self.steps = name, steps
        self.within(0, 1)
        try:
            return self.saved(name, analysis) if kept else analysis()
        except CheckpointError:
            # a file of other work is no reason to go on without it
            raise
        except GlassformerError as error:
            self.unavailable.append(Unavailable(name, str(error)))
            return None
        finally:
            self.within(1, 1)
            self.done += steps

    def within(self, done: int, total: int) -> None:
        """Report how far the analysis that is under way has come."""
        if self.report is not None:
            self.report(self.done + self.steps * done // total, self.total, self.name)


def _given(rows: Sequence[Batch], analysis: str) -> Sequence[Batch]:
    if not rows:
        raise AnalysisUnavailable(
            f"{analysis} needs text: batches, as in circuits(model, data.batch(0)); --data on the command "
            "line, or --rows where text was left out for what it costs."
        )
    return rows


def _heads(
    model: ModelLike,
    seed: int,
    repeats: int,
    spectra: Sequence[Spectrum],
    placed: Mapping[str, tuple[int, float]],
    widths: Mapping[str, float | None],
    roles: Mapping[str, Mapping[str, float]],
    through: Mapping[str, float | None],
    removed: Ablation | None,
) -> tuple[HeadCircuits, ...]:
    copied = {spectrum.label: spectrum for spectrum in spectra}
    copies_measured = any("copying" in scores for scores in roles.values())
    n_tokens = _distinct(model, seed, repeats) if copies_measured else 0
    found = []
    for head in heads_of(model):
        scores, spectrum = roles.get(head.label, {}), copied.get(head.label)
        offset, offset_score = placed.get(head.label, (None, None))
        facts = HeadCircuits(
            head.label, head.stack, head.part, head.layer, head.reading,
            {name: x for name, x in scores.items() if name != "copying"},
            copying_measured=None if "copying" not in scores else _times(scores["copying"], n_tokens),
            copying=None if spectrum is None else spectrum.ratio,
            copying_through=through.get(head.label),
            offset=offset,
            offset_score=offset_score,
            read_dimensions=widths.get(f"{head.label} V"),
            write_dimensions=widths.get(head.label),
            ablation_loss=_at(removed and removed.loss_change, head.label, "heads"),
            ablation_loss_spread=_at(removed and removed.loss_change_spread, head.label, "heads"),
            ablation_icl=_at(removed and removed.icl_change, head.label, "heads"),
        )  # fmt: skip
        copies = _copies_from(spectrum)
        found.append(dataclasses.replace(facts, verdict=verdict(facts, copies), doubts=doubts(facts, copies)))
    return tuple(found)


def _copies_from(spectrum: Spectrum | None) -> float:
    """Return the ratio from which a head copies; one that has no circuit is given that of many eigenvalues."""
    return copies_from(None if spectrum is None else len(spectrum.values))


def _offsets(found: PositionalHeads) -> dict[str, tuple[int, float]]:
    """Return each head's offset with the most attention, and that attention."""
    rows = _rows(found.scores, "offset")
    best = {label: max(row, key=lambda o: row[o]) for label, row in rows.items() if row}
    return {label: (int(offset), rows[label][offset]) for label, offset in best.items()}


def _roles(model: Model, seed: int, repeats: int) -> dict[str, dict[str, float]]:
    """Return each head's scores, without what is undefined; those of patterns are called as evaluators call them."""
    if all(head.reading is None for head in heads_of(model)) and patterned(model):
        raise NoPattern(
            "circuits: heads of this model have several values at each position, with a pattern each, so no head is of "
            "one role.\n    What each pattern attends to: analysis.heads.head_scores(model)."
        )
    if not model.continues:
        found = head_scores(model, seed=seed, repeats=repeats).scores
        return {
            label: {"prefix_matching" if role == "induction" else role: score for role, score in row.items()}
            for label, row in _rows(found, "role").items()
        }
    found = evaluate_heads(model, seed=seed, repeats=repeats).scores.select(setting="repeated")
    return _rows(found, "evaluator")


def _reads_ahead(model: Model) -> str:
    """Return why heads of stacks that read both ways are no induction heads."""
    what = "this encoder" if model.source is None else "the encoder"
    return (
        f"prefix matching is looking for what comes next where it came before; {what} reads both ways, and sees what "
        "comes next.\n    What its heads look at: head_roles(run)."
    )


def _distinct(model: ModelLike, seed: int, repeats: int) -> int:
    """Return how many different tokens a row of the evaluation holds."""
    return len(repeated_tokens(model, seed=seed, repeats=repeats)[0].unique())


def _edges(found: Composition, k: int) -> tuple[EdgeFacts, ...]:
    edges = []
    for edge in found.edges()[:k]:
        at = {"kind": edge.kind, "earlier": edge.earlier, "later": edge.later}
        base, spread = (float(table.select(**at).values) for table in (found.null_mean, found.null_sd))
        edges.append(
            EdgeFacts(
                kind=edge.kind,
                earlier=edge.earlier,
                later=edge.later,
                score=edge.score,
                baseline=base,
                spread=spread,
                excess=edge.score - base,
            )
        )
    return tuple(edges)


def _induction(
    found: InductionCircuits,
    n_heads: int,
    k: int,
    roles: Mapping[str, Mapping[str, float]],
    spectra: Sequence[Spectrum],
) -> tuple[dict[str, float | None], tuple[InductionFacts, ...]]:
    """Return how much each head copies of tokens as they reach it, and the circuits that do."""
    copied = {spectrum.label: spectrum for spectrum in spectra}
    circuits = [
        c for c in found.circuits(2 * n_heads**2) if min(c.match, c.copy) >= _copies_from(copied.get(c.later))
    ]  # fmt: skip
    wired = tuple(
        InductionFacts(
            kind=c.kind,
            previous=c.earlier,
            induction=c.later,
            role=c.role,
            match=c.match,
            copy=c.copy,
            composition=c.composition,
            role_seen=roles.get(c.earlier, {}).get("previous_token" if c.kind == "K" else "duplicate_token"),
            prefix_matching=roles.get(c.later, {}).get("prefix_matching"),
        )
        for c in circuits[:k]
    )
    return _numbers(found.copy), wired


def _losses(model: ModelLike, rows: Sequence[Batch]) -> tuple[LossFacts, ...]:
    return (LossFacts.of(sentence("the text given"), in_context_learning(model, *rows)),)


def _together(model: ModelLike, labels: Sequence[str], rows: Sequence[Batch]) -> JointFacts:
    removed = ablate(model, labels, *rows)
    return JointFacts(tuple(labels), float(removed.loss_change.values), _known(float(removed.icl_change.values)))


def _trigrams(model: Model, w: HeadWeights, tokens: Any, k: int, seed: int) -> tuple[tuple[TrigramFacts, ...], float]:
    """Return the rules of the first layer's heads, and the most that one adds in five models with weights drawn anew.

    One draw settles what is far above it; of small vocabularies the largest varies by half from draw to draw.
    """
    found, drawn = _rules(w, tokens, k), list[float]()
    while len(drawn) < 5 and not (len(drawn) == 1 and found and stands_out(found[0], 3 * drawn[0])):
        # the rules are of the first layer's heads, and read no other block
        anew = weights.of(drawn_anew(model, seed + len(drawn), layers=[0]), fold=True, layers=[0])
        rules = _rules(anew, tokens, 1)
        drawn.append(max((rule.score for rule in rules), default=0.0))
    return found, max(drawn)


def _rules(w: HeadWeights, tokens: Any, k: int) -> tuple[TrigramFacts, ...]:
    first = [label for layer in w.of_stack() if layer.layer == 0 for label in layer.labels]
    if not first:
        raise AnalysisUnavailable("skip-trigrams are rules of single heads of the first layer, which has no attention.")
    found = skip_trigrams(w, first, k=k, tokens=tokens)
    even = 1 / (1 + len(found.context))
    fields = (found.sources, found.destinations, found.outputs, found.attention, found.effect, found.contribution)
    rules = []
    for head in map(str, found.contribution.labels("head")):
        for s, d, o, *numbers in zip(*(field.select(head=head).values.tolist() for field in fields)):
            source, destination = (_text(found.names, int(i)) for i in (s, d))
            out = _text(found.output_names, int(o))
            # a head that looks evenly at all of the context holds no rule
            if numbers[0] > 2 * even and numbers[-1] >= NOTHING:
                rules.append(TrigramFacts(head, source, destination, out, *numbers))
    return tuple(sorted(rules, key=lambda rule: -rule.score)[: 2 * k])


def _of_one_value(w: HeadWeights) -> list[str] | None:
    """Return the heads that have one value, which the report is of; None if all do."""
    several = [layer for layer in w if len(layer.by_value()) > 1]
    for layer in several[len(w) - 1 :]:
        # no layer has one value: say why
        layer.require_ov("copying by eigenvalues")
    return [label for layer in w if layer not in several for label in layer.labels] if several else None


def _spectra(copied: Copying) -> tuple[Spectrum, ...]:
    found = []
    ratios = copied.ratio.values.tolist()
    for label, row, ratio in zip(copied.eigenvalues.labels("head"), copied.eigenvalues.values, ratios):
        values = [(float(x.real), float(x.imag)) for x in row if torch.isfinite(x)]
        # libraries give them in orders of their own, and of a conjugate pair either first
        values.sort(key=lambda value: (-math.hypot(*value), -value[1]))
        found.append(Spectrum(str(label), tuple(values), _known(ratio)))
    return tuple(found)


def _pairs(w: HeadWeights, label: str, tokens: Any, k: int) -> StrongestPairs:
    rows: dict[str, tuple[tuple[PairEntry, ...], str]] = {}
    for circuit in ("OV", "QK"):
        try:
            found = token_pairs(w, circuit, [label], k=k, tokens=tokens)
        except AnalysisUnavailable as error:
            rows[circuit] = (), str(error)
            continue
        name = str(found.values.labels("head")[0])
        words = sentence("OV: attending to … raises …" if circuit == "OV" else "QK: a query for … looks for …")
        if circuit == "QK" and found.offsets:
            ends = {"first": found.offsets[0], "last": found.offsets[-1]}
            words = sentence("QK: a query for … looks for …, mean over keys {first} to {last} back", **ends)
        fields = (found.rows, found.columns, found.values)
        table = zip(*(field.select(head=name).values.tolist() for field in fields))
        second = found.output_names if circuit == "OV" else found.names
        pairs = (PairEntry(_text(found.names, a), _text(second, b), x) for a, b, x in table if abs(x) >= NOTHING)
        rows[circuit] = tuple(pairs), words
    return StrongestPairs(label, *rows["OV"], *rows["QK"])


def _orders(found: Importance) -> tuple[OrderFacts, ...]:
    names = {"0": sentence("none: the direct path"), "1": sentence("one head"), "2": sentence("two heads")}
    losses, gains = (x.select(scale="frozen") for x in (found.losses, found.gains))
    rows = zip(losses.labels("order"), losses.values.tolist(), gains.values.tolist(), found.terms.values.tolist())
    return tuple(
        OrderFacts(names.get(str(n), sentence("{n} heads", n=n)), loss, gain, int(terms))
        for n, loss, gain, terms in rows
    )


def _widths(found: Bandwidth) -> dict[str, float | None]:
    """Return the effective dimensions of what each component reads or writes."""
    return _numbers(found.dimensions.select(measure="participation_ratio"))


def _text(names: Mapping[int, str], token: int) -> str:
    # names begin with the id, to tell equal texts apart; where tokens stand by themselves their text is enough
    return names[token].partition(":")[2]


def _times(score: float, n_tokens: int) -> float:
    """Return how often the average token's raise the attended token's is, from the copying score 4r - 1."""
    share = (score + 1) / 4
    return share / (1 - share) * n_tokens


def _rows(table: Labelled, axis: str) -> dict[str, dict[str, float]]:
    """Return each head's row by coordinate, without what is undefined."""
    return {str(head): _row(table, str(head), axis) for head in table.labels("head")}


def _row(table: Labelled, head: str, axis: str) -> dict[str, float]:
    row = table.select(head=head)
    return {str(name): x for name, x in zip(row.labels(axis), row.values.tolist()) if math.isfinite(x)}


def _at(table: Labelled | None, head: str, axis: str = "head") -> float | None:
    if table is None or head not in table.labels(axis):
        return None
    return _known(float(table.select(**{axis: head}).values))


def _numbers(table: Labelled) -> dict[str, float | None]:
    """Return the numbers of a table of one axis by coordinate."""
    return {str(label): _known(x) for label, x in zip(table.labels(table.axes[0]), table.values.tolist())}


def _known(x: float) -> float | None:
    return x if math.isfinite(x) else None
