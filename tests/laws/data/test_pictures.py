"""Images with classes: drawn shapes and digits, what their targets say, and that no split has what another has."""

import sys
from importlib.util import find_spec
from typing import Any, cast

import pytest
import torch
from jaxtyping import TypeCheckError

from glassformer.data import DataConfig, Digits, Shape, Shapes
from glassformer.data.images.shapes import KINDS, stamp
from glassformer.errors import ConfigError, DataError, MissingExtra
from glassformer.models import patchify

tasks = pytest.mark.parametrize("task", ["kind", "side", "marked", "same", "count"])


@tasks
def test_the_class_of_drawn_shapes_is_what_their_scene_says(task: Any) -> None:
    config = Shapes(task=task, batch_size=40)
    found = config.scenes("train", torch.Generator().manual_seed(3))
    for scene in (next(found) for _ in range(200)):
        kinds = [shape.kind for shape in scene]
        if task == "kind":
            assert (config.classes()[config.answer(scene)],) == tuple(kinds)
        elif task == "side":
            (up, left), (other_up, other_left) = (divmod(shape.quarter, 2) for shape in scene)
            expected = {(0, -1): "left", (0, 1): "right", (-1, 0): "above", (1, 0): "below"}
            assert kinds == ["square", "bar"]
            assert config.classes()[config.answer(scene)] == expected[up - other_up, left - other_left]
        elif task == "marked":
            assert [shape.quarter for shape in scene[1:]] == [0, 1, 2, 3]
            assert config.classes()[config.answer(scene)] == kinds[1 + scene[0].quarter]
        elif task == "same":
            assert config.classes()[config.answer(scene)] == ("same" if kinds[0] == kinds[1] else "different")
        else:
            assert [shape.quarter for shape in scene] == [0, 1, 2, 3]
            assert config.classes()[config.answer(scene)] == str(kinds[1:].count(kinds[0]))
        picture = config.picture(scene)
        for shape in scene:
            top, left = shape.quarter // 2 * 8 + shape.down, shape.quarter % 2 * 8 + shape.right
            # a shape may begin in the last corner of a mark's square
            rows = 1 if shape.kind == "mark" else shape.size
            own = picture[top : top + rows, left : left + shape.size]
            assert torch.equal(own, stamp(shape.kind, shape.size)[:rows])
        assert picture.sum() == sum(stamp(shape.kind, shape.size).sum() for shape in scene)


@tasks
def test_classes_of_drawn_shapes_are_as_frequent_and_no_part_of_a_scene_tells_them(task: Any) -> None:
    config = Shapes(task=task)
    found = config.scenes("train", torch.Generator().manual_seed(0))
    scenes = [next(found) for _ in range(2400)]
    classes = torch.tensor([config.answer(scene) for scene in scenes])
    share = classes.bincount().float() / len(classes)
    # of 2400 draws: four standard deviations
    assert float((share - 1 / len(config.classes())).abs().max()) < 0.04
    for kind in () if task in ("kind", "side", "marked") else KINDS:
        of_first = torch.tensor([scene[0].kind == kind for scene in scenes])
        told = classes[of_first].bincount(minlength=len(share)).float() / of_first.sum()
        assert float((told - share).abs().max()) < 0.1
    sizes = {shape.size for scene in scenes for shape in scene if shape.kind != "mark"}
    assert sizes == ({5, 6} if task == "marked" else {5, 6, 7, 8})


def test_on_which_side_a_shape_lies_is_nothing_that_its_patches_tell() -> None:
    config = Shapes(task="side")
    scenes = config.scenes("train", torch.Generator().manual_seed(0))
    square, bar = next(scenes)

    def patches(*scene: Shape) -> list[tuple[float, ...]]:
        found = patchify(config.picture(scene)[None, None], 4)[0]
        return sorted(tuple(patch.tolist()) for patch in found)

    moved = [(square._replace(quarter=a), bar._replace(quarter=b)) for a in range(4) for b in range(4) if a + b != 3]
    scenes_there_are = [scene for scene in moved if scene[0].quarter != scene[1].quarter]
    assert {config.answer(scene) for scene in scenes_there_are} == {0, 1, 2, 3}
    assert all(patches(*scene) == patches(square, bar) for scene in scenes_there_are)


