"""Two-tape machines that a prompt describes, and the slow interpreter that judges whoever reads such a prompt.

Two tapes of bits without ends, A and B, all 0, a head on cell 0 of each, and a list of instructions with a counter:

    AL AR BL BR          move a head one cell
    A0 A1 B0 B1          write
    A?k B?k  A!k B!k     jump k instructions from this one where the cell is 1, or where it is 0
    #                    halt

A prompt is `^`, the program with every jump as a count of signs (`A?` `+` `+` `@`), and `$`. An input follows as
instructions that write it onto tape A, in pairs (1, bit) from cell 0 on, and a jump back to the program's start. The
chain of thought has each instruction that is carried out: itself if it moves or writes, `/` for a jump that is not
taken, `=` and its signs and `@` for one that is, `:` for the end. Then come the output, which is read in pairs from
cell 0 of A while the first of a pair is 1, and `$`.

Source: Qiu, Xu, Bao and Tong 2024, "Ask, and it shall be given: On the Turing completeness of prompting",
arXiv 2411.01992, section 3.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from glassformer.config import require
from glassformer.errors import ConfigError, nearest

MOVES = ("AL", "AR", "BL", "BR")
WRITES = ("A0", "A1", "B0", "B1")
PLAIN = (*MOVES, *WRITES)
JUMPS = ("A?", "A!", "B?", "B!")
INSTRUCTIONS = (*PLAIN, *JUMPS, "#")
TOKENS = (*INSTRUCTIONS, "^", "$", "/", "=", "-", "+", "@", ":", "0", "1")
_WORD = re.compile(r"([AB][LR01]|#)|([AB][?!])([+-]\d+)")


class Instruction(NamedTuple):
    """One instruction, and by how many instructions it jumps."""

    name: str
    jump: int = 0

    def __str__(self) -> str:
        return f"{self.name}{self.jump:+d}" if self.jump else self.name

    def tokens(self) -> list[str]:
        """Return it as a prompt has it: a jump counts its distance in signs."""
        return [self.name] if self.name not in JUMPS else [self.name, *signs(self.jump), "@"]


Program = tuple[Instruction, ...]


class Execution(NamedTuple):
    """What an execution leaves.

    Args:
        chain: Its chain of thought as tokens, from the first instruction to the last `$`.
        output: The bits that it gives out.
        steps: Instructions that it carried out.
    """

    chain: tuple[str, ...]
    output: tuple[int, ...]
    steps: int


def signs(jump: int) -> list[str]:
    """Return a distance as so many signs."""
    return ["+" if jump > 0 else "-"] * abs(jump)


def read_program(text: str) -> Program:
    """Return the program that a text lists, `A!+9 AR A?-7 … #`, with spaces between instructions.

    Raises:
        ConfigError: A word is no instruction, a jump leads nowhere, or the last instruction does not halt.
    """
    found: list[Instruction] = []
    for word in text.split():
        match = _WORD.fullmatch(word)
        if match is None:
            known = [*PLAIN, "#", *(f"{name}+1" for name in JUMPS)]
            raise ConfigError(
                f'"{word}" is no instruction.{nearest(word, known)} There are {" ".join(PLAIN)} # and jumps, '
                f"{' '.join(JUMPS)} with a sign and a distance, such as A?+2."
            )
        plain, name, jump = match.groups()
        found.append(Instruction(plain) if plain else Instruction(name, int(jump)))
    return checked_program(found)


def checked_program(instructions: Sequence[Instruction]) -> Program:
    """Return a program that cannot leave its own instructions, whatever the tapes hold.

    Raises:
        ConfigError: An instruction is unknown, a jump leads outside or to itself, or the last one does not halt.
    """
    n = len(instructions)
    require(
        n > 0 and instructions[-1].name == "#",
        f'a program ends with "#"; found {str(instructions[-1])!r} at the end.' if n else "a program is not empty.",
    )
    for i, instruction in enumerate(instructions):
        name, jump = instruction
        require(name in INSTRUCTIONS, f'"{name}" is no instruction.{nearest(name, INSTRUCTIONS)}')
        require(
            (name in JUMPS) == (jump != 0),
            f"instruction {i}, {instruction}: {' '.join(JUMPS)} jump, by a distance other than 0, and nothing else.",
        )
        require(
            0 <= i + jump < n,
            f"instruction {i}, {instruction}, leads to instruction {i + jump} of {n}; they are 0 to {n - 1}.",
        )
    return tuple(instructions)


def prompt_tokens(program: Program) -> list[str]:
    """Return a program as a prompt, from `^` to `$`: the same for every input."""
    return ["^", *(token for instruction in program for token in instruction.tokens()), "$"]


def input_tokens(bits: Sequence[int]) -> list[str]:
    """Return an input as what is read behind a prompt: instructions that write it, and a jump back.

    Raises:
        ConfigError: Something other than 0 and 1.
    """
    require(set(bits) <= {0, 1}, f"an input is made of 0 and 1; found {sorted(set(bits) - {0, 1})}.")
    writes = ["AR"] * (2 * len(bits))
    for bit in reversed(bits):
        writes += ["AL", *(["A1"] if bit else []), "AL", "A1"]
    return [*writes, "=", *signs(-len(writes)), "@"] if writes else []


def execute(program: Program, bits: Sequence[int], most_steps: int = 100_000) -> Execution:
    """Run a program on an input, one instruction after another.

    Args:
        program: From `read_program` or `compiled`.
        bits: The input.
        most_steps: Instructions after which it is given up.

    Raises:
        ConfigError: It has not halted after so many, or the input is not of 0 and 1.
    """
    input_tokens(bits)  # says what is wrong with an input
    tapes: dict[str, defaultdict[int, int]] = {tape: defaultdict(int) for tape in "AB"}
    for i, bit in enumerate(bits):
        tapes["A"][2 * i], tapes["A"][2 * i + 1] = 1, bit
    heads, chain, counter = {"A": 0, "B": 0}, list[str](), 0
    for step in range(1, most_steps + 1):
        name, jump = program[counter]
        if name == "#":
            output = tuple(_written(tapes["A"]))
            return Execution((*chain, ":", *map(str, output), "$"), output, step)
        tape, what = name
        if name in JUMPS:
            taken = tapes[tape][heads[tape]] == (what == "?")
            chain += ["=", *signs(jump), "@"] if taken else ["/"]
            counter += jump if taken else 1
            continue
        if name in MOVES:
            heads[tape] += 1 if what == "R" else -1
        else:
            tapes[tape][heads[tape]] = int(what)
        chain.append(name)
        counter += 1
    raise ConfigError(
        f"the program has not halted on {''.join(map(str, bits)) or 'the empty input'} after {most_steps:,} "
        "instructions; give more with most_steps, or mend it."
    )


def _written(tape: defaultdict[int, int]) -> Iterator[int]:
    cell = 0
    while tape[cell]:
        yield tape[cell + 1]
        cell += 2
