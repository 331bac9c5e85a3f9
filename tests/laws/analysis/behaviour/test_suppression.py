"""What last layers do to the answer: parts that sum to its logit, interventions that are the changed model."""

import functools
import math
from typing import Any

import pytest
import torch

from glassformer.analysis import run
from glassformer.analysis.behaviour import Suppression, calibration_error, suppression
from glassformer.data import Batch
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.handmade import induction_model, repeated
from glassformer.testing import close
from glassformer.testing.models import DIRECTED, Subject, subject
from glassformer.trace import At, Set

every = pytest.mark.parametrize("name", DIRECTED)


def batch_of(found: Subject) -> Batch:
    return found.batch()


# results are frozen: tests may share them
@functools.cache
def measured(name: str, **kwargs: Any) -> Suppression:
    found = subject(name)
    return suppression(found.model, batch_of(found), **kwargs)


def raw(found: Subject, edit: Any = ()) -> torch.Tensor:
    """Return the logits before any cap."""
    site = "logits" if found.model.unembed.cap is None else "logits_raw"
    return run(found.model, batch_of(found), read=[site], edit=edit)[site].values


@every
@pytest.mark.parametrize("last", [1, 2])
def test_parts_sum_to_the_answers_logit_less_the_mean_logit(name: str, last: int) -> None:
    found = subject(name)
    logits, targets = raw(found), batch_of(found).targets
    expected = (logits.gather(-1, targets[..., None])[..., 0] - logits.mean(-1)).mean()
    # one layer is the default, whose result other tests share
    close((measured(name) if last == 1 else measured(name, last=last)).contributions.values.sum(), expected)


@pytest.mark.parametrize("name", ["gpt2", "llama", "sandwich", "capped", "parallel", "alibi_window"])
def test_taking_out_the_last_part_with_norms_frozen_takes_its_contribution_from_the_logit(name: str) -> None:
    found = subject(name)
    label, site = ("L1H1", "blocks.1.attn.head_out") if name == "alibi_window" else ("L1 mlp", "blocks.1.mlp.out")
    at = At(head=1) if name == "alibi_window" else At()
    scales = ["final.scale"] + (["blocks.1.mlp.write_scale"] if name == "sandwich" else [])
    clean = run(found.model, batch_of(found), read=scales)
    edit = [Set(site, 0.0, at=at), *(Set(scale, clean[scale].values) for scale in scales)]
    targets = batch_of(found).targets

    def centred(logits: torch.Tensor) -> torch.Tensor:
        return (logits.gather(-1, targets[..., None])[..., 0] - logits.mean(-1)).mean()

    change = centred(raw(found, edit)) - centred(raw(found))
    close(-measured(name).contributions.select(component=label).values, change)


@every
def test_the_last_depth_and_the_first_intervention_are_the_model_itself(name: str) -> None:
    found = measured(name)
    batch = batch_of(subject(name))
    logits = run(subject(name).model, batch).logits
    assert logits is not None
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
    close(found.interventions.select(intervention="as it is", outcome="loss").values, loss)
    close(found.by_depth.select(depth="block 1", measure="loss").values, loss)
    assert found.tokens == 12 and (found.negative.values <= 0).all()


@pytest.mark.full
@every
def test_interventions_are_the_edited_model(name: str) -> None:
    found, prefix = subject(name), "decoder." if "translator" in name else ""
    batch = batch_of(found)
    site = f"{prefix}blocks.1.attn.out"
    mean = run(found.model, batch, read=[site])[site].values.flatten(0, 1).mean(0)
    for value, put in (("zero", 0.0), ("mean", mean)):
        logits = run(found.model, batch, edit=[Set(site, put)]).logits
        assert logits is not None
        expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
        result = measured(name, value=value).interventions
        close(result.select(intervention="without L1 attn", outcome="loss").values, expected)


def test_cutting_the_first_key_is_masking_its_scores_for_later_queries() -> None:
    found = subject("gpt2")
    edit = [Set("blocks.1.attn.scores", -math.inf, at=At(query=slice(1, None), key=0))]
    logits = run(found.model, batch_of(found), edit=edit).logits
    assert logits is not None
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch_of(found).targets.flatten())
    result = measured("gpt2").interventions.select(intervention="first key cut", outcome="loss")
    close(result.values, expected)


