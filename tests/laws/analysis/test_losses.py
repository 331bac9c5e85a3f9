"""Losses: means over the rows that count, the in-context-learning score, whole documents read in windows."""

import math

import pytest
import torch
from hypothesis import given, strategies as st

from glassformer.analysis.losses import bits_per_byte, document_losses, icl_score, loss_by_position, token_losses
from glassformer.data.batch import next_token_batch
from glassformer.data.tokenizer import bytes_tokenizer
from glassformer.errors import AnalysisUnavailable
from glassformer.handmade import induction_model, repeated
from glassformer.labelled import Labelled
from glassformer.models import DecoderConfig, Mlp
from glassformer.models.block import BlockConfig
from glassformer.testing import close
from glassformer.testing.layers import seeds
from glassformer.testing.models import drawn, subject


def test_the_induction_model_pays_for_the_first_copy_only() -> None:
    ids = repeated(batch=4)
    losses = loss_by_position(induction_model(), next_token_batch(ids))
    # nothing tells what comes in the first copy, nor that its end is followed by its beginning
    close(losses.values[:21], torch.full((21,), math.log(21), dtype=torch.float64), 1e-3)
    assert losses.values[21:].max() < 1e-6
    assert losses.labels("pos")[0] == 1
    assert icl_score(losses, early=5, late=30) == pytest.approx(-math.log(21), rel=1e-3)


@given(st.floats(-3, 3))
def test_the_in_context_learning_score_ignores_a_constant(shift: float) -> None:
    losses = torch.linspace(2, 1, 50).double()
    first, second = (icl_score(Labelled(x, ("pos",))) for x in (losses, losses + shift))
    assert first == pytest.approx(second)
    assert first < 0


def test_the_in_context_learning_score_refuses_places_that_do_not_exist() -> None:
    losses = Labelled(torch.ones(8), ("pos",))
    with pytest.raises(AnalysisUnavailable, match="losses of tokens 1 to 8"):
        icl_score(losses, early=5, late=9)
    with pytest.raises(AnalysisUnavailable, match="no row of the batch counts"):
        icl_score(Labelled(torch.tensor([1.0, math.nan, 1.0]), ("pos",)), early=1, late=2)


def test_losses_are_means_over_the_rows_that_count() -> None:
    model = subject("gpt2").model
    sequence = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    weight = torch.tensor([[True, True, False], [True, False, False]])
    losses = loss_by_position(model, next_token_batch(sequence, weight)).values
    each = [loss_by_position(model, next_token_batch(row[None])).values for row in sequence]
    close(losses[0], (each[0][0] + each[1][0]) / 2)
    close(losses[1], each[0][1])
    assert losses[2].isnan()


documents = st.lists(st.lists(st.integers(0, 10), max_size=20), max_size=4)


@given(documents, st.integers(1, 22), st.integers(1, 5), seeds)
def test_windows_and_rows_change_no_loss_of_a_model_that_reads_single_tokens(
    texts: list[list[int]], length: int, rows: int, seed: int
) -> None:
    model = drawn("bigrams", DecoderConfig(11, 8, (BlockConfig((Mlp(8),)),), max_len=24), seed=seed).model
    found = document_losses(model, texts, length, rows=rows)
    alone = [token_losses(model, next_token_batch(torch.tensor([ids])))[0][0] for ids in texts if len(ids) > 1]
    close(found, torch.cat(alone) if alone else torch.zeros(0))


@given(st.lists(st.integers(0, 10), min_size=2, max_size=20), st.integers(1, 22))
def test_every_token_of_a_document_is_predicted_from_half_a_window_at_least(ids: list[int], length: int) -> None:
    model = subject("gpt2").model
    losses = document_losses(model, [ids], length)
    assert len(losses) == len(ids) - 1
    for t, loss in enumerate(losses, 1):
        shares = range(min(t, math.ceil(length / 2)), min(t, length) + 1)
        contexts = [torch.tensor([ids[t - n : t + 1]]) for n in shares]
        possible = torch.stack([token_losses(model, next_token_batch(context))[0][0, -1] for context in contexts])
        assert float((possible - loss).abs().min()) < 1e-9


def test_the_first_token_of_a_document_is_predicted_from_bos() -> None:
    config = DecoderConfig(257, 8, (BlockConfig((Mlp(8),)),), max_len=24)
    model = drawn("bytes", config).model
    model.tokenizer = bytes_tokenizer()
    ids = model.tokenizer.encode("ab")
    with_bos = torch.tensor([[model.tokenizer.bos, *ids]])
    close(document_losses(model, [ids], 8), token_losses(model, next_token_batch(with_bos))[0][0])


def test_dropout_is_off_while_losses_are_measured() -> None:
    model = drawn("dropout", DecoderConfig(11, 8, (BlockConfig((Mlp(8),), dropout=0.5),), max_len=24)).model
    expected = document_losses(model, [[1, 2, 3]], 8)
    close(document_losses(model.train(), [[1, 2, 3]], 8), expected)
    assert model.training


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("translator_pre", r"this model \(EncoderDecoder\) needs sources too.\n.*loss_by_position\(model, batch\)"),
        ("masked_pre", "document_losses asks how well next tokens are predicted"),
    ],
)
def test_whole_documents_are_for_decoders(name: str, message: str) -> None:
    with pytest.raises(AnalysisUnavailable, match=message):
        document_losses(subject(name).model, [[1, 2, 3]], 8)


def test_a_uniform_choice_of_bytes_costs_eight_bits_per_byte() -> None:
    assert bits_per_byte(torch.full((6,), math.log(256)), n_bytes=6) == pytest.approx(8)
