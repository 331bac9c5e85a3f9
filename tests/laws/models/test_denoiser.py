"""A model that makes images: told of time and class, it says velocities, and its stream is taken apart as any."""

import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import glassformer as gf
from glassformer.analysis.causal import ablate_each, patch
from glassformer.analysis.sweep import Metric
from glassformer.attention import sinusoids
from glassformer.config import Config
from glassformer.data import Batch, Cosine, noise_images
from glassformer.errors import AnalysisUnavailable, ConfigError, ShapeMismatch, TokenOutOfRange
from glassformer.models import (
    Denoises,
    EncoderConfig,
    LearnedGrid,
    Patches,
    image_generator,
    patchify,
    sana,
    unpatchify,
)
from glassformer.models.accounting import account
from glassformer.testing import close
from glassformer.testing.layers import randomise
from glassformer.trace import Add, Scale, Tape

PATCHES = Patches((4, 6), 2, channels=2)


def config(**settings: Any) -> EncoderConfig:
    layers = sana(2, n_heads=2, grid=PATCHES.grid, d_mlp=12)
    return image_generator(PATCHES, 16, layers, 3, **settings)


def model(**settings: Any) -> Any:
    return randomise(config(**settings).build().double().eval(), 0, std=0.2)


def batch(n: int = 3, seed: int = 0) -> Batch:
    random = torch.Generator().manual_seed(seed)
    images = torch.randn(n, *PATCHES.shape, generator=random, dtype=torch.float64)
    times = torch.rand(n, generator=random, dtype=torch.float64)
    return noise_images(images, torch.arange(n) % 3, times, random=random)


def told(given: Batch) -> dict[str, Any]:
    return {"times": given.times, "classes": given.classes}


def said(found: Any, given: Batch, tape: Tape | None = None) -> Tensor:
    return found(given.tokens, **told(given), tape=tape)


def test_its_output_is_the_map_of_the_last_stream_and_its_loss_the_squared_error_of_velocities() -> None:
    found, given = model(), batch()
    tape = Tape(found, ["final.norm", "velocity"])
    out = said(found, given, tape)
    assert out.shape == (3, 6, 8) and torch.equal(tape.values["velocity"], out)
    head = found.velocity
    close(out, tape.values["final.norm"] @ head.map.weight.T + head.map.bias)
    close(found.loss(given), (unpatchify(out, PATCHES) - given.targets).square().mean())
    close(found.loss(given), F.mse_loss(out, patchify(given.targets, 2)))
    assert not found.predicts and found.sites()["velocity"].axes == ("batch", "pos", "pixel")


def test_time_and_class_are_added_to_what_patches_enter_with() -> None:
    found, given = model(positions=LearnedGrid()), batch()
    names = ["embed.time", "embed.class", "embed.token", "embed.position", "blocks.0.resid_pre"]
    tape = Tape(found, names)
    said(found, given, tape)
    time, own, token, position, stream = (tape.values[name] for name in names)
    condition = found.embed.condition
    waves = sinusoids(told(given)["times"] * 1000, 256, "halves")
    hidden = F.silu(waves @ condition.of_time.weight.T + condition.of_time.bias)
    close(time, (hidden @ condition.time.weight.T + condition.time.bias)[:, None].expand(-1, 6, -1))
    close(own, condition.classes[given.classes][:, None].expand(-1, 6, -1))
    close(token, found.embed.patches(given.tokens) + time + own)
    close(stream, token + position)


def test_an_edit_of_the_class_is_the_pass_of_another_class() -> None:
    found, given = model(), batch(1)
    vectors = found.embed.condition.classes.detach()
    tape = Tape(found, edit=[Add("embed.class", vectors[2] - vectors[0])])
    edited = said(found, given, tape)
    close(edited, said(found, dataclasses.replace(given, classes=torch.tensor([2]))))
    assert not torch.allclose(edited, said(found, given))


def test_a_pass_resumed_in_any_layer_and_a_run_of_a_batch_say_the_same() -> None:
    found, given = model(), batch()
    whole = said(found, given)
    run = gf.run(found, given, read=["blocks.*.resid_pre", "velocity", "pattern"])
    close(run["velocity"].values, whole)
    # or to nothing, where relu leaves a query with no key in common
    sums = run["pattern", 1].values.sum(-1)
    close(sums, (sums > 0.5).double())
    for layer in (0, 1):
        close(found.resume(layer, run[f"blocks.{layer}.resid_pre"].values, **told(given)), whole)
    assert run.logits is None


