"""Random features of Performer: what they are on average, how far off they are, and what fixes them."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.attention import Attention, Performer, Softmax
from glassformer.attention.mechanisms.performer import random_directions
from glassformer.models import DecoderConfig, block
from glassformer.testing import close
from glassformer.testing.layers import D_MODEL, Layer, causal_context, randomise, stream


def layer(mixer: Performer | Softmax, d_head: int = 4) -> Layer:
    return Layer(randomise(Attention(2, d_head=d_head, mixer=mixer).build(D_MODEL, 64, 0, "").double().eval()))


def estimates(directions: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Return phi(q) . phi(k) by the equation."""
    phi = [(directions @ u - u.square().sum() / 2).exp() for u in (q, k)]
    return (phi[0] * phi[1]).mean()


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(seed: int, *shape: int, size: float = 1.0) -> Tensor:
    return size * torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


@pytest.mark.parametrize("orthogonal", [True, False])
def test_products_of_features_are_the_exponential_on_average(orthogonal: bool) -> None:
    q, k = drawn(1, 4, size=0.5), drawn(2, 4, size=0.5)
    source = generator(0)
    found = torch.stack([estimates(random_directions(4, 4, source, orthogonal), q, k) for _ in range(2500)])
    error = found.std() / math.sqrt(len(found))
    assert abs(float(found.mean() - (q @ k).exp())) < 4 * error < 0.05 * (q @ k).exp()


def test_of_rows_of_one_length_the_average_is_another_kernel() -> None:
    q = k = torch.tensor([0.8, 0.3, -0.4, 0.2], dtype=torch.float64)
    source = generator(0)
    found = torch.stack([estimates(random_directions(4, 4, source, equal=True), q, k) for _ in range(2500)])
    assert (q @ k).exp() - found.mean() > 10 * found.std() / math.sqrt(len(found))


def test_one_product_varies_as_the_paper_says() -> None:
    """Of one row, e^(2 q . k) (e^(|q + k|^2) - 1)."""
    q, k = drawn(1, 4, size=0.25), drawn(2, 4, size=0.25)
    rows = random_directions(400_000, 4, generator(0), orthogonal=False)
    found = (rows @ (q + k) - (q.square().sum() + k.square().sum()) / 2).exp()
    close(found.var(), (2 * q @ k).exp() * ((q + k).square().sum().exp() - 1), 0.05)


def test_orthogonal_rows_are_orthogonal_uniform_and_as_long_as_normal_ones() -> None:
    rows = random_directions(8, 4, generator(0))
    for block_of_rows in rows.split(4):
        gram = block_of_rows @ block_of_rows.mT
        close(gram, gram.diagonal().diag())
    many = random_directions(40_000, 4, generator(0))
    # without the signs put right, the first coordinate of every block would be negative
    assert abs(float((many[::4, 0] > 0).double().mean()) - 0.5) < 0.02
    close(many.square().sum(-1).mean(), torch.tensor(4.0, dtype=torch.float64), 0.02)
    close(many.T @ many / len(many), torch.eye(4, dtype=torch.float64), 0.03)


def errors(n_features: int, size: float, draws: int, orthogonal: bool = True) -> float:
    """Return how far rows of the pattern are from those of softmax, in sums of sizes, as a mean over draws."""
    d_head, n = 16, 16
    q, k = drawn(1, 1, 1, n, d_head, size=size), drawn(2, 1, 1, n, d_head, size=size)
    context = causal_context(torch.zeros(1, n, 1))
    exact = _pattern(Softmax(), q, k, context)
    mixers = [Performer(n_features, orthogonal=orthogonal, seed=seed) for seed in range(draws)]
    found = [(_pattern(mixer, q, k, context) - exact).abs().sum(-1).mean() for mixer in mixers]
    return float(torch.stack(found).mean())


def _pattern(mixer: Any, q: Tensor, k: Tensor, context: Any) -> Tensor:
    module = Attention(1, d_head=q.shape[-1], mixer=mixer).build(16, 32, 0, "").double().eval()
    return module.mixer.pattern(q, k, q, context, None)


