"""Induction under four mechanisms: who completes random tokens that come again, how soon, and by which pattern?

Two layers of attention and nothing else, at equal width and nearly equal parameters, on random units repeated. Softmax
can look up any earlier token; a linear mechanism keeps a state of fixed size, and two keys that are not orthogonal blur
each other there. Linear attention also runs with smeared keys, which spare it the search for the previous token: what
it still lacks then, it lacks for its state.
"""

import math
from functools import partial
from typing import Any

from torch import Tensor

import glassformer as gf
from glassformer.analysis.heads import head_scores
from glassformer.analysis.losses import token_losses
from glassformer.attention import Differential, Lightning, Linear, MixerConfig, QueryKeyOnly, Softmax
from glassformer.data import Repeat
from glassformer.errors import AnalysisUnavailable
from glassformer.models import DecoderConfig, ModelLike, published_block
from glassformer.study import Case, Claim, Measure, Measures, Scale, Study, above, below, value
from glassformer.training import OptimConfig, TrainConfig, read_metrics

SOFTMAX, LINEAR, SMEARED = "softmax", "linear", "linear, smeared keys"
LIGHTNING, DIFFERENTIAL = "lightning", "differential"
# a differential head has twice the streams and values of twice the width: half as many are as many parameters
MIXERS: dict[str, tuple[MixerConfig, int]] = {
    SOFTMAX: (Softmax(), 4),
    LINEAR: (Linear(), 4),
    SMEARED: (Linear(), 4),
    LIGHTNING: (Lightning(), 4),
    DIFFERENTIAL: (Differential(), 2),
}
SYMBOLS, WIDTH, LENGTH = 64, 64, 64
SHORT, LONG = 8, 24
CHANCE = math.log(SYMBOLS)


def run(case: Case) -> Measures:
    folder = case.train(recipe(case["mechanism"], case["steps"], case.seed))
    model = gf.load(folder)
    return {
        "share_of_chance": _loss(model, case.seed, SHORT, LONG) / CHANCE,
        "share_short": _loss(model, case.seed, SHORT, SHORT) / math.log(SHORT),
        "share_long": _loss(model, case.seed, LONG, LONG) / math.log(LONG),
        "prefix_matching": lambda: float(_matching(model).max()),
        "least_matching": lambda: float(_matching(model).min()),
        "tokens_until": partial(_tokens_until, read_metrics(folder)),
        "parameters": float(sum(p.numel() for p in model.parameters())),
    }


def recipe(mechanism: str, steps: int, seed: int) -> TrainConfig:
    """Return two layers of a mechanism as its paper builds them, on units repeated."""
    mixer, n_heads = MIXERS[mechanism]
    layers = tuple(
        published_block(
            mixer, i, n_heads=n_heads, d_head=WIDTH // 4, positions=QueryKeyOnly(amplitude=2.0),
            smeared=mechanism == SMEARED,
        )
        for i in range(2)
    )  # fmt: skip
    model = DecoderConfig(SYMBOLS + 1, WIDTH, layers, max_len=LENGTH)
    optim = OptimConfig(lr=3e-3, warmup=50)
    return TrainConfig(
        model, _units(seed, SHORT, LONG), optim=optim, steps=steps, log_every=10, evaluate_every=steps, save_every=steps
    )


def _units(seed: int, least: int, most: int) -> Repeat:
    return Repeat(batch_size=16, seed=seed, length=LENGTH, unit_min=least, unit_max=most, vocab_size=SYMBOLS + 1)


def _loss(model: ModelLike, seed: int, least: int, most: int) -> float:
    """Return the loss on tokens that an earlier copy of the unit determines, in nats."""
    data = _units(seed, least, most).build()
    losses, certain = token_losses(model, *(data.batch(i, "heldout") for i in range(4)))
    return float(losses[certain].mean())


def _matching(model: ModelLike) -> Tensor:
    """Return the prefix matching of every head; of differential attention it may be negative."""
    return head_scores(model, unit=LONG, repeats=2).scores.select(role="induction").values


