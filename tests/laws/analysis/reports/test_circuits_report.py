"""The circuits report recovers how a model was built by hand: its heads, its compositions, its rules, and no others."""

import dataclasses
import json
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.analysis.heads import head_scores
from glassformer.analysis.reports import Circuits, circuits
from glassformer.data import Markov
from glassformer.data.batch import next_token_batch
from glassformer.errors import CheckpointError
from glassformer.handmade import (
    induction_model,
    keep_in_mind,
    markov_model,
    plant,
    pointer_model,
    random_head,
    repeated,
    resting_copier,
    rope_model,
    rotated,
    skip_trigram_model,
    smeared_induction_model,
    virtual_head_model,
)
from glassformer.models import Decoder
from glassformer.testing.models import subject
from glassformer.words import speaking, spoken

V = 21
turned = pytest.mark.parametrize("turn", [lambda model: model, rotated], ids=["laid-out", "rotated"])
Turn = Callable[[Decoder], Decoder]


def report(model: Decoder, ids: Tensor | None = None, first: int = 0) -> Circuits:
    """Return the report on rows of ids; what is predicted before `first` does not count."""
    batch = next_token_batch(repeated(batch=8) if ids is None else ids)
    counts = torch.arange(batch.tokens.shape[1]) >= first
    return circuits(model, dataclasses.replace(batch, weight=batch.weight & counts))


def edges(found: Circuits) -> set[tuple[str, str, str]]:
    return {(edge.kind, edge.earlier, edge.later) for edge in found.edges}


def wired(found: Circuits) -> list[tuple[str, str, str]]:
    return [(c.kind, c.previous, c.induction) for c in found.induction]


def named(found: Circuits) -> dict[str, list[str]]:
    """Return the beginnings of what heads were seen to do, without heads of which nothing is said."""
    said = {head.label: [line.partition(":")[0] for line in head.verdict] for head in found.heads}
    return {label: lines for label, lines in said.items() if lines}


PREVIOUS = "attends to the previous token"
DUPLICATE = "attends to earlier copies of the token"
INDUCTION = "attends to what followed earlier copies of the token (induction)"
COPIES = "copies"


# what was built is found ----------------------------------------------------------------------------------------------


@turned
def test_induction_by_keys_is_found_with_its_two_heads_and_nothing_else(turn: Turn) -> None:
    found = report(turn(induction_model()))
    assert named(found) == {"L0H0": [PREVIOUS], "L1H0": [INDUCTION, COPIES]}
    assert edges(found) == {("K", "L0H0", "L1H0")} == set(wired(found))
    assert found.edges[0].score == pytest.approx((1.25 * V) ** -0.5, abs=1e-9)
    assert found["L0H0"].offset == 1 and found["L0H0"].offset_score == pytest.approx(1)
    assert not found.trigrams and not any(head.doubts for head in found.heads)
    assert found.findings[0].startswith("L1H0 is an induction head: 1.00 of its attention")
    assert found.findings[1].startswith("Its keys read what L0H0 (1.00 on the previous token) writes: K-composition")
    assert "the strongest of all compositions" in found.findings[1]


@turned
def test_without_either_head_of_the_circuit_nothing_is_learnt_in_context(turn: Turn) -> None:
    found = report(turn(induction_model()))
    assert found.ablated_icl == pytest.approx(-math.log(V), abs=1e-3)
    changes = {head.label: head.ablation_icl for head in found.heads}
    expected = {"L0H0": math.log(V), "L0H1": 0.0, "L1H0": math.log(V), "L1H1": 0.0}
    assert changes == pytest.approx(expected, abs=1e-3)
    assert "-3.045 nats on the text given; without L1H0 +0.000, without L0H0 +0.000." in found.findings[2]
    # the gain of the circuit is wholly of order one: its pattern is frozen
    assert [order.marginal > 1 for order in found.importance] == [False, True, False]


def test_in_a_short_context_a_previous_token_head_is_no_induction_head() -> None:
    # two tokens over and over: what came before is also what followed the earlier copy
    found = report(induction_model(vocab=6, max_len=11), repeated(6, batch=3))
    assert named(found) == {"L0H0": [PREVIOUS], "L1H0": [INDUCTION, COPIES]}


