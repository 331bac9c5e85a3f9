"""What a state of fixed size costs: bytes and operations, which are counted, and tokens per second, which are measured.

One layer as its paper builds it, in a decoder without anything else, on 1,024 to 65,536 tokens. Softmax keeps the keys
and values of all tokens and compares each with all before it; what is compared with it keeps a state.
"""

import time

import torch

from glassformer.attention import GatedDelta, Lightning, MixerConfig, Rwkv6, Softmax, StateSpace
from glassformer.bench.growth import growth_exponent
from glassformer.bench.memory import keep_freed_memory
from glassformer.models import DecoderConfig, Model, published_block
from glassformer.models.accounting import count_flops, state_bytes
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
    within,
)

SOFTMAX, LIGHTNING = "softmax", "lightning"
MIXERS: dict[str, MixerConfig] = {
    SOFTMAX: Softmax(),
    LIGHTNING: Lightning(),
    "gated delta": GatedDelta(),
    "state space": StateSpace(),
    "RWKV-6": Rwkv6(),
}
WIDTH, HEADS, FACTOR = 256, 4, 64


def run(case: Case) -> Measures:
    shortest = case["shortest"]
    lengths = [shortest, FACTOR * shortest]
    layer = published_block(MIXERS[case["attention"]], n_heads=HEADS, d_head=WIDTH // HEADS)
    config = DecoderConfig(2, WIDTH, (layer,), max_len=lengths[-1])
    bytes_ = [state_bytes(config, n) for n in lengths]
    model = config.build(case.seed).eval()
    # long texts would else be charged for the system's pages
    keep_freed_memory()
    seconds = [
        min(timed(model, n, case) for _ in range(max(1, times))) for n, times in zip(lengths, (FACTOR, case["times"]))
    ]
    return {
        "state_grows": bytes_[1] / bytes_[0],
        "state": float(bytes_[1]),
        "operations_grow": growth_exponent(lengths, [float(sum(count_flops(config, n).values())) for n in lengths])[0],
        "rate_short": lengths[0] / seconds[0],
        "rate_long": lengths[1] / seconds[1],
    }


@torch.no_grad()
def timed(model: Model, n: int, case: Case) -> float:
    tokens = torch.randint(2, (1, n), generator=case.generator())
    begun = time.process_time()
    model(tokens)
    return time.process_time() - begun


def of(attention: str, measure: str) -> Quantity:
    return value(measure, attention=attention)


def rate(attention: str) -> Quantity:
    """Return tokens per second on the longest text, of those on the shortest."""
    return of(attention, "rate_long") / of(attention, "rate_short")


COUNTED = "counted of shapes, which no seed changes"
SLOWER = Condition("Softmax reads a long text at less than half the rate", rate(SOFTMAX), below(0.5))


def keeps(attention: str) -> tuple[Claim, ...]:
    name = attention.lower().replace(" ", "-")
    return (
        Claim(f"{name}-state", f"{attention}: the state does not grow", of(attention, "state_grows"), within(0, 1),
              exact=COUNTED),
        Claim(f"{name}-operations", f"{attention}: operations grow as the text does", of(attention, "operations_grow"),
              below(1.01), exact=COUNTED),
        Claim(f"{name}-flat", f"{attention}: tokens per second stay within a tenth", rate(attention), above(0.9),
              (SLOWER,)),
    )  # fmt: skip


STUDY = Study(
    "state-cost",
    paper='Qin et al. 2024, "Lightning Attention-2", arXiv 2401.04658, figure 1 (tokens per second); Katharopoulos et '
    "al. 2020, arXiv 2006.16236; Yang et al. 2024, arXiv 2412.06464; Dao and Gu 2024, arXiv 2405.21060; Peng et al. "
    "2024, arXiv 2404.05892",
    question="Does a layer with a state cost the same per token and in memory, however long the text?",
    run=run,
    grid={"attention": tuple(MIXERS)},
    scales={"smoke": Scale(1, {"shortest": 16, "times": 1}), "small": Scale(3, {"shortest": 1024, "times": 3})},
    measures={
        "state_grows": Measure("Bytes kept of the longest text, of those of the shortest, which is 1/64 of it"),
        "state": Measure("Bytes kept of the longest text", "bytes"),
        "operations_grow": Measure("Exponent of the operations that are counted"),
        "rate_short": Measure("Tokens per second of processor time on the shortest text", "1/s", timed=True),
        "rate_long": Measure("The same on the longest", "1/s", timed=True),
    },
    claims=(
        Claim("softmax-state", "Softmax keeps 64 times as much of 64 times as many tokens", of(SOFTMAX, "state_grows"),
              within(0, 64), exact=COUNTED),
        Claim("softmax-operations", "Its operations grow faster than the text", of(SOFTMAX, "operations_grow"),
              above(1.5), exact=COUNTED),
        Claim("softmax-slower", "It reads a long text at less than half the rate", rate(SOFTMAX), below(0.5)),
        *(claim for attention in MIXERS if attention != SOFTMAX for claim in keeps(attention)),
        Claim("lightning-faster", "Lightning reads 65,536 tokens ten times as fast as softmax",
              of(LIGHTNING, "rate_long") / of(SOFTMAX, "rate_long"), above(10), (SLOWER,)),
    ),
    differs=(
        "One layer of width 256 with four heads of 64, forward alone, on one thread of a processor; the papers train "
        "language models on accelerators. Seeds draw weights and tokens; a time is the least of three, of 64 at 1,024 "
        "tokens.",
        "Memory that is freed stays with the process: otherwise long texts also pay for the system's pages.",
    ),
    mechanisms=("softmax", "lightning", "gated_delta", "state_space", "rwkv6"),
    kinds=kinds_of(MIXERS),
    references={"attention": (SOFTMAX,)},
)  # fmt: skip
