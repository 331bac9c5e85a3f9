"""Term importance: what paths of each order are worth, against models in which it is known."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given

import glassformer as gf
from glassformer.analysis import run
from glassformer.analysis.frozen import frozen_edits
from glassformer.analysis.paths import Importance, expand_paths, importance
from glassformer.analysis.paths._importance import World, order_worlds, sweep, term_counts
from glassformer.analysis.paths._steps import steps_of
from glassformer.data import Batch
from glassformer.errors import AnalysisUnavailable
from glassformer.handmade import induction_model, repeated, virtual_head_model
from glassformer.testing import close
from glassformer.testing.models import DIRECTED, Subject, attention_decoders, subject
from glassformer.trace import At, Scale


def next_tokens(ids: torch.Tensor, start: int = 0) -> Batch:
    weight = torch.zeros_like(ids[:, 1:], dtype=torch.bool)
    weight[:, start:] = True
    return Batch(ids[:, :-1], ids[:, 1:], weight)


def frozen(found: Importance, field: str = "losses") -> list[float]:
    return getattr(found, field).select(scale="frozen").values.tolist()


@pytest.mark.parametrize("live", [False, True], ids=["frozen", "live"])
@pytest.mark.parametrize("name", DIRECTED)
def test_paths_of_all_orders_are_the_full_model(name: str, live: bool) -> None:
    found = subject(name)
    done = run(found.model, *found.inputs, read=[expand_paths])
    steps = steps_of(done, "the test")
    assert done.logits is not None
    close(steps.logits(sweep(steps, order_worlds(steps.depth), live=live)[-1], live=live), done.logits)


@given(attention_decoders(mlps=True))
def test_paths_of_all_orders_are_the_full_model_in_any_small_model(found: Subject) -> None:
    done = run(found.model, *found.inputs, read=[expand_paths])
    steps = steps_of(done, "the test")
    assert done.logits is not None
    close(steps.logits(sweep(steps, order_worlds(steps.depth))[-1]), done.logits, 1e-8)


def test_in_the_induction_model_order_one_explains_everything() -> None:
    found = importance(induction_model(), next_tokens(repeated(batch=2), start=21))
    assert frozen(found) == pytest.approx([math.log(21), 0, 0], abs=1e-6)
    assert frozen(found, "gains") == pytest.approx([0, math.log(21), 0], abs=1e-6)
    # and all of it through the second layer, whose pattern the first one makes
    assert found.groups.values.flatten().tolist() == pytest.approx([0, 0, math.log(21), math.log(21)], abs=1e-6)


def test_in_the_virtual_head_model_order_two_explains_everything() -> None:
    model = virtual_head_model()
    ids = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]])
    looks_back = Batch(ids, ids.roll(2, 1), torch.arange(10)[None] >= 2)
    found = importance(model, looks_back)
    assert frozen(found) == pytest.approx([math.log(10), math.log(10), 0], abs=1e-6)
    done = run(model, ids, read=[expand_paths])
    steps = steps_of(done, "the test")
    assert not steps.logits(sweep(steps, order_worlds(2))[:2]).any()


def test_gains_sum_to_what_the_model_saves_over_guessing() -> None:
    found = importance(subject("attention_only").model, next_tokens(torch.randint(0, 11, (3, 9))))
    saved = torch.full((2,), found.uniform - found.full, dtype=torch.float64)
    close(found.gains.values.sum(0), saved)
    assert found.uniform == pytest.approx(math.log(11))
    assert found.tokens == 24
    close(found.gains_per_term.values * torch.tensor([[1.0], [4.0], [4.0]]).double(), found.gains.values)


def test_longer_paths_than_asked_for_are_one_entry() -> None:
    model, batch = subject("attention_only").model, next_tokens(torch.randint(0, 11, (3, 9)))
    whole, cut = importance(model, batch), importance(model, batch, max_order=1)
    assert cut.losses.labels("order") == ["0", "1", "more"]
    # here only one order is longer
    close(cut.gains.select(scale="frozen").values, whole.gains.select(scale="frozen").values)
    assert cut.terms.values.tolist() == [1, 4, 4]


def test_several_batches_count_like_one() -> None:
    model, ids = subject("attention_only").model, torch.randint(0, 11, (4, 9))
    one, two = importance(model, next_tokens(ids)), importance(model, next_tokens(ids[:1]), next_tokens(ids[1:]))
    close(two.losses.values, one.losses.values)
    close(two.errors.values, one.errors.values)


def test_the_error_of_a_gain_is_that_of_a_mean_over_rows() -> None:
    model, ids = subject("attention_only").model, torch.randint(0, 11, (6, 9))
    each = torch.stack([importance(model, next_tokens(ids[i : i + 1])).gains.values for i in range(6)])
    close(importance(model, next_tokens(ids)).errors.values, each.std(0) / math.sqrt(6))


@pytest.mark.parametrize("name", ["attention_only", "bare"])
def test_a_world_without_a_head_is_the_model_with_that_head_ablated_and_all_else_frozen(name: str) -> None:
    found = subject(name)
    model = found.model
    done = run(model, *found.inputs, read=[expand_paths, frozen_edits])
    steps = steps_of(done, "the test")
    every = frozenset(label for step in steps for label in step.labels)
    kept = every - {"L0H1"}
    without = sweep(steps, [World(), World(0, kept), World(1, kept)])[-1]
    edits = [*frozen_edits(done), Scale("blocks.0.attn.z", 0.0, at=At(head=1))]
    logits = run(model, *found.inputs, edit=edits).logits
    assert logits is not None
    close(steps.logits(without), logits)


def test_groups_of_heads_are_what_the_caller_says() -> None:
    model, batch = subject("attention_only").model, next_tokens(torch.randint(0, 11, (3, 9)))
    named = importance(model, batch, groups={"first": ["L0H0", "L0H1"], "all": ["L0H0", "L0H1", "L1H0", "L1H1"]})
    layers = importance(model, batch)
    close(named.groups.select(group="first").values, layers.groups.select(group="L0 attn").values)
    close(named.groups.select(group="all").values, layers.gains.select(order="1", scale="frozen").values.expand(2))
    with pytest.raises(AnalysisUnavailable, match=r'no head "L0H7".* Nearest: "L0H'):
        importance(model, batch, groups={"odd": ["L0H7"]})


def test_padding_counts_for_nothing() -> None:
    model, ids = subject("attention_only").model, torch.randint(0, 11, (1, 9))
    batch = next_tokens(ids)
    padded = Batch(
        torch.cat((batch.tokens, torch.zeros(1, 3, dtype=torch.long)), 1),
        torch.cat((batch.targets, torch.zeros(1, 3, dtype=torch.long)), 1),
        torch.arange(11)[None] < 8,
        lengths=torch.tensor([8]),
    )
    close(importance(model, padded).losses.values, importance(model, batch).losses.values)


def test_packed_documents_do_not_see_each_other() -> None:
    model, ids = subject("attention_only").model, torch.randint(0, 11, (1, 10))
    halves = [next_tokens(half) for half in ids.split(5, 1)]
    packed = Batch(
        *(torch.cat([getattr(half, f) for half in halves], 1) for f in ("tokens", "targets", "weight")),
        documents=torch.tensor([[0] * 4 + [1] * 4]),
    )
    close(importance(model, packed).losses.values, importance(model, *halves).losses.values)


def test_mlps_are_refused_unless_taken_as_recorded() -> None:
    model, batch = subject("gpt2").model, next_tokens(torch.randint(0, 11, (2, 5)))
    with pytest.raises(AnalysisUnavailable, match=r'also has L0 mlp, L1 mlp\.\n.*others="recorded"'):
        importance(model, batch)
    found = importance(model, batch, others="recorded")
    assert found.approximate and found.left_whole == ("L0 mlp", "L1 mlp")
    assert not importance(subject("attention_only").model, batch).approximate
    assert frozen(found)[-1] == pytest.approx(found.full)


def test_no_text_and_no_order_are_refused() -> None:
    model = subject("attention_only").model
    with pytest.raises(AnalysisUnavailable, match="no text was given"):
        importance(model)
    with pytest.raises(AnalysisUnavailable, match="max_order is at least 1"):
        importance(model, next_tokens(torch.zeros(1, 3, dtype=torch.long)), max_order=0)


def test_terms_are_counted_by_layers_that_can_follow_each_other() -> None:
    def counts(name: str) -> list[int]:
        found = subject(name)
        return term_counts(steps_of(run(found.model, *found.inputs, read=[expand_paths]), "the test"))

    assert counts("gpt2") == [1, 8, 16]
    assert counts("parallel") == [1, 4, 4]


def test_a_rows_weight_decides_how_much_it_counts() -> None:
    model, ids = subject("attention_only").model, torch.randint(0, 11, (2, 9))
    batch = next_tokens(ids)
    first_only = dataclasses.replace(batch, weight=batch.weight & torch.tensor([[True], [False]]))
    close(importance(model, first_only).losses.values, importance(model, next_tokens(ids[:1])).losses.values)


def test_losses_whose_last_digit_is_more_than_a_nat_are_not_compared() -> None:
    model = gf.load("attn-only-1l")
    texts = ["import os\nimport sys\n", "def f(x):\n    return x\n"]
    embed = model.state_dict()["embed.matrix"]
    # far off, and still told apart: one nat is a thousand times the last digit
    embed.mul_(100)
    assert bool(importance(model, texts).losses.values.isfinite().all())
    embed.mul_(1e36)
    with pytest.raises(AnalysisUnavailable, match=r"losses go up to 1\.\de\+38 nats, .* are too large"):
        importance(model, texts)
