"""What a prompted machine says against the interpreter: its chains of thought, their length, and the digits they take.

A chain of thought is generated greedily token by token, so it is the interpreter's if each token of that one is the
likeliest behind those before it: one pass over the whole text tells, however long the chain is.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from glassformer.arguments import Count
from glassformer.config import require
from glassformer.dynamics.prompting.language import Statement, compiled
from glassformer.dynamics.prompting.machine import TOKENS, Program, execute, input_tokens, prompt_tokens
from glassformer.labelled import Labelled
from glassformer.models import Decoder
from glassformer.trace import Tape

# where numbers are rounded: all that a layer hands on, and all that attention compares and weighs
_ROUNDED = (
    "blocks.*.resid_*", "blocks.*.attn.query", "blocks.*.attn.key", "blocks.*.attn.value", "blocks.*.attn.scores",
    "blocks.*.attn.pattern", "blocks.*.attn.z",
)  # fmt: skip
DOUBLE = 53  # bits of a significand in float64


def wrong_tokens(
    model: Decoder, program: Program, inputs: Sequence[Sequence[int]], significand: Count | None = None
) -> int:
    """The tokens of chains of thought, outputs included, at which a model would say another than the interpreter.

    With none, greedy generation gives exactly the interpreter's chain for each of the inputs.

    Args:
        model: From `prompted_machine`.
        program: From `compiled` or `read_program`.
        inputs: Lists of bits.
        significand: Bits to which every number of the pass is rounded; as they are by default.

    Raises:
        ConfigError: A text does not fit into the context, or the program does not halt.
    """
    prompts = [[*prompt_tokens(program), *input_tokens(bits)] for bits in inputs]
    rows = [[*prompt, *execute(program, bits).chain] for prompt, bits in zip(prompts, inputs)]
    longest = max(map(len, rows))
    require(
        longest <= model.config.max_len,
        f"a chain of thought ends at token {longest:,}, outside the context of {model.config.max_len:,}; build "
        "prompted_machine with a larger max_len.",
    )
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    asked = torch.zeros(len(rows), longest, dtype=torch.bool)
    for i, (prompt, row) in enumerate(zip(prompts, rows)):
        ids[i, : len(row)] = torch.tensor([TOKENS.index(token) for token in row])
        asked[i, len(prompt) : len(row)] = True
    rounding = [] if significand is None else [(name, rounded(significand)) for name in _ROUNDED]
    with torch.no_grad():
        said = model(ids, tape=Tape(model, edit=rounding) if rounding else None).argmax(-1)
    return int((said[:, :-1] != ids[:, 1:])[asked[:, 1:]].sum())


def rounded(significand: int) -> Callable[[Tensor], Tensor]:
    """Return the function that rounds numbers to so many bits of significand, whatever their exponents."""

    def to_bits(x: Tensor) -> Tensor:
        fraction, exponent = torch.frexp(x)
        return torch.ldexp(torch.round(fraction * 2**significand) / 2**significand, exponent)

    return to_bits


def bits_needed(model: Decoder, program: Program, bits: Sequence[int]) -> int:
    """The least bits of significand with which a model still gives the interpreter's chain of thought, by bisection.

    Args:
        model: From `prompted_machine`.
        program: From `compiled` or `read_program`.
        bits: The input.

    Raises:
        ConfigError: float64 is not enough, the text does not fit, or the program does not halt.
    """
    few, enough = 0, DOUBLE
    require(wrong_tokens(model, program, [bits], enough) == 0, "float64 has too few digits for a text so long.")
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (few, middle) if wrong_tokens(model, program, [bits], middle) == 0 else (middle, enough)
    return enough


def chain_lengths(programs: Mapping[str, Sequence[Statement]], lengths: Sequence[int]) -> Labelled:
    """Tokens of the chain of thought by length of the input, `program length`, for inputs 0 1 0 1 …

    Args:
        programs: Statements by name, such as `PROGRAMS`.
        lengths: Bits of the inputs.
    """
    inputs = [[i % 2 for i in range(length)] for length in lengths]
    counts = [
        [float(len(execute(program, bits).chain)) for bits in inputs]
        for program in (compiled(statements) for statements in programs.values())
    ]
    values = torch.tensor(counts, dtype=torch.float64)
    return Labelled(values, ("program", "length"), {"program": [*programs], "length": [*lengths]})
