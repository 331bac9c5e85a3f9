"""Stochastic self-attention: distances of Gaussians, and the paper's layer with its two streams."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, strategies as st
from torch import Tensor

import glassformer as gf
from glassformer import analysis
from glassformer.attention import Attention, Convolved, Gaussian, NoPositions, Rope, Softmax, Wasserstein
from glassformer.attention.mechanisms.wasserstein import distance_scores, points, squared_distances
from glassformer.errors import ConfigError
from glassformer.models import DecoderConfig, Mlp, block, published_block
from glassformer.models.stack import make_context, tensors
from glassformer.testing import close
from glassformer.testing.layers import D_MODEL, Layer, causal_context, randomise, seeds, stream


def gaussians(n: int, seed: int, d: int = 3) -> Tensor:
    """Return means and covariances of a batch of one, two heads, n positions."""
    drawn = torch.randn(1, 2, 2, n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.stack((drawn[:, 0], drawn[:, 1].exp()), 1)


def distances(one: Tensor, other: Tensor) -> Tensor:
    return squared_distances(points(one), points(other)).sum(1)


def built(seed: int = 0, **fields: Any) -> Layer:
    projection = fields.pop("projection", Gaussian(bias=True))
    config = Attention(4, 2, 3, 5, mixer=Wasserstein(), projection=projection, **fields)
    return Layer(randomise(config.build(D_MODEL, 32, 0, "").double().eval(), seed))


@given(seeds, st.integers(1, 5), st.integers(1, 5))
def test_the_form_of_products_is_the_distance_of_a_plain_loop(seed: int, n: int, m: int) -> None:
    one, other = gaussians(n, seed), gaussians(m, seed + 1)
    found = distances(one, other)
    for head in range(2):
        for i in range(n):
            for j in range(m):
                mean, covariance = one[0, 0, head, i] - other[0, 0, head, j], (one[0, 1, head, i], other[0, 1, head, j])
                roots = covariance[0].sqrt() - covariance[1].sqrt()
                close(found[0, head, i, j], mean @ mean + roots @ roots)


@given(seeds)
def test_it_is_the_squared_2_wasserstein_distance(seed: int) -> None:
    """The general formula: |m1 - m2|^2 + tr(C1 + C2 - 2 (C2^1/2 C1 C2^1/2)^1/2)."""
    one, other = gaussians(1, seed)[0, :, 0, 0], gaussians(1, seed + 1)[0, :, 0, 0]
    first, second = one[1].diag(), other[1].diag()
    cross = torch.linalg.eigvalsh(second.sqrt() @ first @ second.sqrt()).sqrt().sum()
    general = (one[0] - other[0]).square().sum() + first.trace() + second.trace() - 2 * cross
    close(distances(one[None, :, None, None], other[None, :, None, None])[0, 0, 0, 0], general)


@given(seeds)
def test_distances_are_those_of_a_metric(seed: int) -> None:
    drawn = gaussians(6, seed)
    square = distances(drawn, drawn)
    assert (square >= 0).all()
    close(square, square.mT)
    apart = ~torch.eye(6, dtype=torch.bool)
    assert (square[..., apart] > 0).all() and (square[..., ~apart] < 1e-12).all()
    root = square.sqrt()
    for j in range(6):
        assert (root <= root[..., :, j, None] + root[..., None, j, :] + 1e-6).all()


@given(seeds)
def test_equal_covariances_leave_the_distance_of_means(seed: int) -> None:
    q, k = gaussians(4, seed), gaussians(4, seed + 1)
    k[:, 1] = q[:, 1] = q[:, 1, :, :1]
    found = distance_scores(q, k, 3, causal_context(stream(1, 4)))
    expected = -(q[:, 0, :, :, None] - k[:, 0, :, None]).square().sum(-1) * 3**-0.5
    visible = torch.ones(4, 4).tril().bool()
    close(found[..., visible], expected[..., visible])
    # as products with a penalty on long keys: what is a query's own shifts its whole row
    product = (2 * q[:, 0] @ k[:, 0].mT - k[:, 0].square().sum(-1)[..., None, :]) * 3**-0.5
    hidden = float("-inf")
    close(found.softmax(-1), product.masked_fill(~visible, hidden).softmax(-1))


@given(seeds, st.integers(1, 6), st.sampled_from([NoPositions(), Rope()]))
def test_covariances_stay_positive_and_means_and_covariances_have_a_pattern_each(seed: int, n: int, place: Any) -> None:
    layer, x = built(seed, positions=place), stream(2, n, seed)
    found = layer.read(x, "query", "key", "value", "z", "pattern")
    for name in ("query", "key", "value"):
        assert (found[name][:, 1] > 0).all()
    mean, covariance = found["z"].chunk(2, -1)
    assert (covariance > 0).all()
    first, second = found["pattern"].unbind(1)
    close(first.sum(-1), torch.ones_like(first[..., 0]))
    close(second, first.square())
    value = found["value"].repeat_interleave(2, 2)
    close(mean, first @ value[:, 0])
    close(covariance, first.square() @ value[:, 1])


def published_layer(means: Tensor, covariances: Tensor, weights: dict[str, Tensor], n_heads: int) -> tuple:
    """The paper's layer, position by position: two streams in, what each is given by attention out."""
    n, width = means.shape
    d = width // n_heads
    out_mean, out_covariance = torch.zeros_like(means), torch.zeros_like(covariances)
    for h in range(n_heads):
        part = slice(h * d, (h + 1) * d)
        made = {}
        for name in "qkv":
            made[name] = means @ weights[f"{name} mean"][:, part]
            made[f"{name} covariance"] = F.elu(covariances @ weights[f"{name} covariance"][:, part]) + 1
        for i in range(n):
            scores = []
            for j in range(i + 1):
                mean = made["q"][i] - made["k"][j]
                root = made["q covariance"][i].sqrt() - made["k covariance"][j].sqrt()
                scores.append(-(mean @ mean + root @ root) / d**0.5)
            weight = torch.stack(scores).softmax(0)
            out_mean[i, part] = sum(w * made["v"][j] for j, w in enumerate(weight))
            out_covariance[i, part] = sum(w**2 * made["v covariance"][j] for j, w in enumerate(weight))
    return out_mean @ weights["out mean"], out_covariance @ weights["out covariance"]


