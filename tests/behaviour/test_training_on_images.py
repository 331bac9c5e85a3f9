"""Training on images: by the same loop, to the same numbers when stopped; what does not go together is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

import glassformer as gf
from glassformer.data import Cosine, Digits, Noised, Senses, Shapes
from glassformer.errors import ConfigError
from glassformer.models import (
    DecoderConfig,
    LearnedGrid,
    Mlp,
    Patches,
    block,
    image_encoder,
    image_generator,
    sample_images,
    sana,
)
from glassformer.training import OptimConfig, TrainConfig, read_metrics, train
from glassformer.training.recipes import recipe


def tiny(data: Any, n_classes: int, side: int, class_token: bool = True, **settings: Any) -> TrainConfig:
    patches = Patches((side, side), side // 2, class_token=class_token)
    layer = block(n_heads=2, mlp=Mlp(16), dropout=0.1)
    model = image_encoder(patches, 8, (layer,), n_classes, positions=LearnedGrid())
    default = {"steps": 4, "log_every": 1, "evaluate_every": 2, "evaluate_batches": 1, "save_every": 2, "device": "cpu"}
    return TrainConfig(model, data, optim=OptimConfig(warmup=2), **(default | settings))


@pytest.mark.parametrize("class_token", [True, False])
def test_a_run_on_images_that_was_stopped_goes_on_to_the_same_weights(class_token: bool, tmp_path: Path) -> None:
    config = tiny(Digits(packaged=True, batch_size=6), 10, 8, class_token)
    whole = train(config, tmp_path / "whole")

    def stop(progress: Any) -> None:
        if progress.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "stopped", report=stop)
    again = train(config, tmp_path / "stopped")
    assert all(torch.equal(a, b) for a, b in zip(whole.state_dict().values(), again.state_dict().values(), strict=True))
    assert all(0 < line["loss"] < 10 for line in read_metrics(tmp_path / "whole") if "loss" in line)
    loaded: Any = gf.load(tmp_path / "whole")
    images = config.data.build().batch(0).tokens
    assert torch.equal(loaded(images), whole.eval()(images))
    assert loaded.output_tokenizer.tokens([3]) == ["3"] and loaded.tokenizer is None


def test_accumulated_parts_of_a_batch_of_images_give_its_gradient(tmp_path: Path) -> None:
    config = tiny(Shapes(batch_size=4, size=10, task="same"), 2, 10, steps=1)
    still = tuple(layer.replace(dropout=0.0) for layer in config.model.blocks[""])
    config = config.replace(model=config.model.replace(layers=still))
    one, parts = (train(config.replace(accumulate=n), tmp_path / str(n)) for n in (1, 2))
    for a, b in zip(one.parameters(), parts.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_models_and_data_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    digits = tiny(Digits(packaged=True), 10, 8)
    text = Senses()
    decoder = DecoderConfig(5, 8, (block(n_heads=2),), max_len=64, tied=False, output_vocab_size=10)
    for config, said in (
        (digits.replace(data=Shapes(size=16)), "images of 1 x 16 x 16.*images of 1 x 8 x 8"),
        (digits.replace(data=text), "vocab_size"),
        (digits.replace(model=decoder), "token ids"),
        (digits.replace(model=tiny(Digits(), 7, 8).model), "output_vocab_size=7"),
    ):
        with pytest.raises(ConfigError, match=said):
            train(config, tmp_path / "run")


def generator(data: Any, n_classes: int = 10, schedule: Any = None, **settings: Any) -> TrainConfig:
    patches = Patches((8, 8), 4)
    model = image_generator(patches, 8, sana(1, n_heads=2, grid=patches.grid, d_mlp=6), n_classes, schedule)
    default = {"steps": 4, "log_every": 1, "evaluate_every": 2, "evaluate_batches": 1, "save_every": 2, "device": "cpu"}
    return TrainConfig(model, data, optim=OptimConfig(warmup=2), **(default | settings))


def test_a_generator_that_was_stopped_goes_on_to_the_same_weights_and_makes_the_same_images(tmp_path: Path) -> None:
    config = generator(Noised(Digits(packaged=True), batch_size=6))
    whole = train(config, tmp_path / "whole")

    def stop(progress: Any) -> None:
        if progress.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "stopped", report=stop)
    again = train(config, tmp_path / "stopped")
    assert all(torch.equal(a, b) for a, b in zip(whole.state_dict().values(), again.state_dict().values(), strict=True))
    # of velocities whose numbers have a variance of one and that of the images
    assert all(0.5 < line["loss"] < 4 for line in read_metrics(tmp_path / "whole") if "loss" in line)
    loaded = gf.load(tmp_path / "whole")
    assert torch.equal(sample_images(loaded, [3, 7], steps=2), sample_images(whole, [3, 7], steps=2))


def test_accumulated_parts_of_a_batch_of_noised_images_give_its_gradient(tmp_path: Path) -> None:
    config = generator(Noised(Digits(packaged=True), batch_size=6), steps=1)
    one, parts = (train(config.replace(accumulate=n), tmp_path / str(n)) for n in (1, 3))
    for a, b in zip(one.parameters(), parts.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_generators_and_data_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    digits = Digits(packaged=True, batch_size=6)
    for config, said in (
        (generator(digits), "digits.* has no noise in it, and the model makes images out of noise"),
        (tiny(Noised(digits), 10, 8), "noised.* has noise in it, and the model is not told of any"),
        (generator(Noised(digits), schedule=Cosine()), "noise by Straight"),
        (generator(Noised(digits), n_classes=7), "10 classes"),
        (generator(Noised(Shapes(size=16))), "images of 1 x 16 x 16.*images of 1 x 8 x 8"),
        (generator(Senses()), "senses.* has no noise in it"),
    ):
        with pytest.raises(ConfigError, match=said):
            train(config, tmp_path / "run")


@pytest.mark.full
def test_which_kind_a_shape_is_of_is_learnt_in_seconds(tmp_path: Path) -> None:
    data, shapes = Shapes(task="kind"), recipe("shapes")
    model = shapes.model.replace(output_vocab_size=len(data.classes()), layers=shapes.model.blocks[""][:2])
    found = train(shapes.replace(data=data, model=model, steps=250, device="cpu"), tmp_path)
    batch = data.build().batch(0, "heldout")
    right = found.class_logits(found(batch.tokens)).argmax(-1) == batch.targets[:, 0]
    assert right.float().mean() > 0.9
