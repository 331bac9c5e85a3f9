"""Gradients as outer products: those of autograd, of the ranks that the pass allows, whoever multiplies by what."""

from typing import Any

import pytest
import torch
from hypothesis import given
from torch import Tensor

from glassformer.analysis.gradients import LinearGradients, linear_gradients
from glassformer.analysis.gradients.linear_maps import maps_of
from glassformer.analysis.prepare import prepare
from glassformer.errors import AnalysisUnavailable, ShapeMismatch, TokenOutOfRange
from glassformer.models.evaluation import evaluating
from glassformer.testing import close
from glassformer.testing.models import (
    ALTERNATING,
    ARCHITECTURES,
    ENCODERS,
    RECURRENT,
    Subject,
    attention_decoders,
    subject,
)
from one_pass import in_one_pass

NAMES = [*ARCHITECTURES, *ENCODERS, *RECURRENT, *ALTERNATING]


def asked(found: Subject, **options: Any) -> LinearGradients:
    ids, *more = found.inputs
    return linear_gradients(found.model, ids, 3, **({"target": more[0]} if more else {}), **options)


def by_autograd(found: Subject, places: list[int]) -> dict[str, Tensor]:
    """Return the gradient of -log p(3) at some positions by every map, as autograd adds it up."""
    given = prepare(found.model, found.inputs[0], *found.inputs[1:])
    with evaluating(found.model):
        logits = found.model(*given.args, **given.kwargs)[0, places]
        loss = -logits.log_softmax(-1)[:, 3].sum()
        maps = maps_of(found.model)
        weights = list({id(one.weight): one.weight for one in maps}.values())
        taken = torch.autograd.grad(loss, weights, allow_unused=True)
    by_weight = {id(w): torch.zeros_like(w) if g is None else g for w, g in zip(weights, taken)}
    return {one.label: one.gradient_of(by_weight[id(one.weight)]) for one in maps}


def agrees(found: Subject, places: list[int]) -> None:
    result, judged = asked(found, positions=places), by_autograd(found, places)
    largest = max(float(gradient.abs().max()) for gradient in judged.values())
    for label, gradient in judged.items():
        if label in result.left_out:
            assert not gradient.any(), label
            continue
        assert (result.gradient(label).dense() - gradient).abs().max() < 1e-12 * largest, label
        assert (result.norm.select(map=label).values - gradient.norm()).abs() < 1e-12 * largest, label
    assert set(result.inputs) | set(result.left_out) == set(judged)


@in_one_pass
@pytest.mark.parametrize("name", ["gpt2", "llama", "experts", "translator_pre", "recurrent", "unprojected"])
def test_outer_products_add_up_to_the_gradient_that_autograd_takes(name: str) -> None:
    agrees(subject(name, batch=1), [-1])


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_they_do_for_a_loss_at_several_positions(name: str) -> None:
    agrees(subject(name, batch=1), [1, -2, -1])


def test_the_rank_is_at_most_the_number_of_positions_and_one_in_the_last_layer() -> None:
    for name in ("gpt2", "llama", "linear"):
        found = asked(subject(name, batch=1))
        n = len(next(iter(found.inputs.values())).values)
        assert bool((found.rank.values <= found.positions.values).all()) and int(found.positions.values.max()) <= n
        # the stream of the first layer goes on to all positions, that of the last one to its own alone
        assert int(found.positions.select(map="L0 mlp out").values) == n
        last = [label for label in found.inputs if label.startswith("L1 mlp")] + ["L1 attn Q", "L1 attn O"]
        assert [int(found.rank.select(map=label).values) for label in last] == [1] * len(last)
        assert int(found.rank.select(map="L0 mlp out").values) == min(n, *found.gradient("L0 mlp out").shape)


def test_a_small_step_against_the_gradient_lowers_the_loss_by_its_squared_norm() -> None:
    found = subject("llama", batch=1)
    result, step = asked(found), 1e-6
    for label in ("L0 mlp in", "L0 mlp gate", "L1 mlp out", "L0 attn Q", "L1 attn O"):
        one = next(one for one in maps_of(found.model) if one.label == label)
        gradient = result.gradient(label).dense()
        with torch.no_grad():
            one.matrix.sub_(step * gradient)
            lowered = asked(found, maps=[label]).loss
            one.matrix.add_(step * gradient)
        close(torch.tensor((result.loss - lowered) / step), gradient.square().sum(), 1e-4)


def test_singular_vectors_come_from_the_factors() -> None:
    result = asked(subject("gpt2", batch=1))
    factored = result.gradient("L0 mlp in")
    u, s, v = factored.svd()
    close(u @ torch.diag(s) @ v.mT, factored.dense())
    close(s.norm(), result.norm.select(map="L0 mlp in").values)


def test_frozen_weights_change_no_gradient() -> None:
    found = subject("gpt2", batch=1)
    free = asked(found)
    for parameter in found.model.parameters():
        parameter.requires_grad_(False)
    try:
        frozen = asked(found)
    finally:
        for parameter in found.model.parameters():
            parameter.requires_grad_(True)
    assert list(frozen.inputs) == list(free.inputs)
    for label in free.inputs:
        close(frozen.vjps[label].values, free.vjps[label].values)
    assert all(parameter.grad is None for parameter in found.model.parameters())


def test_experts_have_as_many_rows_as_they_were_sent_tokens() -> None:
    found = asked(subject("experts", batch=1))
    sent = [len(x.values) for label, x in found.inputs.items() if label.startswith("L0 mlp input")]
    length = len(found.inputs["L0 attn Q"].values)
    assert sum(sent) % length == 0 and found.inputs["L0 attn Q"].axes[0] == "pos"
    assert all(x.axes[0] == "row" for label, x in found.inputs.items() if "mlp input[" in label)
    assert all("nothing was sent" in why for why in found.left_out.values())


def test_wrong_questions_are_refused() -> None:
    found = subject("gpt2", batch=1)
    ids = found.inputs[0]
    with pytest.raises(TokenOutOfRange):
        linear_gradients(found.model, ids, 10_000)
    with pytest.raises(AnalysisUnavailable, match=r'no linear map "L0 mlp ot"\. Nearest: "L0 mlp out"'):
        linear_gradients(found.model, ids, 3, maps=["L0 mlp ot"])
    with pytest.raises(AnalysisUnavailable, match=r'no gradient of "L0 mlp in"'):
        asked(found, maps=["L0 mlp out"]).gradient("L0 mlp in")
    with pytest.raises(AnalysisUnavailable, match="inference_mode"), torch.inference_mode():
        linear_gradients(found.model, ids, 3)
    with pytest.raises(ShapeMismatch, match="2 tokens as `answer` for 1 positions"):
        linear_gradients(found.model, ids, [3, 4])
    with pytest.raises(ShapeMismatch, match="one prompt at a time"):
        linear_gradients(found.model, ids.expand(2, -1), 3)
    with pytest.raises(ShapeMismatch, match="names none"):
        linear_gradients(found.model, ids, 3, positions=[])
    image = subject("image_class", batch=1)
    with pytest.raises(AnalysisUnavailable, match="a loss on tokens, and this model's outputs are of image_class"):
        linear_gradients(image.model, image.inputs[0], 0)


@given(attention_decoders(mlps=True))
def test_they_add_up_whatever_mixes_and_in_any_wiring(found: Subject) -> None:
    agrees(Subject(found.name, found.model, (found.inputs[0][:1],)), [-1])
