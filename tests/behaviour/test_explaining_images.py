"""An image that is explained: on the command line from sets, arrays and pictures, on a page as patches with numbers."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from playwright.sync_api import Page

import glassformer as gf
from explanations import of_images, sample
from glassformer.analysis.reports import explain
from glassformer.analysis.reports.attention import attention_of, pattern_sites
from glassformer.attention import Longformer, Pola
from glassformer.cli import main
from glassformer.data import Shapes
from glassformer.models import EncoderConfig, LearnedGrid, Mlp, Patches, block, image_encoder, repeat
from glassformer.render.terminal import lines
from glassformer.testing import close
from glassformer.training import TrainConfig, train
from pages import Opener, accessibility_report, open_everything, wait_for_frame
from patch_pictures import colour, drawn, shows

browser_test = pytest.mark.browser
DATA = Shapes(batch_size=4, size=10, task="kind")


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one step of training on small shapes wrote."""
    layer = block(n_heads=2, mlp=Mlp(8))
    model = image_encoder(Patches((10, 10), 5, class_token=True), 8, (layer,), 5, positions=LearnedGrid())
    folder = tmp_path_factory.mktemp("runs") / "shapes"
    train(TrainConfig(model, DATA, steps=1, evaluate_batches=1, device="cpu"), folder)
    return folder


def heldout(number: int) -> Any:
    return DATA.build().batch(0, "heldout").tokens[number].numpy()


def test_an_image_of_a_set_is_explained_as_its_array_and_its_picture_are(
    run_folder: Path, tmp_path: Path, capsys: Any
) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = heldout(2)
    np.save(tmp_path / "image.npy", pixels)
    image.fromarray((255 * pixels[0]).astype("uint8")).save(tmp_path / "image.png")
    found = []
    for i, given in enumerate(["shapes:2", str(tmp_path / "image.npy"), str(tmp_path / "image.png")]):
        written = [tmp_path / f"{i}.{kind}" for kind in ("json", "html")]
        arguments = ["--image", given, "--json", str(written[0]), "--html", str(written[1])]
        assert main(["explain", str(run_folder), *arguments]) == 0
        found.append(json.loads(written[0].read_text(encoding="utf-8")))
    assert found[0] == found[1] == found[2]
    assert found[0]["image"]["values"] == pixels.tolist() and found[0]["grid"] == [2, 2, 1]
    assert found[0]["model"]["logits_of"] == "image_class"
    told = capsys.readouterr().out
    assert "Class of the image" in told and "0:class" in told and "of the text" not in told


