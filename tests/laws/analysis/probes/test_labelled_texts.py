"""Labelled text goes into probes as it is: labels meet the tokens that a model reads, whatever stands around them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import glassformer as gf
from glassformer.analysis.activations import ActivationStore, record_activations
from glassformer.analysis.labelled_rows import as_read, labels_of_rows
from glassformer.analysis.probes import erasure_effects, fit_eraser, probe, sparse_probe
from glassformer.analysis.probes._probe import SITE
from glassformer.analysis.probes._rows import LabelledRows
from glassformer.data import Repeat, Senses, ZhEnConfig, bytes_tokenizer
from glassformer.data.labels import (
    LabelledText,
    copy_labels,
    pronoun_labels,
    python_labels,
    sense_labels,
    zh_en_labels,
)
from glassformer.errors import AnalysisUnavailable, DataError, ShapeMismatch, TextError
from glassformer.handmade import induction_model, repeated
from glassformer.models import Decoder, DecoderConfig, block
from glassformer.testing import close

CODES = [f"def f{i}(x):\n    return x + {i}  # {'more ' * i}\n" for i in range(4)]


def reader(max_len: int = 80) -> Decoder:
    """Return a model of bytes, whose tokenizer puts `<bos>` before a text."""
    tokenizer = bytes_tokenizer()
    layer = block(n_heads=2)
    shape = DecoderConfig(vocab_size=tokenizer.vocab_size, d_model=8, max_len=max_len, layers=(layer,))
    model = shape.build(0)
    model.tokenizer = tokenizer
    return model


def code() -> LabelledText:
    return python_labels(CODES, bytes_tokenizer())


def of_another_tokenizer() -> LabelledText:
    return LabelledText(replace(one, ids=tuple(reversed(one.ids))) for one in code())


def store_of(model: Any, texts: Any, folder: Path, **options: Any) -> ActivationStore:
    return record_activations(model, texts, "blocks.0.resid_post", folder, **options)


def classes_of(store: ActivationStore, column: Any) -> list[str | None]:
    site = store.site("blocks.0.resid_post")
    rows = LabelledRows.of(site, column, 2, 0)
    return [rows.classes[label] if label >= 0 else None for label in rows.labels.tolist()]


def test_labels_stand_behind_what_is_put_before_a_text(tmp_path: Path) -> None:
    model, labelled = reader(), code()
    column = labelled.column("kind")
    expected = [None, *labelled[0].classes["kind"], None, *labelled[1].classes["kind"]]
    found = classes_of(store_of(model, labelled, tmp_path / "as labelled"), column)
    assert found[: len(expected)] == expected and len(found) == sum(len(one.ids) + 1 for one in labelled)
    # texts that the model reads itself, and rows without what opens them
    assert classes_of(store_of(model, CODES, tmp_path / "as texts"), column) == found
    bare = [one for document in labelled for one in document.classes["kind"]]
    rows = [list(document.ids) for document in labelled]
    assert classes_of(store_of(model, rows, tmp_path / "bare"), column) == bare
    dropped = store_of(model, labelled, tmp_path / "dropped", drop=["begin"])
    assert classes_of(dropped, column) == bare


def test_a_probe_of_labelled_text_is_that_of_labels_by_position() -> None:
    model, labelled = reader(), code()
    by_name = probe(model, labelled, "kind", sites="blocks.0.resid_post", folds=2)
    column = labelled.column("kind")
    labels = [torch.full((len(one.ids) + 1,), -1) for one in labelled]
    for document, token, label in zip(column.document, column.token, column.label):
        labels[document][token + 1] = label
    by_position = probe(model, CODES, labels, sites="blocks.0.resid_post", folds=2)
    close(by_name.accuracy.values, by_position.accuracy.values)
    assert by_name.classes == column.classes and by_name.direction[0].coords["class"] == list(column.classes)
    assert erasure_effects(model, labelled, "kind", sites="blocks.0.resid_post", folds=2).told.values[
        0, 0
    ] == pytest.approx(float(by_name.accuracy.select(told_by=SITE).values[0]))
    assert fit_eraser(model, labelled, "text", "blocks.0.resid_post").rank == 1
    numbers = column.one_vs_rest("number")
    assert sparse_probe(model, labelled, numbers, "blocks.0.attn.z", counts=(1,), folds=2).rows == len(column.label)


def test_a_document_that_was_cut_keeps_the_labels_and_the_phrases_of_its_first_tokens() -> None:
    whole = code()
    cut = whole.cut(12)
    for one, other in zip(cut, whole):
        assert one.ids == other.ids[:12] and one.classes["kind"] == other.classes["kind"][:12]
        assert {*one.phrases} == {phrase for phrase in other.phrases if phrase.end <= 12} != set()
        assert torch.equal(one.distances(), other.distances(0, 12))
    assert whole.cut(1000)[0] is whole[0]
    with pytest.raises(TextError, match=r"document 0 has \d+ tokens, .* room for 19: give labelled.cut\(19\)"):
        as_read(reader(20), whole)
    assert [len(row) for row in as_read(reader(20), whole.cut(19))] == [20] * 4


@pytest.mark.parametrize(
    ("labelled", "labels", "error", "said"),
    [
        (CODES, "kind", ShapeMismatch, 'labels="kind" names a property of labelled text'),
        (of_another_tokenizer(), "kind", ShapeMismatch, "(?s)labels of document 0 are of .* model's own tokenizer"),
        (code(), "kinds", DataError, 'no property "kinds"'),
        ((code(), code()), "kind", AnalysisUnavailable, "others take one"),
        (CODES[1:], code().column("kind"), ShapeMismatch, "3 documents, and the labelled text has 4"),
        (CODES[::-1], code().column("kind"), ShapeMismatch, "document 0 was read as other tokens"),
    ],
)
def test_labels_that_do_not_fit_are_refused(labelled: Any, labels: Any, error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        probe(reader(), labelled, labels, sites="blocks.0.resid_post", folds=2)


@pytest.mark.parametrize("kind", ["name", "number"])
def test_one_class_against_the_rest_is_one_against_zero_whatever_it_is_called(kind: str, tmp_path: Path) -> None:
    labelled = code()
    store = store_of(reader(), labelled, tmp_path / "store")
    rows = LabelledRows.of(store.site("blocks.0.resid_post"), labelled.column("kind").one_vs_rest(kind), 2, 0)
    kinds = [told for one in labelled for told in (None, *one.classes["kind"])]
    assert rows.labels.tolist() == [-1 if told is None else int(told == kind) for told in kinds]
    assert rows.classes == (f"not {kind}", kind)


def test_classes_that_are_not_there_are_named() -> None:
    with pytest.raises(DataError, match=r'no class "numbr"\. Nearest: "number"'):
        code().column("kind").one_vs_rest("numbr")


@pytest.mark.full
def test_sources_and_targets_have_labels_of_their_own() -> None:
    model, data = gf.load("zh-en"), ZhEnConfig().build()
    pairs = [*data.pairs("heldout", 24)]
    both = tuple(zh_en_labels(pairs, data.tokenizer, language) for language in ("zh", "en"))
    found = probe(model, both, "part", sites="*.resid_post", folds=3)
    layers = found.accuracy.coords["site"]
    assert {str(name).split(".")[0] for name in layers} == {"encoder", "decoder"}
    assert {"aspect", "auxiliary"} < {*found.classes}
    told = found.accuracy.select(told_by=SITE).values
    assert (told > found.accuracy.select(told_by="majority").values + 0.2).all()
    with pytest.raises(AnalysisUnavailable, match="both sides"):
        probe(model, both[0], "part")
    with pytest.raises(ShapeMismatch, match="24 labelled sources and 3 targets"):
        probe(model, (both[0], LabelledText(both[1][:3])), "part")


def test_whether_a_token_came_before_is_told_behind_the_head_that_looks_for_it() -> None:
    rows = repeated(vocab=9, batch=24)
    found = probe(induction_model(vocab=9, max_len=17), copy_labels(rows), "seen", sites=["embed.*", "resid_post"])
    told = found.accuracy.select(told_by=SITE).values
    assert float(told[-1]) > 0.9 > float(told[0])


@pytest.mark.full
@pytest.mark.parametrize("source", ["python", "copies", "senses", "pronouns"])
def test_shipped_models_are_asked_of_every_kind_of_label(source: str) -> None:
    name, label = {
        "python": ("gpt-4l", "kind"), "copies": ("attn-only-2l", "seen"), "senses": ("prose-4l", "sense of creatures"),
        "pronouns": ("prose-4l", "it means"),
    }[source]  # fmt: skip
    model: Any = gf.load(name)
    senses = Senses().build()
    labelled = {
        "python": lambda: python_labels([*map(Path, (__file__, pytest.__file__)), *CODES], model.tokenizer).cut(200),
        "copies": lambda: copy_labels(Repeat(vocab_size=90, length=100).build().batch(0).tokens[:8]),
        "senses": lambda: sense_labels(
            [senses.tokenizer.decode(row) for row in senses.batch(2).tokens[:8].tolist()], model.tokenizer
        ),
        "pronouns": lambda: pronoun_labels(24, model.tokenizer),
    }[source]()
    found = probe(model, labelled, label, folds=2)
    column: Tensor = labelled.column(label).label
    assert found.rows == len(column) and bool((found.accuracy.select(told_by=SITE).values > 0).all())


def test_rows_of_other_documents_have_no_labels() -> None:
    labelled = copy_labels(torch.tensor([[4, 5, 4], [6, 6, 7]]))
    column = labelled.column("back")
    # what is put before, and behind
    tokens, documents = torch.tensor([0, 4, 5, 4, 1, 0, 6, 6, 7, 1]), torch.tensor([0] * 5 + [1] * 5)
    positions = torch.arange(5).repeat(2)
    found = labels_of_rows(tokens, documents, positions, column)
    expected = [None, None, None, "2", None, None, None, "1", None, None]
    assert [column.classes[i] if i >= 0 else None for i in found.tolist()] == expected
    tokens[-2] = 8
    with pytest.raises(ShapeMismatch, match="document 1 was read as other tokens"):
        labels_of_rows(tokens, documents, positions, column)
