"""Gradients at the inputs: complete where they promise it, blind to the future, agreeing where the model is linear."""

from typing import Any

import pytest
import torch

from glassformer.analysis import run
from glassformer.analysis.attribution import InputGradients, direct_logit_attribution, input_gradients
from glassformer.analysis.frozen import frozen_edits
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.handmade import induction_model, repeated
from glassformer.testing import close
from glassformer.testing.models import ARCHITECTURES, subject

every = pytest.mark.parametrize("name", ARCHITECTURES)
# which experts run jumps along the way, and what jumps is no integral of gradients: the gap tells
smooth = pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name != "experts"])


def asked(name: str, **kwargs: Any) -> InputGradients:
    found = subject(name, batch=1)
    ids, *more = found.inputs
    rows: dict[str, Any] = {"target": more[0]} if more else {}
    return input_gradients(found.model, ids, **rows, **kwargs)


def allowed(name: str) -> float:
    # the translators' relu has kinks, where no quadrature is fast
    return 2e-3 if name.startswith("translator") else 1e-5


def steps(name: str) -> int:
    return 128 if name.startswith("translator") else 64


@smooth
def test_integrated_gradients_sum_to_what_separates_text_and_baseline(name: str) -> None:
    found = asked(name, steps=steps(name), positions=(-1, 3))
    distance = found.metric.values - found.baseline_metric.values
    close(found.values.values.sum(-1) - found.gap.values, distance)
    assert found.gap.values.abs().max() < allowed(name) * distance.abs().max()


@smooth
def test_they_are_complete_at_every_layer(name: str) -> None:
    found = asked(name, steps=steps(name), layers=True)
    assert found.values.labels("layer") == ["L0", "L1"]
    distance = float(found.metric.values - found.baseline_metric.values)
    assert found.gap.values.abs().max() < allowed(name) * abs(distance)


@every
def test_no_prediction_depends_on_later_tokens(name: str) -> None:
    for method in ("saliency", "gradient_x_input", "integrated"):
        found = asked(name, method=method, positions="all", steps=2)
        own = found.values.values[:, -7:]
        assert (own.triu(1) == 0).all()
        assert (own.diagonal() != 0).all()


@every
def test_gradients_are_those_of_a_small_step(name: str) -> None:
    found = subject(name, batch=1)
    ids, *more = found.inputs
    rows: dict[str, Any] = {"target": more[0]} if more else {}
    site = "decoder.embed.token" if rows else "embed.token"
    result = input_gradients(found.model, ids, 3, 5, method="gradient_x_input", **rows)
    x = run(found.model, ids, read=[site], **rows)[site].values
    # grow the vector of the last token a little: the change is its gradient times input
    moved = []
    for step in (1e-5, -1e-5):
        grown = x.clone()
        grown[0, -1] *= 1 + step
        logits = run(found.model, ids, edit=[(site, lambda _, grown=grown: grown)], **rows).logits
        assert logits is not None
        moved.append(logits[0, -1, 3] - logits[0, -1, 5])
    close(result.values.values[0, -1], (moved[0] - moved[1]) / 2e-5, 1e-5)


@pytest.mark.parametrize("name", ["attention_only", "bare", "differential"])
def test_with_patterns_and_scales_frozen_all_three_are_the_paths_from_the_embedding(name: str) -> None:
    found = subject(name if name != "differential" else "attention_only", batch=1, seed=3)
    model, ids = found.model, found.inputs[0]
    edit = frozen_edits(run(model, ids, read=[frozen_edits]))
    vector = torch.zeros(16, dtype=torch.float64)
    whole = input_gradients(model, ids, 2, 4, edit=edit, baseline=vector, steps=1)
    times = input_gradients(model, ids, 2, 4, edit=edit, method="gradient_x_input")
    close(whole.values.values, times.values.values)
    assert abs(float(whole.gap.values)) < 1e-9


