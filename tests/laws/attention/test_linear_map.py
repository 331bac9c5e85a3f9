"""The quicker product is the library's, in value and in derivatives of any order."""

import pytest
import torch
import torch.nn.functional as F
from torch.func import jacrev, vmap

from glassformer.attention.linear_map import linear
from glassformer.testing import close
from one_pass import in_one_pass


def _operands(shape=(3, 5), d_in=6, d_out=4, bias=True):
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(*shape, d_in, generator=generator), torch.randn(d_out, d_in, generator=generator)]
    tensors += [torch.randn(d_out, generator=generator)] if bias else []
    return [t.requires_grad_() for t in tensors]


@in_one_pass
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 3, 5)])
@pytest.mark.parametrize("bias", [False, True])
def test_values_and_gradients_are_those_of_the_library(shape, bias):
    operands = _operands(shape, bias=bias)
    found, expected = linear(*operands), F.linear(*operands)
    close(found, expected)
    weight = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    for mine, theirs in zip(
        torch.autograd.grad((found * weight).sum(), operands), torch.autograd.grad((expected * weight).sum(), operands)
    ):
        close(mine, theirs)


def test_second_derivatives_are_those_of_the_library():
    found = []
    for product in (linear, F.linear):
        operands = _operands()
        first = torch.autograd.grad(product(*operands).square().sum(), operands, create_graph=True)
        found.append(torch.autograd.grad(torch.stack([(g**2).sum() for g in first]).sum(), operands))
    for mine, theirs in zip(*found):
        close(mine, theirs, 1e-4)


def test_only_the_gradients_that_are_needed_are_made():
    x, weight, bias = _operands()
    linear(x.detach(), weight, bias.detach()).sum().backward()
    assert x.grad is None and bias.grad is None and weight.grad is not None


def test_function_transforms_and_autocast_go_through():
    x, weight, bias = _operands()
    jacobian = vmap(jacrev(lambda row: linear(row, weight, bias)))(x[0].detach())
    close(jacobian, weight.expand(5, -1, -1))
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x, weight, bias).dtype == torch.bfloat16


def test_slices_and_transposes_are_operands_like_others():
    x, weight, _ = _operands((4, 5))
    for rows, matrix in ((x.transpose(0, 1), weight), (x[:, 1:3], weight[1:3]), (x[:1].expand(3, -1, -1), weight)):
        close(linear(rows, matrix), F.linear(rows, matrix))
        close(
            torch.autograd.grad(linear(rows, matrix).square().sum(), weight)[0],
            torch.autograd.grad(F.linear(rows, matrix).square().sum(), weight)[0],
        )