def test_without_an_image_the_first_held_out_one_of_the_run_is_explained(run_folder: Path, tmp_path: Path) -> None:
    assert main(["explain", str(run_folder), "--json", str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert found["image"]["values"] == heldout(0).tolist()


def test_what_is_no_image_of_the_model_is_refused_in_a_sentence(
    run_folder: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    np.save("three.npy", np.zeros((3, 10, 10)))
    np.save("objects.npy", np.array([{"ran": 1}], dtype=object), allow_pickle=True)
    np.save("words.npy", np.array(["a", "b"]))
    image.new("L", (12, 10)).save("wide.png")
    image.new("RGBA", (10, 10), (0, 0, 0, 9)).save("clear.png")
    image.fromarray(np.zeros((10, 10), "uint16")).save("deep.png")
    Path("junk.png").write_text("junk")
    for given, said in {
        "three.npy": "images of 1 x 10 x 10 numbers (channel, row, column), one of them; found 3 x 1 x 10 x 10",
        "objects.npy": "no array of numbers that NumPy wrote",
        "words.npy": "an image is of real numbers",
        "wide.png": "found 1 x 10 x 12",
        "clear.png": "transparent in places",
        "deep.png": "give their numbers as a .npy file",
        "junk.png": "no picture that Pillow reads",
        "none.png": "Give a file (.npy, or a picture such as .png), or a held-out image of a set",
        "shapes:x": "from 0 to 9,999",
        "digits:0": "found 1 x 8 x 8",
    }.items():
        assert main(["explain", str(run_folder), "--image", given]) == 2
        assert said in (told := capsys.readouterr().err) and told.count("\n") == 1, given
    assert main(["explain", str(run_folder), "a text"]) == 2
    assert "give a text, or an image with --image" in capsys.readouterr().err


def test_a_model_of_images_that_was_not_trained_here_has_no_first_image(tmp_path: Path, capsys: Any) -> None:
    gf.save(of_images(), tmp_path / "saved")
    assert main(["explain", str(tmp_path / "saved")]) == 2
    assert "give one with --image, a file" in capsys.readouterr().err
    assert main(["explain", str(tmp_path / "saved"), "--image", "shapes:1"]) == 0


def test_a_model_of_text_takes_no_image(capsys: Any) -> None:
    assert main(["explain", "attn-only-1l", "--image", "shapes:0"]) == 2
    assert "this model reads text" in capsys.readouterr().err


@pytest.mark.parametrize(
    "verb",
    [
        "attention a",
        "attribute a",
        "behaviour a",
        "circuits",
        "generate a",
        "lens a",
        "patch",
        "paths",
        "route a",
    ],
)
def test_verbs_that_take_texts_say_which_takes_images(run_folder: Path, verb: str, capsys: Any) -> None:
    name, *text = verb.split()
    assert main([name, str(run_folder), *text]) == 2
    assert "glassformer explain MODEL --image FILE" in capsys.readouterr().err


def test_patches_that_each_say_a_class_are_said_to_and_so_is_the_class_of_the_whole() -> None:
    model, images = of_images(class_token=False), Shapes(batch_size=1).build().batch(0).tokens
    found = explain(model, images)
    assert found.model.logits_of == "patch_class" and "Class by this patch" in "\n".join(lines(found))
    probabilities = model.class_logits(model(images).detach())[0].softmax(-1)
    named = f"The whole image it calls {Shapes().classes()[int(probabilities.argmax())]}, probability "
    assert any(f"{named}{float(probabilities.max()):.2f}." in str(note) for note in found.notes)


def test_each_value_of_a_head_with_several_has_its_pattern() -> None:
    # in float64, as the picture may be of another route
    model, images = of_images(False, Pola()).double(), Shapes(batch_size=1).build().batch(0).tokens.double()
    site = gf.run(model, images, read=["blocks.1.attn.pattern"])["blocks.1.attn.pattern"].values
    found = {pattern.label: pattern.weights for pattern in explain(model, images).patterns}
    assert len(found) == 8
    for head in range(2):
        for value in range(2):
            close(found[f"L1H{head}/{value}"], site[0, value, head])


def both_ways() -> Any:
    """Return a small encoder with two values a head, of which the first token takes part in all."""
    layers = repeat(block(Longformer(window=2, n_global=1), n_heads=2, mlp=Mlp(8)), 1)
    return EncoderConfig(20, 8, layers, max_len=8).build(seed=0).eval()


def test_patterns_of_a_run_that_looks_both_ways_are_whole_and_of_each_value() -> None:
    model = both_ways()
    done = gf.run(model, [3, 4, 5, 6, 7], read=pattern_sites(model))
    found = attention_of(done)
    site = done["blocks.0.attn.pattern"].values[0]
    assert [p.label for p in found.patterns] == ["L0H0/0", "L0H0/1", "L0H1/0", "L0H1/1"] and found.notes == done.notes
    assert all(torch.equal(p.weights, site[i % 2, i // 2]) for i, p in enumerate(found.patterns))
    # a row whose weights happen to lie below the diagonal is no mask
    assert {p.to_dict()["layout"] for p in (*found.patterns, *explain(model, [3]).patterns)} == {"full"}


@cache
def document(name: str) -> dict[str, Any]:
    if name == "colours":
        model = of_images(False, image=(8, 12), channels=3)
        return explain(model, torch.rand(3, 8, 12, generator=torch.Generator().manual_seed(0))).to_dict()
    return sample(name).to_dict()


@browser_test
def test_every_picture_on_the_image_has_the_colours_of_its_numbers(opened: Opener) -> None:
    found = document("image")
    shown = opened(found)
    assert "Class of the image" in shown.inner_text("nav") and "text" not in shown.inner_text("h1, nav")
    first = drawn(shown.locator("header.top .patches canvas"))
    zoom = len(first) // 16
    values = [[round(255 * value) for value in line] for line in found["image"]["values"][0]]
    # the middle of a pixel: lines between patches lie on their edges
    middles = first[zoom // 2 :: zoom, zoom // 2 :: zoom]
    assert (middles == np.array(values)[..., None]).all()
    signed = found["inputs"]["values"]
    limit = max(map(abs, signed))
    assert shows(shown.locator("#inputs .patches canvas"), found, signed, limit, signed=True)
    for i, top in enumerate(found["top_heads"]):
        assert shows(shown.locator(".head > div > .patches canvas").nth(i), found, top["weights"], 1.0)
    assert not shows(
        shown.locator(".head > div > .patches canvas").nth(0), found, found["top_heads"][0]["weights"][::-1], 1.0
    )


@browser_test
@pytest.mark.full
def test_a_patch_that_is_chosen_by_keys_or_pointer_is_where_all_heads_look_from(opened: Opener) -> None:
    found, patterns = document("image"), sample("image").patterns
    shown = opened(found)

    def all_look_from(query: int) -> bool:
        wait_for_frame(shown)
        return all(
            shows(shown.locator(f'[data-head="{p.label}"] canvas'), found, p.weights[query].tolist(), 1.0)
            for p in patterns
        )

    assert all_look_from(0)
    chooser = shown.locator(".on-image canvas.map")
    chooser.focus()
    for _ in range(3):
        shown.keyboard.press("ArrowRight")
    shown.keyboard.press("ArrowDown")
    # from the class token the first key leads to the first patch
    assert "looking from 2,3" in shown.inner_text(".on-image") and all_look_from(1 + 4 + 2)
    assert "2,3" in (chooser.get_attribute("aria-label") or "")
    box = chooser.bounding_box()
    assert box is not None
    shown.mouse.click(box["x"] + box["width"] - 4, box["y"] + box["height"] - 4)
    assert "looking from 4,4" in shown.inner_text(".on-image") and all_look_from(16)
    shown.click(".on-image button.token")
    assert "looking from class" in shown.inner_text(".on-image") and all_look_from(0)


@browser_test
@pytest.mark.full
@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 390)])
def test_an_image_of_three_channels_is_drawn_in_colour_for_everybody(opened: Opener, scheme: str, width: int) -> None:
    found = document("colours")
    shown = opened(found, scheme=scheme, width=width)
    open_everything(shown)
    assert shown.evaluate("document.documentElement.scrollWidth") == width
    assert accessibility_report(shown) == ""
    first = drawn(shown.locator("header.top .patches canvas"))
    zoom = len(first) // 8
    values = torch.tensor(found["image"]["values"])
    least, most = float(values.min()), float(values.max())
    wanted = ((values - least) / (most - least) * 255).permute(1, 2, 0)
    seen = torch.tensor(first[zoom // 2 :: zoom, zoom // 2 :: zoom])
    assert (seen - wanted).abs().max() <= 1
    shown.click(".on-image button.link >> nth=0")
    assert accessibility_report(shown, "dialog") == ""
    assert shown.locator("dialog .patches canvas").count() == 1


@browser_test
@pytest.mark.full
def test_pictures_of_what_looks_both_ways_show_what_lies_ahead(opened: Opener) -> None:
    model = both_ways()
    shown: Page = opened(explain(model, [3, 4, 5, 6, 7]).to_dict())
    for label in ("L0H0/0", "L0H1/1"):
        colours = drawn(shown.locator(f'.thumbs [data-label="{label}"] canvas'))
        weights = next(p.weights for p in explain(model, [3, 4, 5, 6, 7]).patterns if p.label == label)
        limit = float(weights.abs().max()) if bool((weights.sum(-1) > 1.001).any()) else 1.0
        wanted = [[colour(weight, limit, signed=False) for weight in row] for row in weights.tolist()]
        assert (colours == np.array(wanted)).all()
    assert "masked" not in shown.inner_text("body")
