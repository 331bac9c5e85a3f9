"""What tells 我爱你 from 爱你我: positions, or a mask that lets each word see those before it alone.

Attention without positions reads a set. An encoder gives each word of both sentences the same logits, exactly. A causal
decoder does not, though it has no positions either: how many words are seen is told by the mask. (One layer of it gives
the last word the same, which sees a set; it takes two.)

What needs order is asked of rows of different words: which word stood before each. Of a set, any other word may have,

    guess = log(n - 1), read both ways;      mean of log(i - 1) over places i, read backwards

and that is the best that a model without order can do. Biases that are alike both ways leave two neighbours, log 2.
"""

import math
from collections.abc import Callable
from statistics import fmean

import torch
from jaxtyping import Int
from torch import Tensor

from glassformer.attention import Alibi, PositionsConfig, QueryKeyOnly, RelativeBias, RelativeSinusoids, Rope
from glassformer.models import DecoderConfig, EncoderConfig, Learned, Mlp, Model, Sinusoidal, block, repeat
from glassformer.studies.fits import fit
from glassformer.study import (
    MAJORITY,
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
    counted,
    value,
)
from glassformer.training import OptimConfig

BOTH, BACKWARDS = "both ways", "backwards"
NONE, LEARNED, SINUSOIDS, ROTARY, ALIBI = "none", "learned vectors", "sinusoids", "rotary", "ALiBi"
BIAS, DISTANCES, QUERIES = "bias by distance", "sinusoids of distances", "sinusoids for queries and keys"
ADDED: dict[str, Learned | Sinusoidal] = {LEARNED: Learned(), SINUSOIDS: Sinusoidal()}
SCHEMES = (NONE, LEARNED, SINUSOIDS, ROTARY, ALIBI, BIAS, DISTANCES, QUERIES)
WORDS, LENGTH, ROWS, WIDTH, HELD_OUT = 32, 16, 32, 64, 256
# 我, 爱, 你 as ids; where each stands in the one sentence and in the other
SENTENCES = torch.tensor([[0, 1, 2], [1, 2, 0]])


def run(case: Case) -> Measures:
    model, random = config(case["reading"], case["positions"]).build(case.seed), case.generator()
    held_out, guessed = rows(HELD_OUT, random), guess(case["reading"])
    optim = OptimConfig(lr=3e-3, warmup=30)
    losses = [update.loss for update in fit(model, case, optim, lambda _: loss(model, rows(ROWS, random)))]
    with torch.no_grad():
        unlearned = float(loss(model, held_out)) / guessed
    return {
        "share_unlearned": unlearned,
        "mean_loss": fmean(losses) / guessed,
        "told_apart": told_apart(model),
    }


def config(reading: str, positions: str, depth: int = 2) -> DecoderConfig | EncoderConfig:
    """Return a model of some layers that reads rows both ways, or backwards alone."""
    schemes: dict[str, PositionsConfig] = {
        ROTARY: Rope(),
        ALIBI: Alibi(),
        BIAS: RelativeBias(bidirectional=reading == BOTH),
        DISTANCES: RelativeSinusoids(),
        QUERIES: QueryKeyOnly(),
    }
    layers = repeat(block(n_heads=4, mlp=Mlp(2 * WIDTH), positions=schemes.get(positions)), depth)
    kind = EncoderConfig if reading == BOTH else DecoderConfig
    # vectors of words are as large as sinusoids, as where these come from
    return kind(WORDS, WIDTH, layers, max_len=LENGTH, positions=ADDED.get(positions), embed_scale=True, init="xavier")


def rows(n: int, random: torch.Generator) -> Int[Tensor, "row pos"]:
    """Return rows of different words."""
    return torch.rand(n, WORDS, generator=random).argsort(-1)[:, :LENGTH]


def loss(logits: Callable[[Tensor], Tensor], words: Int[Tensor, "row pos"]) -> Tensor:
    """Return the mean loss of the word before each, in nats."""
    return torch.nn.functional.cross_entropy(logits(words)[:, 1:].mT, words[:, :-1])


def guess(reading: str) -> float:
    """Return the least loss of a model that knows which words it sees, and not in which order."""
    seen = [LENGTH - 1] * (LENGTH - 1) if reading == BOTH else range(1, LENGTH)
    return fmean(map(math.log, seen))


@torch.no_grad()
def told_apart(model: Model) -> float:
    """Return how far the logits of a word differ between 我爱你 and 爱你我, of their size, in double precision."""
    dtype = next(model.parameters()).dtype
    first, second = model.double().eval()(SENTENCES)
    model.to(dtype)
    # of each word in turn: the first sentence has it at its id
    second = second[SENTENCES[1].argsort()]
    return float((first - second).abs().max() / first.std())


def of(measure: str, reading: str, positions: str) -> Quantity:
    return value(measure, reading=reading, positions=positions)


def knows(reading: str, positions: str) -> Quantity:
    return counted(of("share_unlearned", reading, positions), below(0.1))


