"""One decoder runs every prompt: its chains of thought are those of a plain interpreter, token for token."""

import itertools
import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
import torch

from glassformer.dynamics.prompting import (
    PROGRAMS,
    If,
    Move,
    While,
    Write,
    answer,
    bits_needed,
    chain_lengths,
    compiled,
    execute,
    input_tokens,
    prompt_tokens,
    prompted_machine,
    read_program,
    wrong_tokens,
)
from glassformer.errors import ConfigError
from glassformer.models import Decoder

# as machines of the paper's kind are written by hand, without the compiler
BY_HAND = {
    "parity": "A!+9 AR A!+5 B?+3 B1 B?+2 B0 AR A?-7 AL AL A?-2 AR AR A1 AR B?+3 A1 A?+2 A0 AR A0 #",
    "dyck": "A!+13 AR A?+6 B1 BR AR A?-5 A!+6 BL B!+10 B0 AR A?-11 BL B?+3 B1 B?+4 B0 B!+2 AL AL AL A?-2 AR AR A1 AR "
    "B!+3 A1 A?+2 A0 AR A0 #",
    "not": "A!+8 AR A?+3 A1 A?+2 A0 AR A?-6 #",
}


def balanced(bits: Sequence[int]) -> bool:
    depths = list(itertools.accumulate(1 - 2 * bit for bit in bits))
    return min(depths, default=0) >= 0 and (depths or [0])[-1] == 0


