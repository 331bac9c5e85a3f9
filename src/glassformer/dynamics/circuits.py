"""Circuits, one gate for each token of a chain of thought: what is serial is written down step by step.

    x_k = g_k(x_a(k), x_b(k)),   a(k), b(k) < k,   for gates k = n, n + 1, … behind inputs x_0 … x_(n-1)

The decoder has one layer. Its table of positions is the circuit: at k - 1 it holds the code of k - 1 itself, log2 of
the size in signs, those of a(k) and b(k), and the gate as a polynomial of two bits, c_0 + c_1 x + c_2 y + c_3 x y.
Two heads compare codes, and so find the two bits among tokens that were written earlier; four neurons make the gate's
value of them, which is the next token. For every size of circuit there is a decoder of its own (a non-uniform family,
as circuits are): its depth is one, its width grows with the logarithm, its numbers have a few bits whatever the size.

Source: Li, Liu, Zhou and Ma 2024, "Chain of Thought Empowers Transformers to Solve Inherently Serial Problems",
arXiv 2402.12875, theorem 3.3 (circuits of size T by T steps, width O(log n), constant depth and precision).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from glassformer.arguments import Count
from glassformer.config import require
from glassformer.data.tasks.circuit_value import GATES as GATES
from glassformer.dynamics.wiring import Head, Layer, Neuron, Reading, wired
from glassformer.errors import nearest
from glassformer.labelled import Labelled
from glassformer.models import GREEDY, Decoder, generate


class Gate(NamedTuple):
    """One gate: its kind, a name of `GATES`, and the numbers of the bits that it reads."""

    kind: str
    first: int
    second: int


class Circuit(NamedTuple):
    """Gates in an order in which they can be worked out; bits are numbered from 0, inputs before gates."""

    n_inputs: int
    gates: tuple[Gate, ...]

    def check(self) -> None:
        """Raise `ConfigError` for a gate of no known kind, or one that reads what comes behind it."""
        require(self.n_inputs >= 1, f"a circuit has an input, found n_inputs={self.n_inputs}.")
        require(len(self.gates) >= 1, "a circuit has a gate; found none.")
        for k, gate in enumerate(self.gates, self.n_inputs):
            require(
                gate.kind in GATES,
                f'"{gate.kind}" is no gate.{nearest(gate.kind, GATES)} There are {", ".join(GATES)}.',
            )
            require(
                min(gate.first, gate.second) >= 0 and max(gate.first, gate.second) < k,
                f"gate {k}, {gate}, reads bits that are known before it, 0 to {k - 1}.",
            )


def random_circuit(n_inputs: Count, n_gates: Count, seed: int = 0) -> Circuit:
    """Return gates drawn at random, each of any two bits before it, so that depth grows with their number."""
    generator = torch.Generator().manual_seed(seed)
    kinds = [*GATES]

    def draw(below: int) -> int:
        return int(torch.randint(below, (), generator=generator))

    gates = [Gate(kinds[draw(len(kinds))], draw(n_inputs + t), draw(n_inputs + t)) for t in range(n_gates)]
    return Circuit(n_inputs, tuple(gates))


def gate_values(circuit: Circuit, inputs: Int[Tensor, "batch input"]) -> Int[Tensor, "batch gate"]:
    """Return the value of every gate, one after another: the judge.

    Args:
        circuit: The circuit.
        inputs: Rows of 0 and 1.
    """
    circuit.check()
    bits = [*inputs.unbind(1)]
    require(
        len(bits) == circuit.n_inputs,
        f"the circuit has {circuit.n_inputs} inputs; found {len(bits)} columns.",
    )
    for gate in circuit.gates:
        c_0, c_1, c_2, c_3 = GATES[gate.kind]
        x, y = bits[gate.first], bits[gate.second]
        bits.append(c_0 + c_1 * x + c_2 * y + c_3 * x * y)
    return torch.stack(bits[circuit.n_inputs :], 1)


def circuit_decoder(circuit: Circuit) -> Decoder:
    """Build the decoder that continues the inputs of a circuit with the values of its gates, in their order.

    Raises:
        ConfigError: A gate of no known kind, or one that reads what comes behind it.
    """
    circuit.check()
    size = circuit.n_inputs + len(circuit.gates)
    width = max(1, (size - 1).bit_length())
    # position k - 1 says what bit k is made of; those of inputs are told by nobody
    reads = torch.zeros(3, size, dtype=torch.long)
    reads[0] = torch.arange(size)
    factors = torch.zeros(4, size)
    for k, gate in enumerate(circuit.gates, circuit.n_inputs):
        reads[1:, k - 1] = torch.tensor([gate.first, gate.second])
        factors[:, k - 1] = torch.tensor(GATES[gate.kind])
    signs = 2 * (reads[..., None] >> torch.arange(width) & 1) - 1
    names = ("own", "first", "second")
    places = {f"{name} {i}": signs[row, :, i] for row, name in enumerate(names) for i in range(width)}
    places |= {f"factor {i}": factors[i] for i in range(4)}
    embed = {"0": {"one": 1.0}, "1": {"one": 1.0, "is 1": 1.0}}
    heads = [
        Head(
            {name: {"is 1": 1.0}},
            query=[{f"{name} {i}": 1.0} for i in range(width)],
            key=[{f"own {i}": 1.0} for i in range(width)],
        )
        for name in ("first", "second")
    ]
    terms: list[Reading] = [{"one": 1.0}, {"first": 1.0}, {"second": 1.0}, {"first": 1.0, "second": 1.0, "one": -1.0}]
    neurons = [Neuron(term, {f"factor {i}": 1.0}, {"next": 1.0}) for i, term in enumerate(terms)]
    return wired(embed, [Layer(heads, neurons)], {"1": {"next": 1.0}, "0": {"one": 1.0, "next": -1.0}}, places)


def gates_by_chain(model: Decoder, circuit: Circuit, inputs: Int[Tensor, "batch input"]) -> Int[Tensor, "batch gate"]:
    """Return the value of every gate as a decoder generates them, a token each.

    Args:
        model: From `circuit_decoder`.
        circuit: The circuit it was built for.
        inputs: Rows of 0 and 1.
    """
    made = generate(model, inputs, GREEDY, max_new_tokens=len(circuit.gates), stop_ids=[])
    return torch.tensor(made.tokens)


def wrong_gates(model: Decoder, circuit: Circuit, inputs: Int[Tensor, "batch input"]) -> int:
    """The gates at which a decoder would write another bit than the judge; with none it generates the judge's chain."""
    chain = torch.cat((inputs, gate_values(circuit, inputs)), 1)
    with torch.no_grad():
        said = model(chain[:, :-1]).argmax(-1)
    return int((said != chain[:, 1:])[:, circuit.n_inputs - 1 :].sum())


def circuit_widths(sizes: Sequence[int], n_inputs: Count = 8) -> Labelled:
    """Widths of the streams of decoders for circuits, over `length`, the inputs and gates of each together.

    Args:
        sizes: Gates.
        n_inputs: Inputs.
    """
    widths = [circuit_decoder(random_circuit(n_inputs, n)).config.d_model for n in sizes]
    return Labelled(torch.tensor(widths).double(), ("length",), {"length": [n_inputs + n for n in sizes]})