@given(seeds)
def test_with_maps_in_blocks_it_is_the_papers_layer_of_two_streams(seed: int) -> None:
    half, heads, n = 6, 2, 5
    names = [f"{name} {which}" for name in ("q", "k", "v", "out") for which in ("mean", "covariance")]
    drawn = torch.randn(8, half, half, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    weights = dict(zip(names, drawn))
    layer = (
        Attention(heads, mixer=Wasserstein(), projection=Gaussian(), d_head=3, d_value=3).build(12, 8, 0, "").double()
    )
    with torch.no_grad():
        rows = layer.projection.qkv.weight.zero_().unflatten(0, (3, heads, 2, 3))
        merged = layer.merge.output.weight.zero_().unflatten(1, (heads, 2, 3))
        for s, which in enumerate(("mean", "covariance")):
            own = slice(s * half, (s + 1) * half)
            for i, name in enumerate("qkv"):
                rows[i, :, s, :, own] = weights[f"{name} {which}"].unflatten(1, (heads, 3)).permute(1, 2, 0)
            merged[own, :, s] = weights[f"out {which}"].T.unflatten(1, (heads, 3))
    x = stream(2, n, seed)
    out = Layer(layer.eval())(x)
    for b in range(2):
        mean, covariance = published_layer(x[b, :, :half], x[b, :, half:], weights, heads)
        close(out[b], torch.cat((mean, covariance), -1))


@given(seeds, st.sampled_from([NoPositions(), Rope()]), st.sets(st.integers(1, 6)))
def test_segments_equal_one_pass_and_the_state_has_the_stated_size(seed: int, place: Any, cuts: set[int]) -> None:
    layer, x = built(seed, positions=place), stream(2, 7, seed)
    state, pieces = layer.module.begin(2, x), []
    for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), 7]):
        context = make_context(2, stop - start, x.device, is_causal=True, past=start)
        out, state = layer.module(x[:, start:stop], context, state=state)
        pieces.append(out)
    close(torch.cat(pieces, 1), layer(x))
    assert sum(part[0].numel() for part in tensors(state)) * 8 == layer.module.state_bytes(7, 0, torch.float64)


@given(seeds)
def test_rotated_means_depend_on_how_far_apart_they_are(seed: int) -> None:
    layer, x = built(seed, positions=Rope()), stream(1, 1, seed).expand(1, 6, -1)
    scores = layer.read(x, "scores")["scores"]
    for offset in range(6):
        along = scores.diagonal(-offset, -2, -1)
        close(along, along[..., :1].expand_as(along))
    plain = built(seed, positions=NoPositions()).read(x, "query")["query"]
    turned = layer.read(x, "query")["query"]
    assert torch.equal(plain[:, 1], turned[:, 1]) and not torch.equal(plain[:, 0, :, 1:], turned[:, 0, :, 1:])


def test_gradients_equal_finite_differences() -> None:
    assert torch.autograd.gradcheck(built(positions=Rope()), (stream(1, 3).requires_grad_(),), fast_mode=True)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r'"gaussian" makes a mean and a covariance .* found 1 and 1'):
        Attention(2, mixer=Softmax(), projection=Gaussian()).build(8, 8, 0, "")
    with pytest.raises(ConfigError, match="turns means when they are written"):
        built(positions=Rope(at_read=True))
    # a projection that makes plain vectors may be had, at one's own risk; covariances below zero count as zero
    x = stream(1, 4)
    assert built(projection=Convolved())(x).isfinite().all()


def test_what_heads_write_with_both_values_adds_up_to_the_logit() -> None:
    layers = tuple(published_block(Wasserstein(), i, n_heads=2, positions=Rope(), mlp=Mlp(8)) for i in range(2))
    model = randomise(DecoderConfig(11, 12, layers, max_len=8).build().double().eval(), std=0.3)
    run = gf.run(model, torch.tensor([[1, 2, 3, 4]]), read=[analysis.attribution.direct_logit_attribution])
    found = analysis.attribution.direct_logit_attribution(run, answer=3)
    assert run.logits is not None
    close(found.contributions.values.sum(), run.logits[0, -1, 3])


def test_a_block_takes_a_projection_or_what_one_would_say() -> None:
    mixer = Wasserstein()
    assert block(mixer, n_heads=2, projection=Gaussian()) == published_block(mixer, n_heads=2)
    bare, whole = block(mixer, n_heads=2).parts[0], published_block(mixer, n_heads=2).parts[0]
    assert isinstance(bare, Attention) and isinstance(whole, Attention) and whole.projection == Gaussian()
    assert bare.departures(0) == ["projection.kind='separate', as published 'gaussian'"] and whole.departures(0) == []
    with pytest.raises(ConfigError, match="says by itself whether it has norms"):
        block(mixer, n_heads=2, projection=Gaussian(), qk_norm=True)
