"""One decoder for every program: what it computes is said in the prompt, and carried out as a chain of thought.

The machine, its instructions and the prompt are those of `prompting.machine`. Nothing is kept but the tokens, and each
new token is worked out of all of them in five layers (n = t + 1 is the number of tokens so far):

    0  has the prompt ended?   any `$`; what each token moves, writes and adds to the counter behind it
       which instruction?      n * the mean of "is an instruction"
    1  where are the heads?    n * the mean of what tokens move; so the counter
    2  fetch                   score -(listed - counter)^2, and 1 less for what is no instruction of the prompt
    3  read a cell             score n (is a write - 1 - (where - head)^2) + place: the latest write there
       begin of a jump         score n (is `=`) + place
    4  copy a jump's signs     score -(place - wanted)^2
       the next token          by rectifiers that are ANDs

Means are of uniform attention; a fetch or a read is a head whose best key takes all. Every score is a whole number up
to rounding, in sizes up to n^3, so that digits grow as 3 log n. No weight depends on the program or on the length; the
table of positions says 0, 1, 2, … and ends somewhere, as every table does.

Differs from the paper: whole numbers from gated MLPs and a position that is a number, where the paper makes codes of
numbers by norms and needs no positions; softmax with one temperature, where a query multiplied by n keeps the gap
between scores at one, in place of attention that averages over the best keys by definition.

Source: Qiu, Xu, Bao and Tong 2024, "Ask, and it shall be given: On the Turing completeness of prompting",
arXiv 2411.01992: one finite decoder Gamma with a finite prompt for every computable function; O(t(n)) tokens for what
two-tape machines do in time t(n), O(t(n) log t(n)) for time t(n) of any Turing machine, by simulating its tapes on two.
That simulation, and so the logarithm, is not built here.
"""

from collections.abc import Mapping, Sequence

import torch

from glassformer.arguments import Count
from glassformer.config import require
from glassformer.dynamics.prompting.machine import (
    INSTRUCTIONS,
    JUMPS,
    PLAIN,
    TOKENS,
    Program,
    input_tokens,
    prompt_tokens,
)
from glassformer.dynamics.wiring import Head, Layer, Neuron, Reading, wired
from glassformer.errors import ConfigError
from glassformer.models import GREEDY, Decoder, generate

N: Reading = {"place": 1.0, "one": 1.0}
ONE: Reading = {"one": 1.0}
TAPES = ("A", "B")
# tokens behind which an instruction begins, within a jump, and in the output
READY, JUMPING, GIVING = ("$", *PLAIN, "/", "@"), ("=", "+", "-"), (":", "0", "1")


def prompted_machine(max_len: Count = 1024) -> Decoder:
    """Build the decoder that runs any prompt: greedy generation gives the chain of thought and the output.

    Args:
        max_len: Longest prompt, chain of thought and output together; the length of the table of positions, and of
            nothing else.

    Source: Qiu et al. 2024, "Ask, and it shall be given", arXiv 2411.01992, theorem 3.1.
    """
    embed = {token: {f"is {token}": 1.0, "one": 1.0} for token in TOKENS}
    layers = [_phase(), _positions(), _fetch(), _cells(), _next()]
    said = (*PLAIN, "/", "=", "+", "-", "@", ":", "0", "1", "$")
    unembed = {token: {f"next {token}": 1.0} for token in said}
    return wired(embed, layers, unembed, {"place": torch.arange(max_len)})


def prompt_text(program: Program, bits: Sequence[int]) -> str:
    """Return a program and an input as the text that `prompted_machine` continues."""
    return " ".join([*prompt_tokens(program), *input_tokens(bits)])


def answer(model: Decoder, program: Program, bits: Sequence[int]) -> tuple[int, ...]:
    """Return what a prompted machine answers, by generating its chain of thought token by token.

    Args:
        model: From `prompted_machine`.
        program: From `compiled` or `read_program`.
        bits: The input.

    Raises:
        ConfigError: The prompt does not fit into the context, or the chain of thought does not end within it.
    """
    stop = TOKENS.index("$")
    made = generate(
        model, prompt_text(program, bits), GREEDY, stop_ids=[stop], max_new_tokens=_room(model, program, bits)
    )
    require(
        made.stopped[0],
        f"the chain of thought has not ended after {len(made.tokens[0]):,} tokens, where the context of "
        f"{model.config.max_len:,} does; build prompted_machine with a larger max_len.",
    )
    chain = [TOKENS[token] for token in made.tokens[0]]
    return tuple(int(token) for token in chain[chain.index(":") + 1 : -1])


def _room(model: Decoder, program: Program, bits: Sequence[int]) -> int:
    used = len(prompt_tokens(program)) + len(input_tokens(bits))
    if used >= model.config.max_len:
        raise ConfigError(
            f"program and input are {used:,} tokens, and the context of {model.config.max_len:,} has no room for a "
            "chain of thought; build prompted_machine with a larger max_len."
        )
    return model.config.max_len - used


def _is(*tokens: str, factor: float = 1.0) -> Reading:
    return {f"is {token}": factor for token in tokens}


def _sum(*readings: Reading) -> Reading:
    found: dict[str, float] = {}
    for reading in readings:
        for name, factor in reading.items():
            found[name] = found.get(name, 0.0) + factor
    return found


def _times(factor: float, reading: Reading) -> Reading:
    return {name: factor * value for name, value in reading.items()}


def _square(name: str) -> list[Neuron]:
    """Return neurons that square a coordinate of either sign."""
    return [Neuron({name: sign}, {name: sign}, {f"{name} squared": 1.0}) for sign in (1.0, -1.0)]


