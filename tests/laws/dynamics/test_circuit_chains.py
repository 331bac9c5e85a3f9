"""A decoder of one layer works out any circuit, a gate for each token, with a width that grows with a logarithm."""

import itertools

import pytest
import torch

from glassformer.dynamics import (
    GATES,
    Circuit,
    Gate,
    circuit_decoder,
    circuit_widths,
    gate_values,
    gates_by_chain,
    random_circuit,
    wrong_gates,
)
from glassformer.errors import ConfigError

IN_PYTHON = {
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "nand": lambda x, y: 1 - (x & y),
    "nor": lambda x, y: 1 - (x | y),
    "xnor": lambda x, y: 1 - (x ^ y),
    "not": lambda x, y: 1 - x,
}


def all_inputs(n: int) -> torch.Tensor:
    return torch.tensor([*itertools.product((0, 1), repeat=n)])


def test_gates_are_what_they_are_called() -> None:
    assert IN_PYTHON.keys() == GATES.keys()
    for kind, function in IN_PYTHON.items():
        found = gate_values(Circuit(2, (Gate(kind, 0, 1),)), all_inputs(2))[:, 0]
        assert found.tolist() == [function(x, y) for x, y in all_inputs(2).tolist()], kind


@pytest.mark.parametrize("seed", range(4))
def test_the_chain_of_thought_is_the_circuit(seed: int) -> None:
    circuit = random_circuit(6, 90, seed)
    assert wrong_gates(circuit_decoder(circuit), circuit, all_inputs(6)) == 0


def test_it_is_so_token_by_token() -> None:
    circuit = random_circuit(3, 12)
    inputs = all_inputs(3)
    assert torch.equal(gates_by_chain(circuit_decoder(circuit), circuit, inputs), gate_values(circuit, inputs))


def test_a_chain_in_which_each_gate_needs_the_last_is_no_harder() -> None:
    # parity, one bit after another: as deep as it is long
    n = 9
    gates = [Gate("xor", 0, 1), *(Gate("xor", n + i, 2 + i) for i in range(n - 2))]
    circuit, inputs = Circuit(n, tuple(gates)), all_inputs(n)
    assert torch.equal(gate_values(circuit, inputs)[:, -1], inputs.sum(1) % 2)
    assert wrong_gates(circuit_decoder(circuit), circuit, inputs) == 0


def test_few_digits_are_enough_whatever_the_size() -> None:
    circuit = random_circuit(5, 200)
    model = circuit_decoder(circuit)
    for precision in (torch.float32, torch.bfloat16):
        assert wrong_gates(model.to(precision), circuit, all_inputs(5)[::5]) == 0, precision


def test_twice_the_circuit_is_three_coordinates_wider_and_no_deeper() -> None:
    widths = circuit_widths([24, 56, 120, 248, 504])
    assert widths.coords["length"] == [32, 64, 128, 256, 512]
    assert widths.values.diff().tolist() == [3.0] * 4
    model = circuit_decoder(random_circuit(8, 504))
    assert len(model.stack.blocks) == 1


@pytest.mark.parametrize(
    ("circuit", "said"),
    [
        (Circuit(2, (Gate("nandd", 0, 1),)), '"nandd" is no gate. Nearest: "nand".'),
        (Circuit(2, (Gate("and", 0, 2),)), "reads bits that are known before it, 0 to 1"),
        (Circuit(2, (Gate("and", -1, 0),)), "reads bits that are known before it, 0 to 1"),
        (Circuit(0, (Gate("and", 0, 0),)), "has an input, found n_inputs=0"),
        (Circuit(2, ()), "has a gate; found none"),
    ],
)
def test_what_is_no_circuit_is_refused(circuit: Circuit, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        circuit_decoder(circuit)
    assert said in str(refused.value)


def test_inputs_of_another_number_are_refused() -> None:
    with pytest.raises(ConfigError, match="has 3 inputs; found 2 columns"):
        gate_values(random_circuit(3, 2), all_inputs(2))
