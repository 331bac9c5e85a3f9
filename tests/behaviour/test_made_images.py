"""Images that a model makes, as pictures: by `glassformer generate`, and as a figure."""

from pathlib import Path

import pytest
import torch

import glassformer as gf
from glassformer.checkpoints import save
from glassformer.cli import main
from glassformer.data import bytes_tokenizer
from glassformer.errors import ShapeMismatch
from glassformer.figures import draw_images
from glassformer.models import DecoderConfig, Patches, block, image_generator, sample_images, sana


@pytest.fixture
def generator(tmp_path: Path) -> str:
    patches = Patches((4, 4), 2)
    model = image_generator(patches, 8, sana(1, n_heads=2, grid=patches.grid, d_mlp=4), n_classes=3).build()
    return str(save(model, tmp_path / "generator"))


def test_generate_writes_a_picture_of_an_image_for_each_class(
    generator: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, other = (tmp_path / name for name in ("first.png", "second.png", "other.png"))
    for out, seed in ((first, "1"), (second, "1"), (other, "2")):
        assert main(["generate", generator, "0 2,1", "--seed", seed, "--out", str(out)]) == 0
        assert str(out) in capsys.readouterr().out.replace("\n", "")
        assert out.read_bytes().startswith(b"\x89PNG")
    assert first.read_bytes() == second.read_bytes() != other.read_bytes()
    monkeypatch.chdir(tmp_path)
    assert main(["generate", generator, "0"]) == 0 and (tmp_path / "images.png").is_file()


def test_generate_refuses_what_makes_no_image_and_what_is_of_texts(
    generator: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = bytes_tokenizer()
    decoder = DecoderConfig(tokenizer.vocab_size, 8, (block(n_heads=2),), max_len=8).build()
    decoder.tokenizer = tokenizer
    text = str(save(decoder, tmp_path / "decoder"))
    for arguments, said in (
        ([generator, "seven"], "classes 0 to 2: give numbers"),
        ([generator, "3"], "classes of this model are 0 to 2"),
        ([generator, "0", "--top-k", "3", "--ablate", "L0H1"], "--top-k, --ablate is of texts"),
        ([text, "ab", "--out", str(tmp_path / "x.png")], "--out is of a model that makes images"),
        ([generator, "0", "--out", str(tmp_path / "x.txt")], "Use .png, .svg or .pdf"),
    ):
        assert main(["generate", *arguments]) == 2
        assert said in capsys.readouterr().err.replace("\n", " ")
    assert not list(tmp_path.glob("x.*"))


def test_a_figure_shows_every_image_in_its_place_as_grey_or_colour() -> None:
    images = torch.stack([torch.full((1, 2, 3), value) for value in (-1.0, 0.0, 1.0, 7.0)])
    figure = draw_images(images, ["a", "b", "c"], columns=3)
    shown = [axes.images[0].get_array().data for axes in figure.axes]
    assert [float(one.mean()) for one in shown] == [0.0, 0.5, 1.0, 1.0] and shown[0].shape == (2, 3)
    assert [axes.get_title() for axes in figure.axes] == ["a", "b", "c", ""]
    coloured = draw_images(torch.zeros(1, 3, 2, 2)).axes[0].images[0].get_array()
    assert coloured.shape == (2, 2, 3)
    for wrong in (torch.zeros(0, 1, 2, 2), torch.zeros(121, 1, 2, 2), torch.zeros(1, 2, 2, 2)):
        with pytest.raises(ShapeMismatch, match="1 to 120 images"):
            draw_images(wrong)


def test_images_that_are_made_are_those_of_the_picture(generator: str) -> None:
    images = sample_images(gf.load(generator), [0, 2])
    figure = draw_images(images)
    for axes, image in zip(figure.axes, images, strict=True):
        shown = torch.from_numpy(axes.images[0].get_array().data)
        torch.testing.assert_close(2 * shown - 1, image[0].clamp(-1, 1), atol=1e-6, rtol=0)
