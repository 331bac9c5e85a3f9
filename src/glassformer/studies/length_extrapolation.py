"""Every remedy for texts longer than those trained on, in one table: decoders of one size, one text, one set of rows.

Some are part of the training (norms of keys, scores that grow with log n, a learned sink, a bias by distance); others
are put into the decoder with rotary positions as it stands. All are trained on 64 tokens, also the windows' length.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

import glassformer as gf
from glassformer.attention import (
    AdaptiveTemperature,
    Alibi,
    DualChunk,
    DynamicScaling,
    LinearScaling,
    LogN,
    MixerConfig,
    PositionsConfig,
    QueryKeyNorm,
    Rope,
    Softmax,
    Streaming,
    YarnScaling,
)
from glassformer.models import DecoderConfig, Mlp, block, repeat
from glassformer.studies.entropy_by_length import DATA, LONG, TRAINED, held_out
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
from glassformer.training import OptimConfig, TrainConfig

WIDTH, HEADS, FACTOR = 64, 4, LONG // TRAINED


@dataclass(frozen=True)
class Remedy:
    """How a decoder is built, and what it is trained as; None for what it is."""

    mixer: MixerConfig = Softmax()  # noqa: RUF009  # frozen
    positions: PositionsConfig = Rope()  # noqa: RUF009  # frozen
    norm: QueryKeyNorm | bool = False
    trained: str | None = "nothing"


REMEDIES = {
    "nothing": Remedy(trained=None),
    "window": Remedy(Softmax(window=TRAINED)),
    "window and first tokens": Remedy(Streaming(4, TRAINED - 4)),
    "learned sink": Remedy(Softmax(sinks=True), trained=None),
    "normed keys": Remedy(norm=QueryKeyNorm(gains="none", of="keys"), trained=None),
    "log n": Remedy(Softmax(temperature=LogN(TRAINED)), trained=None),
    "log n at test time": Remedy(Softmax(temperature=LogN(TRAINED, beyond=True))),
    "adaptive temperature": Remedy(Softmax(temperature=AdaptiveTemperature())),
    "dual chunk": Remedy(positions=DualChunk(TRAINED * 3 // 4, TRAINED)),
    "ALiBi": Remedy(positions=Alibi(), trained=None),
    "interpolation": Remedy(positions=Rope(scaling=LinearScaling(float(FACTOR)))),
    "growing base": Remedy(positions=Rope(scaling=DynamicScaling(1.0, TRAINED))),
    "YaRN": Remedy(positions=Rope(scaling=YarnScaling(float(FACTOR), TRAINED))),
}
LENGTHS = tuple(TRAINED << i for i in range(FACTOR.bit_length()))


def run(case: Case) -> Measures:
    name = case["remedy"]
    trained = gf.load(case.train(recipe(REMEDIES[name].trained or name, case["steps"])))
    model = decoder(name).build()
    model.load_state_dict(trained.state_dict())
    model.eval()
    losses = list[Tensor]()
    for some in held_out(trained.tokenizer, case["rows"]).split(16):
        with torch.no_grad():
            losses.append(torch.nn.functional.cross_entropy(model(some[:, :-1]).mT, some[:, 1:], reduction="none"))
    return {f"loss_{n}": float(torch.cat(losses)[:, n * 3 // 4 : n].mean()) for n in LENGTHS}


def decoder(remedy: str) -> DecoderConfig:
    made = REMEDIES[remedy]
    layer = block(made.mixer, n_heads=HEADS, mlp=Mlp(2 * WIDTH), positions=made.positions, qk_norm=made.norm)
    return DecoderConfig(DATA.vocab_size, WIDTH, repeat(layer, 2), max_len=LONG)


def recipe(remedy: str, steps: int) -> TrainConfig:
    model, optim = decoder(remedy), OptimConfig(lr=3e-3, warmup=50)
    return TrainConfig(model, DATA, optim=optim, steps=steps, log_every=50, evaluate_every=steps, save_every=steps)


def loss(remedy: str, n: int = LONG) -> Quantity:
    return value(f"loss_{n}", remedy=remedy)


LEARNED = Condition(
    "With nothing the decoder has learned text: it loses two thirds of what guessing does at most", loss("nothing", 64),
    below(2 / 3 * math.log(DATA.vocab_size)),
)  # fmt: skip
BREAKS = Condition("With nothing 512 tokens are worse than 64", loss("nothing") - loss("nothing", 64), above(0.1))
NEEDED = Condition(
    "A window that loses the first tokens costs something", loss("window") - loss("window", 64), above(0.05)
)


def better(remedy: str, than: str = "nothing", *more: Condition) -> Claim:
    name = f"{remedy}-{than}" if than != "nothing" else remedy
    beside = "" if than == "nothing" else f" than with {than}"
    return Claim(
        name.replace(" ", "-").lower(), f"With {remedy} it predicts better in 512{beside}", loss(remedy) - loss(than),
        below(0), (BREAKS, *more),
    )  # fmt: skip


STUDY = Study(
    "length-extrapolation",
    paper="Press et al. 2021 (ALiBi); Su 2021 (log n) and 2023 (key norms); Chen et al. 2023 (interpolation); Peng et "
    "al. 2023 (YaRN, growing base); Xiao et al. 2023 (first tokens); An et al. 2024 (dual chunk); Veličković et al. "
    "2024 (adaptive temperature)",
    question="Which remedies let a decoder read eight times the length it was trained on?",
    run=run,
    grid={"remedy": tuple(REMEDIES)},
    scales={"smoke": Scale(1, {"steps": 5, "rows": 2}), "small": Scale(3, {"steps": 800, "rows": 256})},
    measures={f"loss_{n}": Measure(f"Loss in the last quarter of {n} tokens", "nats") for n in LENGTHS},
    claims=(
        Claim("nothing-breaks", "With nothing 512 tokens are worse than 64", loss("nothing") - loss("nothing", 64),
              above(0.1), (LEARNED,)),
        *[better(remedy) for remedy in REMEDIES if remedy not in ("nothing", "learned sink")],
        better("window and first tokens", "window", NEEDED), better("YaRN", "interpolation"),
        better("dual chunk", "YaRN"),
        Claim("alibi-level", "With ALiBi 512 tokens are no worse than 64", loss("ALiBi") - loss("ALiBi", 64),
              below(0.05), (BREAKS,)),
        Claim("dual-chunk-level", "With dual chunk, neither", loss("dual chunk") - loss("dual chunk", 64), below(0.05),
              (BREAKS,)),
        Claim("dual-chunk-within", "Within 64 dual chunk costs nothing", loss("dual chunk", 64) - loss("nothing", 64),
              within(0.05, 0), (LEARNED,)),
    ),
    differs=(
        "Two layers of width 64 and 800 steps on docstrings. Interpolation, YaRN and the growing base are put in "
        "without more training. A learned sink is there to compare with: no paper claims that it helps here.",
    ),
    mechanisms=("softmax", "streaming"),
    kinds=kinds_of({name: remedy.mixer for name, remedy in REMEDIES.items()}),
    references={"remedy": ("nothing", "window")},
)  # fmt: skip
