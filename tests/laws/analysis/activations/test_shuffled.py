"""Shuffled reading: every row once an epoch, a function of seed and step alone, and no more held than two buffers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer.analysis.activations import ActivationStore, StoredSite, record_activations
from glassformer.analysis.activations._shards import Shards
from glassformer.analysis.activations._shuffled import BLOCK
from glassformer.errors import AnalysisUnavailable, WrongArgument
from glassformer.testing.models import subject

ROWS = 1000


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[ActivationStore]:
    """Return the same rows in one file and in many."""
    found = subject("gpt2", dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    given = [torch.randint(0, 11, (20,), generator=generator) for _ in range(ROWS // 20)]
    folder = tmp_path_factory.mktemp("stores")
    return [
        record_activations(found.model, given, ["resid_post", "blocks.0.mlp.hidden"], folder / f"{i}", shard=shard)
        for i, shard in enumerate((2**26, 1))
    ]


def site(store: ActivationStore, name: str = "blocks.1.resid_post") -> StoredSite:
    return store.site(name)


@pytest.mark.parametrize(("size", "buffer"), [(7, 1), (64, 64), (100, 130), (300, 200), (1, 512), (999, 1), (5000, 7)])
def test_every_row_comes_once_an_epoch_with_what_belongs_to_it(
    size: int, buffer: int, stores: list[ActivationStore]
) -> None:
    of = site(stores[1])
    shuffled, whole = of.shuffled(size, seed=3, buffer=buffer), of[:]
    epochs = []
    for epoch in range(2):
        batches = [shuffled.batch(epoch * len(shuffled) + step) for step in range(len(shuffled))]
        assert all(len(batch) == min(size, ROWS) for batch in batches[:-1])
        rows = torch.cat([batch.rows for batch in batches])
        assert rows.sort().values.tolist() == list(range(ROWS))
        for field in ("values", "tokens", "documents", "positions"):
            assert torch.equal(torch.cat([getattr(batch, field) for batch in batches]), getattr(whole, field)[rows])
        epochs.append(rows.tolist())
    assert epochs[0] != epochs[1] != list(range(ROWS))


def test_the_order_is_a_function_of_seed_and_step(stores: list[ActivationStore]) -> None:
    one = site(stores[0]).shuffled(48, seed=1, buffer=192)
    told = [one.batch(step).rows.tolist() for step in range(40)]
    # of other files, of another site, begun anywhere and in any order
    for other in (site(stores[1]), site(stores[0], "blocks.0.mlp.hidden"), site(stores[1], "blocks.0.resid_post")):
        again = other.shuffled(48, seed=1, buffer=192)
        for step in (39, 3, 4, 21, 0, 39):
            assert again.batch(step).rows.tolist() == told[step]
    assert [batch.rows.tolist() for batch in site(stores[1]).shuffled(48, seed=1, buffer=192)] == told[: len(one)]
    assert site(stores[0]).shuffled(48, seed=2, buffer=192).batch(0).rows.tolist() != told[0]


def test_a_batch_mixes_documents_from_all_over_the_corpus(stores: list[ActivationStore]) -> None:
    mixed = site(stores[0]).shuffled(256, seed=0, buffer=512)
    for batch in mixed:
        # of 512 rows in blocks of 64 from a corpus of 50 documents
        assert len(batch.documents.unique()) > 15
        assert batch.rows.diff().abs().float().median() > 20


def test_no_more_is_read_at_once_than_a_buffer_and_no_more_held_than_two(
    stores: list[ActivationStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    whole = Shards.read

    def counted(self: Shards, names: Sequence[str], ranges: Sequence[tuple[int, int]]) -> Any:
        read.append(sum(high - low for low, high in ranges))
        return whole(self, names, ranges)

    monkeypatch.setattr(Shards, "read", counted)
    shuffled = site(stores[1]).shuffled(50, seed=0, buffer=128)
    held: list[int] = []
    for _ in shuffled:
        held.append(sum(len(batch) for batch in shuffled._held.values()))
    # each row is read once, in buffers of two blocks
    assert max(read) == 2 * BLOCK and sum(read) == ROWS
    assert max(held) <= 2 * 2 * BLOCK


def test_bad_sizes_and_a_store_without_rows_are_refused(stores: list[ActivationStore], tmp_path: Path) -> None:
    for wrong in ({"batch_size": 0}, {"batch_size": 3, "buffer": 0}, {"batch_size": "many"}):
        with pytest.raises(WrongArgument):
            site(stores[0]).shuffled(**wrong)  # type: ignore[arg-type]
    with pytest.raises(WrongArgument):
        site(stores[0]).shuffled(3).batch(-1)
    found = subject("gpt2", dtype=torch.float32)
    from glassformer.data import word_tokenizer

    found.model.tokenizer = word_tokenizer(["a b c d"])
    bos = found.model.tokenizer.roles.bos
    empty = record_activations(found.model, [[bos], [bos, bos]], "resid_post", tmp_path / "empty", drop=["begin"])
    none = empty.site("blocks.0.resid_post")
    assert len(none) == 0 and len(none[:].values) == 0 and not list(none.batches(3)) and empty.documents == 2
    with pytest.raises(AnalysisUnavailable, match="no rows in this store: there is nothing to shuffle"):
        none.shuffled(3)
    with pytest.raises(AnalysisUnavailable, match="and so no mean"):
        _ = none.mean
