"""Turing-complete prompting: one decoder that carries out whatever program its prompt says, token by token.

    program = compiled(PROGRAMS["parity"])
    answer(prompted_machine(), program, [1, 0, 1])          # (1,): the number of ones is even

`machine` is what a prompt describes and the slow interpreter of it, `language` what compiles to it, `decoder` the
transformer, `chains` how the two are compared.
"""

from typing import TYPE_CHECKING

from glassformer.lazy import lazily

if TYPE_CHECKING:
    from glassformer.dynamics.prompting.chains import bits_needed, chain_lengths, wrong_tokens
    from glassformer.dynamics.prompting.decoder import answer, prompt_text, prompted_machine
    from glassformer.dynamics.prompting.language import PROGRAMS, If, Move, While, Write, compiled
    from glassformer.dynamics.prompting.machine import (
        Execution,
        Instruction,
        execute,
        input_tokens,
        prompt_tokens,
        read_program,
    )

_HOMES = {
    "chains": ["bits_needed", "chain_lengths", "wrong_tokens"],
    "decoder": ["answer", "prompt_text", "prompted_machine"],
    "language": ["PROGRAMS", "If", "Move", "While", "Write", "compiled"],
    "machine": ["Execution", "Instruction", "execute", "input_tokens", "prompt_tokens", "read_program"],
}

__all__ = [
    "PROGRAMS",
    "Execution",
    "If",
    "Instruction",
    "Move",
    "While",
    "Write",
    "answer",
    "bits_needed",
    "chain_lengths",
    "compiled",
    "execute",
    "input_tokens",
    "prompt_text",
    "prompt_tokens",
    "prompted_machine",
    "read_program",
    "wrong_tokens",
]

__getattr__, __dir__ = lazily(__name__, _HOMES)
