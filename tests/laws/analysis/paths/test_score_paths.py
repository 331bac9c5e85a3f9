"""Scores as sums over what wrote the query and what wrote the key."""

from typing import Any

import pytest
import torch
from hypothesis import given

from glassformer.analysis import Run, run
from glassformer.analysis.cards import card_of
from glassformer.analysis.paths import ScorePaths, score_paths
from glassformer.analysis.paths._score_paths import MOST_TERMS
from glassformer.attention import Alibi, Softmax
from glassformer.errors import AnalysisUnavailable
from glassformer.handmade import induction_model, pointer_model, repeated
from glassformer.models import DecoderConfig, block as block_of
from glassformer.testing import close
from glassformer.testing.models import ARCHITECTURES, Subject, attention_decoders, drawn, subject


def allowed(found: ScorePaths, scores: torch.Tensor, capped: bool) -> None:
    there = scores.isfinite()
    close(found.total.values[there], scores[there])
    inner = found.terms.axes.index("query_component")
    # the bias of positions comes behind a cap
    bias = 0.0 if capped else found.position_bias.values
    whole = found.terms.values.sum((inner, inner + 1)) + bias
    close(whole[there], scores[there])
    split = found.classes.values.sum(found.classes.dim("class")) + bias
    close(split[there], scores[there])
    assert capped == any("capped" in note.seen for note in found.notes)


def compare(found: Subject) -> int:
    """Compare the scores of every head that has bilinear ones, before any cap; returns how many there were."""
    stack = list(found.model.stacks.values())[-1]
    parts = [(b, n) for b in stack.blocks for n in b.names if n.startswith("attn")]
    parts = [(b, n) for b, n in parts if b.part(n).mixer.traits.bilinear_raw_scores]
    done = run(
        found.model,
        *found.inputs,
        read=[score_paths, *(_scores(b.part(n)) for b, n in parts)],
    )
    for block, name in parts:
        scores, capped = done[_scores(block.part(name))].values[1], block.part(name).mixer.traits.capped_scores
        again = "#2" if name == "attn_1" else ""
        for h in (0, 1):
            whole = score_paths(done, head=f"L{block.layer}H{h}{again}", row=1)
            allowed(whole, scores[..., h, :, :], capped)
            one = score_paths(done, head=f"L{block.layer}H{h}{again}", row=1, query=-1, key=-1)
            close(one.total.values, scores[..., h, -1, -1])
            close(one.terms.values, whole.terms.values[..., -1, -1])
            close(one.classes.values, whole.classes.values[..., -1, -1])
    return len(parts)


def _scores(part: Any) -> str:
    return part.mixer.at.scores_raw if part.mixer.traits.capped_scores else part.at.scores


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_terms_sum_to_the_scores(name: str) -> None:
    parts = compare(subject(name))
    assert parts == {"linear": 0, "lightning_hybrid": 1, "smeared": 1}.get(name, 2)


@given(attention_decoders(mlps=True))
def test_terms_sum_to_the_scores_in_any_small_model(found: Subject) -> None:
    compare(found)


def test_what_is_kept_of_a_long_text_does_not_grow_with_its_terms() -> None:
    found = score_paths(induction_model(), repeated(), head="L1H0")
    parts = (found.queries, found.keys, found.classes, found.position_bias, found.total)
    n, components = found.total.size("query"), found.queries.size("query_component")
    assert sum(part.values.numel() for part in parts) < components**2 * n**2


def test_what_is_read_of_a_head_is_as_wide_as_the_head_and_its_scores_are_those_of_whole_writes() -> None:
    found = subject("llama")
    reads = card_of(score_paths).reads(found.model, head="L1H2")
    assert "blocks.0.attn.z" in reads and not any(name.endswith("head_out") for name in reads)
    done, whole = (run(found.model, *found.inputs, read=[*reads, *more]) for more in ([], ["blocks.0.attn.head_out"]))
    one, other = (score_paths(this, head="L1H2") for this in (done, whole))
    for name in ("queries", "keys", "classes", "total"):
        close(getattr(one, name).values, getattr(other, name).values, 1e-12)


