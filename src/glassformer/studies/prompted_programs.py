"""Prompted programs: one decoder whose prompt says what to compute, and how many tokens and digits that takes.

The weights are set by hand, once for all programs; see `glassformer.dynamics.prompting`. A case is a program and a
length of its input, seeds draw the input. The chain of thought is the interpreter's or it is not, token by token; the
digits it takes are found by rounding every number of the pass to fewer and fewer bits.
"""

import torch

from glassformer.dynamics.prompting import (
    PROGRAMS,
    bits_needed,
    compiled,
    execute,
    input_tokens,
    prompt_tokens,
    prompted_machine,
    wrong_tokens,
)
from glassformer.study import Case, Claim, Measure, Measures, Scale, Study, above, below, slope, value, within


def run(case: Case) -> Measures:
    program = compiled(PROGRAMS[case["program"]])
    bits = torch.randint(2, (2 ** case["doublings"],), generator=case.generator()).tolist()
    found = execute(program, bits)
    prompt, given = len(prompt_tokens(program)), len(input_tokens(bits))
    model = prompted_machine(prompt + given + len(found.chain))
    return {
        "wrong": float(wrong_tokens(model, program, [bits])),
        "chain": float(len(found.chain)),
        "tokens_per_step": len(found.chain) / found.steps,
        "tokens": float(prompt + given + len(found.chain)),
        "bits": float(bits_needed(model, program, bits)),
    }


EXACT = "the weights are set by hand, and do the same for every input"

STUDY = Study(
    "prompted-programs",
    paper='Qiu, Xu, Bao and Tong 2024, "Ask, and it shall be given: On the Turing completeness of prompting", '
    "arXiv 2411.01992: one finite transformer and a prompt for every computable function, O(t(n)) tokens for two-tape "
    "machines, O(log(n + t(n))) bits",
    question="Does one decoder run any program that a prompt says, and how many tokens and digits does it take?",
    run=run,
    grid={"program": tuple(PROGRAMS), "doublings": (3, 4, 5)},
    scales={
        "smoke": Scale(1, grid={"program": ("not", "parity"), "doublings": (1, 2)}),
        "small": Scale(5),
    },
    measures={
        "wrong": Measure("Tokens of chain of thought and output that are not the interpreter's"),
        "chain": Measure("Tokens of chain of thought and output"),
        "tokens_per_step": Measure("Tokens of the chain for each instruction that is carried out"),
        "tokens": Measure("Tokens of prompt, input, chain of thought and output"),
        "bits": Measure("Least bits of significand with which no token is wrong", "bits"),
    },
    claims=(
        *(
            Claim(f"exact-{name}", f"{name}: every token is the interpreter's", value("wrong", program=name),
                  within(0, 0), exact=EXACT)
            for name in PROGRAMS
        ),
        Claim("parity-in-step", "A step of the machine for parity takes as many tokens whatever the input's length",
              slope("tokens_per_step", "doublings", program="parity"), within(0.1, 0)),
        Claim("addition-in-step", "So does one of the machine for addition",
              slope("tokens_per_step", "doublings", program="addition"), within(0.1, 0)),
        Claim("digits-grow", "Twice the input takes more digits", slope("bits", "doublings", program="parity"),
              above(0.5)),
        Claim("digits-logarithm", "And no more than the three bits of n^3, the size of scores",
              slope("bits", "doublings", program="parity"), below(3.0)),
    ),
    differs=(
        "Positions are numbers that a table holds, and gated MLPs multiply; the paper has neither, and makes codes of "
        "numbers by norms.",
        "Programs are for two tapes. That any Turing machine needs on two tapes but a logarithm more time is a "
        "simulation of 1966 that the paper's second bound rests on; it is not built.",
    ),
    mechanisms=("softmax",),
)  # fmt: skip
