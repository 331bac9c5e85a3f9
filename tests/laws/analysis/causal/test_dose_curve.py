"""Steering by dose: what is measured is what plain passes give, and a push at random is called one."""

import pytest
import torch

import glassformer as gf
from glassformer.analysis.causal import DoseCurve, dose_curve
from glassformer.analysis.losses import token_losses
from glassformer.analysis.sweep import Metric, logit_difference
from glassformer.errors import ShapeMismatch
from glassformer.handmade import induction_model
from glassformer.testing import close
from glassformer.testing.models import subject
from glassformer.trace import Add, AddWhere

SITE = "blocks.0.resid_post"
VECTOR = torch.linspace(-1, 2, 16, dtype=torch.float64)


def test_effect_and_damage_are_what_plain_passes_under_the_edit_give() -> None:
    found = subject("gpt2")
    model, ids = found.model, found.inputs[0]
    curve = dose_curve(model, ids, logit_difference(1, 2), Add(SITE, VECTOR), [0.0, -1.5], ids, draws=2)

    def measured(dose: float) -> tuple[torch.Tensor, torch.Tensor]:
        logits = gf.run(model, ids, edit=Add(SITE, dose * VECTOR)).predictions()
        losses = -logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0].mean(-1)
        return logits[:, -1, 1] - logits[:, -1, 2], losses

    (gap, loss), (steered, lost) = measured(0.0), measured(-1.5)
    close(curve.effects.values, torch.stack([gap - gap, steered - gap]), 1e-9)
    close(curve.damages.values, torch.stack([loss - loss, lost - loss]), 1e-9)
    assert curve.loss == pytest.approx(float(token_losses(model, ids)[0].mean()))


def steered(condition: bool) -> DoseCurve:
    """Push the logits of t1 over those of t2 in a stream that the unembedding reads as it is; at t3 alone, or all over.

    The first row ends in t3, as the prompt does; the second has none.
    """
    model = induction_model(6, 12)
    rows = torch.tensor([[0, 1, 3, 4, 3], [0, 1, 2, 4, 5]])
    last, towards = "blocks.1.resid_post", model.unembed.weight[1] - model.unembed.weight[2]
    vector = towards.detach() / towards.square().sum()
    edit = AddWhere(last, vector, along=model.embed.weight[3].detach(), above=0.5) if condition else Add(last, vector)
    return dose_curve(model, rows[:1], logit_difference(1, 2), edit, [-1.0, 0.5, 2.0], rows)


def test_a_dose_along_what_the_unembedding_reads_moves_the_logits_by_as_much() -> None:
    curve = steered(condition=False)
    close(curve.effect.values, torch.tensor([-1.0, 0.5, 2.0]), 1e-9)
    # any other vector of that length moves them less
    assert curve.beyond_random == 1 and not curve.denied
    assert curve.damages.values.abs().min() > 1e-6


def test_steering_on_a_condition_leaves_texts_alone_in_which_it_does_not_hold() -> None:
    curve = steered(condition=True)
    close(curve.effect.values, torch.tensor([-1.0, 0.5, 2.0]), 1e-9)
    damages = curve.damages.values
    assert damages[:, 1].abs().max() == 0 and damages[:, 0].abs().min() > 1e-6


def test_a_vector_at_random_is_denied() -> None:
    found = subject("gpt2")
    denied = 0
    for seed in range(3):
        vector = torch.randn(16, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        ids = found.inputs[0]
        curve = dose_curve(found.model, ids, logit_difference(1, 2), Add(SITE, vector), [1.0], ids, seed=seed)
        denied += curve.denied
        assert curve.denied is (curve.beyond_random < 1)
    assert denied >= 2


def test_bounds_hold_the_mean_and_a_curve_is_drawn_with_them() -> None:
    found = subject("gpt2")
    ids = found.inputs[0]
    curve = dose_curve(found.model, ids, logit_difference(1, 2), Add(SITE, VECTOR), [0.5, 1.0], ids, draws=2)
    mean = curve.effect.values
    assert (curve.effect_low.values <= mean).all() and (mean <= curve.effect_high.values).all()
    panels = {panel.name: panel for panel in curve.panels()}
    assert panels.keys() == {"effect", "damage"} and all(panel.band is not None for panel in panels.values())


def test_what_is_no_vector_or_no_single_number_is_refused() -> None:
    found = subject("gpt2")
    ids, metric = found.inputs[0], logit_difference(1, 2)
    for value in (2.0, torch.zeros(16), torch.ones(2, 16)):
        with pytest.raises(ShapeMismatch, match="takes multiples of one vector"):
            dose_curve(found.model, ids, metric, Add(SITE, value), [1.0], ids)
    kept = Metric("all", lambda logits: logits, (), axes=("vocab",))
    with pytest.raises(ShapeMismatch, match="one number per prompt"):
        dose_curve(found.model, ids, kept, Add(SITE, VECTOR), [1.0], ids)
