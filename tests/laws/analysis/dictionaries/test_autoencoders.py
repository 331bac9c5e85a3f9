"""Sparse autoencoders: what each kind computes, and the gradients that it learns by."""

from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.analysis.dictionaries import AutoencoderConfig, JumpRelu, Relu, TopK
from glassformer.analysis.dictionaries._sparse import largest, sparse_decode
from glassformer.errors import ConfigError
from glassformer.testing import close
from one_pass import in_one_pass

KINDS = [Relu(6, 15, l1=0.7), TopK(6, 15, k=4), JumpRelu(6, 15, l0=0.3, bandwidth=0.4)]
each_kind = pytest.mark.parametrize("config", KINDS, ids=lambda config: config.kind)


def made(config: AutoencoderConfig, seed: int = 0) -> Any:
    """Return a dictionary whose weights have no pattern."""
    found: Any = config.build().double()
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in found.parameters():
            parameter += 0.4 * torch.randn(parameter.shape, generator=random, dtype=parameter.dtype)
        found.scale.fill_(0.6)
    return found


def rows(n: int = 40, seed: int = 1) -> Tensor:
    return 2 * torch.randn(n, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def obvious(found: Any, x: Tensor) -> Tensor:
    """Return activations one by one, as the equations say."""
    pre, made = found.pre_activations(x), torch.zeros(len(x), 15, dtype=x.dtype)
    for i, row in enumerate(pre.detach()):
        order = sorted(range(15), key=lambda j: -float(row[j]))
        for j in range(15):
            if found.config.kind == "topk":
                there = j in order[:4] and row[j] > 0
            else:
                there = row[j] > (found.threshold[j] if found.config.kind == "jumprelu" else 0)
            if there:
                made[i, j] = row[j]
    return made


@each_kind
def test_activations_and_reconstructions_are_those_of_the_equations(config: Any) -> None:
    found, x = made(config), rows()
    pre = (0.6 * x - found.b_dec) @ found.W_enc + found.b_enc
    close(found.pre_activations(x), pre)
    features = found.encode(x)
    close(features, obvious(found, x))
    close(found(x), (features @ found.W_dec + found.b_dec) / 0.6)
    assert 0 < int((features > 0).sum()) < features.numel()


def test_no_more_than_k_features_fire() -> None:
    counts = (made(KINDS[1]).encode(rows()) > 0).sum(-1)
    assert int(counts.max()) == 4
    few = made(KINDS[1])
    with torch.no_grad():
        few.b_enc -= 100
    assert int((few.encode(rows()) > 0).sum()) == 0, "what is negative does not fire"


@each_kind
def test_losses_are_those_of_the_equations_and_so_are_their_gradients(config: Any) -> None:
    found, x, dead = made(config), rows(), torch.arange(15) % 3 == 0
    losses = found.losses(x, dead, 0.5)
    features = found.encode(x)
    left = 0.6 * x - features @ found.W_dec - found.b_dec
    penalty = torch.zeros(())
    if config.kind == "relu":
        penalty = 0.5 * 0.7 * (features * found.W_dec.norm(dim=-1)).sum(-1).mean()
    if config.kind == "jumprelu":
        penalty = 0.5 * 0.3 * (features > 0).sum(-1).double().mean()
    if config.kind == "topk":
        # three dead features of five at most, as far as they are positive
        among = found.pre_activations(x).masked_fill(~dead, -torch.inf).topk(3, -1)
        by_dead = torch.zeros(40, 15, dtype=x.dtype).scatter(-1, among.indices, among.values.relu())
        penalty = (left.detach() - by_dead @ found.W_dec).square().sum(-1).mean() / 32
    close(losses.error, left.square().sum(-1).mean())
    close(losses.penalty, penalty)
    close(losses.l0, (features > 0).sum(-1).double().mean())
    assert torch.equal(losses.active, (features > 0).any(0))
    if config.kind != "jumprelu":
        named = [found.W_enc, found.W_dec, found.b_enc, found.b_dec]
        expected = torch.autograd.grad(left.square().sum(-1).mean() + penalty, named)
        for ours, theirs in zip(torch.autograd.grad(losses.error + losses.penalty, named), expected):
            close(ours, theirs)


def test_dead_features_get_a_gradient_and_their_share_of_the_loss() -> None:
    found, x = made(TopK(6, 15, k=2, k_aux=4)), rows()
    none = found.losses(x, torch.zeros(15, dtype=torch.bool))
    assert float(none.penalty) == 0
    dead = torch.arange(15) < 2
    penalty = found.losses(x, dead).penalty
    (gradient,) = torch.autograd.grad(penalty, [found.W_dec])
    assert bool((gradient[:2] != 0).all()) and not bool(gradient[2:].any())
    # two of four: half of what the same features would cost as a whole
    whole = made(TopK(6, 15, k=2, k_aux=2)).losses(x, dead).penalty
    close(penalty, whole / 2)


def test_thresholds_learn_by_the_estimators_of_the_paper() -> None:
    """d f / d t = -(t / w) K, d count / d t = -(1 / w) K; z gets the gradient of f where it fires, and none of it."""
    config = JumpRelu(6, 15, l0=0.3, bandwidth=0.4)
    found, x = made(config), rows()
    pre = found.pre_activations(x).detach()
    threshold = found.threshold.detach()
    inside = (((pre - threshold) / 0.4).abs() < 0.5).double()
    assert 5 < float(inside.sum()) < inside.numel()
    losses = found.losses(x, torch.zeros(15, dtype=torch.bool))
    to_features = -2 * (0.6 * x - found.encode(x) @ found.W_dec - found.b_dec) @ found.W_dec.mT / len(x)
    of_error = (to_features * -(threshold / 0.4) * inside).sum(0)
    of_count = 0.3 * (-(1 / 0.4) * inside).sum(0) / len(x)
    ours = [torch.autograd.grad(loss, [found.log_threshold], retain_graph=True)[0] for loss in losses[:2]]
    # log t is what is stored
    close(ours[0], (of_error * threshold).detach())
    close(ours[1], of_count * threshold)
    (bias,) = torch.autograd.grad(losses.error, [found.b_enc], retain_graph=True)
    close(bias, (to_features * (pre > threshold)).sum(0))
    assert not torch.autograd.grad(losses.penalty, [found.b_enc])[0].any(), "the count says nothing to z"


@each_kind
def test_decoder_norms_are_folded_into_the_encoder_unless_the_largest_are_kept(config: Any) -> None:
    found, x = made(config), rows()
    before, features = found(x), found.encode(x)
    factors = 0.2 + 3 * torch.rand(15, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found.rescale(factors)
    if config.kind == "topk":
        assert not torch.allclose(found(x), before), "other features are the largest"
        found.rescale(1 / factors)
        close(found(x), before)
    else:
        close(found(x), before)
        close(found.encode(x), features * factors)


@in_one_pass
@each_kind
def test_rows_of_norm_one_keep_it(config: Any) -> None:
    found = made(config)
    norms = found.W_dec.norm(dim=-1)
    losses = found.losses(rows(), torch.zeros(15, dtype=torch.bool))
    (losses.error + losses.penalty).backward()
    before = found.W_dec.grad.clone()
    found.project_gradient()
    found.normalise()
    if found.unit_rows:
        close((found.W_dec.grad * found.W_dec).sum(-1), torch.zeros(15, dtype=torch.float64))
        close(found.W_dec.norm(dim=-1), torch.ones(15, dtype=torch.float64))
        # what is left is the part across each row
        across = found.W_dec.detach()
        close(found.W_dec.grad, before - (before * across).sum(-1, keepdim=True) * across)
    else:
        assert torch.equal(found.W_dec.grad, before) and torch.equal(found.W_dec.norm(dim=-1), norms)


def test_decoding_by_few_features_is_the_dense_product_forward_and_backward() -> None:
    random = torch.Generator().manual_seed(2)
    values = torch.randn(8, 3, generator=random, dtype=torch.float64, requires_grad=True)
    directions = torch.randn(15, 6, generator=random, dtype=torch.float64, requires_grad=True)
    indices = torch.randint(0, 15, (8, 3), generator=random)
    goal = torch.randn(8, 6, generator=random, dtype=torch.float64)
    dense = torch.zeros(8, 15, dtype=torch.float64).scatter_add(-1, indices, values) @ directions
    sparse = sparse_decode(values, indices, directions)
    close(sparse, dense)
    for ours, theirs in zip(
        torch.autograd.grad((sparse * goal).sum(), [values, directions]),
        torch.autograd.grad((dense * goal).sum(), [values, directions]),
    ):
        close(ours, theirs)


def test_the_largest_are_those_of_the_dense_product_forward_and_backward() -> None:
    random = torch.Generator().manual_seed(2)
    shapes = ((8, 6), (6, 15), (15,))
    read = [torch.randn(shape, generator=random, dtype=torch.float64, requires_grad=True) for shape in shapes]
    values, indices = largest(*read, 4)  # type: ignore[call-arg]
    dense = read[0] @ read[1] + read[2]
    close(values, dense.gather(-1, indices))
    close(values.sort(-1).values, dense.sort(-1).values[:, -4:])
    goal = torch.randn(8, 4, generator=random, dtype=torch.float64)
    expected = torch.autograd.grad((dense.gather(-1, indices) * goal).sum(), read)
    for ours, theirs in zip(torch.autograd.grad((values * goal).sum(), read), expected):
        close(ours, theirs)


@each_kind
def test_it_begins_at_the_mean_with_the_encoder_the_decoders_transpose(config: Any) -> None:
    found, mean = config.build(3), torch.arange(6.0)
    found.draw(3, mean, 0.5)
    assert torch.equal(found.W_enc, found.W_dec.mT)
    close(found.W_dec.norm(dim=-1), torch.ones(15))
    close(found.b_dec / found.scale, mean)
    assert torch.equal(found.W_dec, config.build(3).W_dec)
    assert type(config).from_json(config.to_json()) == config


def test_what_no_dictionary_can_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="k=16 of 15"):
        TopK(6, 15, k=16)
    with pytest.raises(ConfigError, match="bandwidth"):
        JumpRelu(6, 15, bandwidth=0.0)
    with pytest.raises(ConfigError, match="n_features"):
        Relu(6, 0)