def test_a_head_that_writes_frequent_tokens_from_its_resting_place_is_seen_to() -> None:
    found = subject("attention_only", seed=4)
    layer = found.model.stack.blocks[1].attn
    frequencies = torch.arange(1, 12, dtype=torch.float64)
    value = run(found.model, batch_of(found), read=["blocks.1.attn.value"])["blocks.1.attn.value"].values[:, 0, 0]
    written = found.model.stack.final.linear(value @ layer.merge.matrix()[0], torch.ones(2, dtype=torch.float64))
    raised = written @ found.model.unembed.weight.mT
    expected = torch.stack([torch.corrcoef(torch.stack((row, frequencies.log())))[0, 1] for row in raised]).mean()
    route = suppression(found.model, batch_of(found), frequencies=frequencies).head_route
    close(route.select(head="L1H0", measure="frequent").values, expected)


def test_the_mlp_route_measures_the_way_to_the_mean_answer() -> None:
    found = subject("gpt2")
    done = run(found.model, batch_of(found), read=["blocks.1.mlp.out", "blocks.1.resid_mid"])
    out, x = (done[site].values.flatten(0, 1) for site in ("blocks.1.mlp.out", "blocks.1.resid_mid"))
    shares = torch.arange(1, 12, dtype=torch.float64) / 66
    mean = shares @ found.model.unembed.weight
    route = suppression(found.model, batch_of(found), frequencies=shares * 3).mlp_route
    cosine = torch.nn.functional.cosine_similarity(out, mean - x, dim=-1).mean()
    close(route.select(mlp="L1 mlp", measure="cosine").values, cosine)
    close(route.select(mlp="L1 mlp", measure="projection").values, (out @ mean / mean.norm()).mean())


def test_calibration_error_is_the_gap_of_each_bin_weighted_by_its_tokens() -> None:
    confidence = torch.tensor([0.95, 0.95, 0.55, 0.55], dtype=torch.float64)
    right = torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    close(calibration_error(confidence, right), torch.tensor((0.45 + 0.45) / 2, dtype=torch.float64))
    assert float(calibration_error(torch.ones(3), torch.ones(3))) == 0
    # neighbours among fifteen bins do not make up for each other
    apart = calibration_error(torch.tensor([0.99, 0.92]), torch.tensor([1.0, 0.0]))
    close(apart, torch.tensor((0.01 + 0.92) / 2))
    # a model whose weights are not finite is sure of nothing
    assert calibration_error(torch.tensor([0.9, math.nan]), torch.ones(2)).isnan()


def test_the_induction_model_suppresses_nothing() -> None:
    found = suppression(induction_model(), repeated(), last=2)
    assert found.suppressors == []
    close(
        found.by_depth.select(depth="block 0", measure="loss").values, torch.tensor(math.log(21), dtype=torch.float64)
    )


def test_only_tokens_that_the_model_gets_right_are_counted_when_asked() -> None:
    model, ids = induction_model(), repeated()
    assert suppression(model, ids).tokens == 40
    # the first copy is a guess among equals; the second is known, its first token excepted
    assert suppression(model, ids, only_correct=True).tokens == 19
    with pytest.raises(AnalysisUnavailable, match="no token counts"):
        suppression(model, ids[:, :10], only_correct=True)


def test_mechanisms_without_shares_have_no_first_mass_and_say_what_is_left_out() -> None:
    found = measured("differential")
    assert found.head_route.values.isnan().all()
    assert "differential" in found.left_out["L1 attn: first key cut"]


def test_what_cannot_be_asked_is_refused() -> None:
    model = subject("gpt2").model
    with pytest.raises(ShapeMismatch, match="at least one text"):
        suppression(model)
    with pytest.raises(ShapeMismatch, match="last=3; the model has 2 layers"):
        suppression(model, [1, 2, 3], last=3)
    with pytest.raises(ShapeMismatch, match="one per token of the vocabulary"):
        suppression(model, [1, 2, 3], frequencies=torch.ones(3))
    with pytest.raises(AnalysisUnavailable, match="give a Batch with source and tokens"):
        suppression(subject("translator_pre").model, [1, 2, 3])


def test_a_text_of_two_tokens_has_no_query_behind_the_first_to_cut_off() -> None:
    done = suppression(subject("gpt2").model, [[5, 6]]).interventions
    assert torch.equal(done.select(intervention="first key cut").values, done.select(intervention="as it is").values)