def test_shapes_of_one_size_differ_from_each_other() -> None:
    for size in (5, 6, 7, 12):
        stamps = {tuple(stamp(kind, size).flatten().tolist()) for kind in KINDS}
        assert len(stamps) == len(KINDS)
        assert all(stamp(kind, size).sum() >= size for kind in KINDS)


@pytest.mark.parametrize(
    "config", [Shapes(), Shapes(task="side"), Shapes(task="same"), Shapes(task="count"), Digits(packaged=True)]
)
def test_no_image_is_in_both_splits(config: DataConfig) -> None:
    data = config.build()
    train, heldout = (
        {tuple(image.flatten().tolist()) for step in range(4) for image in data.batch(step, split).tokens}
        for split in ("train", "heldout")
    )
    assert train and heldout and not train & heldout


@pytest.mark.parametrize("config", [Shapes(batch_size=5, size=20), Digits(packaged=True, batch_size=5)])
def test_batches_of_images_are_a_function_of_config_split_and_step(config: DataConfig) -> None:
    assert DataConfig.from_dict(config.to_dict()) == config
    first, again, later = (config.build().batch(step) for step in (3, 3, 4))
    assert torch.equal(first.tokens, again.tokens) and torch.equal(first.targets, again.targets)
    assert not torch.equal(first.tokens, later.tokens)
    assert first.tokens.shape[:2] == (5, 1) and first.targets.shape == first.weight.shape == (5, 1)
    assert float(first.tokens.min()) == 0 and float(first.tokens.max()) == 1
    with pytest.raises((DataError, TypeCheckError), match=r"train.*heldout"):
        config.build().batch(0, cast(Any, "test"))


def test_classes_have_the_names_that_the_data_gives_them() -> None:
    assert Shapes(task="same").build().output_tokenizer.tokens([0, 1]) == ["different", "same"]
    assert Digits(packaged=True).build().output_tokenizer.vocab_size == 10


def test_packaged_digits_are_of_all_kinds() -> None:
    parts = [Digits(packaged=True).every(split) for split in ("train", "heldout")]
    assert sum(len(part.images) for part in parts) == 500
    assert all(set(part.classes.tolist()) == set(range(10)) for part in parts)


def test_all_digits_need_scikit_learn_and_begin_with_the_packaged_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    for ask in (Digits().check, lambda: Digits(seed=1).drawn("train", torch.Generator())):
        with pytest.raises(MissingExtra, match=r"glassformer\[learn\].*packaged=True"):
            ask()


@pytest.mark.skipif(find_spec("sklearn") is None, reason="scikit-learn is not installed (extra learn)")
def test_packaged_digits_are_the_first_of_all() -> None:
    few, every = ([d.every(split) for split in ("train", "heldout")] for d in (Digits(packaged=True), Digits()))
    assert sum(len(part.images) for part in every) == 1797
    for some, all_of_split in zip(few, every, strict=True):
        assert torch.equal(all_of_split.images[: len(some.images)], some.images)
        assert torch.equal(all_of_split.classes[: len(some.classes)], some.classes)


@pytest.mark.parametrize("size", [8, 15])
def test_images_too_small_for_shapes_are_refused(size: int) -> None:
    with pytest.raises(ConfigError, match="even number from 10"):
        Shapes(size=size, task="same")
    with pytest.raises(ConfigError, match="no room for a mark"):
        Shapes(size=12)


def test_a_scene_by_hand_is_drawn_where_it_says() -> None:
    picture = Shapes(size=10, task="kind").picture((Shape("bar", 3, 5, 0, 0),))
    assert picture.nonzero().tolist() == [[7, column] for column in range(5, 10)]
