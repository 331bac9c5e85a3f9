"""One wide head or many narrow ones, keys of their own or shared: loss at equal parameters, and against the state.

Blocks of one width have as many weights each, whatever their heads: what attention has less of, MLPs have more.

    weights of a block = 2 width (d_head (heads + kv_heads) + neurons) = 8 width^2
    state of a token   = 2 d_head kv_heads numbers a layer

Heads of all widths fill the stream, and their keys and values are their own (MHA), shared by groups (GQA) or by all
(MQA); a single head with as much state as MQA of its width says what sharing is worth beside having fewer heads.
"""

import math
from collections.abc import Mapping
from typing import Any

from glassformer.attention import Rope
from glassformer.data import TextConfig
from glassformer.models import DecoderConfig, Mlp, block, repeat
from glassformer.models.accounting import count_parameters, state_bytes
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
    least_step,
    value,
    within,
)
from glassformer.training import OptimConfig, TrainConfig, read_metrics

MHA, GQA, MQA, ONE = "MHA", "GQA", "MQA", "one head"
WIDTHS, WIDEST, DEPTH = (64, 128, 256), 256, 2
NARROW, MIDDLE, BROAD = 16, 64, 128
DATA = TextConfig(batch_size=16, length=64, vocab_size=512)


def run(case: Case) -> Measures:
    recipe = training(case["width"], case["keys"], case["d_head"], case["steps"])
    losses = [line["heldout_loss"] for line in read_metrics(case.train(recipe)) if "heldout_loss" in line]
    return {
        "loss": losses[-1],
        "state": state_bytes(recipe.model, DATA.length) / DATA.length,
        "parameters": float(sum(count_parameters(recipe.model).values())),
    }


def heads(width: int, keys: str, d_head: int) -> tuple[int, int]:
    """Return how many heads there are, and how many of keys and values."""
    n = 1 if keys == ONE else width // d_head
    return n, {MHA: n, GQA: max(2, n // 4), MQA: 1, ONE: 1}[keys]


def decoder(width: int, keys: str, d_head: int) -> DecoderConfig:
    n, kv = heads(width, keys, d_head)
    # a neuron has as many weights as a number of a query, key, value or z
    mlp = Mlp(4 * width - d_head * (n + kv), bias=False)
    layer = block(n_heads=n, n_kv_heads=kv, d_head=d_head, positions=Rope(), mlp=mlp)
    return DecoderConfig(DATA.vocab_size, width, repeat(layer, DEPTH), max_len=DATA.length)


def training(width: int, keys: str, d_head: int, steps: int) -> TrainConfig:
    return TrainConfig(
        decoder(width, keys, d_head), DATA, optim=OptimConfig(lr=3e-3, warmup=50), steps=steps, log_every=50,
        evaluate_every=steps, evaluate_batches=32, save_every=steps,
    )  # fmt: skip


def left_out(at: Mapping[str, Any]) -> bool:
    """Return whether heads do not fit the width, or a case is another one by another name or of no claim."""
    width, keys, d_head = at["width"], at["keys"], at["d_head"]
    if keys == ONE:
        return width < WIDEST
    # below the widest, state is compared at one width of heads alone
    if d_head > BROAD or (width < WIDEST and d_head > NARROW):
        return True
    return keys == GQA and width // d_head < 4


def loss(keys: str, d_head: int, width: int = WIDEST) -> Quantity:
    return value("loss", width=width, keys=keys, d_head=d_head)


LEARNED = Condition(
    "With sixteen heads of keys of their own the decoder has learned Python: it loses two thirds of what guessing does "
    "at most", loss(MHA, NARROW), below(2 / 3 * math.log(DATA.vocab_size)),
)  # fmt: skip


def shared_beats_few(d_head: int) -> Claim:
    return Claim(
        f"shared-beats-few-{d_head}", f"At equal state and parameters, heads of {d_head} that share their keys lose "
        "less than a single one", loss(MQA, d_head) - loss(ONE, d_head), below(0), (LEARNED,),
    )  # fmt: skip


STUDY = Study(
    "heads-and-state",
    paper='Vaswani et al. 2017, "Attention Is All You Need", table 3, rows A (how many heads); Shazeer 2019, "Fast '
    'Transformer Decoding: One Write-Head is All You Need", arXiv 1911.02150, table 3 (shared keys beside fewer and '
    'narrower heads, at equal parameters); Ainslie et al. 2023, "GQA", arXiv 2305.13245; Kaplan et al. 2020, arXiv '
    "2001.08361 (loss falls with parameters)",
    question="At equal parameters, how should heads be cut, and what does a smaller state cost?",
    run=run,
    grid={"width": WIDTHS, "keys": (MHA, GQA, MQA, ONE), "d_head": (NARROW, MIDDLE, BROAD, WIDEST)},
    scales={
        "smoke": Scale(1, {"steps": 2}, {"width": (WIDEST,), "keys": (MHA, MQA), "d_head": (NARROW,)}),
        "small": Scale(3, {"steps": 500}),
    },
    measures={
        "loss": Measure("Held-out loss on the same rows", "nats"),
        "state": Measure("What each token adds to the state, as 32-bit numbers", "bytes"),
        "parameters": Measure("Parameters of the model"),
    },
    claims=(
        Claim("text-learned", "Sixteen heads of 16 learn Python", loss(MHA, NARROW),
              below(2 / 3 * math.log(DATA.vocab_size))),
        Claim("one-wide", "One head of the whole width loses more than four of a quarter",
              loss(ONE, WIDEST) - loss(MHA, MIDDLE), above(0), (LEARNED,)),
        Claim("too-narrow", "Sixteen narrow heads lose more than four", loss(MHA, NARROW) - loss(MHA, MIDDLE),
              above(0), (LEARNED,)),
        Claim("state-orders", "The fewer heads of keys, the larger the loss: MHA, GQA, MQA",
              least_step("loss", "keys", (MHA, GQA, MQA), width=WIDEST, d_head=NARROW), above(0), (LEARNED,)),
        Claim("little", "A sixteenth of the state costs less than two hundredths of the loss",
              loss(MQA, NARROW) / loss(MHA, NARROW), below(1.02), (LEARNED,)),
        *map(shared_beats_few, (NARROW, MIDDLE, BROAD)),
        Claim("narrow-or-broad", "Four narrow heads of keys and a broad one, of equal state, lose alike",
              loss(GQA, NARROW) - loss(MQA, MIDDLE), within(0.02, 0), (LEARNED,)),
        *(Claim(f"wider-{keys.lower()}", f"{keys}: each doubling of the width lowers the loss",
                least_step("loss", "width", WIDTHS[::-1], keys=keys, d_head=NARROW), above(0), (LEARNED,))
          for keys in (MHA, GQA, MQA)),
        Claim("wider-with-less", "Twice as wide with one head of keys loses less than half as wide with eight",
              loss(MQA, NARROW) - loss(MHA, NARROW, WIDEST // 2), below(0), (LEARNED,)),
    ),
    differs=(
        "Two layers on Python, for 500 steps of 1,024 tokens; the papers translate or train language models to the "
        "end. What is found is of early training.",
        "One learning rate for all widths and heads, chosen for none; a wide model may want a smaller one.",
        "Parameters are equal at each width by the neurons of MLPs, as in Shazeer's table; of three widths they are "
        "what they are, and heads are 16 wide in each.",
        "Seeds draw weights; the rows are the same for all, in training and where losses are measured.",
    ),
    mechanisms=("softmax",),
    references={"width": (WIDEST,), "keys": (MHA,), "d_head": (NARROW,)},
    skip=left_out,
)  # fmt: skip
