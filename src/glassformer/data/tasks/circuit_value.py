"""The value of a circuit that the prompt describes, a gate for each step.

    v_k = c_0 + c_1 x + c_2 y + c_3 x y,   x and y among the inputs and v_1 … v_(k-1)

    1 0 and x1 x0 xor x2 x0 _ _ _ = 0 1         inputs x0, x1; x2 = x1 and x0; x3 = x2 xor x0

Each gate reads the bit right before it, and another one: a circuit is as deep as it has gates. See `serial` for the
ways in which an answer is written.

Source: Li, Liu, Zhou and Ma 2024, arXiv 2402.12875, section 4 (the circuit value problem, which is complete for P:
Ladner 1975). Differs: gates there read any two bits, so that most circuits are shallow.
"""

import dataclasses
import re
from typing import ClassVar

import torch

from glassformer.arguments import Count
from glassformer.config import require
from glassformer.data.tasks.serial import SerialQuestion, Written, serial_symbols
from glassformer.errors import nearest

# by name: c_0, c_1, c_2, c_3 of c_0 + c_1 x + c_2 y + c_3 x y
GATES: dict[str, tuple[int, int, int, int]] = {
    "and": (0, 0, 0, 1),
    "or": (0, 1, 1, -1),
    "xor": (0, 1, 1, -2),
    "nand": (1, 0, 0, -1),
    "nor": (1, -1, -1, 1),
    "xnor": (1, -1, -1, 2),
    "not": (1, -1, 0, 0),  # of the first
}
_BIT = re.compile(r"x(0|[1-9][0-9]*)")


@dataclasses.dataclass(frozen=True)
class CircuitValue(SerialQuestion, kind="circuit-value"):
    """`1 0 and x1 x0 xor x2 x0 =` -> `0 1`: the gates of a circuit, each worked out from bits before it.

    Args:
        n_min: The least gates,
        n_max: and the most; the more, the harder.
        n_inputs: Bits that are given.
        gates: Kinds of gates, names of `GATES`.
    """

    length: Count = 40
    n_max: Count = 8
    n_inputs: Count = 4
    gates: tuple[str, ...] = ("and", "or", "xor", "nand", "nor", "xnor")
    word_size: ClassVar[int] = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.gates) > 0, f"circuit-value: gates is empty. There are {', '.join(GATES)}.")
        for kind in self.gates:
            require(
                kind in GATES,
                f'circuit-value: "{kind}" is no gate.{nearest(kind, GATES)} There are {", ".join(GATES)}.',
            )

    def symbols(self) -> list[str]:
        names = (f"x{bit}" for bit in range(self.n_inputs + self.n_max - 1))
        return serial_symbols("0", "1", *dict.fromkeys(self.gates), *names)

    def n_given(self) -> int:
        return self.n_inputs

    def draw_written(self, n_steps: int, random: torch.Generator) -> Written:
        bits = torch.randint(2, (self.n_inputs,), generator=random).tolist()
        words = list[str]()
        for step, (kind, other) in enumerate(torch.randint(2**30, (n_steps, 2), generator=random).tolist()):
            known = self.n_inputs + step
            words.append(f"{self.gates[kind % len(self.gates)]} x{known - 1} x{other % known}")
        return Written(tuple(map(str, bits)), tuple(words))

    def values(self, written: Written) -> tuple[str, ...] | None:
        if not set(written.given) <= {"0", "1"}:
            return None
        bits = list(map(int, written.given))
        for word in written.words:
            kind, *read = word.split()
            places = [int(found[1]) for found in map(_BIT.fullmatch, read) if found is not None]
            if kind not in self.gates or len(places) < 2 or max(places) >= len(bits):
                return None
            c_0, c_1, c_2, c_3 = GATES[kind]
            x, y = (bits[place] for place in places)
            bits.append(c_0 + c_1 * x + c_2 * y + c_3 * x * y)
        return tuple(map(str, bits[self.n_inputs :]))
