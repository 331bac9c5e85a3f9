"""Planted sequences: shown as often as stated, alone in their document, absent from what counts as new."""

from pathlib import Path

import pytest
import torch

from glassformer.attention import Rope
from glassformer.data import Planted, PlantedData, TextConfig, bytes_tokenizer
from glassformer.errors import ConfigError, DataError
from glassformer.models import DecoderConfig, block
from glassformer.testing import close
from glassformer.testing.layers import randomise


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = torch.Generator().manual_seed(0)
    for i in range(20):
        letters = torch.randint(97, 123, (300,), generator=random).tolist()
        (tmp_path / f"{i:02}.txt").write_text("".join(map(chr, letters)))
    return tmp_path


def config(folder: Path, **changes: object) -> Planted:
    text = TextConfig(sources=(str(folder),), heldout=0.4)
    return Planted(
        batch_size=3, length=20, text=text, counts=(0, 1, 5), per_count=2, prefix=4, suffix=3, over=6
    ).replace(**changes)


@pytest.mark.parametrize("made_of", ["text", "tokens"])
def test_every_sequence_opens_as_many_rows_as_its_count_says(folder: Path, made_of: str) -> None:
    data = config(folder, made_of=made_of).build(bytes_tokenizer())
    ids, counts, prefix = data.planted
    assert counts.tolist() == [0, 0, 1, 1, 5, 5] and (prefix, ids.shape) == (5, (6, 8))
    assert len({tuple(row) for row in ids.tolist()}) == 6 and (ids[:, 0] == data.tokenizer.bos).all()
    rows = torch.cat([torch.cat([b.tokens, b.targets[:, -1:]], 1) for b in map(data.batch, range(1, 7))])
    windows = rows.unfold(1, 8, 1)
    found = [[int((window == row).all(-1).sum()) for window in (windows[:, 0], windows)] for row in ids]
    # at the start of rows, and nowhere else
    assert found == [[count, count] for count in counts.tolist()]
    assert list(data.config.synthetic().values()) == [sum(counts.tolist()) / len(rows)]
    halfway = [int((windows[:6, 0] == row).all(-1).sum()) for row in ids]
    assert data.shown(2).counts.tolist() == halfway and data.shown(6).counts.tolist() == counts.tolist()
    assert data.shown(0).counts.tolist() == [0] * 6
    later = torch.cat([data.batch(step).tokens for step in (0, 7, 8)])
    assert not (later.unfold(1, 8, 1)[:, :, None] == ids).all(-1).any()


def test_batches_depend_on_the_step_alone_and_the_rest_of_a_row_is_text(folder: Path) -> None:
    data, plain = config(folder).build(bytes_tokenizer()), config(folder, counts=(0,)).build(bytes_tokenizer())
    for step in (4, 1, 4):
        batch, again, text = data.batch(step), config(folder).build(bytes_tokenizer()).batch(step), plain.batch(step)
        for name, value in batch.tensors().items():
            assert torch.equal(value, getattr(again, name))
        planted = (batch.tokens[:, 1:8, None] == data.planted.ids[:, 1:].T).all(1).any(-1)
        assert torch.equal(batch.tokens[:, 8:], text.tokens[:, 8:])
        assert torch.equal(batch.targets[:, 8:], text.targets[:, 8:])
        assert torch.equal(batch.tokens[~planted], text.tokens[~planted])
        assert torch.equal(batch.targets[planted, :7], batch.tokens[planted, 1:8])
        assert not batch.weight[planted, 7].any() and batch.weight.sum() == batch.weight.numel() - planted.sum()


def test_planted_sequences_and_the_text_behind_them_do_not_see_each_other(folder: Path) -> None:
    data = config(folder).build(bytes_tokenizer())
    model = randomise(DecoderConfig(257, 8, (block(n_heads=2, positions=Rope()),) * 2).build().double().eval())
    batch = next(b for b in map(data.batch, range(1, 7)) if b.documents is not None)
    logits = model(batch.tokens, documents=batch.documents)
    row = int((batch.tokens[:, 0] == data.tokenizer.bos).nonzero()[0])
    assert batch.documents is not None
    for document in batch.documents[row].unique():
        own = batch.documents[row] == document
        close(logits[row, own], model(batch.tokens[row : row + 1, own])[0])
    assert batch.documents[row, 7] != batch.documents[row, 8]


def test_new_text_comes_from_documents_that_nothing_was_planted_from(folder: Path) -> None:
    data = config(folder).build(bytes_tokenizer())
    novel = [bytes(ids).decode() for ids in data.documents("heldout")]
    assert len(novel) >= 2
    for row in data.planted.ids.tolist():
        assert not any(bytes(row[1:]).decode() in text for text in novel)
    text = "".join(novel)
    for tokens in data.batch(3, "heldout").tokens.tolist():
        # rows may run over the end of a document
        assert any(bytes(part).decode() in text for part in [[t for t in tokens if t < 256][:5]])
    assert data.describe()["planted"]["counts"] == [0, 1, 5]


def test_sequences_of_tokens_are_drawn_by_frequency_without_specials(folder: Path) -> None:
    data = config(folder, made_of="tokens", per_count=50, counts=(0,)).build(bytes_tokenizer())
    assert isinstance(data, PlantedData)
    drawn = data.planted.ids[:, 1:]
    assert ((drawn >= 97) & (drawn <= 122)).all()
    assert len(list(data.documents("heldout"))) == len(data.text.split["heldout"])


def test_what_cannot_be_planted_is_refused(folder: Path) -> None:
    for changes, message in (
        ({"length": 6}, "length=6 has no room for prefix [+] suffix = 7 tokens"),
        ({"over": 3}, "12 rows are planted, but 3 batches have 9: raise over"),
        ({"counts": (1, 1)}, "holds one twice"),
        ({"counts": (-1,)}, "must be whole numbers from 0 on"),
        ({"prefix": 0}, "must be at least 1"),
        ({"text": TextConfig(streaming=True)}, "must be kept in memory"),
    ):
        with pytest.raises(ConfigError, match=message):
            config(folder, **changes)
    with pytest.raises(DataError, match=r"900 pieces of 7 tokens are to be planted.*Give more text"):
        config(folder, per_count=300, over=999).build(bytes_tokenizer())
    with pytest.raises(DataError, match="planted sequences start with <bos>"):
        config(folder).build(bytes_tokenizer(specials=()))
