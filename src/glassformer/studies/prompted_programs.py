"""Prompted programs: one decoder whose prompt says what to compute, and how many tokens and digits that takes.

The weights are set by hand, once for all programs; see `glassformer.dynamics.prompting`. A case is a program and a
length of its input, seeds draw the input. The chain of thought is the interpreter's or it is not, token by token; the
digits it takes are found by rounding every number of the pass to fewer and fewer bits.
"""

import math

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
from glassformer.study import Case, Claim, Measure, Measures, Scale, Study, above, below, growth, value, within


def run(case: Case) -> Measures:
    program = compiled(PROGRAMS[case["program"]])
    bits = torch.randint(2, (case["length"],), generator=case.generator()).tolist()
    found = execute(program, bits)
    prompt, given = len(prompt_tokens(program)), len(input_tokens(bits))
    model = prompted_machine(prompt + given + len(found.chain))
    tokens, digits = prompt + given + len(found.chain), bits_needed(model, program, bits)
    return {
        "wrong": float(wrong_tokens(model, program, [bits])),
        "chain": float(len(found.chain)),
        "steps": float(found.steps),
        "tokens": float(tokens),
        "bits": float(digits),
        "bits_over_logarithm": digits / math.log2(tokens),
    }


LONG = value("bits", program="parity", length=32)
COUNTED = "the machine takes as many steps for every input of a length"
EXACT = "the weights are set by hand, and do the same for every input"

STUDY = Study(
    "prompted-programs",
    paper='Qiu, Xu, Bao and Tong 2024, "Ask, and it shall be given: On the Turing completeness of prompting", '
    "arXiv 2411.01992: one finite transformer and a prompt for every computable function, O(t(n)) tokens for two-tape "
    "machines, O(log(n + t(n))) bits",
    question="Does one decoder run any program that a prompt says, and how many tokens and digits does it take?",
    run=run,
    grid={"program": tuple(PROGRAMS), "length": (8, 16, 32)},
    scales={
        "smoke": Scale(1, grid={"program": ("not", "parity"), "length": (2, 4)}),
        "small": Scale(5),
    },
    measures={
        "wrong": Measure("Tokens of chain of thought and output that are not the interpreter's"),
        "chain": Measure("Tokens of chain of thought and output"),
        "steps": Measure("Instructions that are carried out"),
        "tokens": Measure("Tokens of prompt, input, chain of thought and output"),
        "bits": Measure("Least bits of significand with which no token is wrong", "bits"),
        "bits_over_logarithm": Measure("These bits over the logarithm of tokens to base 2"),
    },
    claims=(
        *(
            Claim(f"exact-{name}", f"{name}: every token is the interpreter's", value("wrong", program=name),
                  within(0, 0), exact=EXACT)
            for name in PROGRAMS
        ),
        *(
            Claim(f"linear-{name}", f"{name}: the chain grows as the steps of the machine do, which grow as its input",
                  growth("chain", "length", program=name), within(0.1, 1), exact=exact)
            for name, exact in (("parity", COUNTED), ("not", COUNTED), ("addition", ""))
        ),
        Claim("digits-grow", "Four times the input takes more digits", LONG - value("bits", program="parity", length=8),
              above(0.5)),
        Claim("digits-logarithm", "And no more than the three bits of n^3, the size of scores",
              value("bits_over_logarithm", program="parity", length=32), below(3.0)),
    ),
    differs=(
        "Positions are numbers that a table holds, and gated MLPs multiply; the paper has neither, and makes codes of "
        "numbers by norms.",
        "Programs are for two tapes. That any Turing machine needs on two tapes but a logarithm more time is a "
        "simulation of 1966 that the paper's second bound rests on; it is not built.",
    ),
    mechanisms=("softmax",),
)  # fmt: skip