def test_of_two_heads_that_do_the_same_removing_both_shows_what_removing_one_hides() -> None:
    found = report(induction_model(redundant=True))
    assert named(found) == {"L0H0": [PREVIOUS], "L1H0": [INDUCTION, COPIES], "L1H1": [INDUCTION, COPIES]}
    assert edges(found) == {("K", "L0H0", "L1H0"), ("K", "L0H0", "L1H1")} == set(wired(found))
    assert [found[label].ablation_icl for label in ("L1H0", "L1H1")] == pytest.approx([0, 0], abs=1e-3)
    assert found.together is not None and set(found.together.heads) == {"L1H0", "L1H1"}
    assert found.together.ablation_icl == pytest.approx(math.log(V), abs=1e-3)
    assert "So is L1H1." in found.findings[0] and "without both induction heads +0.000" in found.findings[2]


@turned
def test_induction_by_a_pointer_is_found_in_the_queries(turn: Turn) -> None:
    found = report(turn(pointer_model()))
    assert named(found) == {"L0H0": [DUPLICATE], "L1H0": [INDUCTION, COPIES]}
    assert edges(found) == {("Q", "L0H0", "L1H0")} == set(wired(found))
    assert found.findings[1].startswith("Its queries read what L0H0 (1.00 on earlier copies) writes: Q-composition")
    assert not found.trigrams and not any(head.doubts for head in found.heads)


@turned
def test_a_virtual_head_is_found_in_the_values(turn: Turn) -> None:
    # of period three, so that the token two back is the next one
    found = report(turn(virtual_head_model()), torch.tensor([[0] + [1, 2, 3] * 5, [0] + [4, 5, 6] * 5]), first=3)
    assert named(found) == {"L0H0": [PREVIOUS], "L1H0": [PREVIOUS]}
    assert edges(found) == {("V", "L0H0", "L1H0")} and not wired(found)
    assert found.edges[0].score == pytest.approx(10**-0.5, abs=1e-9)
    assert "No head matches prefixes" in found.findings[0]
    assert found.findings[1].startswith("Largest compositions by weights: L1H0's values with L0H0 (V 0.316)")
    direct, one, two = found.importance
    assert one.marginal == pytest.approx(0, abs=1e-9) and two.loss == pytest.approx(0, abs=1e-9)
    assert direct.loss == pytest.approx(math.log(10))
    assert not found.trigrams and not any(head.doubts for head in found.heads)


@pytest.mark.parametrize("n_heads", [1, 2])
@turned
def test_skip_trigrams_are_listed_with_the_two_that_one_head_cannot_help(turn: Turn, n_heads: int) -> None:
    found = report(turn(skip_trigram_model(keep_in_mind(n_heads))), torch.tensor([[0, 1, 2, 3], [0, 1, 4, 5]]))
    listed = {(rule.head, rule.source, rule.destination, rule.out) for rule in found.trigrams}
    wanted = {(i, d, o) for i, (d, o) in enumerate([("in", "mind"), ("at", "bay")])}
    if n_heads == 2:
        assert listed == {(f"L0H{i}", "keep", d, o) for i, d, o in wanted}
    else:
        assert listed == {("L0H0", "keep", d, o) for d in ("in", "at") for o in ("mind", "bay")}
    # 6 for one token (or two) of six, less the mean
    assert [rule.effect for rule in found.trigrams] == pytest.approx(
        [6 - 6 / 3 * (1 if n_heads == 1 else 0.5)] * len(listed)
    )
    # so few tokens have as strong a rule by chance, unless most entries are 0
    (said,) = [line for line in found.findings if "skip-trigram" in line]
    assert named(found) == {} and "with weights drawn anew" in said
    assert turn is rotated or said.startswith("Strongest skip-trigram: 'keep' … ")


