"""Logit lens: the last row is the model, and information measures behave."""

import math

import pytest
import torch
from hypothesis import given, strategies as st

from glassformer.analysis import run
from glassformer.analysis.lens import logit_lens
from glassformer.errors import SiteNotRead
from glassformer.handmade import induction_model, repeated
from glassformer.numerics.distributions import entropy_bits, kl_bits, rank
from glassformer.testing import close
from glassformer.testing.models import ARCHITECTURES, subject


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_last_row_is_the_models_output(name: str) -> None:
    found = subject(name)
    inputs = [ids[:1] for ids in found.inputs]
    done = run(found.model, inputs[0], *inputs[1:], read=[logit_lens])
    assert done.logits is not None
    result = logit_lens(done, position=3)
    close(result.logits.values[-1], done.logits[0, 3])
    assert result.kl_bits.values[-1] == 0
    assert result.answer == int(done.logits[0, 3].argmax())
    assert result.rank.values[-1] == 1
    assert (result.kl_bits.values >= 0).all()


def test_the_induction_model_knows_nothing_before_its_last_layer() -> None:
    model, ids = induction_model(), repeated()
    result = logit_lens(run(model, ids[:, :-1], read=[logit_lens]), answer=int(ids[0, -1]))
    close(result.entropy_bits.values[:2], torch.full((2,), math.log2(21), dtype=torch.float64))
    close(result.probability.values, torch.tensor([1 / 21, 1 / 21, 1.0], dtype=torch.float64))
    assert result.rank.values.tolist() == [1, 1, 1]
    close(result.kl_bits.values, torch.tensor([math.log2(21), math.log2(21), 0.0], dtype=torch.float64))


@given(st.lists(st.floats(-400, 400), min_size=2, max_size=8))
def test_entropy_and_divergence_stay_in_their_bounds(logits: list[float]) -> None:
    p = torch.tensor(logits, dtype=torch.float64).log_softmax(-1)
    uniform = torch.zeros_like(p).log_softmax(-1)
    bits = math.log2(len(logits))
    assert -1e-9 <= float(entropy_bits(p)) <= bits + 1e-9
    # the divergence from uniform is what is missing from the largest entropy
    close(kl_bits(p, uniform) + entropy_bits(p), torch.tensor(bits, dtype=torch.float64))


def test_ranks_count_from_one_and_ties_share_the_better_rank() -> None:
    logits = torch.tensor([2.0, 5.0, 2.0, -1.0])
    assert [int(rank(logits, i)) for i in range(4)] == [2, 1, 2, 4]


def test_a_run_without_the_stream_is_refused_with_what_to_read() -> None:
    model = subject("gpt2").model
    with pytest.raises(SiteNotRead, match=r"lens needs sites"):
        logit_lens(run(model, [1, 2]))
