"""Parameters that belong to places: which rows the tokens of a text read."""

import pytest
import torch

from glassformer.attention import Dims
from glassformer.attention.places import places, rows_at
from glassformer.errors import TextError
from glassformer.models.stack import make_context

DIMS = Dims(d_model=4, n_heads=2, n_kv_heads=2, d_head=2, d_value=2, max_len=5, layer=3)


def test_places_count_within_documents_and_behind_padding() -> None:
    ids = torch.tensor([[7, 7, 7, 2, 2, 9]])
    packed = places(make_context(1, 6, ids.device, is_causal=True, document_ids=ids), 6, DIMS)
    assert packed.query.tolist() == packed.key.tolist() == [[0, 1, 2, 0, 1, 0]]
    padded = make_context(2, 2, ids.device, is_causal=True, past=2, start=torch.tensor([1, 0]))
    found = places(padded, 4, DIMS)
    assert found.query.tolist() == [[1, 2], [2, 3]]
    assert found.key.tolist() == [[0, 0, 1, 2], [0, 1, 2, 3]]


def test_each_place_reads_its_own_row_of_each_head() -> None:
    table = torch.arange(20.0).view(2, 5, 2)
    where = torch.tensor([[0, 1, 2], [4, 0, 0]])
    rows = rows_at(table, where)
    assert rows.shape == (2, 2, 3, 2)
    for b in range(2):
        for head in range(2):
            for t in range(3):
                assert torch.equal(rows[b, head, t], table[head, where[b, t]])


def test_a_text_beyond_the_last_place_is_refused_and_a_long_row_of_short_documents_is_not() -> None:
    device = torch.device("cpu")
    places(make_context(1, 5, device, is_causal=True), 5, DIMS)
    with pytest.raises(TextError, match="6 tokens, but layer 3 has parameters for each of max_len=5 positions only"):
        places(make_context(1, 1, device, is_causal=True, past=5), 6, DIMS)
    places(make_context(1, 10, device, is_causal=True, document_ids=torch.arange(10)[None] // 5), 10, DIMS)
    with pytest.raises(TextError, match="6 tokens"):
        places(make_context(1, 12, device, is_causal=True, document_ids=torch.arange(12)[None] // 6), 12, DIMS)