@pytest.mark.parametrize("offset", [1, 3])
def test_a_rotary_head_is_found_at_its_offset(offset: int) -> None:
    found = report(rope_model(offset=offset))
    assert named(found) == {"L0H0": [PREVIOUS, COPIES] if offset == 1 else [COPIES]}
    assert found["L0H0"].offset == offset and found["L0H0"].offset_score == pytest.approx(1)
    assert found["L0H0"].copying == pytest.approx(1)


def test_smeared_induction_is_seen_and_what_its_weights_cannot_say_is_left_open() -> None:
    found = report(smeared_induction_model(), repeated(22, batch=8, gap=True))
    assert named(found) == {"L0H0": [INDUCTION, COPIES]}
    assert not found.edges and not found.induction and not found.trigrams
    reasons = {entry.analysis: entry.why for entry in found.unavailable}
    assert set(reasons) == {"heads that go by position", "composition", "induction from weights", "skip-trigrams"}
    assert all("smears its keys" in why for name, why in reasons.items() if name != "composition")


def test_a_bigram_model_reaches_the_best_loss_there_is_and_the_report_prints_it() -> None:
    chain = Markov(order=1, batch_size=256, length=64)
    data = chain.build()
    found = circuits(markov_model(chain), data.batch(0, "heldout"))
    best = chain.optimal_loss()
    assert found.importance[0].loss == pytest.approx(best, abs=0.02)
    assert found.findings[0].startswith("There are no attention heads")
    assert found.findings[1] == f"The direct path alone brings the loss to {found.importance[0].loss:.2f} nats."
    assert not (found.heads or found.edges or found.trigrams or found.induction)


# what only looks important is not -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("layer", "silent"), [(0, True), (0, False), (1, False)])
def test_a_random_head_of_large_norm_is_named_nothing(layer: int, silent: bool) -> None:
    model = induction_model()
    # what is not silent is as large as others are, so that they still do what they do
    decoy = random_head(model, layer, silent=silent, size=100.0 if silent else 1.0)
    found = report(plant(model, layer, decoy))
    assert named(found) == {"L0H0": [PREVIOUS], "L1H0": [INDUCTION, COPIES]}
    assert not found[f"L{layer}H2"].doubts
    assert edges(found) == {("K", "L0H0", "L1H0")} == set(wired(found))
    assert not any(rule.head == f"L{layer}H2" and rule.score > 0.1 for rule in found.trigrams)
    if silent:
        assert found.findings == report(model).findings
        assert found["L0H2"].ablation_loss == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("layer", [0, 1])
def test_of_a_copying_head_that_is_never_used_the_report_says_that_weights_cannot_tell(layer: int) -> None:
    model = induction_model()
    found = report(plant(model, layer, resting_copier(model, layer)))
    decoy = found[f"L{layer}H2"]
    assert decoy.copying == pytest.approx(1) and decoy.ablation_loss == pytest.approx(0, abs=1e-6)
    assert named(found) == {"L0H0": [PREVIOUS], "L1H0": [INDUCTION, COPIES]}
    assert decoy.doubts[0].startswith(
        "could copy by its weights (eigenvalue ratio +1.00), but on repeated random tokens"
    )
    assert decoy.doubts[0].endswith("and rested on the first")
    assert any(f"{decoy.label} did not copy" in line and "weights alone do not tell" in line for line in found.findings)
    assert edges(found) == {("K", "L0H0", "L1H0")} == set(wired(found))
    assert not found.trigrams


def test_text_is_asked_for_where_it_is_needed_and_the_rest_is_said_without() -> None:
    model = induction_model()
    bare, full = circuits(model), report(model)
    assert {entry.analysis for entry in bare.unavailable} == {"ablation", "term importance", "loss by position"}
    assert (bare.edges, bare.induction, bare.pairs) == (full.edges, full.induction, full.pairs)
    assert [head.verdict for head in bare.heads] == [head.verdict for head in full.heads]
    assert json.loads(bare.to_json())["ablated_loss"] is None


# a report that was interrupted goes on --------------------------------------------------------------------------------

