"""Induction under four mechanisms: who completes random tokens that come again, how soon, and by which pattern?

Two layers of attention alone. Softmax can look up any earlier token; a linear mechanism keeps a state of fixed size,
where keys that are not orthogonal blur each other. It also runs with smeared keys, which spare it the search for the
previous token: what it still lacks then, it lacks for its state.
"""

import math
from pathlib import Path

import glassformer as gf
from glassformer.analysis.heads import head_scores
from glassformer.analysis.losses import token_losses
from glassformer.attention import Differential, Lightning, Linear, MixerConfig, QueryKeyOnly, Softmax
from glassformer.data import Repeat
from glassformer.errors import AnalysisUnavailable
from glassformer.models import DecoderConfig, published_block
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
from glassformer.training import OptimConfig, TrainConfig, read_metrics

SOFTMAX, LINEAR, SMEARED = "softmax", "linear", "linear, smeared keys"
LIGHTNING, DIFFERENTIAL = "lightning", "differential"
MIXERS: dict[str, MixerConfig] = {
    SOFTMAX: Softmax(), LINEAR: Linear(), SMEARED: Linear(), LIGHTNING: Lightning(), DIFFERENTIAL: Differential(),
}  # fmt: skip
SYMBOLS, WIDTH, LENGTH, SHORT, LONG, CHANCE = 64, 64, 64, 8, 24, math.log(64)


def run(case: Case) -> Measures:
    folder = case.train(recipe(case["mechanism"], case["steps"], case.seed))
    model = gf.load(folder)

    def loss(least: int, most: int) -> float:
        data = units(case.seed, least, most).build()
        losses, certain = token_losses(model, *(data.batch(i, "heldout") for i in range(4)))
        return float(losses[certain].mean())

    scores = head_scores(model, unit=LONG, repeats=2).scores
    return {
        "share_of_chance": loss(SHORT, LONG) / CHANCE,
        "share_short": loss(SHORT, SHORT) / math.log(SHORT),
        "share_long": loss(LONG, LONG) / math.log(LONG),
        "prefix_matching": float(scores.select(role="induction").values.max()),
        "tokens_until": lambda: tokens_until(folder),
    }


def recipe(mechanism: str, steps: int, seed: int) -> TrainConfig:
    """Return two layers of a mechanism as its paper builds them; two differential heads weigh what four others do."""
    layout = {"n_heads": 2 if mechanism == DIFFERENTIAL else 4, "d_head": WIDTH // 4, "smeared": mechanism == SMEARED}
    places = QueryKeyOnly(amplitude=2.0)
    layers = tuple(published_block(MIXERS[mechanism], i, positions=places, **layout) for i in range(2))
    return TrainConfig(
        DecoderConfig(SYMBOLS + 1, WIDTH, layers, max_len=LENGTH), units(seed, SHORT, LONG), steps=steps,
        optim=OptimConfig(lr=3e-3, warmup=50), log_every=10, evaluate_every=steps, save_every=steps,
    )  # fmt: skip


def units(seed: int, least: int, most: int) -> Repeat:
    return Repeat(batch_size=16, seed=seed, length=LENGTH, unit_min=least, unit_max=most, vocab_size=SYMBOLS + 1)


def tokens_until(folder: Path) -> float:
    """Return how many tokens were seen when the training loss first was half of chance."""
    for line in read_metrics(folder):
        if line.get("loss", math.inf) < CHANCE / 2:
            return float(line["tokens"])
    raise AnalysisUnavailable(f"the training loss never fell below half of chance, {CHANCE / 2:.2f} nats")


def share(mechanism: str, measure: str = "share_of_chance") -> Quantity:
    return value(measure, mechanism=mechanism)


LEARNS = Condition("Two layers of softmax learn it", share(SOFTMAX), below(0.1))

STUDY = Study(
    "induction-by-mechanism",
    paper='Olsson et al. 2022, "In-context Learning and Induction Heads"; Ye et al. 2024, arXiv 2410.05258; Arora et '
    "al. 2023, arXiv 2312.04927; Jelassi et al. 2024, arXiv 2402.01032",
    question="Which mechanisms complete what comes again, and what limits those that do not?",
    run=run,
    grid={"mechanism": tuple(MIXERS)},
    scales={"smoke": Scale(2, {"steps": 8}), "small": Scale(3, {"steps": 600}), "full": Scale(5, {"steps": 4000})},
    measures={
        "share_of_chance": Measure(
            "Loss where an earlier copy determines the token, of that of guessing any token", learned=True
        ),
        "share_short": Measure(
            f"Loss for units of {SHORT} tokens, of that of guessing among the tokens of the unit", learned=True
        ),
        "share_long": Measure(f"The same for units of {LONG} tokens", learned=True),
        "prefix_matching": Measure(
            "Prefix matching of the best head, on random tokens repeated", analysis=head_scores, learned=True
        ),
        "tokens_until": Measure("Training until the loss on such tokens is half of chance", "tokens"),
    },
    claims=(
        Claim("softmax-learns", "Two layers of softmax learn it", counted(share(SOFTMAX), below(0.1)), MAJORITY),
        Claim("softmax-matches", "Softmax has a head that matches prefixes",
              counted(share(SOFTMAX, "prefix_matching"), above(0.5)), MAJORITY, (LEARNS,)),
        Claim("differential-learns", "Differential attention learns it", counted(share(DIFFERENTIAL), below(0.1)),
              MAJORITY, (LEARNS,)),
        Claim("differential-matches", "Differential attention has one, too",
              counted(share(DIFFERENTIAL, "prefix_matching"), above(0.5)), MAJORITY, (LEARNS,)),
        Claim(
            "differential-sooner", "Differential attention needs fewer tokens than softmax, as it does on text",
            share(DIFFERENTIAL, "tokens_until") / share(SOFTMAX, "tokens_until"), below(1), (LEARNS,),
        ),
        Claim("linear-less", "Linear attention recalls less than softmax",
              counted(share(LINEAR) - share(SOFTMAX), above(0.1)), MAJORITY, (LEARNS,)),
        Claim("smeared-less", "Linear attention recalls less with smeared keys, too",
              counted(share(SMEARED) - share(SOFTMAX), above(0.1)), MAJORITY, (LEARNS,)),
        Claim(
            "state-is-limit",
            "The state of linear attention is the limit: long units are recalled worse than short ones",
            counted(share(SMEARED, "share_long") - share(SMEARED, "share_short"), above(0.1)), MAJORITY, (LEARNS,),
        ),
        Claim("lightning-less", "Lightning attention recalls less than softmax",
              counted(share(LIGHTNING) - share(SOFTMAX), above(0.1)), MAJORITY, (LEARNS,)),
        Claim(
            "softmax-long", "Softmax recalls long units as well as short ones",
            counted(share(SOFTMAX, "share_long") - share(SOFTMAX, "share_short"), below(0.1)), MAJORITY, (LEARNS,),
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
    references={"mechanism": (SOFTMAX,)},
)  # fmt: skip