TASK = {
    reading: (Condition(f"Read {reading}, rotary positions learn the order", of("share_unlearned", reading, ROTARY),
                        below(0.1)),)
    for reading in (BOTH, BACKWARDS)
}  # fmt: skip
# what is left to know of a neighbour on either side; the last word has one alone
TWO_SIDES = (LENGTH - 2) / (LENGTH - 1) * math.log(2) / math.log(LENGTH - 1)


def learns(positions: str, reading: str = BOTH) -> Claim:
    name = f"{positions}-{reading}".replace(" ", "-").lower()
    said = f"Read {reading} with {positions}, it is known which word stood before"
    return Claim(name, said, knows(reading, positions), MAJORITY, TASK[reading])


def sooner(positions: str, than: str, reading: str = BOTH) -> Claim:
    name = f"{positions}-before-{than}".replace(" ", "-").lower()
    return Claim(
        name, f"Read {reading}, the order is learned sooner with {positions} than with {than}",
        of("mean_loss", reading, positions) / of("mean_loss", reading, than), below(1), TASK[reading],
    )  # fmt: skip


STUDY = Study(
    "word-order",
    paper='Vaswani et al. 2017, "Attention Is All You Need", section 3.5; Haviv et al. 2022, "Transformer Language '
    'Models without Positional Encodings Still Learn Positional Information", arXiv 2203.16634; Kazemnejad et al. '
    "2023, arXiv 2305.19466; Shaw et al. 2018, arXiv 1803.02155, and Su et al. 2021, arXiv 2104.09864 (distances "
    "against places)",
    question="What tells the order of words, and which positions tell it soonest within the trained length?",
    run=run,
    grid={"reading": (BOTH, BACKWARDS), "positions": SCHEMES},
    scales={"smoke": Scale(1, {"steps": 2}), "small": Scale(8, {"steps": 300})},
    measures={
        "share_unlearned": Measure("Loss of the word before each, of guessing any word that is seen", learned=True),
        "mean_loss": Measure("Mean loss over all steps of training, of guessing: less if it was learned sooner"),
        "told_apart": Measure("Largest difference of a word's logits between 我爱你 and 爱你我, of their deviation"),
    },
    claims=(
        Claim("order-learned", "Rotary positions learn it, read both ways", knows(BOTH, ROTARY), MAJORITY),
        Claim("order-learned-backwards", "And read backwards", knows(BACKWARDS, ROTARY), MAJORITY),
        Claim("one-set", "Read both ways without positions, 我爱你 and 爱你我 are one set",
              of("told_apart", BOTH, NONE), below(1e-12), exact="it is algebra, up to rounding in double precision"),
        Claim("set-unlearned", "What reads a set does not know which word stood before",
              counted(of("share_unlearned", BOTH, NONE), above(0.95)), MAJORITY, TASK[BOTH]),
        Claim("mask-tells", "Read backwards without positions they are two sentences",
              of("told_apart", BACKWARDS, NONE), above(1e-3)),
        Claim("mask-learns", "Read backwards without positions, half of the order is learned, and more",
              counted(of("share_unlearned", BACKWARDS, NONE), below(0.5)), MAJORITY, TASK[BACKWARDS]),
        *(learns(positions) for positions in (LEARNED, SINUSOIDS, BIAS, QUERIES)),
        Claim("alibi-both-ways-finds-neighbours", "Read both ways, ALiBi knows the two neighbours",
              counted(of("share_unlearned", BOTH, ALIBI), below(0.1 + TWO_SIDES)), MAJORITY, TASK[BOTH]),
        Claim("alibi-both-ways-sides", "And not which of them stood before",
              counted(of("share_unlearned", BOTH, ALIBI), above(0.9 * TWO_SIDES)), MAJORITY, TASK[BOTH]),
        *(learns(positions, BACKWARDS) for positions in (LEARNED, SINUSOIDS, ALIBI, BIAS, DISTANCES, QUERIES)),
        sooner(ROTARY, SINUSOIDS), sooner(ROTARY, LEARNED), sooner(BIAS, LEARNED),
        sooner(DISTANCES, SINUSOIDS, BACKWARDS), sooner(ALIBI, NONE, BACKWARDS),
    ),
    differs=(
        "Two layers of width 64 and 300 steps, on rows of sixteen words of which none comes twice; the papers "
        "translate and model language, where some order can be guessed from the words.",
        "A shift by one favours distances over places: that is what is asked, and text asks for more than that.",
        "Sinusoids of distances are for causal attention, and stand in no encoder. Vectors of words are multiplied by "
        "the root of the width everywhere, as where sinusoids were published.",
        "Each word of 我爱你 is a token, and nothing here is longer than the rows trained on.",
    ),
    mechanisms=("softmax",),
    references={"reading": (BOTH, BACKWARDS), "positions": (ROTARY,)},
    skip=lambda at: at["reading"] == BOTH and at["positions"] == DISTANCES,
)  # fmt: skip