def test_without_layers_gradient_times_input_is_direct_logit_attribution() -> None:
    from glassformer.models import DecoderConfig, NoNorm

    config = DecoderConfig(vocab_size=11, d_model=8, layers=(), final_norm=NoNorm(), tied=False)
    model = config.build().double()
    done = run(model, [1, 2, 3], read=[direct_logit_attribution])
    token = direct_logit_attribution(done, answer=4, against=5)["token"].values
    for method in ("gradient_x_input", "integrated"):
        found = input_gradients(model, [1, 2, 3], 4, 5, method=method, baseline="zero", steps=1)
        close(found.values.values[0], torch.stack([token.new_zeros(()), token.new_zeros(()), token]))


def test_gradient_times_input_at_a_layer_is_the_token_vectors_at_the_bottom() -> None:
    bottom = asked("llama", method="gradient_x_input")
    close(asked("llama", method="gradient_x_input", layers=True).values.values[0], bottom.values.values)


def test_more_points_close_the_gap_and_gauss_points_close_it_faster() -> None:
    gaps = {
        (points, steps): float(asked("gpt2", points=points, steps=steps).gap.values.abs())
        for points in ("gauss", "midpoint")
        for steps in (4, 16)
    }
    assert gaps["midpoint", 16] < gaps["midpoint", 4] / 4
    assert gaps["gauss", 16] < gaps["midpoint", 16] / 10


def test_a_zero_baseline_under_layer_norm_leaves_a_larger_gap_than_the_mean() -> None:
    far = [
        float(asked("attention_only", baseline=b, points="midpoint", steps=16).gap.values.abs())
        for b in ("zero", "mean")
    ]
    assert far[0] > 3 * far[1]


def test_batches_of_any_size_give_the_same_numbers_and_report_how_far_they_are() -> None:
    seen: list[tuple[int, int]] = []
    whole = asked("gpt2", steps=5, positions="all", layers=True)
    parts = asked("gpt2", steps=5, positions="all", layers=True, rows_at_once=3, report=lambda *x: seen.append(x))
    close(parts.values.values, whole.values.values)
    assert seen[0] == (1, 24) and seen[-1] == (24, 24)


def test_a_source_and_a_target_are_attributed_to_side_by_side() -> None:
    found = asked("translator_pre", steps=4)
    assert found.values.shape == (1, 16)
    assert str(found.values.labels("key")[0]).startswith("source 0:")


def test_a_question_about_two_tokens_is_the_difference_of_two_questions() -> None:
    both = asked("gpt2", answer=3, against=5, steps=8)
    close(
        both.values.values,
        asked("gpt2", answer=3, steps=8).values.values - asked("gpt2", answer=5, steps=8).values.values,
    )
    assert both.metric_name == "logit difference" and both.baseline == "mean token vector"


def test_on_the_induction_model_the_copied_token_is_what_the_prediction_depends_on() -> None:
    model, ids = induction_model(gamma=6.0), repeated()
    found = input_gradients(model, ids, positions=(30,), method="gradient_x_input")
    assert found.values.top(1)[0][0][1] == found.values.labels("key")[11]
    assert found.answers == (int(ids[0, 31]),)


def test_what_cannot_be_asked_is_refused() -> None:
    model = subject("gpt2").model
    with pytest.raises(ShapeMismatch, match="one prompt at a time, and was given 2"):
        input_gradients(model, [[1, 2], [3, 4]])
    with pytest.raises(ShapeMismatch, match="2 tokens as `answer` for 1 positions"):
        input_gradients(model, [1, 2], [1, 2])
    with pytest.raises(ShapeMismatch, match="token vectors have d_model=16"):
        input_gradients(model, [1, 2], baseline=torch.zeros(3))
    with pytest.raises(AnalysisUnavailable, match="none of them"):
        input_gradients(torch.nn.Linear(2, 2), [1, 2])  # pyright: ignore[reportArgumentType]
