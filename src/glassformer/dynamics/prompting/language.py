"""A small structured language for two-tape machines, and its compiler to their instructions.

    Move("A", 2)   Write("B", 1)   While("A", 1, (…))   If("A", 1, (…), otherwise=(…))

`While` and `If` look at the cell under a head. A loop compiles to a jump over it where its condition is not met, and
one back from its end where it is; a branch to a jump to the other one, which the first ends by jumping over. A jump in
any case is two, on a cell that is 1 and on one that is 0.

A list of bits x_1 … x_n lies on tape A in pairs (1, x_i) from cell 0 on, as an input and as an output.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from glassformer.config import require
from glassformer.dynamics.prompting.machine import Instruction, Program, checked_program
from glassformer.errors import nearest

Tape = Literal["A", "B"]
Bit = Literal[0, 1]


class Move(NamedTuple):
    """Move a head by so many cells, to the right if the number is positive."""

    tape: Tape
    by: int


class Write(NamedTuple):
    """Write a bit into the cell under a head."""

    tape: Tape
    bit: Bit


class While(NamedTuple):
    """Repeat statements as long as the cell under a head is a bit."""

    tape: Tape
    bit: Bit
    body: Sequence["Statement"]


class If(NamedTuple):
    """Take one of two lists of statements, by whether the cell under a head is a bit."""

    tape: Tape
    bit: Bit
    body: Sequence["Statement"]
    otherwise: Sequence["Statement"] = ()


Statement = Move | Write | While | If


def compiled(statements: Sequence[Statement]) -> Program:
    """Return the program that carries out statements and halts.

    Raises:
        ConfigError: A tape other than A and B, a bit other than 0 and 1, or a loop without statements.
    """
    return checked_program([*_instructions(statements), Instruction("#")])


def _instructions(statements: Sequence[Statement]) -> list[Instruction]:
    found: list[Instruction] = []
    for statement in statements:
        tape = statement.tape
        require(tape in ("A", "B"), f'{statement}: tapes are "A" and "B".{nearest(tape, "AB")}')
        if isinstance(statement, Move):
            found += [Instruction(tape + ("R" if statement.by > 0 else "L"))] * abs(statement.by)
            continue
        require(statement.bit in (0, 1), f"{statement}: a cell holds 0 or 1.")
        if isinstance(statement, Write):
            found.append(Instruction(f"{tape}{statement.bit}"))
            continue
        met, unmet = (tape + "!?"[statement.bit == bit] for bit in (1, 0))
        body = _instructions(statement.body)
        if isinstance(statement, While):
            require(len(body) > 0, f"{statement}: a loop without statements would never end.")
            found += [Instruction(unmet, len(body) + 2), *body, Instruction(met, -len(body))]
            continue
        other = _instructions(statement.otherwise)
        # a jump over the other branch, whatever the cell holds by then
        over = [Instruction(f"{tape}?", len(other) + 2), Instruction(f"{tape}!", len(other) + 1)] if other else []
        if len(body) + len(over) > 0:
            found += [Instruction(unmet, len(body) + len(over) + 1), *body, *over, *other]
    return found


TO_START: tuple[Statement, ...] = (Move("A", -2), While("A", 1, (Move("A", -2),)), Move("A", 2))
# from the end of the list, leave one bit that says whether the cell of B is 1
ANSWER_OF_B: tuple[Statement, ...] = (
    *TO_START,
    Write("A", 1),
    Move("A", 1),
    If("B", 1, (Write("A", 1),), (Write("A", 0),)),
    Move("A", 1),
    Write("A", 0),
)
# add the bit of A to that of B, and leave in A what is carried
_ADD: tuple[Statement, ...] = (If("A", 1, (If("B", 1, (Write("B", 0),), (Write("B", 1), Write("A", 0))),)),)
_CARRY: tuple[Statement, ...] = (If("A", 1, (Write("B", 1),)),)
_MARK: tuple[Statement, ...] = (Move("B", -1), Write("B", 1), Move("B", 1))

PROGRAMS: Mapping[str, tuple[Statement, ...]] = {
    # 1 if the number of ones is even: B holds whether it is so far
    "parity": (
        Write("B", 1),
        While("A", 1, (Move("A", 1), If("A", 1, (If("B", 1, (Write("B", 0),), (Write("B", 1),)),)), Move("A", 1))),
        *ANSWER_OF_B,
    ),
    # 0 opens and 1 closes: B has a one for every bracket that is open; one too many closed leaves one for ever
    "dyck": (
        While(
            "A", 1, (
                Move("A", 1),
                If("A", 0, (Write("B", 1), Move("B", 1)), (
                    Move("B", -1),
                    If("B", 1, (Write("B", 0),), (
                        Write("B", 1), Move("B", 1), Move("A", 1), While("A", 1, (Move("A", 2),)), Move("A", -1),
                    )),
                )),
                Move("A", 1),
            ),
        ),
        Move("B", -1),
        If("B", 1, (Write("B", 0),), (Write("B", 1),)),
        *ANSWER_OF_B,
    ),
    "not": (While("A", 1, (Move("A", 1), If("A", 1, (Write("A", 0),), (Write("A", 1),)), Move("A", 1))),),
    # a_0 b_0 a_1 b_1 …, lowest first: sums and their carries are written onto B, and copied back
    "addition": (
        Move("B", 1),
        While(
            "A", 1, (
                Move("A", 1), *_ADD, Move("A", 2), *_ADD, *_MARK, Move("B", 2), *_CARRY, Move("A", -2), *_CARRY,
                Move("A", 3),
            ),
        ),
        *_MARK,
        *TO_START,
        Move("B", -1),
        While("B", 1, (Move("B", -2),)),
        Move("B", 2),
        While(
            "B", 1, (
                Write("A", 1), Move("A", 1), Move("B", 1), If("B", 1, (Write("A", 1),), (Write("A", 0),)),
                Move("A", 1), Move("B", 1),
            ),
        ),
        Write("A", 0),
    ),
    # B counts ones, which are cleared, and then written again from the end
    "sorting": (
        While(
            "A", 1,
            (Move("A", 1), If("A", 1, (Write("A", 0), Write("B", 1), Move("B", 1))), Move("A", 1)),
        ),
        Move("A", -1),
        Move("B", -1),
        While("B", 1, (Write("A", 1), Move("A", -2), Move("B", -1))),
    ),
}  # fmt: skip