def at_the_match(model: torch.nn.Module) -> tuple[Run, ScorePaths]:
    ids = repeated()
    done = run(model, ids, read=[score_paths])
    # the second time a token is seen, induction looks behind where it was first
    return done, score_paths(done, head="L1H0", query=30, key=11)


def test_the_induction_head_scores_by_k_composition_alone() -> None:
    _, found = at_the_match(induction_model())
    assert float(found.classes.select(**{"class": "K"}).values) == pytest.approx(30.0)
    assert all(float(found.classes.select(**{"class": c}).values) == 0 for c in ("direct", "Q", "QK"))
    assert found.terms.top(1)[0] == (("token", "L0H0"), pytest.approx(30.0))


def test_the_pointer_head_scores_by_q_composition_alone() -> None:
    _, found = at_the_match(pointer_model())
    assert found.terms.top(1)[0] == (("L0H0", "position"), pytest.approx(60.0))
    assert float(found.classes.select(**{"class": "Q"}).values) == pytest.approx(60.0)
    assert all(abs(float(found.classes.select(**{"class": c}).values)) < 1e-9 for c in ("direct", "K", "QK"))


def test_a_cap_comes_before_the_bias_of_positions() -> None:
    layers = (block_of(Softmax(cap=0.5), n_heads=2, positions=Alibi(), qk_norm=True),) * 2
    found = drawn("capped", DecoderConfig(11, 16, layers, max_len=24))
    assert compare(found) == 2
    done = run(found.model, *found.inputs, read=[score_paths, "blocks.1.attn.scores"])
    whole, scores = score_paths(done, head="L1H1"), done["blocks.1.attn.scores"].values[0, 1]
    behind = 0.5 * (whole.total.values / 0.5).tanh() + whole.position_bias.values
    close(behind[scores.isfinite()], scores[scores.isfinite()])


def test_scores_that_are_not_bilinear_are_refused_by_name() -> None:
    model = subject("linear").model
    with pytest.raises(AnalysisUnavailable, match=r'"linear", whose scores are not bilinear .*bilinear_scores=False'):
        score_paths(run(model, [1, 2], read=[score_paths]), head="L0H0")


def test_cross_attention_is_refused_with_what_to_read() -> None:
    model = subject("translator_pre").model
    with pytest.raises(AnalysisUnavailable, match=r"another stack.*\n.*decoder.blocks.0.cross.scores"):
        score_paths(run(model, [1, 2], [1, 2], read=[score_paths]), head="L0X0")


def test_an_unknown_head_is_refused_with_the_nearest() -> None:
    model = subject("gpt2").model
    with pytest.raises(AnalysisUnavailable, match=r'no head "L1H8".* Nearest: "L1H'):
        score_paths(run(model, [1, 2], read=[score_paths]), head="L1H8")


def test_of_one_head_only_what_was_written_before_it_is_read_and_kept() -> None:
    # heads of all layers write to every position; of a head, what its own matrices make of that is enough
    config = DecoderConfig(layers=(block_of(n_heads=4),) * 6, d_model=64, vocab_size=11, max_len=64)
    model, text = config.build(seed=0), torch.arange(60)[None] % 11
    sites = card_of(score_paths).reads(model, head="L2H1")
    assert all(int(site.split(".")[1]) <= 2 for site in sites if site.startswith("blocks."))
    found, whole = (score_paths(run(model, text, read=names), head="L2H1") for names in (sites, [score_paths]))
    assert set(sites) < set(card_of(score_paths).reads(model))
    close(found.total.values, whole.total.values)
    held = sum(side.values.untyped_storage().nbytes() for side in (found.queries, found.keys))
    assert held <= 4 * 2 * (found.queries.size("query_component") + 2) * 60 * 16


def test_a_page_leaves_out_terms_that_fit_into_no_memory() -> None:
    config = DecoderConfig(layers=(block_of(n_heads=4),) * 3, d_model=16, vocab_size=11, max_len=512)
    model, text = config.build(seed=0), torch.arange(512)[None] % 11
    found = score_paths(model, text, head="L2H1")
    n = found.queries.size("query_component") ** 2
    assert n * 512**2 > MOST_TERMS and "terms" not in found.to_dict(packed=True)["derived"]
    assert "terms" in score_paths(model, text, head="L2H1", query=-1, key=3).to_dict(packed=True)["derived"]
