"""What a step would write, as tokens: vectors of the gradient read by hand, and steps that are taken."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.analysis.gradients import BackwardLens, backward_lens, linear_gradients
from glassformer.analysis.gradients.linear_maps import maps_of
from glassformer.errors import AnalysisUnavailable, TokenOutOfRange
from glassformer.models import Decoder, DecoderConfig, LayerNorm, Mlp, NoNorm, block
from glassformer.render.terminal import lines
from glassformer.testing import close
from glassformer.testing.layers import randomise
from glassformer.testing.models import subject

ANSWER = 3
IDS = torch.tensor([[5, 9, 3, 7, 2]])


def decoder(norm: Any = None, *, gated: bool = False, unembed: float = 1.0) -> Decoder:
    norm = LayerNorm() if norm is None else norm
    config = DecoderConfig(
        layers=(block(n_heads=2, mlp=Mlp(12, gated=gated), norm=norm),) * 2, d_model=8, vocab_size=11, max_len=8,
        final_norm=norm, tied=False, unembed_bias=True,
    )  # fmt: skip
    model = randomise(config.build().double().eval(), 0, std=0.4)
    with torch.no_grad():
        model.unembed.stored.mul_(unembed)
    return model


def by_hand(model: Decoder, v: Tensor) -> Tensor:
    """Return what a vector says through the final layer norm and the unembedding, without their biases."""
    norm = model.stack.final
    v = v / v.square().mean(-1, keepdim=True).sqrt()
    return F.layer_norm(v, v.shape[-1:], norm.gain, eps=LayerNorm().eps) @ model.unembed.weight.mT


@pytest.mark.parametrize("unembed", [1.0, 1e-6])
def test_tokens_are_both_ends_of_what_spans_the_gradient_however_small_it_is(unembed: float) -> None:
    model = decoder(gated=True, unembed=unembed)
    found, factors = backward_lens(model, IDS, ANSWER, k=4), linear_gradients(model, IDS, ANSWER)
    assert set(found.writes.labels("map")) == set(factors.inputs)
    for label in factors.inputs:
        writes = bool(found.writes.select(map=label).values)
        assert writes == label.endswith(("out", "O"))
        said = by_hand(model, (factors.vjps if writes else factors.inputs)[label].values)
        there = ~found.small.select(map=label).values
        for ids, largest in ((found.most, True), (found.least, False)):
            expected = said.topk(4, largest=largest).indices
            assert torch.equal(ids.select(map=label).values[there], expected[there])
        step = -said if writes else said
        ranks = (step > step[:, ANSWER, None]).sum(-1) + 1
        close(found.answer_rank.select(map=label).values[there], ranks[there].double())


def test_what_comes_back_at_the_top_is_the_mean_direction_less_the_answers() -> None:
    model = decoder(NoNorm())
    found = linear_gradients(model, IDS, ANSWER)
    u = model.unembed.weight.detach()
    p = model(IDS)[0, -1].detach().softmax(-1)
    close(found.vjps["L1 mlp out"].values[-1], p @ u - u[ANSWER])
    lens = backward_lens(model, IDS, ANSWER)
    toward = F.cosine_similarity(u[ANSWER] - p @ u, u[ANSWER], dim=0)
    close(lens.toward.select(map="L1 mlp out").values[-1], toward)
    assert lens.toward.select(map="L1 mlp in").values.isnan().all()


def test_a_step_adds_the_input_to_as_many_neurons_as_it_says() -> None:
    """Of one position a step moves each neuron by -step d_j |x|^2: the imprint."""
    model = decoder(gated=True)
    found = backward_lens(model, IDS, ANSWER)
    factors = linear_gradients(model, IDS, ANSWER)
    for label in ("L1 mlp in", "L1 mlp gate"):
        one = next(one for one in maps_of(model) if one.label == label)
        x = factors.inputs[label].values[-1]
        moved = x @ (one.matrix - 0.1 * factors.gradient(label).dense()) - x @ one.matrix
        close(moved, -0.1 * factors.vjps[label].values[-1] * x.square().sum())
        close(found.added.select(map=label).values[-1], (moved > 0).double().mean())
    assert found.added.select(map="L1 mlp out").values.isnan().all()


def test_a_step_shifts_what_neurons_write_by_the_likeness_of_inputs() -> None:
    """Outputs at all positions move by -step times (x_i . x_j) d_j: the shift."""
    model = decoder()
    factors = linear_gradients(model, IDS, ANSWER, positions="all")
    x, d = factors.inputs["L0 mlp out"].values, factors.vjps["L0 mlp out"].values
    close(x @ factors.gradient("L0 mlp out").dense(), x @ x.mT @ d)


def test_positions_that_nothing_comes_back_to_are_marked_and_say_nothing() -> None:
    found = backward_lens(decoder(), IDS, ANSWER)
    assert found.small.select(map="L1 mlp out").values.tolist() == [True] * 4 + [False]
    assert found.tokens("L1 mlp out", 0) == [] and len(found.tokens("L1 mlp out")) == 5
    assert not found.small.select(map="L0 mlp out").values.all()
    shown = next(line for line in lines(found) if line.startswith("L1 mlp out"))
    rank = int(found.answer_rank.select(map="L1 mlp out").values[-1])
    assert shown.removeprefix("L1 mlp out").split() == [found.tokens("L1 mlp out")[0], str(rank)]
    everything = backward_lens(decoder(), IDS, ANSWER, least=0.0)
    assert (everything.norm.values[~everything.small.values] > 0).all()
    assert (everything.norm.values[everything.small.values] == 0).all()


def test_maps_of_another_stream_or_of_other_rows_are_left_out_and_said_why() -> None:
    pair = subject("translator_pre", batch=1)
    found = backward_lens(pair.model, pair.inputs[0], ANSWER, target=pair.inputs[1])
    assert "stream of the source" in found.left_out["enc L0 mlp out"]
    assert "neither reads the stream" in found.left_out["L0 cross K"] and "L0 cross O" in found.writes.labels("map")
    experts = subject("experts", batch=1)
    routed = backward_lens(experts.model, experts.inputs[0], ANSWER)
    assert "not the positions" in routed.left_out["L0 mlp output[0]"]
    with pytest.raises(AnalysisUnavailable, match="no linear map reads or writes the stream"):
        backward_lens(experts.model, experts.inputs[0], ANSWER, maps=["L0 mlp output[0]"])
    with pytest.raises(TokenOutOfRange):
        backward_lens(experts.model, experts.inputs[0], 10_000)


def test_models_whose_tokens_have_no_directions_still_say_what_is_written() -> None:
    found = subject("adaptive", batch=1)
    lens: BackwardLens = backward_lens(found.model, found.inputs[0], ANSWER)
    assert lens.toward.values.isnan().all() and int(lens.answer_rank.values[~lens.small.values].min()) >= 1
