"""Dictionaries that ship: made by a command, found and loaded by name, small, of their model, with a card."""

import argparse
import dataclasses
import json
import random
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import glassformer as gf
from glassformer import checkpoints
from glassformer.analysis.dictionaries import (
    TopK,
    attach,
    dictionaries_in,
    dictionary_quality,
    fit_dictionary,
    load_dictionary,
)
from glassformer.cli import main
from glassformer.data import TextConfig, bytes_tokenizer
from glassformer.data.tokenizer import Tokenizer
from glassformer.errors import CheckpointError, ConfigError, UnknownModel
from glassformer.files import packaged
from glassformer.models import DecoderConfig, Mlp, block, repeat
from glassformer.testing import close
from glassformer.training.recipes import recipe
from glassformer.zoo import dictionaries, dictionary_card, dictionary_cards

SITE, ZOO = "blocks.1.resid_post", Path(gf.__file__).parent / "zoo"
NAME = f"tiny/{SITE}"
MOST, MOST_OF_ALL = 3 * 10**6, 32 * 10**6  # bytes of a dictionary, and of all weights that ship
TEXT = TextConfig(sources=("notes",), vocab_size=257, length=32, batch_size=2, heldout=0.4)
SHIPPED = packaged.shipped_dictionaries()


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with one small model, and text that it reads."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(packaged, "resources", lambda package: tmp_path)
    torch.manual_seed(0)
    tokenizer = bytes_tokenizer()
    model = DecoderConfig(tokenizer.vocab_size, 12, repeat(block(n_heads=2, mlp=Mlp(16)), 3), max_len=32).build()
    model.tokenizer = tokenizer
    checkpoints.save(model, "zoo/tiny")
    Path("notes").mkdir()
    draw = random.Random(0)
    for i in range(8):
        Path("notes", f"{i}.txt").write_text("".join(draw.choices("abcdefgh ", k=300)))
    monkeypatch.setattr(dictionaries, "recipe", lambda name: recipe("gpt-4l").replace(data=TEXT, evaluate=TEXT))
    return tmp_path


def trained(folder: str, site: str = SITE) -> Path:
    """Train a dictionary of the small model for a few steps on its text."""
    model, text = gf.load("tiny"), TEXT.build(bytes_tokenizer())
    batches = [text.batch(step, "train") for step in range(8)]
    fit_dictionary(model, batches, site, lambda d_in: TopK(d_in, 4 * d_in, k=3), folder, steps=20, batch_size=64)
    return Path(folder)


