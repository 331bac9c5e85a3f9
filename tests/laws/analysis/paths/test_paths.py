"""Path expansion: the paths of all orders sum to the logit, and those without a head are what is left without it."""

import dataclasses
from collections import Counter
from itertools import islice

import pytest
import torch
from hypothesis import assume, given

from glassformer.analysis import Run, run
from glassformer.analysis.attribution import direct_logit_attribution
from glassformer.analysis.cards import card_of
from glassformer.analysis.frozen import frozen_edits
from glassformer.analysis.paths import expand_paths, path_sources, paths, source_map
from glassformer.analysis.paths._importance import order_worlds, sweep, term_counts
from glassformer.analysis.paths._steps import steps_of
from glassformer.errors import AnalysisUnavailable, NoPattern, SiteNotRead
from glassformer.handmade import induction_model, keep_in_mind, repeated, skip_trigram_model, virtual_head_model
from glassformer.testing import close
from glassformer.testing.models import DIRECTED, Subject, attention_decoders, subject
from glassformer.trace import At, Scale

every = pytest.mark.parametrize("name", DIRECTED)


def passed(found: Subject, *more: str) -> Run:
    return run(found.model, *found.inputs, read=[expand_paths, *more])


def raw(model: torch.nn.Module, done: Run) -> torch.Tensor:
    """Return the logits before a cap, if there is one."""
    assert done.logits is not None
    cap = model.unembed.cap  # type: ignore[union-attr]
    return done.logits if cap is None else cap * (done.logits / cap).atanh()  # type: ignore[operator]


def double(number: float) -> torch.Tensor:
    return torch.tensor(number, dtype=torch.float64)


@every
def test_paths_of_all_orders_sum_to_the_logit(name: str) -> None:
    found = subject(name)
    done = passed(found)
    logits = raw(found.model, done)
    split = expand_paths(done, answer=3, position=4, row=1, max_order=None)
    close(split.contributions.values.sum(), logits[1, 4, 3])
    assert abs(split.remainder) < 1e-10
    split = expand_paths(done, answer=3, against=5, position=4, row=1, max_order=None)
    close(split.contributions.values.sum(), logits[1, 4, 3] - logits[1, 4, 5])


@given(attention_decoders(mlps=True))
def test_paths_sum_to_the_logit_in_any_small_model(found: Subject) -> None:
    split = expand_paths(passed(found), answer=3, max_order=None)
    close(split.contributions.values.sum(), raw(found.model, passed(found))[0, -1, 3], 1e-8)


@given(attention_decoders(mlps=True))
def test_logits_of_each_order_are_the_sum_of_the_paths_up_to_it(found: Subject) -> None:
    done = passed(found)
    steps = steps_of(done, "the test")
    split = expand_paths(done, answer=3, against=5, position=3, max_order=None)
    streams = sweep(steps, order_worlds(steps.depth))
    logits = steps.unembed.raw(steps.final(streams, bias=True))[:, 0, 3]
    close(split.by_order.values[:-1].cumsum(0), logits[:, 3] - logits[:, 5], 1e-8)


@given(attention_decoders())
def test_the_number_of_paths_from_tokens_is_the_number_of_terms(found: Subject) -> None:
    done = passed(found)
    orders = Counter(p.order for p in paths(done, answer=3, max_order=None) if p.source == "token")
    assert [orders[i] for i in range(len(orders))] == term_counts(steps_of(done, "the test"))


@given(attention_decoders())
def test_paths_without_a_head_are_what_is_left_when_it_is_ablated_with_all_else_frozen(found: Subject) -> None:
    model = found.model
    done = passed(found, *card_of(frozen_edits).reads(model))
    split = expand_paths(done, answer=3, max_order=None)
    parts = [block.part(name) for block in model.stack.blocks for name in block.names]
    # a gate reads the stream by itself, so it would not stay as it was
    assume(all(part.merge.gate is None for part in parts))
    off = Scale(parts[0].at.z, 0.0, at=At(head=1))
    without = run(model, *found.inputs, edit=[*frozen_edits(done), off])
    kept = sum(path.value for path in split.paths if "L0H1" not in path.heads)
    close(double(kept), raw(model, without)[0, -1, 3], 1e-8)


def test_a_bounded_expansion_keeps_the_rest_as_an_exact_remainder() -> None:
    done = passed(subject("attention_only"))
    whole, bounded = (expand_paths(done, answer=3, max_order=order) for order in (None, 1))
    long = sum(path.value for path in whole.paths if path.order == 2)
    assert bounded.remainder == pytest.approx(long, abs=1e-12)
    assert {path.order for path in bounded.paths} == {0, 1}
    close(bounded.by_order.values.sum(), double(bounded.total))
    close(bounded.shares.values.sum() + bounded.remainder / bounded.total, double(1.0))
    close(bounded.cumulative.values[-1], double(bounded.total - bounded.remainder))


