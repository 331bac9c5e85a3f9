"""Sizes of what heads move: those of the vectors themselves, on every architecture."""

import pytest
import torch

from glassformer.analysis import Run, run
from glassformer.analysis.cards import card_of
from glassformer.analysis.frozen import write_sources
from glassformer.analysis.token_flow import rollout, value_norms
from glassformer.errors import AnalysisUnavailable
from glassformer.handmade import induction_model, repeated
from glassformer.testing import close
from glassformer.testing.models import ARCHITECTURES, subject

every = pytest.mark.parametrize("name", ARCHITECTURES)
# there the stream's norm comes after the sum, and is passed here
BEFORE_POST = [name for name in ARCHITECTURES if "post" not in name]


def passed(name: str) -> Run:
    model = subject(name).model
    read = [*card_of(rollout).reads(model), *card_of(write_sources).reads(model)]
    return run(model, *subject(name).inputs, read=read)


@pytest.mark.parametrize("name", BEFORE_POST)
def test_sizes_are_those_of_what_each_head_takes_from_each_key(name: str) -> None:
    done = passed(name)
    found = value_norms(done, row=1)
    for label in found.written.labels("head"):
        vectors = write_sources(done, label=str(label), position=5, row=1).values
        close(found.written.select(head=str(label)).values[5], vectors.norm(dim=-1))


@every
def test_heads_together_move_no_more_than_the_sum_of_what_each_moves(name: str) -> None:
    found = value_norms(passed(name))
    heads = [str(label).split("H")[0] for label in found.written.labels("head")]
    for layer in found.summed.labels("layer"):
        own = [i for i, head in enumerate(heads) if head == layer]
        together = found.summed.select(layer=str(layer)).values
        assert (together <= found.written.values[own].sum(0) * (1 + 1e-9) + 1e-12).all()
        assert (together > 0).any()


@every
def test_weighted_norms_are_weight_times_size_of_the_value(name: str) -> None:
    done = passed(name)
    layer = done.model.stacks["decoder" if "translator" in name else ""].blocks[1].attn
    pattern, value = done[layer.at.pattern].values[0], done[layer.at.value].values[0]
    value = value.repeat_interleave(pattern.shape[0] // value.shape[0], 0)
    if layer.merge.gain is not None:
        gain = layer.merge.gain.view(-1, 1, value.shape[-1]) if layer.merge.config.norm == "all" else layer.merge.gain
        value = value * gain * layer.merge.config.factor
    found = value_norms(done).weighted.values[-pattern.shape[0] :]
    close(found, pattern.abs() * value.norm(dim=-1)[:, None])


def test_a_decoders_cross_attention_is_measured_over_source_tokens() -> None:
    done = passed("translator_pre")
    found = value_norms(done, cross=True)
    assert found.written.labels("head")[0] == "L0X0"
    assert found.written.shape == (8, 7, 9)
    close(found.written.values[0, 5], write_sources(done, label="L0X0", position=5).values.norm(dim=-1))


def test_the_resting_place_of_the_induction_head_has_all_the_weight_and_no_vector() -> None:
    model = induction_model()
    done = run(model, repeated(), read=[rollout])
    found = value_norms(done)
    assert done["blocks.1.attn.pattern"].values[0, 0, 1:20, 0].min() > 0.99999
    assert found.written.select(head="L1H0").values[1:20, 0].max() == 0
    close(found.written.select(head="L1H0").values[30, 11], torch.tensor(1.0, dtype=torch.float64), 1e-4)


def test_a_decoder_without_cross_attention_says_so() -> None:
    with pytest.raises(AnalysisUnavailable, match="no cross-attention"):
        value_norms(passed("gpt2"), cross=True)