def total(bits: Sequence[int]) -> list[int]:
    number = sum(bit << (i // 2) for i, bit in enumerate(bits))
    return [number >> i & 1 for i in range(len(bits) // 2 + 1)]


IN_PYTHON: dict[str, Callable[[Sequence[int]], list[int]]] = {
    "parity": lambda bits: [1 - sum(bits) % 2],
    "dyck": lambda bits: [int(balanced(bits))],
    "not": lambda bits: [1 - bit for bit in bits],
    "addition": total,
    "sorting": sorted,
}


def inputs(most: int, every: int = 1) -> list[tuple[int, ...]]:
    lengths = range(0, most + 1, every)
    return [bits for n in lengths for bits in itertools.product((0, 1), repeat=n)]


@cache
def machine() -> Decoder:
    return prompted_machine(700)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_compiled_program_computes_what_python_does(name: str) -> None:
    program = compiled(PROGRAMS[name])
    for bits in inputs(8 if name == "addition" else 6, every=2 if name == "addition" else 1):
        assert [*execute(program, bits).output] == IN_PYTHON[name](bits), bits


@pytest.mark.parametrize("name", BY_HAND)
def test_a_program_written_by_hand_does_as_well(name: str) -> None:
    program = read_program(BY_HAND[name])
    assert all([*execute(program, bits).output] == IN_PYTHON[name](bits) for bits in inputs(5))


def test_chains_are_as_long_as_the_machine_takes_steps_and_jumps_cost_their_distance() -> None:
    for n in (4, 8):
        alternating = [i % 2 for i in range(n)]
        found = [len(execute(read_program(text), alternating).chain) for text in BY_HAND.values()]
        # as counted for these programs by hand
        assert found == [24 * n + 11, 25 * n + 16, 17 * n - 4]
    assert execute(read_program("A!+2 A1 #"), []).chain == ("=", "+", "+", "@", ":", "$")


def test_one_decoder_gives_the_chains_of_all_programs() -> None:
    for name, statements in PROGRAMS.items():
        some = [bits for bits in inputs(4) if name != "addition" or len(bits) % 2 == 0]
        assert wrong_tokens(machine(), compiled(statements), some[::6]) == 0, name


def test_what_it_generates_token_by_token_is_the_answer() -> None:
    program = read_program(BY_HAND["not"])
    assert answer(machine(), program, [0]) == (1,)


@pytest.mark.parametrize(("seed", "programs"), [(0, 5), pytest.param(1, 40, marks=pytest.mark.full)])
def test_it_runs_programs_that_nobody_wrote(seed: int, programs: int) -> None:
    draw = random.Random(seed)
    tried = 0
    while tried < programs:
        program = compiled(drawn(draw, 3))
        bits = [draw.randrange(2) for _ in range(draw.randrange(4))]
        try:
            execution = execute(program, bits, most_steps=60)
        except ConfigError:
            continue  # it may never halt
        if len(execution.chain) > 8 and len(prompt_tokens(program)) + len(execution.chain) < 250:
            assert wrong_tokens(machine(), program, [bits]) == 0, program
            tried += 1


def drawn(draw: random.Random, depth: int) -> list[If | Move | While | Write]:
    """Statements at random, which may do anything, and may not end."""

    def statement() -> If | Move | While | Write:
        tape: Any = draw.choice("AB")
        bit: Any = draw.randrange(2)
        kind = draw.choice([Move, Write, If, While] if depth else [Move, Write])
        if kind is Move:
            return Move(tape, draw.choice((-2, -1, 1, 2)))
        if kind is Write:
            return Write(tape, bit)
        body = [Move(tape, 1), *drawn(draw, depth - 1)]
        return While(tape, bit, body) if kind is While else If(tape, bit, body, drawn(draw, depth - 1))

    return [statement() for _ in range(draw.randrange(1, 5))]


def test_its_weights_know_neither_the_program_nor_the_length() -> None:
    short, long = (dict(prompted_machine(length).named_parameters()) for length in (20, 50))
    differing = [name for name in short if short[name].shape != long[name].shape]
    assert differing == ["embed.positions.weight"]
    assert torch.equal(short[differing[0]], long[differing[0]][:20])
    assert all(torch.equal(short[name], long[name]) for name in short if name not in differing)


def test_a_chain_that_is_not_the_interpreters_is_seen() -> None:
    broken: Any = prompted_machine(200)
    with torch.no_grad():
        broken.stack.blocks[3].attn.projection.matrix("query")[0] = 0  # it reads tape A no more
    assert wrong_tokens(broken, read_program(BY_HAND["not"]), [[1, 0]]) > 0


def test_longer_chains_take_more_digits_and_few_of_them() -> None:
    short, long = (compiled(PROGRAMS[name]) for name in ("not", "parity"))
    enough = bits_needed(machine(), short, [1])
    assert wrong_tokens(machine(), short, [[1]], enough - 1) > 0
    assert wrong_tokens(machine(), long, [[1, 0]], enough) > 0


def test_lengths_of_chains_are_those_of_executions() -> None:
    found = chain_lengths(PROGRAMS, [2, 4])
    assert found.axes == ("program", "length")
    for name, row in zip(found.coords["program"], found.values.tolist()):
        assert row == [len(execute(compiled(PROGRAMS[str(name)]), bits).chain) for bits in ([0, 1], [0, 1] * 2)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("A?+1 AX #", '"AX" is no instruction. Nearest: "A'),
        ("AL AR", 'ends with "#"; found'),
        ("", "not empty"),
        ("A?+4 #", "leads to instruction 4 of 2; they are 0 to 1"),
        ("A?+0 #", "jump, by a distance other than 0"),
    ],
)
def test_a_text_that_is_no_program_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_program(text)
    assert said in str(refused.value)


def test_what_cannot_be_run_is_refused() -> None:
    forever, short = compiled([Move("A", 2), While("A", 0, [Move("A", 1)])]), prompted_machine(30)
    with pytest.raises(ConfigError, match="has not halted on 1 after 50 instructions"):
        execute(forever, [1], 50)
    with pytest.raises(ConfigError, match="made of 0 and 1; found"):
        input_tokens([0, 2])
    with pytest.raises(ConfigError, match="a loop without statements"):
        compiled([While("A", 1, [])])
    with pytest.raises(ConfigError, match="a cell holds 0 or 1"):
        compiled([Write("A", 2)])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match='tapes are "A" and "B"'):
        compiled([Move("C", 1)])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="outside the context of 30"):
        wrong_tokens(short, read_program(BY_HAND["not"]), [[0]])
    with pytest.raises(ConfigError, match="has no room for a chain of thought"):
        answer(short, read_program(BY_HAND["not"]), [0, 1, 0, 1])
    with pytest.raises(ConfigError, match="has not ended after"):
        answer(prompted_machine(55), read_program(BY_HAND["not"]), [1])
    assert len(prompt_tokens(read_program("#"))) == 3 and input_tokens([]) == []