def _tokens_until(lines: list[dict[str, Any]]) -> float:
    """Return how many tokens were seen when the training loss first was half of chance."""
    for line in lines:
        if line.get("loss", math.inf) < CHANCE / 2:
            return float(line["tokens"])
    raise AnalysisUnavailable(f"the training loss never fell below half of chance, {CHANCE / 2:.2f} nats")


STUDY = Study(
    "induction-by-mechanism",
    paper='Olsson et al. 2022, "In-context Learning and Induction Heads"; Ye et al. 2024, "Differential Transformer", '
    'arXiv 2410.05258; Arora et al. 2023, "Zoology", arXiv 2312.04927; Jelassi et al. 2024, "Repeat After Me", arXiv '
    "2402.01032",
    question="Which mechanisms complete what comes again, and what limits those that do not?",
    run=run,
    grid={"mechanism": tuple(MIXERS)},
    scales={
        "smoke": Scale(seeds=2, settings={"steps": 8}),
        "small": Scale(seeds=3, settings={"steps": 600}),
        "full": Scale(seeds=5, settings={"steps": 4000}),
    },
    measures={
        "share_of_chance": Measure(
            f"Loss on tokens that an earlier copy determines, of that of guessing any; units of {SHORT} to {LONG}. "
            "Guessing among the tokens of the unit has 0.65"
        ),
        "share_short": Measure(f"Loss for units of {SHORT} tokens, of that of guessing among the tokens of the unit"),
        "share_long": Measure(f"The same for units of {LONG} tokens"),
        "prefix_matching": Measure("Prefix matching of the best head, on random tokens repeated", analysis=head_scores),
        "least_matching": Measure("The same of the head with least; below 0 it matches prefixes with a negative sign"),
        "tokens_until": Measure("Training until the loss on such tokens is half of chance", "tokens"),
        "parameters": Measure("Parameters of the model"),
    },
    claims=(
        Claim("Two layers of softmax learn it", value("share_of_chance", mechanism=SOFTMAX), below(0.1)),
        Claim("Softmax has a head that matches prefixes", value("prefix_matching", mechanism=SOFTMAX), above(0.5)),
        Claim("Differential attention learns it", value("share_of_chance", mechanism=DIFFERENTIAL), below(0.1)),
        Claim("Differential attention has one, too", value("prefix_matching", mechanism=DIFFERENTIAL), above(0.5)),
        Claim(
            "Differential attention needs fewer tokens than softmax, as it does on text",
            value("tokens_until", mechanism=DIFFERENTIAL) / value("tokens_until", mechanism=SOFTMAX),
            below(1),
        ),
        Claim(
            "Linear attention recalls less than softmax",
            value("share_of_chance", mechanism=LINEAR) - value("share_of_chance", mechanism=SOFTMAX),
            above(0.1),
        ),
        Claim(
            "Linear attention recalls less even where smeared keys spare it the first layer's part",
            value("share_of_chance", mechanism=SMEARED) - value("share_of_chance", mechanism=SOFTMAX),
            above(0.1),
        ),
        Claim(
            "The state of linear attention is the limit: long units are recalled worse than short ones",
            value("share_long", mechanism=SMEARED) - value("share_short", mechanism=SMEARED),
            above(0.1),
        ),
        Claim(
            "Lightning attention recalls less than softmax",
            value("share_of_chance", mechanism=LIGHTNING) - value("share_of_chance", mechanism=SOFTMAX),
            above(0.1),
        ),
        Claim(
            "Softmax recalls long units as well as short ones",
            value("share_long", mechanism=SOFTMAX) - value("share_short", mechanism=SOFTMAX),
            below(0.1),
        ),
    ),
    differs=(
        "Models of width 64 see half a million random tokens; the papers train language models, or longer.",
        "Each mechanism is as its paper builds it: differential attention norms heads, lightning attention norms and "
        "gates what all heads write, and has a fifth more parameters for that.",
        "The papers on recall ask for pairs among many, or for one long string; here whole units come again. One "
        "learning rate for all, chosen for softmax: a mechanism that fails might learn at another.",
        "At this length the state of linear attention, 1,024 numbers a layer, need not hold more than 24 pairs.",
    ),
    mechanisms=("softmax", "linear", "lightning", "differential"),
)  # fmt: skip
