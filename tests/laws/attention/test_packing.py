"""Text batches: every token once, documents told apart, the same batch for the same step."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from glassformer.data import Document, MixtureConfig, Repeat, TextConfig, bytes_tokenizer
from glassformer.data.text.corpus import Stream, TextData, _cut, pack, split_documents
from glassformer.data.text.sources import read_source
from glassformer.errors import ConfigError

BOS = 256
DOCUMENTS = st.lists(st.lists(st.integers(0, 255), max_size=9), min_size=1, max_size=8)


def expected_stream(documents):
    return [token for ids in documents for token in [BOS, *ids]]


def same(one, two):
    assert one.tensors().keys() == two.tensors().keys()
    for name, value in one.tensors().items():
        assert torch.equal(value, two.tensors()[name])


@pytest.fixture
def folder(tmp_path):
    for i in range(40):
        (tmp_path / f"{i:02}.txt").write_text(f"document {i} " * (i % 7 + 1))
    return tmp_path


@given(documents=DOCUMENTS, length=st.integers(1, 7))
def test_cutting_makes_every_token_a_target_exactly_once(documents, length):
    stream = Stream.of(documents, BOS)
    rows = [stream.row(k * length, length) for k in range(stream.cuts(length))]
    whole = expected_stream(documents)
    if len(whole) == 1:
        assert not rows
        return
    batch = pack(rows)
    assert batch.targets[batch.weight].tolist() == whole[1:]
    assert batch.tokens[batch.weight].tolist() == whole[:-1]


@given(documents=DOCUMENTS, length=st.integers(1, 7))
def test_streamed_cuts_equal_the_cuts_in_memory(documents, length):
    stream = Stream.of(documents, BOS)
    streamed = list(_cut(iter(documents), BOS, length))
    assert len(streamed) == stream.cuts(length)
    for k, row in enumerate(streamed):
        same(pack([row]), pack([stream.row(k * length, length)]))


@given(documents=DOCUMENTS, length=st.integers(1, 7), data=st.data())
def test_document_ids_change_exactly_at_bos(documents, length, data):
    stream = Stream.of(documents, BOS)
    start = data.draw(st.integers(0, max(0, stream.size - 2)))
    batch = pack([stream.row(start, length)])
    real = int(batch.weight.sum()) + (start + length >= stream.size - 1 and not bool(batch.weight.all()))
    documents = torch.zeros_like(batch.tokens) if batch.documents is None else batch.documents
    tokens, ids = batch.tokens[0, :real], documents[0, :real]
    assert ids[0] == 0
    assert (ids.diff() == (tokens[1:] == BOS)).all()
    assert (documents[0, real:] == ids[-1] + 1).all()
    assert (batch.documents is None) == (not documents.any())


def test_a_document_comes_back_from_the_stream():
    documents = [[1, 2, 3], [], [4]]
    assert list(Stream.of(documents, BOS).documents()) == documents
    assert list(Stream.of(documents, None).documents()) == documents


@pytest.mark.parametrize("crop", ["random", "cut"])
@pytest.mark.parametrize("row_bos", [False, True])
def test_a_batch_depends_only_on_config_split_and_step(folder, crop, row_bos):
    config = TextConfig(sources=(str(folder),), batch_size=3, length=10, heldout=0.2, crop=crop, row_bos=row_bos)
    one, two = config.build(bytes_tokenizer()), config.build(bytes_tokenizer())
    forward = [one.batch(step) for step in range(6)]
    for step in (5, 0, 3):
        same(forward[step], two.batch(step))
    assert not torch.equal(forward[0].tokens, forward[1].tokens)
    assert not torch.equal(forward[0].tokens, config.replace(seed=1).build(one.tokenizer).batch(0).tokens)
    if row_bos:
        assert (forward[0].tokens[:, 0] == BOS).all()


def test_the_share_asked_for_begins_where_a_document_does(folder):
    config = TextConfig(sources=(str(folder),), batch_size=200, length=10, heldout=0.2)
    data = config.replace(begin=1.0).build(bytes_tokenizer())
    documents = [bytes(ids[:10]) for ids in data.documents("train")]
    begun = data.batch(0)
    assert (begun.tokens[:, 0] == BOS).all()
    # a document that is shorter than the row is followed by the next
    whole = {text for text in documents if len(text) == 10}
    found = {bytes(row) for row in begun.targets.tolist() if BOS not in row}
    assert found and found <= whole
    share = float((config.replace(begin=0.25).build(data.tokenizer).batch(0).tokens[:, 0] == BOS).double().mean())
    plain = float((config.build(data.tokenizer).batch(0).tokens[:, 0] == BOS).double().mean())
    # 200 rows: three standard errors of a quarter are 0.09
    assert share - plain == pytest.approx(0.25 * (1 - plain), abs=0.1)


def test_only_rows_taken_at_random_begin_where_a_document_does(folder):
    config = TextConfig(sources=(str(folder),), begin=0.5)
    with pytest.raises(ConfigError, match="rows taken at random"):
        config.replace(crop="cut")
    with pytest.raises(ConfigError, match="rows taken at random"):
        config.replace(streaming=True)
    with pytest.raises(ConfigError, match="begin=2"):
        TextConfig(sources=(str(folder),), begin=2.0)


def test_an_epoch_of_cuts_visits_every_cut_once(folder):
    data = TextConfig(sources=(str(folder),), batch_size=4, length=16, crop="cut").build(bytes_tokenizer())
    assert isinstance(data, TextData)
    cuts = data.stream("train").cuts(16)
    rows = [row for step in range(data.epoch_steps()) for row in data.batch(step).targets.tolist()]
    expected = [data.stream("train").row(k * 16, 16).tokens[1:].tolist() for k in range(cuts)]
    assert sorted(rows[:cuts]) == sorted(expected)


def test_streaming_gives_the_same_batch_in_any_order_of_asking(folder):
    config = TextConfig(sources=(str(folder),), batch_size=4, length=16, streaming=True, shuffle_buffer=7)
    data = config.build(bytes_tokenizer())
    first = [data.batch(step).tokens for step in range(60)]  # several epochs
    fresh = config.build(bytes_tokenizer())
    for step in (40, 2, 3, 59, 0):
        assert torch.equal(fresh.batch(step).tokens, first[step])


def test_streaming_without_shuffling_reads_the_corpus_in_order(folder):
    config = TextConfig(sources=(str(folder),), batch_size=1, length=16, crop="cut")
    whole = config.build(bytes_tokenizer())
    assert isinstance(whole, TextData)
    stream = whole.stream("train")
    data = config.replace(streaming=True, shuffle_buffer=1).build(bytes_tokenizer())
    for k in range(stream.cuts(16)):
        assert torch.equal(data.batch(k).tokens, pack([stream.row(k * 16, 16)]).tokens)


@pytest.mark.full
@given(texts=st.lists(st.text(max_size=5), min_size=2, max_size=30), heldout=st.floats(0.01, 0.9))
def test_the_split_is_disjoint_complete_and_blind_to_order(texts, heldout):
    documents = [Document(str(i), text) for i, text in enumerate(texts)]
    split = split_documents(documents, heldout)
    train, held_out = ({d.text for d in split[name]} for name in ("train", "heldout"))
    assert train.isdisjoint(held_out)
    assert sorted(d.name for part in split.values() for d in part) == sorted(d.name for d in documents)
    assert {d.text for d in split_documents(documents[::-1], heldout)["heldout"]} == held_out
    assert train
    assert held_out or len(set(texts)) == 1


def test_adding_documents_moves_none_across_the_split():
    documents = [Document(str(i), f"text {i}") for i in range(400)]
    few, many = split_documents(documents[:200], 0.1), split_documents(documents, 0.1)
    assert set(few["heldout"]) <= set(many["heldout"])
    assert 20 <= len(many["heldout"]) <= 60


def test_bits_per_byte_can_be_computed(folder):
    data = TextConfig(sources=(str(folder),), heldout=0.3).build(bytes_tokenizer())
    assert isinstance(data, TextData)
    for split in ("train", "heldout"):
        assert data.n_bytes[split] == data.n_tokens[split] == sum(map(len, data.documents(split)))
    assert data.describe()["bytes"] == sum(p.stat().st_size for p in folder.iterdir())


def test_a_mixture_takes_its_shares_on_average_and_repeats_itself(folder):
    parts = (TextConfig(sources=(str(folder),)), Repeat(unit_min=3, unit_max=5))
    config = MixtureConfig(parts=parts, shares=(0.7, 0.3), batch_size=4, length=12)
    one, two = config.build(bytes_tokenizer()), config.build(bytes_tokenizer())
    counts = np.array([one.counts(step) for step in range(2000)])
    assert (counts.sum(1) == 4).all()
    assert (np.abs(counts - [2.8, 1.2]) < 1).all()
    assert abs(counts[:, 1].mean() - 1.2) < 0.05
    for step in (9, 0, 4):
        same(one.batch(step), two.batch(step))
    assert one.batch(0).tokens.shape == (4, 12)


def test_parts_of_one_kind_do_not_repeat_each_other():
    config = MixtureConfig(parts=(Repeat(unit_min=3, unit_max=5),) * 2, shares=(0.5, 0.5), batch_size=8)
    tokens = config.build(bytes_tokenizer()).batch(0).tokens
    assert not torch.equal(tokens[:4], tokens[4:])


@pytest.mark.full
def test_the_standard_library_leaves_out_tests_and_installed_packages():
    names = [document.name for document in read_source("python-stdlib")]
    assert names == sorted(names)
    assert "argparse.py" in names and "json/decoder.py" in names
    assert not [n for n in names if {"test", "idlelib", "lib2to3", "site-packages"} & set(n.split("/"))]
