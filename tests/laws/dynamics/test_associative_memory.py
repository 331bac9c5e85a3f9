"""Hopfield networks: energies that do not rise, attention as an update, and how many patterns they hold."""

import pytest
import torch
from torch import Tensor

from glassformer.attention import Attention, Softmax
from glassformer.dynamics import (
    BinaryMemory,
    ContinuousMemory,
    capacity,
    expected_capacity,
    expected_wrong_bits,
    wrong_bits,
)
from glassformer.errors import ShapeMismatch, WrongArgument
from glassformer.testing import close
from glassformer.testing.layers import D_MODEL, Layer, randomise, stream
from one_pass import in_one_pass


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def bits(*shape: int, seed: int = 0) -> Tensor:
    return torch.where(normal(*shape, seed=seed) > 0, 1.0, -1.0).double()


@in_one_pass
@pytest.mark.parametrize("interaction", [2, 3, 4, "exponential"])
def test_the_energy_of_a_binary_memory_never_rises_while_neurons_change_one_by_one(interaction) -> None:
    memory, states = BinaryMemory(bits(6, 14), interaction), bits(5, 14, seed=1)
    for _ in range(3):
        after = memory.sweep(states)
        fell = memory.energy(states) - memory.energy(after)
        assert (fell >= -1e-12 * memory.energy(after).abs()).all()
        # a state that changes loses energy, so sweeps come to an end
        assert ((fell > 0) == (after != states).any(-1)).all()
        states = after


@in_one_pass
@pytest.mark.parametrize("interaction", [2, 3, "exponential"])
def test_a_field_is_what_the_energy_falls_by(interaction) -> None:
    memory, state = BinaryMemory(bits(5, 8), interaction), bits(8, seed=2)
    fields = torch.empty(8, dtype=torch.float64)
    for i in range(8):
        up, down = state.clone(), state.clone()
        up[i], down[i] = 1, -1
        fields[i] = memory.energy(down) - memory.energy(up)
    close(memory.fields(state), fields)


def test_pairs_are_hopfields_couplings_without_a_diagonal() -> None:
    memory, states = BinaryMemory(bits(5, 9)), bits(4, 9, seed=1)
    # the energy has each pair twice, and the field is a difference of two states
    close(memory.fields(states), 4 * states @ memory.couplings)
    close(-(states @ memory.couplings * states).sum(-1) - 5 * 9, memory.energy(states))


def test_the_energy_of_a_continuous_memory_never_rises_and_its_slope_is_what_an_update_moves_by() -> None:
    memory, state = ContinuousMemory(normal(7, 5), beta=2.0), normal(40, 5, seed=1).requires_grad_()
    [slope] = torch.autograd.grad(memory.energy(state).sum(), state)
    # steepest descent with step 1: q - dE/dq
    close(state - slope, memory.update(state))
    state = 3 * state.detach()
    for _ in range(30):
        after = memory.update(state)
        assert (memory.energy(after) <= memory.energy(state) + 1e-12).all()
        state = after
    close(memory.update(state), state, 1e-3)


@in_one_pass
@pytest.mark.parametrize("scale", [None, 2.0])
def test_a_head_of_attention_is_one_update_of_the_memory_of_its_keys(scale) -> None:
    layer = Layer(
        randomise(Attention(2, d_head=4, mixer=Softmax(scale=scale)).build(D_MODEL, 16, 0, "").double().eval())
    )
    read = layer.read(stream(2, 5), "query", "key", "value", "pattern", "z")
    query, key, value, pattern, z = (read[name] for name in ("query", "key", "value", "pattern", "z"))
    for batch in range(2):
        for head in range(2):
            for t in range(5):
                seen = ContinuousMemory(key[batch, head, : t + 1], beta=scale or 0.5)
                weights = seen.weights(query[batch, head, t])
                close(weights, pattern[batch, head, t, : t + 1])
                close(seen.update(query[batch, head, t]), pattern[batch, head, t] @ key[batch, head])
                # values are patterns read out by another matrix
                close(weights @ value[batch, head, : t + 1], z[batch, head, t])


def test_an_update_leaves_a_pattern_no_further_than_the_bound() -> None:
    for beta in (0.5, 2.0, 8.0):
        memory = ContinuousMemory(normal(9, 12), beta=beta)
        moved = (memory.update(memory.patterns) - memory.patterns).norm(dim=-1)
        assert (moved <= memory.retrieval_bound()).all()
    # far enough apart it is of use
    assert memory.retrieval_bound().max() < 1e-2


def test_memories_differ_by_how_many_patterns_they_hold() -> None:
    for degree, counts in ((2, [4, 12, 40]), (3, [40, 120, 400])):
        found = wrong_bits(degree, 64, counts, n_tested=32)
        expected = torch.tensor([expected_wrong_bits(degree, 64, n) for n in counts], dtype=torch.float64)
        # the normal tail is of many neurons; here 2,048 are looked at
        assert ((found - expected).abs() < 0.02).all()
    assert capacity("exponential", 12, 64, n_tested=16) > 3 * capacity(2, 12, 64, n_tested=16)
    assert expected_wrong_bits(3, 64, int(expected_capacity(3, 64, 0.01))) == pytest.approx(0.01, rel=0.02)


def test_what_is_no_memory_is_refused() -> None:
    with pytest.raises(WrongArgument, match="1 and -1"):
        BinaryMemory(normal(2, 4))
    with pytest.raises(WrongArgument, match="takes a whole number, 2 to 16 or 'exponential'"):
        BinaryMemory(bits(2, 4), 1)
    with pytest.raises(WrongArgument, match="more than two neurons"):
        _ = BinaryMemory(bits(2, 4), 3).couplings
    with pytest.raises(ShapeMismatch, match="neuron=4"):
        ContinuousMemory(normal(2, 4)).update(normal(3))
    with pytest.raises(WrongArgument, match="beta= takes"):
        ContinuousMemory(normal(2, 4), beta=0.0)
    with pytest.raises(WrongArgument, match="counts="):
        wrong_bits(2, 8, [0, 3])
    with pytest.raises(WrongArgument, match=r"below 0\.5"):
        expected_capacity(2, 8, 0.5)