def test_the_error_of_short_queries_and_keys_falls_as_the_root_of_the_features() -> None:
    sizes = (16, 64, 256, 1024)
    found = torch.tensor([errors(m, 0.3, 12) for m in sizes], dtype=torch.float64).log()
    at = torch.tensor(sizes, dtype=torch.float64).log()
    slope = float(((at - at.mean()) * (found - found.mean())).sum() / (at - at.mean()).square().sum())
    assert abs(slope + 0.5) < 0.05


@pytest.mark.full
def test_the_error_of_long_queries_and_keys_falls_far_more_slowly() -> None:
    assert errors(1024, 1.0, 8) > 0.3 * errors(16, 1.0, 8) and errors(1024, 0.3, 8) < 0.2 * errors(16, 0.3, 8)


def test_orthogonal_rows_are_nearer_than_rows_drawn_one_by_one() -> None:
    assert errors(32, 0.3, 60) < 0.92 * errors(32, 0.3, 60, orthogonal=False)


def test_neither_long_keys_nor_long_queries_overflow_and_no_later_key_changes_what_came_before() -> None:
    attention = layer(Performer(16), d_head=6)
    q, k, v = (drawn(seed, 2, 2, 8, 6).float() for seed in (1, 2, 3))
    x = stream(2, 8).float()
    context = causal_context(x)
    attention.module.float()
    loud = k.clone()
    loud[:, :, 4:] *= 1e3
    found = attention.mixer(20 * q, loud, v, x, context, None, None)[0]
    assert found.isfinite().all()
    assert torch.equal(found[:, :, :4], attention.mixer(20 * q, k, v, x, context, None, None)[0][:, :, :4])


def test_what_is_taken_off_exponents_cancels() -> None:
    attention = layer(Performer(8))
    values = attention.read(stream(2, 6), "query", "key", "pattern")
    q, k = (attention.mixer.exponents(values[name]).exp() for name in ("query", "key"))
    weight = (q @ k.mT).tril()
    close(values["pattern"], weight / weight.sum(-1, keepdim=True))


def test_features_are_kept_with_the_weights_and_follow_seed_and_layer() -> None:
    def model(seed: int = 0, **fields: Any) -> Any:
        mixer = Performer(6, seed=seed, **fields)
        return DecoderConfig(11, 16, tuple(block(mixer, n_heads=2) for _ in range(2)), max_len=24).build(seed=0).eval()

    one, other = model(), model(seed=1)
    names = [f"stack.blocks.{i}.attn.mixer.directions" for i in range(2)]
    kept = one.state_dict()
    assert all(name in kept for name in names) and not torch.equal(kept[names[0]], kept[names[1]])
    assert torch.equal(kept[names[0]], model().state_dict()[names[0]])
    ids = torch.arange(8)[None]
    assert not torch.equal(one(ids), other(ids))
    other.load_state_dict(kept)
    assert torch.equal(one(ids), other(ids))


def test_features_are_drawn_anew_in_training_alone_and_go_on_where_a_checkpoint_stopped() -> None:
    def module() -> Any:
        return layer(Performer(6, redraw=2)).module

    ours, x = module(), stream(1, 4)
    context, seen, stopped = causal_context(x), [], {}
    for _ in range(3):
        ours(x, context)
    assert torch.equal(ours.mixer.directions, module().mixer.directions)
    ours.train()
    for i in range(7):
        ours(x, context)
        seen.append(ours.mixer.directions.clone())
        if i == 3:
            stopped = {name: value.clone() for name, value in ours.state_dict().items()}
    same = [torch.equal(a, b) for a, b in pairwise(seen)]
    assert same == [True, False, True, False, True, False]
    again = module().train()
    again.load_state_dict(stopped)
    for expected in seen[4:]:
        again(x, context)
        assert torch.equal(again.mixer.directions, expected)
    # two passes, one backward: the first still has the features that it was made with
    x.requires_grad_()
    torch.stack([ours(x, context)[0] for _ in range(3)]).sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()
    ours.eval()
    before = ours.mixer.directions.clone()
    ours(x, context)
    assert torch.equal(ours.mixer.directions, before)
