"""A model of images that is served: runs name images, and what is answered about them is the library's own."""

import json
import zlib
from base64 import urlsafe_b64decode
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glassformer as gf
from explanations import of_images
from glassformer.cli import main
from glassformer.cli.images import served_images
from glassformer.data import Shapes
from glassformer.errors import ConfigError, DataError, TextError, WrongArgument
from glassformer.models import LearnedGrid, Mlp, Patches, block, image_encoder, image_generator
from glassformer.serve.permalink import Opened
from glassformer.serve.questions import QUESTIONS
from glassformer.training import TrainConfig, train
from served import Served, agree, values_of

DATA = Shapes()
NAMES = ["shapes:0", "shapes:2"]
# what has to have tokens, a vocabulary of what is read, or what this model has none of
REFUSED = {
    "added-token", "memories", "features", "backward", "roles", "lesson", "circuit", "copying", "skip-trigrams",
    "scores",
}  # fmt: skip
OF_HEADS = {"head": "/L1H1", "row": "/L1H1/-1", "head of a model": "/L1H1"}


def opens(model: Any, source: str) -> Any:
    return served_images(model, source, NAMES)


@pytest.fixture(scope="module")
def served() -> Served:
    models = {"vision": of_images(), "mean": of_images(class_token=False), "text": gf.load("attn-only-1l")}
    return Served(models, images=opens)


def pixels(name: str) -> torch.Tensor:
    return DATA.build().batch(0, "heldout").tokens[int(name.rpartition(":")[2])]


def refusal(served: Served, **spec: Any) -> tuple[str, str]:
    found = served.post("runs", json=spec)
    assert found.status_code == 400, found.text
    return found.json()["fault"]["code"], found.json()["fault"]["message"]


@pytest.mark.parametrize(("name", "outside"), [("vision", 1), ("mean", 0)])
def test_every_question_of_an_image_is_answered_as_its_code_does_or_refused_in_a_sentence(
    served: Served, name: str, outside: int
) -> None:
    card = served.run(name, None, image="shapes:2")
    assert [(one["id"], one["text"]) for one in card["tokens"][:outside]] == [(None, "class")] * outside
    assert [one["text"] for one in card["tokens"][outside:]] == [f"{i + 1},{j + 1}" for i in range(4) for j in range(4)]
    refused = set[str]()
    for question, one in QUESTIONS.items():
        of = f"runs/{card['id']}" if one.of in ("run", "head", "row") else f"models/{name}"
        address = f"{of}/{question}{OF_HEADS.get(one.of, '')}"
        if (found := served.get(address, params={"form": "frame"})).status_code != 200:
            assert found.status_code == 422, (address, found.text)
            refused.add(question)
            continue
        copied = served.copied(served.ask(address)["python"])["found"]
        for array, sent in served.arrays(address).items():
            agree(sent, values_of(copied, array))
    assert refused == REFUSED


def test_the_image_is_the_tensor_that_was_read_and_weights_lie_on_its_grid(served: Served) -> None:
    model, run = served.models["vision"], served.run("vision", None, image="shapes:2")["id"]
    told = served.ask(f"runs/{run}/image")
    assert torch.equal(torch.tensor(told["arrays"]["image"]["values"]), pixels("shapes:2"))
    rows, columns, outside = told["facts"]["grid"]
    assert model.patches is not None and (rows, columns, outside) == (*model.patches.grid, 1)
    pattern = gf.run(model, pixels("shapes:2"), read=["L1H1.pattern"])["L1H1.pattern"].values[0]
    for query in (0, 5, 16):
        weights = served.arrays(f"runs/{run}/row/L1H1/{query}")["weights"]
        agree(weights, pattern[query])
        assert len(weights) == outside + rows * columns


def test_a_run_of_an_image_may_be_changed_swept_and_compared(served: Served) -> None:
    one, other = (served.run("vision", None, image=name)["id"] for name in NAMES)
    off = served.run(
        "vision", None, image=NAMES[0], changes=[{"edit": "set", "site": "L0H1.z", "value": {"run": other}}]
    )
    names = served.copied(off["python"])
    model = served.models["vision"]
    lent = gf.run(model, pixels(NAMES[1]), read=["L0H1.z"])
    expected = gf.run(model, pixels(NAMES[0]), edit=[gf.Set("L0H1.z", lent)]).logits
    torch.testing.assert_close(names["run"].logits, expected)
    assert expected is not None and off["top"][0]["ids"][0] == int(expected[0, 0].argmax())
    less = served.arrays(f"runs/{other}/image", minus=one)["image"]
    torch.testing.assert_close(less, pixels(NAMES[1]) - pixels(NAMES[0]))
    for said in ({"sweep": "ablate_heads"}, {"sweep": "patch_positions", "donor": other}):
        answer = served.post("sweeps", json={"run": one, "position": 0, **said})
        first, *cells = map(json.loads, answer.text.splitlines())
        found = served.copied(first["python"])["found"].values.values.flatten()
        agree(torch.tensor([cell["value"] for cell in cells]), found)


