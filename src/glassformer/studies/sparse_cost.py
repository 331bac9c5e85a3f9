"""How the cost of sparse attention grows with the text, in operations that are counted and in time that is measured.

Mechanisms alone, from queries, keys and values to what they mix, forward and backward, on 1,024 to 8,192 tokens.
"""

import time

import torch
from torch import Tensor

from glassformer.attention import Attention, BigBird, Context, Longformer, Mixer, MixerConfig, Softmax
from glassformer.bench.growth import growth_exponent
from glassformer.models.stack import make_context
from glassformer.study import (
    Case,
    Claim,
    Condition,
    Measure,
    Measures,
    Quantity,
    Scale,
    Study,
    above,
    below,
    kinds_of,
    value,
)

FULL, LONGFORMER, BIG_BIRD = "full", "Longformer", "BigBird"
MIXERS: dict[str, MixerConfig] = {FULL: Softmax(), LONGFORMER: Longformer(257, n_global=1), BIG_BIRD: BigBird()}
HEADS, D_HEAD = 4, 64


def run(case: Case) -> Measures:
    lengths = [case["shortest"] << i for i in range(4)]
    config = MIXERS[case["attention"]]
    dims = Attention(HEADS, mixer=config).dims(HEADS * D_HEAD, lengths[-1])
    mixer, seconds = config.build(dims, "attn"), list[float]()
    for n in lengths:
        inputs = [torch.randn(shape, generator=case.generator()).requires_grad_() for shape in shapes(config, n)]
        context = make_context(1, n, inputs[0].device, is_causal=False)
        seconds.append(min(timed(mixer, inputs, context) for _ in range(case["times"])))
    counted = [config.flops(n, n, dims, causal=False) for n in lengths]
    return {
        "time_grows": growth_exponent(lengths, seconds).exponent,
        "operations_grow": growth_exponent(lengths, [float(n) for n in counted]).exponent,
        "seconds": seconds[-1],
    }


def shapes(config: MixerConfig, n: int) -> list[tuple[int, ...]]:
    streams, values = (() if s == 1 else (s,) for s in (config.traits.streams, config.traits.value_streams))
    return [(1, *lead, HEADS, n, D_HEAD) for lead in (streams, streams, values)]


def timed(mixer: Mixer, inputs: list[Tensor], context: Context) -> float:
    begun = time.process_time()
    z, _ = mixer(*inputs, torch.zeros(()), context, None, None)
    torch.autograd.grad(z.sum(), inputs)
    return time.process_time() - begun


def grows(attention: str, what: str = "time_grows") -> Quantity:
    return value(what, attention=attention)


QUADRATIC = Condition("The time of full attention grows with the square", grows(FULL), above(1.7))
COUNTED = "operations are counted of shapes, and no seed changes them"


def faster(attention: str) -> Claim:
    ratio = value("seconds", attention=attention) / value("seconds", attention=FULL)
    text = f"{attention} takes less than half of the time of full attention"
    return Claim(f"{attention.lower()}-faster", text, ratio, below(0.5), (QUADRATIC,))


STUDY = Study(
    "sparse-cost",
    paper='Beltagy et al. 2020, "Longformer", figure 1; Zaheer et al. 2020, "Big Bird", section 1: cost grows linearly '
    "with the text, where that of full attention grows with its square",
    question="Does the cost of Longformer and BigBird grow with the text, and not with its square?",
    run=run,
    grid={"attention": tuple(MIXERS)},
    scales={"smoke": Scale(1, {"shortest": 128, "times": 1}), "small": Scale(3, {"shortest": 1024, "times": 3})},
    measures={
        "time_grows": Measure("Exponent of processor time by length: 1 is linear, 2 is quadratic", timed=True),
        "operations_grow": Measure("Exponent of the operations that are counted"),
        "seconds": Measure("Processor time forward and backward on the longest text", "s", timed=True),
    },
    claims=(
        Claim("full-square", "Full attention grows with the square", grows(FULL), above(1.7)),
        Claim("longformer-linear", "Longformer grows linearly", grows(LONGFORMER), below(1.25), (QUADRATIC,)),
        Claim("bigbird-linear", "BigBird does", grows(BIG_BIRD), below(1.25), (QUADRATIC,)),
        Claim("longformer-operations", "So do Longformer's operations", grows(LONGFORMER, "operations_grow"),
              below(1.05), exact=COUNTED),
        Claim("bigbird-operations", "BigBird's, with global blocks that read all", grows(BIG_BIRD, "operations_grow"),
              below(1.05), exact=COUNTED),
        faster(LONGFORMER), faster(BIG_BIRD),
    ),
    differs=(
        "One layer of four heads of 64 on one thread of a processor; the papers measure on accelerators. Time includes "
        "what the system takes to hand out memory anew for large tensors.",
        "Seeds draw queries, keys and values; a time is the least of three.",
    ),
    mechanisms=("softmax", "longformer", "big_bird"),
    kinds=kinds_of(MIXERS),
    references={"attention": (FULL,)},
)  # fmt: skip