def test_paths_come_one_by_one() -> None:
    first = list(islice(paths(passed(subject("gpt2")), answer=3, max_order=None), 3))
    assert len(first) == 3


def test_sources_of_a_path_sum_to_it() -> None:
    for name in ("attention_only", "gpt2", "post", "parallel", "differential"):
        done = passed(subject(name))
        split = expand_paths(done, answer=3, position=4)
        for heads in ((), ("L0H1",), ("L1H0",), ("L0H1", "L1H0")):
            if name == "parallel" and len(heads) == 2:
                heads = ("L0H0", "L1H1")
            found = path_sources(done, heads=heads, answer=3, position=4)
            leaves = [p for p in split.paths if p.heads == heads and p.source not in CONSTANT]
            close(found.values.sum(), double(sum(p.value for p in leaves)))
            by_name = {p.source: p.value for p in leaves}
            for source in found.labels("source"):
                close(found.select(source=str(source)).values.sum(), double(by_name[str(source)]))


CONSTANT = ("values bias", "final norm bias", "unembed bias")


@every
def test_the_source_map_of_a_head_sums_to_its_direct_contribution(name: str) -> None:
    found = subject(name)
    done = passed(found, *card_of(direct_logit_attribution).reads(found.model))
    split, whole = (
        source_map(done, answer=3, against=5, position=4, row=1),
        direct_logit_attribution(done, answer=3, against=5, position=4, row=1),
    )
    assert split.labels("head") == [c.label for c in whole.components if c.kind == "head"]
    for label in split.labels("head"):
        close(split.select(head=str(label)).values.sum(), whole[str(label)].values, 1e-8)
        assert not split.values[:, 5:].any()


def test_in_a_one_layer_model_the_source_map_and_the_direct_path_are_the_logit() -> None:
    model = skip_trigram_model(keep_in_mind())
    done = run(model, "keep bay mind in", read=[expand_paths])
    mind = 3
    split = source_map(done, answer=mind)
    direct = sum(p.value for p in expand_paths(done, answer=mind).paths if p.order == 0)
    assert done.logits is not None
    close(split.values.sum() + direct, done.logits[0, -1, mind])
    assert split.top(1)[0][1] == pytest.approx(6.0)
    assert str(split.top(1)[0][0][1]).startswith("1:")


def test_a_mechanism_without_a_pattern_is_refused_by_name() -> None:
    model = subject("attention_only").model
    done = run(model, [1, 2], read=[expand_paths])
    mixer = model.stack.blocks[1].attn.mixer
    mixer.traits = dataclasses.replace(mixer.traits, linear_in_value="no")
    with pytest.raises(NoPattern, match=r'expand_paths: layer 1 uses "softmax" \(linear_in_value="no"\)'):
        expand_paths(done)
    with pytest.raises(NoPattern, match=r"a frozen run: layer 1"):
        card_of(frozen_edits).reads(model)


def test_in_the_induction_model_one_path_is_the_whole_logit() -> None:
    model, ids = induction_model(), repeated()
    done = run(model, ids[:, :-1], read=[expand_paths])
    split = expand_paths(done, answer=int(ids[0, -1]))
    assert split.paths[0].label == "token > L1H0"
    assert split["token > L1H0"] == pytest.approx(split.total) == pytest.approx(50.0, rel=1e-4)
    assert float(split.contributions.values[1:].abs().max()) < 1e-9
    place = int((ids[0, :-1] == ids[0, -1]).nonzero()[0, 0])
    found = path_sources(done, heads=["L1H0"], answer=int(ids[0, -1]))
    assert found.top(1)[0] == ((f"{place}:{done.tokens[place]}", "token"), pytest.approx(50.0, rel=1e-4))


def test_in_the_virtual_head_model_only_the_path_through_both_heads_counts() -> None:
    model, ids = virtual_head_model(), repeated(10)
    done = run(model, ids, read=[expand_paths])
    split = expand_paths(done, answer=int(ids[0, -3]))
    assert split.paths[0].heads == ("L0H0", "L1H0")
    assert split.paths[0].value == pytest.approx(30.0)
    assert all(path.value == 0 for path in split.paths if path.order < 2)


def test_a_run_without_patterns_is_told_what_to_read() -> None:
    with pytest.raises(SiteNotRead, match=r"expand_paths needs sites .*\n.*blocks.0.attn.pattern"):
        expand_paths(run(subject("gpt2").model, [1, 2]))


def test_heads_that_cannot_follow_each_other_are_refused() -> None:
    done = passed(subject("attention_only"))
    with pytest.raises(AnalysisUnavailable, match=r'no head "L1H1" that what follows .*\n.*Heads there: L0H0, L0H1\.'):
        path_sources(done, heads=["L1H1", "L1H0"])
