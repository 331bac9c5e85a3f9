"""The mask algebra against a predicate written out in Python."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from glassformer.attention import Attention, Context, Mask, MixerConfig, causal, documents, padding, window
from glassformer.attention.context import Documents, Run
from glassformer.models.stack import cross_context, make_context

ROWS, LENGTH = 2, 6
Predicate = Callable[[int, int, int], bool]


@st.composite
def terms(draw: st.DrawFn) -> tuple[Mask, Predicate]:
    """Draw one term, and the same as a plain predicate."""
    which = draw(st.sampled_from(["causal", "window", "documents", "right", "left", "everything"]))
    size = draw(st.integers(1, LENGTH))
    ids = draw(st.lists(st.lists(st.integers(0, 2), min_size=LENGTH, max_size=LENGTH), min_size=ROWS, max_size=ROWS))
    # a document is a run of one id: where an id comes again, another begins
    number = [[sum(a != b for a, b in pairwise(row[: i + 1])) for i in range(LENGTH)] for row in ids]
    real = draw(st.lists(st.integers(0, LENGTH), min_size=ROWS, max_size=ROWS))
    return {
        "causal": (causal(), lambda b, q, k: k <= q),
        "window": (window(size), lambda b, q, k: abs(q - k) < size),
        "documents": (documents(torch.tensor(ids)), lambda b, q, k: number[b][q] == number[b][k]),
        "right": (padding(torch.tensor(real)), lambda b, q, k: k < real[b]),
        "left": (padding(torch.tensor(real), total=LENGTH, left=True), lambda b, q, k: k >= LENGTH - real[b]),
        "everything": (Mask(), lambda b, q, k: True),
    }[which]


def conjunction(a: tuple[Mask, Predicate], b: tuple[Mask, Predicate]) -> tuple[Mask, Predicate]:
    return a[0] & b[0], lambda *at: a[1](*at) and b[1](*at)


def disjunction(a: tuple[Mask, Predicate], b: tuple[Mask, Predicate]) -> tuple[Mask, Predicate]:
    return a[0] | b[0], lambda *at: a[1](*at) or b[1](*at)


masks = st.recursive(
    terms(),
    lambda inner: st.builds(conjunction, inner, inner) | st.builds(disjunction, inner, inner),
    max_leaves=4,
)


def test_the_last_queries_see_the_same_keys_with_those_before_them_and_without() -> None:
    registry: dict[str, Any] = MixerConfig.registry
    for kind, config in registry.items():
        mixer = Attention(2, mixer=config()).build(8, LENGTH, 0, "").mixer
        context = make_context(1, LENGTH, torch.device("cpu"), is_causal=not config.bidirectional)
        whole, last = (mixer.visible(context, n, LENGTH) for n in (LENGTH, 2))
        assert (whole is None) == (last is None), kind
        assert whole is None or (whole[..., -2:, :] == last).all(), kind


@given(masks, st.integers(1, LENGTH))
def test_dense_booleans_equal_the_predicate(case: tuple[Mask, Predicate], n_queries: int) -> None:
    mask, predicate = case
    dense = mask.dense(n_queries, LENGTH).expand(ROWS, 1, -1, -1)
    for b in range(ROWS):
        for q in range(n_queries):
            for k in range(LENGTH):
                assert bool(dense[b, 0, q, k]) == predicate(b, LENGTH - n_queries + q, k)


@given(masks, st.integers(1, LENGTH))
def test_a_rectangle_counts_queries_from_zero(case: tuple[Mask, Predicate], n_queries: int) -> None:
    mask, predicate = case
    dense = mask.rectangle(n_queries, LENGTH).expand(ROWS, 1, -1, -1)
    expected = [[[predicate(b, q, k) for k in range(LENGTH)] for q in range(n_queries)] for b in range(ROWS)]
    assert dense[:, 0].tolist() == expected


@given(masks, st.integers(1, 4), st.integers(1, LENGTH))
def test_blocks_say_nothing_some_or_all(case: tuple[Mask, Predicate], size: int, n_queries: int) -> None:
    mask, _ = case
    dense, blocks = mask.dense(n_queries, LENGTH)[:, 0], mask.blocks(n_queries, LENGTH, size)
    for i in range(blocks.shape[1]):
        for j in range(blocks.shape[2]):
            tile = dense[:, i * size : (i + 1) * size, j * size : (j + 1) * size].flatten(1)
            expected = tile.any(1).long() + tile.all(1).long()
            assert torch.equal(blocks[:, i, j], expected)


@given(masks)
def test_the_causal_flag_is_raised_for_the_lower_triangle_only(case: tuple[Mask, Predicate]) -> None:
    mask, _ = case
    if mask.is_causal:
        assert torch.equal(mask.dense(LENGTH, LENGTH)[0, 0], torch.ones(LENGTH, LENGTH).tril().bool())


def test_the_causal_flag_is_raised_where_a_fused_kernel_needs_it() -> None:
    assert causal().is_causal and (causal() & causal()).is_causal
    assert not Mask().is_causal and not (causal() & window(3)).is_causal and not (causal() | window(3)).is_causal


@given(masks, st.integers(0, ROWS - 1), st.integers(0, LENGTH - 1), st.data())
def test_an_excerpt_is_the_mask_of_its_positions(
    case: tuple[Mask, Predicate], row: int, start: int, data: st.DataObject
) -> None:
    mask, _ = case
    run = Run(row, data.draw(st.integers(1, ROWS - row)), start, data.draw(st.integers(start + 1, LENGTH)))
    whole = mask.dense(LENGTH, LENGTH).expand(ROWS, 1, -1, -1)[run.row : run.row + run.n_rows]
    part = mask.excerpt(run).dense(run.length, run.length).expand(run.n_rows, 1, -1, -1)
    assert torch.equal(part, whole[..., run.start : run.stop, run.start : run.stop])


def test_documents_are_found_row_by_row_and_whole_rows_stand_together() -> None:
    ids = torch.tensor([[3, 3, 3, 3], [5, 5, 5, 5], [0, 1, 1, 0], [7, 7, 7, 7]])
    found = Documents(ids).runs(4)
    assert found == [Run(0, 2, 0, 4), Run(2, 1, 0, 1), Run(2, 1, 1, 3), Run(2, 1, 3, 4), Run(3, 1, 0, 4)]
    assert Documents(ids[2:3]).runs(2) == [Run(row, 1, a, b) for row in (0, 1) for a, b in ((0, 1), (1, 3), (3, 4))]


@given(masks, masks)
def test_and_and_or_commute(one: tuple[Mask, Predicate], two: tuple[Mask, Predicate]) -> None:
    a, b = one[0], two[0]

    def dense(mask: Mask) -> torch.Tensor:
        return mask.dense(LENGTH, LENGTH).expand(ROWS, 1, -1, -1)

    assert torch.equal(dense(a & b), dense(b & a))
    assert torch.equal(dense(a & b), dense(a) & dense(b))
    assert torch.equal(dense(a | b), dense(a) | dense(b))


def test_padding_is_built_from_lengths_not_from_symbols() -> None:
    """The classic [0, 2, 4, 8, 1, 2, 2]: the padding symbol 2 is a word too; the last two are hidden."""
    tokens = torch.tensor([[0, 2, 4, 8, 1, 2, 2]])
    decoder = (causal() & padding(torch.tensor([5]))).dense(7, 7)[0, 0].int().tolist()
    assert decoder == [
        [1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 1, 0, 0],
    ]
    context = make_context(1, tokens.shape[1], tokens.device, is_causal=True, lengths=torch.tensor([5]))
    allowed = context.allowed(7, 7)
    assert allowed is not None and allowed[0, 0].int().tolist() == decoder


def test_positions_count_real_tokens_and_start_anew_in_each_document() -> None:
    def positions(**kwargs: object) -> list[list[int]]:
        return make_context(2, 4, torch.device("cpu"), is_causal=True, **kwargs).positions.tolist()  # type: ignore

    assert positions() == [[0, 1, 2, 3]]
    assert positions(past=3) == [[3, 4, 5, 6]]
    assert positions(start=torch.tensor([0, 2])) == [[0, 1, 2, 3], [0, 0, 0, 1]]
    ids = torch.tensor([[0, 0, 1, 1], [7, 8, 8, 8]])
    assert positions(document_ids=ids) == [[0, 1, 0, 1], [0, 0, 1, 2]]


def test_cross_attention_is_masked_by_the_sources_padding_alone() -> None:
    target = make_context(2, 3, torch.device("cpu"), is_causal=True, lengths=torch.tensor([1, 3]))
    allowed = cross_context(target, 4, torch.tensor([2, 4])).allowed(3, 4)
    assert allowed is not None
    assert allowed.expand(2, 1, 3, 4)[:, 0].int().tolist() == [[[1, 1, 0, 0]] * 3, [[1, 1, 1, 1]] * 3]


@pytest.mark.parametrize("n_keys", [2, 3])
def test_a_rolling_state_aligns_its_keys_at_the_end(n_keys: int) -> None:
    context: Context = make_context(1, 1, torch.device("cpu"), is_causal=True, past=5)
    allowed = context.allowed(1, n_keys, size=2)
    assert allowed is not None and allowed[0, 0, 0].tolist() == [False] * (n_keys - 2) + [True, True]
