"""Tokens as particles: symmetries, energies that rise, one equation for many dimensions, layers as Euler's steps."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

import glassformer as gf
from glassformer import weights
from glassformer.dynamics import (
    ParticleFlow,
    clusters,
    equal_angles,
    leaders,
    merged,
    merging_time,
    on_sphere,
    token_cosines,
)
from glassformer.errors import ShapeMismatch, WrongArgument
from glassformer.models import DecoderConfig, EncoderConfig, Mlp, NoNorm, RmsNorm, block, repeat
from glassformer.testing import close
from glassformer.testing.layers import randomise
from one_pass import in_one_pass

X = on_sphere(7, 4)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@in_one_pass
@pytest.mark.parametrize("softmax", [True, False])
def test_the_flow_turns_and_is_exchanged_with_its_tokens_and_knows_their_distribution_alone(softmax: bool) -> None:
    flow, turn, order = ParticleFlow(2.0, softmax), torch.linalg.qr(normal(4, 4))[0], torch.randperm(7)
    drift = flow.drift(X)
    close(flow.drift(X @ turn), drift @ turn)
    close(flow.drift(X[order]), drift[order])
    # every token three times
    close(flow.drift(X.repeat(3, 1)), drift.repeat(3, 1))
    close((drift * X).sum(-1) + 1, torch.ones(7, dtype=torch.float64))
    close(flow.step(X, 0.1).norm(dim=-1), torch.ones(7, dtype=torch.float64))


@in_one_pass
@pytest.mark.parametrize("softmax", [True, False])
@pytest.mark.parametrize("sphere", [True, False])
def test_the_energy_rises_as_fast_as_it_must_where_weights_are_one_symmetric_matrix(
    softmax: bool, sphere: bool
) -> None:
    drawn = normal(4, 4)
    for matrix in (None, (drawn + drawn.mT) / 3):
        flow, x = ParticleFlow(1.5, softmax, matrix, matrix, sphere), X.clone().requires_grad_()
        [slope] = torch.autograd.grad(flow.energy(x), x)
        close((slope * flow.drift(X)).sum(), flow.ascent(X))
        if not softmax and sphere:
            # steepest ascent: n times the slope, along the sphere
            close(7 * (slope - (slope * X).sum(-1, keepdim=True) * X), flow.drift(X))
        # without a sphere tokens run away, and faster than exponentially where nothing divides
        energies = flow.energy(flow.flow(X, 6, 0.05 if sphere else 0.01))
        assert (energies.diff() > 0).all()


@in_one_pass
@pytest.mark.parametrize("softmax", [True, False])
def test_tokens_at_equal_angles_stay_so_and_obey_one_equation(softmax: bool) -> None:
    start = torch.eye(5, 9, dtype=torch.float64)
    path = ParticleFlow(2.0, softmax).flow(start, 60, 0.05)[[20, 60]]
    off = ~torch.eye(5, dtype=torch.bool)
    cosines = (path @ path.mT)[:, off]
    expected = equal_angles([1.0, 3.0], 2.0, 5, softmax=softmax)
    # steps of .05 of fourth order
    assert (cosines - expected[:, None]).abs().max() < 1e-5
    when = merging_time(2.0, 5, softmax=softmax)
    assert float(equal_angles([when], 2.0, 5, softmax=softmax)[0]) == pytest.approx(0.999, abs=1e-6)


def test_steps_of_a_layer_are_of_first_order_and_those_of_the_flow_of_fourth() -> None:
    flow = ParticleFlow(2.0)
    exact = flow.flow(X, 128, 1 / 128)[-1]
    for move, order, counts in ((flow.layer, 1, (32, 64, 128)), (flow.step, 4, (2, 4, 8))):
        errors = []
        for n in counts:
            x = X
            for _ in range(n):
                x = move(x, 1 / n)
            errors.append(float((x - exact).norm()))
        assert all(abs(math.log2(one / other) - order) < 0.25 for one, other in pairwise(errors))


def test_a_block_of_one_head_with_a_norm_behind_it_is_a_layer_of_the_flow() -> None:
    norm = RmsNorm(eps=0.0, gain=False)
    layer = block(n_heads=1, d_head=3, mlp=None, wiring="post", norm=norm)
    model = randomise(EncoderConfig(9, 6, (layer,), max_len=8, final_norm=NoNorm(), embed_norm=norm).build().double())
    run = gf.run(model, [1, 5, 2, 7], read=["resid_pre", "resid_post"])
    w = weights.of(model)["L0H0"]
    # the stream is sqrt(6) long, so that products of two are six times those on the unit sphere
    flow = ParticleFlow(6 / math.sqrt(3), scores=w.Q[0] @ w.K[0].mT, value=w.V[0] @ w.O[0])
    before, behind = (run.layers(name).values[0, 0] / math.sqrt(6) for name in ("resid_pre", "resid_post"))
    close(flow.layer(before), behind)


def test_tokens_in_a_hemisphere_merge_and_antipodes_stay_apart() -> None:
    flow = ParticleFlow(1.0)
    x = on_sphere(6, 8)
    assert merged(flow.flow(x, 60, 0.25)[-1]) == 1 and merged(x) == 0
    antipodes = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    assert flow.drift(antipodes).abs().max() == 0


def test_clusters_are_chains_of_close_tokens() -> None:
    angles = torch.tensor([0.0, 0.01, 0.02, 1.0, 2.0, 2.005], dtype=torch.float64)
    x = torch.stack((angles.cos(), angles.sin()), -1)
    both = torch.stack((x, x[[0, 0, 0, 0, 0, 3]]))
    assert clusters(both).tolist() == [3, 2]
    assert clusters(x, 0.5).tolist() == 1


def test_in_the_plane_and_the_cold_clusters_wait() -> None:
    path = ParticleFlow(9.0).flow(on_sphere(12, 24, 2), 60, 0.5)
    counts = clusters(path[[40, 60]]).double().mean(-1)
    assert 2 < counts[1] <= counts[0] < 5


def test_without_a_sphere_two_tokens_lead_all_others() -> None:
    x = torch.linspace(-0.9, 1.1, 8, dtype=torch.float64)[:, None]
    flow = ParticleFlow(1.0, sphere=False)
    pattern = flow.weights(flow.flow(x, 120, 0.025)[-1])
    # rows are of one token each: the last one on the side that a token has come to
    assert (pattern.amax(-1) > 0.98).all()
    assert set(pattern.argmax(-1).tolist()) == {0, 7}
    assert leaders(pattern).nonzero()[:, 0].tolist() == [0, 7]


def test_tokens_of_a_model_are_alike_as_far_as_their_streams_are() -> None:
    model = DecoderConfig(9, 8, repeat(block(n_heads=2, mlp=Mlp(8)), 2), max_len=8).build()
    found = token_cosines(model, [1, 5, 1])
    assert found.axes == ("depth", "query", "key") and found.shape == (3, 3, 3)
    stream = gf.run(model, [1, 5, 1], read="resid_post")["resid_post", 1].values[0].double()
    close(found.values[2, 0, 1], torch.cosine_similarity(stream[0], stream[1], dim=0))
    # one token twice is the same before the first layer
    close(found.values[0, 0, 2], torch.ones((), dtype=torch.float64))
    centred = token_cosines(model, [1, 5], centred=True).values
    close(centred[:, 0, 1], -torch.ones(3, dtype=torch.float64))


def test_what_the_theory_does_not_speak_of_is_refused() -> None:
    for flow in (
        ParticleFlow(1.0, value=normal(4, 4)),
        ParticleFlow(0.0),
        ParticleFlow(1.0, True, normal(4, 4), normal(4, 4)),
    ):
        with pytest.raises(WrongArgument, match="this flow has none"):
            flow.energy(X)
    with pytest.raises(ShapeMismatch, match="width 4 for matrices of width 3"):
        ParticleFlow(1.0, value=normal(3, 3)).drift(X)
    with pytest.raises(WrongArgument, match="beta= takes"):
        ParticleFlow(-1.0)
    with pytest.raises(ShapeMismatch, match="two or more"):
        merged(X[:1])
    with pytest.raises(WrongArgument, match="rise from 0"):
        equal_angles([2.0, 1.0], 1.0, 4)
    with pytest.raises(WrongArgument, match="below 1"):
        merging_time(1.0, 4, cosine=1.0)