def _latest(token: str, value: Mapping[str, Reading]) -> Head:
    """Return a head that looks at the latest token of a kind."""
    return Head(value, query=[N, ONE], key=[_is(token), {"place": 1.0}])


def _phase() -> Layer:
    started = Head({"started": _is("$")}, query=[ONE], key=[_is("$")])
    listed = Head({"mean listed": _is(*INSTRUCTIONS)})
    output = _latest(":", {"output from": {"place": 1.0}})
    begun: Reading = {"started": 1.0}
    neurons = [
        Neuron(N, {"mean listed": 1.0}, {"listed": 1.0}),
        Neuron({"one": 1.0, "started": -1.0}, _is(*INSTRUCTIONS), {"of the prompt": 1.0}),
        Neuron(begun, _sum(_is(*PLAIN, "/", "+"), _is("-", factor=-1.0)), {"step": 1.0}),
        *(Neuron(begun, {f"is {t}R": 1.0, f"is {t}L": -1.0}, {f"move {t}": 1.0}) for t in TAPES),
        *(Neuron(begun, _is(f"{t}0", f"{t}1"), {f"write {t}": 1.0}) for t in TAPES),
        *(Neuron(begun, _is(f"{t}1"), {f"bit {t}": 1.0}) for t in TAPES),
        *_square("place"),
    ]
    return Layer([started, listed, output], neurons)


def _positions() -> Layer:
    moved = Head({f"mean {name}": {name: 1.0} for name in ("step", "move A", "move B")})
    neurons = [
        Neuron(N, {"mean step": 1.0}, {"counter": 1.0}),
        *(Neuron(N, {f"mean move {t}": 1.0}, {f"head {t}": 1.0}) for t in TAPES),
        *_square("listed"),
    ]
    return Layer([moved], neurons)


def _fetch() -> Layer:
    fetch = Head(
        {"address": {"place": 1.0}} | {f"do {name}": _is(name) for name in INSTRUCTIONS},
        # instructions are counted from 1, and the counter from 0
        query=[{"counter": 1.0, "one": 1.0}, ONE],
        key=[{"listed": 2.0}, {"listed squared": -1.0, "of the prompt": 1.0}],
    )
    given = {"place": 2.0, "output from": -2.0}  # cells that the output so far took
    neurons = [
        *(neuron for t in TAPES for neuron in _square(f"head {t}")),
        *(Neuron(N, {f"head {t}": 1.0}, {f"n head {t}": 1.0}) for t in TAPES),
        Neuron(N, given, {"n given": 1.0}),
    ]
    return Layer([fetch], neurons)


def _cells() -> Layer:
    given: Reading = {"place": 2.0, "output from": -2.0}
    # what a head looks for: the tape, n times the cell, and the cell
    wanted: Mapping[str, tuple[str, Reading, Reading]] = {
        "A": ("A", {"n head A": 1.0}, {"head A": 1.0}),
        "B": ("B", {"n head B": 1.0}, {"head B": 1.0}),
        "mark": ("A", {"n given": 1.0}, given),
        "bit": ("A", {"n given": 1.0, **N}, {**given, "one": 1.0}),
    }
    reads = [
        Head(
            {f"found {name}": {f"bit {t}": 1.0}, f"where {name}": {f"head {t}": 1.0}},
            query=[N, scaled, ONE],
            key=[{f"write {t}": 1.0, "one": -1.0, f"head {t} squared": -1.0}, {f"head {t}": 2.0}, {"place": 1.0}],
        )
        for name, (t, scaled, _) in wanted.items()
    ]
    jump = _latest("=", {"jump from": {"place": 1.0}, "jump address": {"address": 1.0}})
    neurons: list[Neuron] = []
    for name, (_, _, cell) in wanted.items():
        off = _sum({f"where {name}": 1.0}, _times(-1.0, cell))
        # a tent: 1 where the best key is the cell that is wanted, 0 one cell away and further
        for shift, factor in ((1.0, 1.0), (0.0, -2.0), (-1.0, 1.0)):
            neurons.append(Neuron(_sum(off, _times(shift, ONE)), {f"found {name}": 1.0}, {f"cell {name}": factor}))
    return Layer([*reads, jump], neurons)


def _next() -> Layer:
    copy = Head(
        {f"copied {token}": _is(token) for token in ("+", "-", "@")},
        query=[{"jump address": 1.0, "jump from": -1.0, **N}, ONE],
        key=[{"place": 2.0}, {"place squared": -1.0}],
    )
    ready, jumping, giving = _is(*READY), _is(*JUMPING), _is(*GIVING)

    def said(token: str, *parts: Reading) -> Neuron:
        """Say a token where all of some zeros and ones are one."""
        return Neuron(_sum(*parts, _times(1.0 - len(parts), ONE)), ONE, {f"next {token}": 1.0})

    def no(name: str) -> Reading:
        return {"one": 1.0, name: -1.0}

    neurons = [said(name, ready, {f"do {name}": 1.0}) for name in PLAIN]
    neurons.append(said(":", ready, {"do #": 1.0}))
    for name in JUMPS:
        cell = f"cell {name[0]}"
        is_one, is_zero = ("=", "/") if name[1] == "?" else ("/", "=")
        neurons.append(said(is_one, ready, {f"do {name}": 1.0}, {cell: 1.0}))
        neurons.append(said(is_zero, ready, {f"do {name}": 1.0}, no(cell)))
    neurons += [said(token, jumping, {f"copied {token}": 1.0}) for token in ("+", "-", "@")]
    neurons.append(said("1", giving, {"cell mark": 1.0}, {"cell bit": 1.0}))
    neurons.append(said("0", giving, {"cell mark": 1.0}, no("cell bit")))
    neurons.append(said("$", giving, no("cell mark")))
    return Layer([copy], neurons)
