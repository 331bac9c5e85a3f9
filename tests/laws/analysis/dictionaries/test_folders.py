"""Dictionaries from texts, in folders: the same as by hand, gone on with after a stop, found again, never replaced."""

from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer.analysis import dictionaries
from glassformer.analysis.activations import record_activations
from glassformer.analysis.dictionaries import DictionaryStep, Relu, SparseAutoencoder, TopK
from glassformer.errors import AnalysisUnavailable, CheckpointError, UnknownSite
from glassformer.labelled import Labelled
from glassformer.testing.models import subject

SITE, STEPS = "blocks.1.resid_post", 6
TEXTS = [[1 + (i * j) % 9 for j in range(1, 9)] for i in range(6)]


@pytest.fixture(scope="module")
def model() -> Any:
    return subject("gpt2").model


def fit(model: Any, folder: Path, **options: Any) -> SparseAutoencoder:
    settings = {"steps": STEPS, "batch_size": 8, **options}
    return dictionaries.fit_dictionary(model, TEXTS, SITE, lambda d_in: TopK(d_in, 2 * d_in, k=3), folder, **settings)


def alike(one: SparseAutoencoder, other: SparseAutoencoder) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_one_call_gives_what_recording_and_training_by_hand_give(model: Any, tmp_path: Path) -> None:
    made = fit(model, tmp_path / "one")
    store = record_activations(model, TEXTS, [SITE], tmp_path / "rows", dtype="float16", drop=["begin"])
    rows = store.site(SITE)
    config = TopK(rows.width, 2 * rows.width, k=3)
    by_hand = dictionaries.train_dictionary(rows, config, steps=STEPS, batch_size=8)
    assert alike(made, by_hand) and made.facts["site"] == SITE
    torch.testing.assert_close(dictionaries.load_dictionary(tmp_path / "one").W_dec, made.W_dec)


def test_a_training_that_was_stopped_goes_on_to_the_same_numbers(model: Any, tmp_path: Path) -> None:
    def stop(step: DictionaryStep) -> None:
        if step.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(model, tmp_path / "stopped", report=stop)
    assert dictionaries.dictionaries_in(tmp_path) == []
    seen: list[int] = []
    again = fit(model, tmp_path / "stopped", report=lambda step: seen.append(step.step))
    assert seen == [4, 5, 6] and alike(again, fit(model, tmp_path / "whole"))
    # what is finished is not done again
    seen.clear()
    assert alike(fit(model, tmp_path / "stopped", report=lambda step: seen.append(step.step)), again) and not seen


def test_dictionaries_are_found_below_a_folder_by_their_model(model: Any, tmp_path: Path) -> None:
    fit(model, tmp_path / "b")
    fit(model, tmp_path / "a", seed=1)
    dictionaries.save_dictionary(Relu(4, 6).build(), tmp_path / "of" / "nobody")
    found = dictionaries.dictionaries_in(tmp_path, model)
    assert [one.folder.name for one in found] == ["a", "b", "nobody"]
    assert [one.config.kind for one in found] == ["topk", "topk", "relu"] and found[0].facts["seed"] == 1
    other = subject("gpt2", seed=3).model
    assert [one.folder.name for one in dictionaries.dictionaries_in(tmp_path, other)] == ["nobody"]
    assert len(dictionaries.dictionaries_in(tmp_path)) == 3
    (tmp_path / "a" / "cfg.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot read a dictionary"):
        dictionaries.dictionaries_in(tmp_path)


def test_a_dictionary_of_another_model_is_refused_although_its_site_is_missing(model: Any, tmp_path: Path) -> None:
    made = fit(model, tmp_path)
    made.facts = {**made.facts, "site": "blocks.7.resid_post"}
    with pytest.raises(CheckpointError, match="of another model"):
        dictionaries.attach(subject("gpt2", seed=3).model, made)


def test_a_folder_of_something_else_is_left_as_it_is(model: Any, tmp_path: Path) -> None:
    place = dictionaries.save_dictionary(Relu(4, 6).build(), tmp_path / "elsewhere")
    before = (place / "cfg.json").read_bytes()
    with pytest.raises(CheckpointError, match="trained elsewhere"):
        fit(model, place)
    assert (place / "cfg.json").read_bytes() == before
    fit(model, tmp_path / "mine")
    with pytest.raises(CheckpointError, match="another dictionary"):
        fit(model, tmp_path / "mine", seed=1)


def test_a_name_is_of_one_site_there_is(model: Any, tmp_path: Path) -> None:
    for site, error in (("resid_pos", UnknownSite), ("resid_post", AnalysisUnavailable)):
        with pytest.raises(error):
            dictionaries.fit_dictionary(model, TEXTS, site, lambda d_in: TopK(d_in, 4, k=1), tmp_path / site, steps=1)


def test_features_are_counted_by_how_often_they_fire() -> None:
    density = torch.tensor([0.0, 0.0, 5e-5, 1e-4, 0.02, 0.1, 1.0], dtype=torch.float64)
    quality = dictionaries.DictionaryQuality(
        density=Labelled(density, ("feature",)), l0=1.0, dead=2 / 7, explained_variance=1.0, cosine=1.0,
        norm_ratio=1.0, bias=1.0, rows=1,
    )  # fmt: skip
    counts = quality.by_density
    assert counts.values.tolist() == [2, 1, 1, 0, 1, 2] and counts.labels("density")[0] == "0"
    assert int(counts.values.sum()) == len(density)
