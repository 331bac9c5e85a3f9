"""Soft-capped logits: bent where they leave the model, raw where analyses add them up."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from glassformer.analysis import run
from glassformer.analysis.reports import explain
from glassformer.data.batch import next_token_batch
from glassformer.errors import ConfigError
from glassformer.models import GREEDY, ModelConfig, generate
from glassformer.testing import close
from glassformer.testing.models import ARCHITECTURES, subject
from glassformer.trace import Set
from one_pass import in_one_pass

CAPPED = [name for name, config in ARCHITECTURES.items() if getattr(config, "logit_cap", None) is not None]
capped = pytest.mark.parametrize("name", CAPPED)


def uncapped(model: Any) -> Any:
    """Return the same weights without the cap."""
    twin = model.config.replace(logit_cap=None).build().double().eval()
    twin.load_state_dict(model.state_dict())
    return twin


def test_a_decoder_and_an_encoder_decoder_are_among_the_architectures() -> None:
    assert {ARCHITECTURES[name].kind for name in CAPPED} == {"decoder", "encoder_decoder"}


@capped
def test_raw_logits_are_those_of_the_same_weights_without_a_cap(name: str) -> None:
    found = subject(name)
    cap = found.model.config.logit_cap
    raw = found.values("logits_raw")["logits_raw"]
    close(raw, uncapped(found.model)(*found.inputs))
    close(found(), cap * (raw / cap).tanh())
    # far enough from linear for a forgotten cap to show
    assert (found() - raw).abs().max() > 0.1
    assert found().abs().max() <= cap


@capped
def test_the_site_of_raw_logits_comes_right_before_the_logits_and_exists_only_with_a_cap(name: str) -> None:
    model = subject(name).model
    assert list(model.sites())[-2:] == ["logits_raw", "logits"]
    assert "logits_raw" not in uncapped(model).sites()


@capped
def test_an_edit_of_the_raw_logits_passes_through_the_cap(name: str) -> None:
    found = subject(name)
    high = found.values("logits", edit=[Set("logits_raw", 1e6)])["logits"]
    close(high, torch.full_like(high, found.model.config.logit_cap))


def test_loss_and_its_gradient_go_through_the_cap() -> None:
    found = subject("capped")
    model, (ids,) = found.model, found.inputs
    batch = next_token_batch(ids)
    loss = model.loss(batch)
    logits = model(batch.tokens)
    cap = model.config.logit_cap
    raw = uncapped(model)(batch.tokens).detach().requires_grad_()
    expected = F.cross_entropy((cap * (raw / cap).tanh()).flatten(0, 1), batch.targets.flatten())
    close(loss, F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten()))
    close(loss, expected)
    # the gradient at the raw logits: softmax minus one-hot, times the slope of the cap
    (gradient,) = torch.autograd.grad(expected, raw)
    slope = 1 - (raw / cap).tanh().square()
    wrong = logits.softmax(-1) - F.one_hot(batch.targets, logits.shape[-1])
    close(gradient, wrong * slope / batch.targets.numel())
    weight = model.unembed.weight
    (through,) = torch.autograd.grad(loss, model.stack.final.weight)
    normed = model.stream(batch.tokens).detach() / model.stack.final.weight.detach()
    close(through, ((gradient @ weight.detach()) * normed).sum((0, 1)))


def test_log_probabilities_of_tokens_and_of_generated_text_go_through_the_cap() -> None:
    found = subject("capped")
    model, (ids,) = found.model, found.inputs
    log_probs = model(ids).log_softmax(-1)
    close(model.unembed.log_prob(model.stream(ids), ids), log_probs.gather(-1, ids[..., None])[..., 0])
    made = generate(model, [ids[0].tolist()], GREEDY, max_new_tokens=1)
    assert made.log_probs[0][0] == pytest.approx(float(log_probs[0, -1].max().detach()))


def test_a_cap_far_above_the_logits_changes_nothing() -> None:
    found = subject("llama")
    config = found.model.config.replace(logit_cap=1e6)
    twin = config.build().double().eval()
    twin.load_state_dict(found.model.state_dict())
    close(twin(*found.inputs), found(), 1e-9)


@in_one_pass
@pytest.mark.parametrize("cap", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("name", ["llama", "translator_pre"])
def test_a_cap_that_is_no_positive_number_is_refused(name: str, cap: float) -> None:
    with pytest.raises(ConfigError, match="logit_cap must be a positive number, or None for no cap; found"):
        ARCHITECTURES[name].replace(logit_cap=cap)


@capped
def test_configs_written_before_there_was_a_cap_are_read_as_uncapped(name: str) -> None:
    data = ARCHITECTURES[name].to_dict()
    assert data.pop("logit_cap") == ARCHITECTURES[name].logit_cap  # type: ignore[attr-defined]
    assert ModelConfig.from_dict(data) == ARCHITECTURES[name].replace(logit_cap=None)


@capped
def test_an_explanation_adds_up_to_the_raw_logit_and_shows_the_capped_one(name: str) -> None:
    found = subject(name)
    target = None if len(found.inputs) == 1 else [1, 2, 3]
    cap = found.model.config.logit_cap
    one = explain(found.model, [1, 2, 3, 1, 2], target=target)
    assert one.attribution.target == "raw logit"
    assert one.answer.logit == pytest.approx(cap * math.tanh(one.attribution.total / cap))
    assert one.attribution.sum == pytest.approx(one.attribution.total)
    assert any(f"capped at {cap:g}" in str(note) for note in one.notes)
    assert f"{cap:g} * tanh(raw / {cap:g})" in next(stage.note for stage in one.pipeline if stage.stage == "logits")
    both = explain(found.model, [1, 2, 3, 1, 2], target=target, answer=1, against=2)
    assert both.attribution.target == "raw difference"
    inputs = ([1, 2, 3, 1, 2],) if target is None else ([1, 2, 3, 1, 2], target)
    raw = run(found.model, *inputs, read=["logits_raw"])["logits_raw"].values[0, both.position]
    assert both.attribution.total == pytest.approx(float(raw[1] - raw[2]))
