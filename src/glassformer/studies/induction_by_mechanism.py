"""Induction by mechanism: who completes what comes again, recalls pairs and finds a needle, and by which layer?

Two layers, one training on three tasks about the same symbols: random tokens repeated, pairs of keys and values of
which many are asked for, and one fact of several in noise. Softmax can look up any earlier token; linear mechanisms
keep a state of fixed size, where keys that are not orthogonal blur each other, and those that decay, erase or choose
what to write blur less. Each mechanism has as many parameters, sees as many tokens, and has the rate and the initial
weights that did best in a third of the steps. Linear attention also runs with smeared keys, which spare it the search
for the previous token: what it still lacks then, it lacks for its state.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import glassformer as gf
from glassformer.analysis.causal import patch
from glassformer.analysis.heads import head_scores
from glassformer.analysis.losses import icl_score, loss_by_position, token_losses
from glassformer.attention import (
    Differential,
    GatedDelta,
    Lightning,
    Linear,
    MixerConfig,
    QueryKeyOnly,
    Rwkv6,
    Shifted,
    Softmax,
    StateSpace,
)
from glassformer.data import DataConfig, MixtureConfig, Needle, Recall, Repeat
from glassformer.data.batch import Data
from glassformer.data.pairs import Contrast
from glassformer.errors import AnalysisUnavailable
from glassformer.models import BlockConfig, DecoderConfig, Mlp, ModelLike, hybrid, published_block
from glassformer.models.accounting import count_parameters
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
from glassformer.training import OptimConfig, TrainConfig, read_metrics, train

SOFTMAX, LINEAR, SMEARED, DIFFERENTIAL = "softmax", "linear", "linear, smeared keys", "differential"
LIGHTNING, HYBRID = "lightning", "hybrid"
GATED_DELTA, STATE_SPACE, RWKV = "gated delta", "state space", "RWKV-6"
SYMBOLS, WIDTH, HEADS, LENGTH, SHORT, LONG, CHANCE = 32, 64, 4, 64, 6, 16, math.log(32)
ROWS, BATCHES, PAIRS = 32, 4, 32
# softmax with these neurons says how many parameters everybody has
NEURONS = 96
# learning rates and initial weights that are tried, and what did best of them, by held-out loss with seed 0 and a third
# of the steps; `python -m glassformer.studies.induction_by_mechanism` tries them again
STEPS = 1500
SETTINGS = tuple((rate, init) for init in ("gpt", "xavier") for rate in (1e-3, 3e-3, 1e-2))
CHOSEN = {
    SOFTMAX: (0.003, "xavier"),
    LINEAR: (0.01, "xavier"),
    SMEARED: (0.01, "xavier"),
    DIFFERENTIAL: (0.003, "gpt"),
    LIGHTNING: (0.003, "gpt"),
    HYBRID: (0.003, "xavier"),
    GATED_DELTA: (0.01, "xavier"),
    STATE_SPACE: (0.01, "gpt"),
    RWKV: (0.01, "xavier"),
}

Layers = Callable[[int], tuple[BlockConfig, ...]]


def alike(mixer: MixerConfig, **layout: Any) -> Layers:
    """Return two layers of a mechanism as its paper builds them, by the neurons of their MLPs."""
    slots = {"n_heads": HEADS, "d_head": WIDTH // HEADS} | layout
    return lambda neurons: tuple(published_block(mixer, i, mlp=Mlp(neurons), **slots) for i in range(2))


PLACES = {"positions": QueryKeyOnly(amplitude=2.0)}
MECHANISMS: dict[str, Layers] = {
    SOFTMAX: alike(Softmax(), **PLACES),
    LINEAR: alike(Linear(), **PLACES),
    SMEARED: alike(Linear(), smeared=True, **PLACES),
    # two heads with two maps each weigh what four others do
    DIFFERENTIAL: alike(Differential(), n_heads=HEADS // 2, **PLACES),
    LIGHTNING: alike(Lightning(), **PLACES),
    HYBRID: lambda neurons: hybrid(2, n_heads=HEADS, period=2, mlp=Mlp(neurons), **PLACES),
    # convolutions tell what stands next to what
    GATED_DELTA: alike(GatedDelta()),
    STATE_SPACE: alike(StateSpace()),
    # ranks of 8, an eighth of the width as in the paper's models, and not its 64 and 32
    RWKV: alike(Rwkv6(rank=8), projection=Shifted(rank=8, gate=True, centred=True)),
}


def run(case: Case) -> Measures:
    mechanism, steps = case["mechanism"], case["steps"]
    rate, init = CHOSEN[mechanism]
    folder = case.train(recipe(mechanism, steps, case.seed, rate, init))
    model = gf.load(folder)
    repeats, pairs, facts = (heldout(part, case.seed) for part in tasks())

    def loss(least: int, most: int) -> float:
        found, certain = token_losses(model, *batches(heldout(units(least, most), case.seed)))
        return float(found[certain].mean())

    return {
        "share_of_chance": loss(SHORT, LONG) / CHANCE,
        "share_short": loss(SHORT, SHORT) / math.log(SHORT),
        "share_long": loss(LONG, LONG) / math.log(LONG),
        "recall": accuracy(model, pairs),
        "needle": accuracy(model, facts),
        "in_context": lambda: icl_score(loss_by_position(model, *everything(repeats))),
        "prefix_matching": lambda: float(
            head_scores(model, unit=LONG, repeats=2).scores.select(role="induction").values.max()
        ),
        "first_layer": lambda: carried(model, pairs, 0),
        "second_layer": lambda: carried(model, pairs, 1),
        "tokens_until": lambda: tokens_until(folder),
        "rate": rate,
        "parameters": float(sum(count_parameters(model.config).values())),
    }


def tried(mechanism: str, steps: int) -> dict[tuple[float, str], float]:
    """Return the held-out loss that each setting reaches, in nats."""
    found = {}
    for rate, init in SETTINGS:
        with TemporaryDirectory() as folder:
            train(recipe(mechanism, steps, 0, rate, init), Path(folder) / "run")
            found[rate, init] = float(read_metrics(Path(folder) / "run")[-1]["heldout_loss"])
    return found


def units(least: int, most: int) -> Repeat:
    return Repeat(unit_min=least, unit_max=most, vocab_size=SYMBOLS + 1)


def tasks() -> tuple[DataConfig, ...]:
    """Repeats, recall and needle, about the same symbols."""
    return (
        units(SHORT, LONG),
        Recall(n_keys=SYMBOLS // 2, n_values=SYMBOLS // 2, numbered=True),
        Needle(n_needles=4, n_names=8, n_values=8, n_noise=16, numbered=True),
    )


def mixture(seed: int) -> MixtureConfig:
    return MixtureConfig(tasks(), shares=(0.25, 0.25, 0.5), batch_size=ROWS, length=LENGTH, seed=seed)


def heldout(task: DataConfig, seed: int) -> Data:
    return task.replace(batch_size=ROWS, length=LENGTH, seed=seed).build(mixture(seed).build().tokenizer)


def batches(data: Data) -> list[Any]:
    return [data.batch(i, "heldout") for i in range(BATCHES)]


def everything(data: Data) -> list[Any]:
    """Held-out rows of which every token counts, the first copy too."""
    return [dataclasses.replace(batch, weight=torch.ones_like(batch.weight)) for batch in batches(data)]


@cache
def neurons(mechanism: str) -> int:
    """Return how many neurons give a mechanism as many parameters as softmax has."""

    def parameters(name: str, width: int) -> int:
        return sum(count_parameters(decoder(name, width)).values())

    less = parameters(mechanism, 1)
    each = parameters(mechanism, 2) - less
    return 1 + round((parameters(SOFTMAX, NEURONS) - less) / each)


def decoder(mechanism: str, width: int, init: Any = "gpt") -> DecoderConfig:
    return DecoderConfig(SYMBOLS + 1, WIDTH, MECHANISMS[mechanism](width), max_len=LENGTH, init=init)


def recipe(mechanism: str, steps: int, seed: int, rate: float, init: str) -> TrainConfig:
    return TrainConfig(
        decoder(mechanism, neurons(mechanism), init), mixture(seed), steps=steps,
        optim=OptimConfig(lr=rate, warmup=50), log_every=10, evaluate_every=steps, save_every=steps,
    )  # fmt: skip


def accuracy(model: ModelLike, data: Data) -> float:
    """Return the share of what is asked for that a model answers right, on held-out rows."""
    right = list[torch.Tensor]()
    for batch in batches(data):
        with torch.no_grad():
            answers = model(batch.tokens)[batch.weight].argmax(-1)
        right.append((answers == batch.targets[batch.weight]).double())
    return float(torch.cat(right).mean())


def carried(model: ModelLike, data: Data, layer: int) -> float:
    """Return which share of an answer comes back with what a layer mixes into the question.

    The last pair that is asked for has another value in the corrupt rows, wherever it stands. A model that recalls less
    than half of the pairs is not asked.
    """
    if (known := accuracy(model, data)) < 0.5:
        raise AnalysisUnavailable(
            f"the model recalls {known:.2f} of the pairs: there is little that a layer could carry"
        )
    batch = data.batch(BATCHES, "heldout").rows(PAIRS)
    keys, values = batch.tokens[:, -1:], batch.targets[:, -1:]
    # a value stands behind its key
    told = torch.nn.functional.pad(batch.tokens[:, :-1] == keys, (1, 0))
    first = SYMBOLS // 2 + 1
    others = first + (values - first + 1) % (SYMBOLS // 2)
    corrupt = torch.where(told, others, batch.tokens)
    found = patch(model, Contrast(batch.tokens, corrupt, values[:, 0], others[:, 0]), sites="attn_out")
    return float(found["attn_out"].carried.values[0, layer, -1])


def tokens_until(folder: Path) -> float:
    """Return how many tokens were seen when the training loss first was half of chance."""
    for line in read_metrics(folder):
        if line.get("loss", math.inf) < CHANCE / 2:
            return float(line["tokens"])
    raise AnalysisUnavailable(f"the training loss never fell below half of chance, {CHANCE / 2:.2f} nats")


def share(mechanism: str, measure: str = "share_of_chance") -> Quantity:
    return value(measure, mechanism=mechanism)


def less(mechanism: str, than: str, measure: str) -> Quantity:
    return share(than, measure) - share(mechanism, measure)


LEARNS = Condition("Softmax completes repeats", share(SOFTMAX), below(0.1))
RECALLS = Condition("Softmax recalls pairs", share(SOFTMAX, "recall"), above(0.9))
# that a task can be learned shows who learns it in every seed
LEARNED = Condition("Linear attention with smeared keys completes repeats", share(SMEARED), below(0.1))
RECALLED = Condition("Linear attention with smeared keys recalls pairs", share(SMEARED, "recall"), above(0.9))
FINDS = Condition("Linear attention with smeared keys finds needles", share(SMEARED, "needle"), above(0.9))


def learns(mechanism: str, name: str, words: str) -> tuple[Claim, ...]:
    """Return the claims that a mechanism does each of the tasks."""
    tasks = (
        ("learns", "completes repeats", "share_of_chance", below(0.1), LEARNED),
        ("recalls", "recalls pairs", "recall", above(0.9), RECALLED),
        ("finds", "finds needles", "needle", above(0.9), FINDS),
    )
    return tuple(
        Claim(f"{name}-{does}", f"{words} {text}", counted(share(mechanism, measure), range_), MAJORITY, (given,))
        for does, text, measure, range_, given in tasks
    )


STUDY = Study(
    "induction-by-mechanism",
    paper='Olsson et al. 2022, "In-context Learning and Induction Heads"; Ye et al. 2024, arXiv 2410.05258; Arora et '
    "al. 2023, arXiv 2312.04927; Jelassi et al. 2024, arXiv 2402.01032; Yang et al. 2024, arXiv 2412.06464; Dao and Gu "
    "2024, arXiv 2405.21060; Peng et al. 2024, arXiv 2404.05892; MiniMax 2025, arXiv "
    "2501.08313",
    question="Which mechanisms complete what comes again, recall pairs and find needles, and what limits those that do "
    "not?",
    run=run,
    grid={"mechanism": tuple(MECHANISMS)},
    scales={
        "smoke": Scale(1, {"steps": 6}),
        "small": Scale(8, {"steps": STEPS}),
        "full": Scale(8, {"steps": 4 * STEPS}),
    },
    measures={
        "share_of_chance": Measure(
            "Loss where an earlier copy determines the token, of that of guessing any token", learned=True
        ),
        "share_short": Measure(
            f"Loss for units of {SHORT} tokens, of that of guessing among the tokens of the unit", learned=True
        ),
        "share_long": Measure(f"The same for units of {LONG} tokens", learned=True),
        "recall": Measure("Share of values that are recalled of 8 pairs; guessing among them finds 0.12", learned=True),
        "needle": Measure("Share of needles that are found among 4; guessing among them finds 0.25", learned=True),
        "in_context": Measure("In-context-learning score on rows of repeats", "nats", learned=True),
        "prefix_matching": Measure(
            "Prefix matching of the best head, on random tokens repeated", analysis=head_scores, learned=True
        ),
        "first_layer": Measure(
            "Share of a recalled value that comes back with what the first layer mixes into the question",
            analysis=patch, learned=True,
        ),
        "second_layer": Measure("The same with what the second layer mixes", analysis=patch, learned=True),
        "tokens_until": Measure("Training until the loss of all tasks is half of guessing any token", "tokens"),
        "rate": Measure("Learning rate that did best in a third of the steps"),
        "parameters": Measure("Parameters"),
    },
    claims=(
        Claim("softmax-learns", "Two layers of softmax complete repeats",
              counted(share(SOFTMAX), below(0.1)), MAJORITY),
        Claim("softmax-recalls", "They recall pairs", counted(share(SOFTMAX, "recall"), above(0.9)), MAJORITY),
        Claim("softmax-finds", "They find needles", counted(share(SOFTMAX, "needle"), above(0.9)), MAJORITY),
        Claim("softmax-matches", "Softmax has a head that matches prefixes",
              counted(share(SOFTMAX, "prefix_matching"), above(0.5)), MAJORITY, (LEARNS,)),
        Claim(
            "softmax-long", "Softmax recalls long units as well as short ones",
            counted(share(SOFTMAX, "share_long") - share(SOFTMAX, "share_short"), below(0.1)), MAJORITY, (LEARNS,),
        ),
        Claim("softmax-second", "Its second layer carries what is recalled, as the induction head does",
              counted(share(SOFTMAX, "second_layer"), above(0.5)), MAJORITY, (RECALLS,)),
        *learns(DIFFERENTIAL, "differential", "Differential attention"),
        Claim("differential-matches", "Differential attention has a head that matches prefixes, too",
              counted(share(DIFFERENTIAL, "prefix_matching"), above(0.5)), MAJORITY, (LEARNS,)),
        Claim(
            "differential-sooner", "Differential attention needs fewer tokens than softmax, as it does on text",
            share(DIFFERENTIAL, "tokens_until") / share(SOFTMAX, "tokens_until"), below(1), (LEARNS,),
        ),
        Claim("differential-finds-more", "Differential attention finds more needles than softmax, as it does in text",
              counted(less(SOFTMAX, DIFFERENTIAL, "needle"), above(0.1)), MAJORITY, (FINDS,)),
        Claim("linear-less", "Linear attention completes repeats worse than softmax",
              counted(share(LINEAR) - share(SOFTMAX), above(0.1)), MAJORITY, (LEARNS,)),
        Claim("linear-recalls-less", "Linear attention recalls fewer pairs",
              counted(less(LINEAR, SOFTMAX, "recall"), above(0.1)), MAJORITY, (RECALLS,)),
        Claim("smeared-less", "Linear attention completes repeats worse with smeared keys, too",
              counted(share(SMEARED) - share(SOFTMAX), above(0.1)), MAJORITY, (LEARNS,)),
        Claim(
            "state-is-limit",
            "The state of linear attention is the limit: long units are recalled worse than short ones",
            counted(share(SMEARED, "share_long") - share(SMEARED, "share_short"), above(0.1)), MAJORITY, (LEARNS,),
        ),
        Claim("lightning-less", "Lightning attention completes repeats worse than softmax",
              counted(share(LIGHTNING) - share(SOFTMAX), above(0.1)), MAJORITY, (LEARNS,)),
        Claim("lightning-recalls-less", "Lightning attention recalls fewer pairs",
              counted(less(LIGHTNING, SOFTMAX, "recall"), above(0.1)), MAJORITY, (RECALLS,)),
        *learns(HYBRID, "hybrid", "A hybrid of lightning and softmax"),
        Claim("hybrid-recovers", "The hybrid recalls pairs that pure lightning does not",
              counted(less(LIGHTNING, HYBRID, "recall"), above(0.1)), MAJORITY, (RECALLS,)),
        Claim("hybrid-second", "Its layer of softmax carries what is recalled",
              counted(share(HYBRID, "second_layer"), above(0.5)), MAJORITY, (RECALLS,)),
        Claim("gated-delta-more", "The gated delta rule recalls more pairs than linear attention with smeared keys",
              counted(less(SMEARED, GATED_DELTA, "recall"), above(0.1)), MAJORITY, (RECALLS,)),
        *learns(GATED_DELTA, "gated-delta", "The gated delta rule"),
        *learns(STATE_SPACE, "state-space", "A selective state space"),
        Claim("state-space-less", "A selective state space recalls fewer pairs than the gated delta rule",
              counted(less(STATE_SPACE, GATED_DELTA, "recall"), above(0.05)), MAJORITY, (RECALLS,)),
        *learns(RWKV, "rwkv", "RWKV-6"),
        Claim("one-layer", "With convolutions, those of the gated delta rule, the first layer carries more of what is "
              "recalled than in softmax", counted(less(SOFTMAX, GATED_DELTA, "first_layer"), above(0.1)), MAJORITY,
              (RECALLS,)),
    ),
    differs=(
        "Models of width 64 see three million tokens of random symbols; the papers train language models, or longer.",
        "Each mechanism is as its paper builds it, with convolutions, norms and gates. MLPs make parameters equal: 96 "
        "neurons in softmax, fewer where attention has more.",
        "Rate and initial weights are chosen among six settings with one seed and a third of the steps: a mechanism "
        "that fails might learn at another, or later.",
        "The papers on recall ask for pairs among many; here for all of 8, under a state of 1,024 numbers a layer.",
        "Differential attention has two heads with two maps each, everything else four heads of width 16.",
        "Linear attention with smeared keys, not softmax, shows that a task can be learned: softmax had missed needles "
        "in all of seven seeds and repeats in one, when that was decided.",
    ),
    mechanisms=("softmax", "linear", "lightning", "differential", "gated_delta", "state_space", "rwkv6"),
    kinds={SMEARED: ("linear",), HYBRID: ("lightning", "softmax"), GATED_DELTA: ("gated_delta",),
           STATE_SPACE: ("state_space",), RWKV: ("rwkv6",)},
    references={"mechanism": (SOFTMAX, SMEARED)},
)  # fmt: skip


if __name__ == "__main__":
    for mechanism in MECHANISMS:
        losses = tried(mechanism, STEPS // 3)
        print(mechanism, min(losses, key=lambda setting: losses[setting]), losses, flush=True)