def test_gradients_of_the_loss_reach_every_parameter_and_are_right() -> None:
    found, given = model(), batch()
    found.loss(given).backward()
    assert all(p.grad is not None and bool((p.grad != 0).any()) for p in found.parameters())
    weight = found.embed.condition.classes
    kept, step = float(weight.grad[1, 3]), 1e-6
    with torch.no_grad():
        weight[1, 3] += step
        above = found.loss(given)
        weight[1, 3] -= 2 * step
        below = found.loss(given)
    assert float((above - below) / (2 * step)) == pytest.approx(kept, rel=1e-5)


def test_patches_of_one_run_in_another_change_the_velocity_as_a_pass_with_them_does() -> None:
    found, clean, corrupt = model(), batch(1), batch(1, seed=1)
    target = said(found, clean)
    error = Metric("error", lambda v: (v - target).square().mean((-1, -2)), site="velocity")
    patched = patch(found, (clean, corrupt), error, "resid_pre").tables["resid_pre"].values
    whole = gf.run(found, clean, read=["resid_pre"])
    stream = gf.run(found, corrupt, read=["resid_pre"])["resid_pre", 1].values.clone()
    stream[:, 4] = whole["resid_pre", 1].values[:, 4]
    found_error = (found.resume(1, stream, **told(corrupt)) - target).square().mean().detach()
    assert float(patched.select(layer=1, pos=4).values) == pytest.approx(float(found_error), rel=1e-9)


def test_an_ablated_head_is_a_pass_without_it() -> None:
    found, given = model(), batch()
    tape = Tape(found, edit=[Scale("L1H0.z", 0.0)])
    without = said(found, given, tape)
    run = gf.run(found, given, read=["velocity"], edit=[Scale("L1H0.z", 0.0)])
    close(run["velocity"].values, without)
    assert not torch.allclose(without, said(found, given))


def test_what_it_costs_is_counted() -> None:
    found = config(positions=LearnedGrid())
    counted, model = account(found), found.build()
    assert sum(counted.parameters.values()) == sum(p.numel() for p in model.parameters())
    assert counted.flops["unembedding"] == 2 * 6 * 16 * 8
    assert counted.flops["embedding"] == 2 * 6 * 8 * 16 + 2 * (256 + 16) * 16


def test_a_config_survives_json() -> None:
    found = config(schedule=Cosine())
    assert Config.from_dict.__func__(type(found), found.to_dict()) == found
    assert found.denoises == Denoises(3, Cosine())


def test_what_is_told_is_checked() -> None:
    found, given = model(), batch()
    images, times, classes = given.tokens, *told(given).values()
    for kwargs, error, words in (
        ({}, ShapeMismatch, "times and classes"),
        ({"times": times}, ShapeMismatch, "noise_images"),
    ):
        with pytest.raises(error, match=words):
            found(images, **kwargs)
    with pytest.raises(ShapeMismatch, match="Give a Batch"):
        gf.run(found, images)
    for change, error, words in (
        ({"times": times + 1}, ShapeMismatch, "outside"),
        ({"times": times[:2]}, ShapeMismatch, "of 3"),
        ({"classes": classes + 1}, TokenOutOfRange, "0 to 2"),
        ({"classes": times}, ShapeMismatch, "one index per image"),
    ):
        with pytest.raises(error, match=words):
            gf.run(found, dataclasses.replace(given, **change))


def test_what_cannot_make_images_is_refused_when_it_is_built() -> None:
    with pytest.raises(ConfigError, match="image_generator"):
        image_generator(Patches((4, 6), 2, class_token=True), 16, (), 3)
    with pytest.raises(ConfigError, match="image_generator"):
        config(predicts=True, output_vocab_size=3, classifies="mean")
    with pytest.raises(ConfigError, match="d_time=5"):
        Denoises(3, d_time=5)


def test_logits_and_text_are_refused_in_words() -> None:
    found, given = model(), batch()
    with pytest.raises(AnalysisUnavailable, match="no logits"):
        gf.run(found, given).predictions()
    with pytest.raises(AnalysisUnavailable):
        found.require_generates()


def test_what_an_ablation_costs_is_squared_error_of_the_velocity() -> None:
    found, given = model(), batch()
    lost = ablate_each(found, given)
    scaled = Tape(found, edit=[Scale("L1H0.z", 0.0)])
    errors = [F.mse_loss(said(found, given, tape), patchify(given.targets, 2)) for tape in (None, scaled)]
    close(lost.loss_change.select(heads="L1H0").values, errors[1] - errors[0])
    assert lost.loss == pytest.approx(float(errors[0].detach()))
