"""What pruning and estimates say of themselves: no gap, a threshold above it, overlap, chance, and what is missed."""

import pytest
import torch

from circuit_pairs import pair
from glassformer.analysis.circuits import acdc, attribute_edges, circuit_graph
from glassformer.analysis.sweep import Metric
from glassformer.data import Contrast, induction
from glassformer.handmade import induction_model
from glassformer.testing import close
from glassformer.testing.models import subject


def test_a_cost_that_cannot_change_and_a_threshold_above_it_are_said() -> None:
    model, pairs, metric = pair("gpt2").args
    constant = Metric("constant", lambda logits, *ids: logits.sum((-2, -1)) * 0.0 + 1.0, (), None)
    (note,) = [n for n in acdc(model, pairs, constant, threshold=0.1).notes if "nothing to lose" in n.seen]
    assert note.denies
    found = acdc(model, pairs, metric, threshold=100.0)
    assert found.edges == () and any("no less than what cutting every edge costs" in note.seen for note in found.notes)
    known = acdc(induction_model(max_len=24), induction(range(1, 21), 8, unit=8, again=4), threshold=0.5)
    assert known.edges and not known.notes and not known.denied


def test_a_circuit_that_is_there_overlaps_and_chance_leaves_other_sizes() -> None:
    model, pairs = induction_model(max_len=24), induction(range(1, 21), 8, unit=8, again=4)
    alone, found = (acdc(model, pairs, threshold=0.5, compare=compare) for compare in (False, True))
    assert alone.compared is None and found.compared is not None
    assert found.edges == alone.edges
    assert found.compared.overlap > 0.8 and found.compared.passes > 0
    assert found.compared.drawn_edges > 3 * len(found.edges)
    with pytest.raises(Exception, match="one prompt"):
        acdc(model, pairs[:1], threshold=0.5, compare=True)


def test_what_flows_by_position_is_told_apart_from_what_flows_by_token() -> None:
    found = subject("gpt2")
    clean = found.inputs[0]
    pairs = Contrast(clean, clean.roll(1, 1), [1] * len(clean), [2] * len(clean))
    graph = circuit_graph(found.model, split_embedding=True)
    estimated = attribute_edges(found.model, pairs, split_embedding=True)
    pruned = acdc(found.model, pairs, "logit-difference", threshold=0.001, split_embedding=True)
    for labels in (estimated.effect.labels("sender"), pruned.in_circuit.labels("sender")):
        assert list(labels) == [sender.label for sender in graph.senders] and {"token", "position"} <= set(labels)
    # the same texts in both runs, places apart: nothing flows by position
    assert (estimated.effect.select(sender="position").values.nan_to_num() == 0).all()
    whole = attribute_edges(found.model, pairs).effect
    by_token = estimated.effect.select(sender="token").values
    close(by_token.nan_to_num(), whole.select(sender="embed").values.nan_to_num())
    assert not any(edge.sender == "position" for edge in pruned.edges)


def test_estimates_say_what_they_miss_of_the_difference() -> None:
    model, pairs, metric = pair("gpt2").args
    few, many = (attribute_edges(model, pairs, metric, gradient_at="inputs", steps=steps) for steps in (1, 200))
    gap = float((many.corrupt.values - many.clean.values).mean())
    assert abs(many.unexplained) < 0.03 * abs(gap) < abs(few.unexplained) + abs(gap)
    assert not any("points explain" in note.seen for note in many.notes)


def test_points_beside_a_step_see_nothing_and_it_is_said() -> None:
    model, pairs, metric = pair("gpt2").args
    with torch.no_grad():
        for layer in model.sub_layers():
            if layer.attention is not None:
                # scores so large that attention jumps from key to key
                layer.attention.projection.qkv.weight.mul_(3e3)
    found = attribute_edges(model, pairs, metric, gradient_at="inputs", steps=5)
    gap = float((found.corrupt.values - found.clean.values).mean())
    entering = found.effect.select(sender="embed").values.nansum()
    close(torch.tensor(found.unexplained, dtype=torch.float64), gap - entering)
    (note,) = [note for note in found.notes if "5 points explain" in note.seen]
    assert abs(found.unexplained) > 0.1 * abs(gap) and f"{gap:+.3f}" in note.seen and "estimate is 0" in note.meaning