def test_what_a_model_does_not_read_is_refused_with_what_would_do(served: Served) -> None:
    code, said = refusal(served, model="vision", image="shapes:3")
    assert code == "WrongArgument" and 'Nearest: "shapes:2"' in said and "Images: shapes:0, shapes:2." in said
    code, said = refusal(served, model="vision", text="a text")
    assert code == "TextError" and 'give "image", one that it is served with. Images: shapes:0, shapes:2.' in said
    code, said = refusal(served, model="text", image="shapes:0")
    assert code == "TextError" and 'give "text" or "ids"' in said
    for more in ({"text": "a"}, {"ids": [1]}):
        code, said = refusal(served, model="vision", image="shapes:0", **more)
        assert code == "ConfigError" and "a run reads one of them" in said
    run = served.run("vision", None, image="shapes:0")["id"]
    assert served.post("generate", json={"run": run}).status_code == 422
    run = served.run("text", "import os")["id"]
    assert "this model reads texts" in served.get(f"runs/{run}/image").json()["fault"]["message"]
    served.get("models")
    cards = {card["id"]: card["images"] for card in served.ask("models")}
    assert cards == {"vision": NAMES, "mean": NAMES, "text": []}


def test_another_image_of_the_same_name_is_another_run(served: Served) -> None:
    swapped = dict(zip(NAMES, reversed(opens(served.models["vision"], "").values())))
    other = Served(served.models, images=lambda model, source: swapped)
    ids = [one.run("vision", None, image=NAMES[0])["id"] for one in (served, other, served)]
    assert ids[0] == ids[2] != ids[1]


def test_files_and_sets_are_served_with_the_code_that_reads_them(tmp_path: Path) -> None:
    picture = pytest.importorskip("PIL.Image")
    model, found = of_images(channels=3), {}
    colours = np.random.default_rng(0).integers(0, 255, (16, 16, 3)).astype("uint8")
    picture.fromarray(colours).save(tmp_path / "a.png")
    np.save(tmp_path / "a.npy", np.moveaxis(colours, -1, 0) / 255)
    for name, one in served_images(model, "", [str(tmp_path / "a.png"), str(tmp_path / "a.npy")]).items():
        names: dict[str, Any] = {}
        exec("\n".join([*one.imports, f"image = {one.code}"]), names)
        assert model.patches is not None
        assert torch.equal(model.patches.images(names["image"], one.pixels), one.pixels)
        found[name] = one.pixels
    assert torch.equal(*found.values())
    with pytest.raises(DataError, match="there is no image"):
        served_images(model, "", ["none.png"])
    with pytest.raises(ConfigError, match="start the server with some, each behind --image"):
        served_images(model, "", [])


def test_a_run_folder_brings_held_out_images_of_its_data(tmp_path: Path) -> None:
    layer = block(n_heads=2, mlp=Mlp(8))
    config = image_encoder(Patches((10, 10), 5, class_token=True), 8, (layer,), 5, positions=LearnedGrid())
    data = Shapes(batch_size=4, size=10, task="kind")
    train(TrainConfig(config, data, steps=1, evaluate_batches=1, device="cpu"), tmp_path / "run")
    found = served_images(gf.load(tmp_path / "run"), str(tmp_path / "run"), [])
    assert list(found) == [f"shapes:{i}" for i in range(6)]
    names: dict[str, Any] = {}
    exec("\n".join([*found["shapes:5"].imports, f"image = {found['shapes:5'].code}"]), names)
    expected = data.build().batch(1, "heldout").tokens[1]
    assert torch.equal(names["image"], expected) and torch.equal(found["shapes:5"].pixels[0], expected)


def test_a_model_without_images_and_one_that_makes_them_say_so() -> None:
    served = Served({"vision": of_images()})
    for given in ({"text": "a"}, {"image": "shapes:0"}):
        code, said = refusal(served, model="vision", **given)
        assert code == "TextError" and said == '"vision" reads images, and none is served with it.'
    config = image_generator(Patches((16, 16), 4), 16, (block(n_heads=2, mlp=Mlp(16)),), 5, positions=LearnedGrid())
    with pytest.raises(ConfigError, match="glassformer generate NAME CLASSES"):
        served_images(config.build(), "NAME", ["shapes:0"])


def test_the_page_opens_with_an_image_and_no_text() -> None:
    model = of_images()
    packed = Opened(image="shapes:2", head="L1H1").fragment("vision", model).partition("1.")[2]
    state = json.loads(zlib.decompress(urlsafe_b64decode(packed + "=" * (-len(packed) % 4)), wbits=-zlib.MAX_WBITS))
    assert state == {
        "a": {"model": "vision", "image": "shapes:2"}, "level": 2, "head": "L1H1", "query": 0, "key": 0,
    }  # fmt: skip
    assert Opened().fragment("vision", model) == ""
    with pytest.raises(TextError, match="leave --text out"):
        Opened(text="a").fragment("vision", model)
    with pytest.raises(WrongArgument):
        Opened(image="shapes:2", head="L9H1").fragment("vision", model)


def test_serving_says_which_images_it_needs(tmp_path: Path, capsys: Any) -> None:
    gf.save(of_images(), tmp_path / "saved")
    assert main(["serve", str(tmp_path / "saved"), "--no-browser"]) == 2
    assert "start the server with some, each behind --image: a file" in capsys.readouterr().err
    assert main(["serve", str(tmp_path / "saved"), "--no-browser", "--image", "none.png"]) == 2
    assert 'there is no image "none.png"' in capsys.readouterr().err
    assert main(["serve", "attn-only-1l", "--no-browser", "--image", "shapes:0"]) == 2
    assert "--image: attn-only-1l reads text" in capsys.readouterr().err
