"""Skip-trigrams are products of attention and effect, and the bug of keep … in mind is found, weighed and costed."""

import math

import pytest
import torch

from glassformer import analysis, handmade, weights
from glassformer.analysis.vocabulary._skip_trigrams import follows_more
from glassformer.errors import AnalysisUnavailable
from glassformer.testing import close
from glassformer.testing.models import subject
from one_pass import in_one_pass

BOS, KEEP, IN, MIND, AT, BAY = range(6)
TEXT = [[BOS, KEEP, IN, MIND], [BOS, KEEP, AT, BAY]]
CELLS = (["keep"], ["in", "at"], ["mind", "bay"])


@in_one_pass
@pytest.mark.parametrize("name", ["gpt2", "llama", "attention_only"])
@pytest.mark.parametrize("tokens", [None, [1, 2, 5, 7, 10]])
def test_rules_are_the_largest_products_of_attention_and_effect(name, tokens):
    w = weights.of(subject(name).model, fold=True)
    context = [0, 3, 4]
    found = analysis.vocabulary.skip_trigrams(w, k=6, n_sources=None, tokens=tokens, context=context, offset=2)
    ids = torch.arange(11) if tokens is None else torch.tensor(tokens)
    for label in w.labels:
        scores = w.full_qk(label, offset=2).dense()[0]
        effect = w.full_ov(label).dense()[0][ids][:, ids]
        effect = effect - effect.mean(-1, keepdim=True)
        weight = scores.exp()[ids][:, ids]
        attention = weight / (weight + scores[ids][:, context].exp().sum(-1, keepdim=True))
        cells = attention.mT[:, :, None] * effect[:, None]
        close(found.contribution.select(head=label).values, cells.flatten().topk(6).values)
        s, d, o = (f.select(head=label).values for f in (found.sources, found.destinations, found.outputs))
        place = {int(t): i for i, t in enumerate(ids)}
        s, d, o = (torch.tensor([place[int(t)] for t in side]) for side in (s, d, o))
        close(cells[s, d, o], found.contribution.select(head=label).values)
        centred = scores[ids][:, ids] - scores[ids][:, ids].mean(-1, keepdim=True)
        close(found.preference.select(head=label).values, centred[d, s])
        close(
            found.attention.select(head=label).values * found.effect.select(head=label).values,
            found.contribution.select(head=label).values,
        )
        direct = w.direct().centred(rows=True).dense()
        close(found.direct.select(head=label).values, direct[ids[d], ids[o]])


def test_the_planted_rules_are_found_with_their_crossings_and_nothing_else():
    found = analysis.vocabulary.skip_trigrams(handmade.skip_trigram_model(), k=6, context=[BOS])
    rules = found.table("L0H0")
    planted = {f"1:keep … {d} -> {o}" for d in ("2:in", "4:at") for o in ("3:mind", "5:bay")}
    assert {rule for rule, _ in rules[:4]} == planted
    assert [x for _, x in rules[:4]] == pytest.approx([4.0] * 4)
    assert rules[4][1] < 1e-6
    close(found.attention.values[0, :4], torch.full((4,), 1 / (1 + math.exp(-20)), dtype=torch.float64))


def test_one_head_has_the_bug_and_two_have_not():
    one = analysis.vocabulary.crossed_trigrams(handmade.skip_trigram_model(), TEXT, *CELLS, context=[BOS])
    # centred over six outputs, 6 is 4: what counts between outputs is the same
    close(one.contribution.values[0, 0], torch.full((2, 2), 4.0, dtype=torch.float64), 1e-6)
    assert one.wrong.values[0, 0].tolist() == [[0, 1], [1, 0]]
    close(one.bug_mass.values, torch.full((1, 1), 0.5, dtype=torch.float64))
    two = analysis.vocabulary.crossed_trigrams(
        handmade.skip_trigram_model(handmade.keep_in_mind(2)), TEXT, *CELLS, context=[BOS]
    )
    assert float(two.bug_mass.values.abs().max()) < 1e-6


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_one_head_and_one_source_give_a_table_of_rank_one(name):
    found = analysis.vocabulary.crossed_trigrams(subject(name).model, [[1, 2, 3]], [1, 2, 3], [4, 5, 6], [7, 8, 9])
    cells = found.contribution.values
    close(cells[..., 0, 0] * cells[..., 1, 1], cells[..., 0, 1] * cells[..., 1, 0], 1e-8)


def test_both_crossed_cells_get_what_the_right_ones_get():
    w = weights.of(handmade.skip_trigram_model())
    found = analysis.vocabulary.crossed_trigrams(w, TEXT, *CELLS, context=[BOS], centred=False)
    close(found.contribution.values[0, 0], torch.full((2, 2), 6.0, dtype=torch.float64), 1e-6)
    cost = analysis.vocabulary.crossed_cost(w.model, found, torch.tensor(TEXT))
    # the wrong one of two equal outputs taken out, beside four outputs at logit 0
    bug, without = math.log(2 * math.exp(6) + 4), math.log(math.exp(6) + 5)
    assert cost.nats == pytest.approx(bug - without, abs=1e-6)
    assert cost.nats == pytest.approx(math.log(2), abs=0.01)


def test_the_bug_costs_a_bit_less_than_the_choice_between_two():
    model = handmade.skip_trigram_model()
    crossed = analysis.vocabulary.crossed_trigrams(model, TEXT, *CELLS, context=[BOS])
    cost = analysis.vocabulary.crossed_cost(model, crossed, torch.tensor(TEXT))
    assert (cost.fired, cost.positions) == (2, 6)
    # logits 6 at two outputs and 0 at four, against 6 at one and 6 - 4 at the other, since rows are centred
    bug = math.log(2 * math.exp(6) + 4) - 6
    without = math.log(math.exp(6) + math.exp(2) + 4) - 6
    assert cost.nats == pytest.approx(bug - without, abs=1e-6)
    clean = handmade.skip_trigram_model(handmade.keep_in_mind(2))
    none = analysis.vocabulary.crossed_trigrams(clean, TEXT, *CELLS, context=[BOS])
    assert analysis.vocabulary.crossed_cost(clean, none, torch.tensor(TEXT)).fired == 0


def test_the_direct_path_is_shown_beside_the_crossed_cell():
    bigram = torch.zeros(6, 6, dtype=torch.float64)
    bigram[IN, MIND] = bigram[AT, BAY] = 12.0
    found = analysis.vocabulary.crossed_trigrams(
        handmade.skip_trigram_model(bigram=bigram), TEXT, *CELLS, context=[BOS]
    )
    close(found.direct.values, torch.tensor([[10.0, -2.0], [-2.0, 10.0]], dtype=torch.float64))


def test_what_follows_in_any_case_is_no_rule_of_the_source():
    # 3 follows 2 whether or not 1 came before; 4 follows 2 only after 1
    text = [[1, 2, 3], [0, 2, 3], [1, 2, 4], [0, 2, 3]]
    s, d, o = torch.tensor([1]), torch.tensor([2]), torch.tensor([3, 4])
    assert follows_more(text, s, d, o).tolist() == [[[False, True]]]


def test_patterns_that_are_differences_and_capped_logits_are_refused():
    with pytest.raises(AnalysisUnavailable, match="difference of two"):
        analysis.vocabulary.skip_trigrams(subject("differential").model)
    model = subject("capped").model
    found = analysis.vocabulary.crossed_trigrams(model, [[1, 2, 3]], [1], [2], [3])
    with pytest.raises(AnalysisUnavailable, match="soft-capped"):
        analysis.vocabulary.crossed_cost(model, found, torch.tensor([[1, 2, 3]]))