def test_a_dictionary_is_shipped_and_found_by_its_name(zoo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finished = trained("run")
    card = dictionaries.build(NAME, finished)
    place = zoo / "zoo/tiny/dictionaries" / SITE
    assert packaged.shipped_dictionaries() == [NAME] and dictionary_cards() == {NAME: card}
    (found,) = dictionaries_in("tiny", gf.load("tiny"))
    assert (found.name, found.folder) == (NAME, place) and found.facts["model"] == "tiny"
    assert dictionaries_in("tiny", other()) == []
    assert f"{load_dictionary(NAME)}" == f"{load_dictionary(finished)}"
    # what the card says is of what is stored, and not far from what was trained
    stored = load_file(place / "sae_weights.safetensors")
    assert stored["W_enc"].dtype == stored["W_dec"].dtype == torch.float16 and stored["b_dec"].dtype == torch.float32
    assert card.dtype == "float16" and card.config["k"] == 3 and card.training["texts"] == 16
    assert card.figures["fvu"] == pytest.approx(card.as_trained["fvu"], abs=1e-3) and card.figures["l0"] <= 3
    assert card.figures["fvu_behind_bos"] == pytest.approx(card.as_trained["fvu_behind_bos"], abs=1e-3)
    assert sum(card.density.values()) == 48
    said = card.to_markdown()
    assert f"glassformer features train tiny --site {SITE} --kind topk --width 48 --sparsity 3 --rows 16" in said
    assert "not shown" in said and "of 48 features" in said
    assert found.facts["held_out"]["fvu"] == card.figures["fvu"]
    # and measured again it says the same
    assert dataclasses.replace(dictionaries.refresh(NAME), as_trained={}) == dataclasses.replace(card, as_trained={})
    assert main(["models", NAME, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["figures"] == card.figures


def other() -> Any:
    return DecoderConfig(300, 12, repeat(block(n_heads=2, mlp=Mlp(16)), 3), max_len=32).build()


def test_commands_take_a_dictionary_by_its_name(zoo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dictionaries.build(NAME, trained("run"))
    assert main(["features", "list", "tiny", "--json", "list.json"]) == 0
    assert NAME in capsys.readouterr().out
    (listed,) = json.loads(Path("list.json").read_text())
    assert listed["name"] == NAME and listed["site"] == SITE
    # those that were trained stand beside it; asked for a folder, those in it
    trained("runs/features/tiny/mine", "blocks.0.resid_post")
    assert main(["features", "list", "tiny", "--json", "list.json"]) == 0
    assert [one["site"] for one in json.loads(Path("list.json").read_text())] == [SITE, "blocks.0.resid_post"]
    assert main(["features", "list", "tiny", "runs"]) == 0
    assert NAME not in capsys.readouterr().out.splitlines()[-1]
    assert main(["features", "show", "tiny"]) == 2
    assert f"One ships: {NAME}" in capsys.readouterr().err
    assert main(["features", "show", "tiny", NAME, "--data", "notes", "--top", "2"]) == 0
    assert main(["generate", "tiny", "abc", "--dictionary", NAME, "--features", "1=4", "--max-new-tokens", "2"]) == 0


def test_a_name_stands_for_what_ships_where_no_folder_has_it(zoo: Path) -> None:
    dictionaries.build(NAME, trained("run"))
    model = gf.load("tiny")
    names = attach(model, NAME).sites()
    assert f"{SITE}.features" in names and f"{SITE}.error" in names
    with pytest.raises(CheckpointError, match=f'there is no such folder. Nearest: "{NAME}"'):
        load_dictionary("tiny/blocks.1.resid_pos")
    with pytest.raises(UnknownModel, match=f'Nearest: "{NAME}"'):
        dictionary_card("tiny/blocks.1.resid_pos")
    # a folder is meant before a name
    fit_dictionary(model, [[1, 2, 3, 4]], SITE, lambda d_in: TopK(d_in, 5, k=1), NAME, steps=1)
    assert load_dictionary(NAME).config.n_features == 5 and load_dictionary(zoo / NAME).config.n_features == 5


def test_what_is_no_dictionary_of_the_model_is_not_shipped(zoo: Path) -> None:
    finished = trained("run", "blocks.0.resid_post")
    with pytest.raises(ConfigError, match=r"and not of blocks\.1\.resid_post"):
        dictionaries.build(NAME, finished)
    said = json.loads((finished / "cfg.json").read_text())
    (finished / "cfg.json").write_text(json.dumps(said | {"glassformer": facts_with(said, data=["notes"])}))
    with pytest.raises(ConfigError, match="of other text than that of the recipe of tiny"):
        dictionaries.build("tiny/blocks.0.resid_post", finished)
    (finished / "cfg.json").write_text(json.dumps(said))
    moved = gf.load("tiny")
    with torch.no_grad():
        next(moved.parameters()).mul_(2)
    checkpoints.save(moved, "zoo/tiny")
    with pytest.raises(CheckpointError, match="of another model"):
        dictionaries.build("tiny/blocks.0.resid_post", finished)
    assert packaged.shipped_dictionaries() == []


def facts_with(said: dict[str, Any], **facts: Any) -> dict[str, Any]:
    """Return our own part of what a folder says, with other facts."""
    own = said["glassformer"]
    return own | {"facts": own["facts"] | facts}


@pytest.mark.parametrize("name", SHIPPED)
def test_a_dictionary_that_ships_is_small_and_features_and_error_are_its_site(name: str) -> None:
    of, _, site = name.partition("/")
    model = gf.load(of)
    folder, card = packaged.shipped_dictionary(name), dictionary_card(name)
    assert sum(path.stat().st_size for path in folder.iterdir()) <= MOST
    assert {*folder.iterdir()} <= packed()
    dictionary = load_dictionary(name).double()
    assert dictionary.facts["digest"] == card.digest and card.name == name and card.about == dictionaries.ABOUT[name]
    ids = torch.randint(3, 2000, (2, 24), generator=torch.Generator().manual_seed(0))
    # which refuses one of other weights; all parts are shared, so that both are in double precision
    split = attach(model, name).double()
    whole, told = gf.run(model, ids, read=[site]), gf.run(split, ids, read=[site, f"{site}.features", f"{site}.error"])
    assert whole.logits is not None and told.logits is not None and torch.equal(whole.logits, told.logits)
    features = told[f"{site}.features"].values
    close(dictionary.decode(features) + told[f"{site}.error"].values, whole[site].values)
    assert (features > 0).sum(-1).max() <= dictionary.config.k


def packed() -> set[Path]:
    """Return the files that a wheel has beside its modules."""
    settings = tomllib.loads((ZOO.parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    return {
        path for one in settings["tool"]["setuptools"]["package-data"]["glassformer"] for path in ZOO.parent.glob(one)
    }


def test_the_dictionary_of_gpt_4l_leaves_little_of_python_and_behind_bos_about_what_its_card_says() -> None:
    name, site = "gpt-4l/blocks.2.resid_post", "blocks.2.resid_post"
    assert name in SHIPPED
    model, dictionary, figures = gf.load("gpt-4l"), load_dictionary(name), dictionary_card(name).figures
    text, tokenizer = Path(argparse.__file__).read_text(encoding="utf-8"), model.tokenizer
    assert isinstance(tokenizer, Tokenizer) and tokenizer.bos is not None
    ids = torch.tensor(tokenizer.encode(text[len(text) // 2 :][:4000])[:1024]).view(4, 256)
    behind_bos = torch.cat((torch.full((4, 1), tokenizer.bos), ids[:, :-1]), 1)

    def left(tokens: Tensor) -> float:
        return dictionary_quality(dictionary, gf.run(model, tokens, read=[site])[site].values[:, 1:].flatten(0, 1)).fvu

    assert left(ids) < 0.1 and figures["fvu"] < 0.1
    # another text than those of the card
    assert left(behind_bos) == pytest.approx(figures["fvu_behind_bos"], rel=0.4)


def test_all_weights_that_ship_are_small_together() -> None:
    assert sum(path.stat().st_size for path in ZOO.rglob("*.safetensors")) <= MOST_OF_ALL


@pytest.mark.parametrize("name", SHIPPED)
def test_storing_a_dictionary_in_half_precision_hardly_changes_what_it_is_worth(name: str) -> None:
    card = dictionary_card(name)
    for figure, most in {"fvu": 1e-3, "l0": 0.1, "loss_spliced": 1e-3, "dead": 5e-3}.items():
        assert abs(card.figures[figure] - card.as_trained[figure]) <= most