# what each step asks first, in their order
STEPS = {
    "skip-trigrams": "skip_trigrams",
    "bandwidth": "bandwidth",
    "copying by eigenvalues": "copying",
    "heads that go by position": "positional_heads",
    "composition": "composition",
    "what heads attend to": "evaluate_heads",
    "induction from weights": "induction_circuits",
    "term importance": "importance",
    "loss by position": "in_context_learning",
    "token pairs": "token_pairs",
}


def told(found: Circuits) -> tuple[object, ...]:
    """Return all that a report says, in the other language too."""
    with speaking("zh"):
        lines = [*found.findings, *(order.name for order in found.importance), *(one.name for one in found.losses)]
        lines += [words for pair in found.pairs for words in (pair.ov_caption, pair.qk_caption)]
        lines += [words for note in found.notes for words in (note.seen, note.meaning, note.advice)]
        return found.to_dict(), [spoken(line) for line in lines]


@pytest.mark.parametrize("last", ["skip-trigrams", "induction from weights", "token pairs"])
def test_a_report_goes_on_from_its_last_finished_step(
    last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = subject("bare", length=12)
    asks = partial(circuits, model.model, model.batch(), heads=["L1H0"])
    whole = asks()
    assert whole.notes and whole.importance and whole.pairs

    def stop(done: int, total: int, name: str) -> None:
        if done == total or list(STEPS).index(last) < list(STEPS).index(name if name in STEPS else "term importance"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asks(save_to=tmp_path, report=stop)
    asked: list[str] = []
    for function in STEPS.values():
        where = f"glassformer.analysis.reports._circuits.{function}"
        analysis = getattr(sys.modules["glassformer.analysis.reports._circuits"], function)
        monkeypatch.setattr(where, counted(analysis, asked))
    assert told(asks(save_to=tmp_path)) == told(whole)
    steps = list(STEPS)
    assert list(dict.fromkeys(asked)) == [STEPS[name] for name in steps[steps.index(last) + 1 :]]


def counted(analysis: Callable[..., Any], asked: list[str]) -> Callable[..., Any]:
    """Return an analysis that says when it is asked."""

    def called(*args: Any, **kwargs: Any) -> Any:
        asked.append(analysis.__name__)
        return analysis(*args, **kwargs)

    return called


def test_a_report_refuses_the_steps_of_another(tmp_path: Path) -> None:
    model, batch = induction_model(), next_token_batch(repeated(batch=2))
    circuits(model, batch, save_to=tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["batch-0.safetensors", "steps.safetensors"]
    others = [
        ((model, next_token_batch(repeated(batch=3))), {}),
        ((rotated(model), batch), {}),
        ((model, batch), {"seed": 1}),
        ((model, batch), {"tokens": torch.arange(5)}),
        ((model, batch), {"k": 5}),
    ]
    for given, options in others:
        with pytest.raises(CheckpointError, match="steps of another report"):
            circuits(*given, **options, save_to=tmp_path)
    (tmp_path / "steps.safetensors").unlink()
    with pytest.raises(CheckpointError, match="another sweep"):
        circuits(model, next_token_batch(repeated(batch=3)), save_to=tmp_path)


@pytest.mark.parametrize("name", ["masked_pre", "translator_pre"])
def test_heads_that_read_both_ways_have_roles_and_losses_and_match_no_prefixes(name: str) -> None:
    model = subject(name)
    found = circuits(model.model, model.batch())
    scores = head_scores(model.model, repeats=2).scores
    for head in found.heads:
        ahead = model.model.reads_ahead(head.stack)
        if head.part == "attn":
            named = {"previous_token", "duplicate_token", "first_token", "current_token"}
            assert set(head.roles) == (named if ahead else named | {"prefix_matching"})
            assert head.roles["first_token"] == float(scores.select(head=head.label, role="first_token").values)
        assert head.ablation_loss is not None
    reasons = {entry.analysis: entry.why for entry in found.unavailable}
    assert "sees what comes next" in reasons["prefix matching"]
    assert "ablation" not in reasons and "what heads attend to" not in reasons
    assert all(head.ablation_icl is None for head in found.heads)
