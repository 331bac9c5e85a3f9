"""Memory beyond the window: a fact that has left it, for segment recurrence and for nearest neighbours.

A row tells one fact and asks for it at its end; noise lies between. All layers see the same window or segment. What
recurrence reaches grows by a memory with every layer; what neighbours reach is all that is kept. Models are trained on
facts that stand anywhere, and asked about those that stand at one distance.
"""

from typing import Any

import torch

import glassformer as gf
from glassformer.attention import MixerConfig, NearestMemory, Rope, SegmentRecurrence, Softmax
from glassformer.data import Needle
from glassformer.models import BlockConfig, DecoderConfig, Mlp, published_block, repeat
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
from glassformer.training import OptimConfig, TrainConfig

FULL, WINDOW, SEGMENTS, GATE, JOINT = "all", "window", "segments", "neighbours, gate", "neighbours, one softmax"
SEEN, LENGTH, WIDTH, BATCHES = 16, 131, 64, 8
MIXERS: dict[str, MixerConfig] = {
    FULL: Softmax(),
    WINDOW: Softmax(window=SEEN),
    SEGMENTS: SegmentRecurrence(segment=SEEN, memory=SEEN),
    GATE: NearestMemory(window=SEEN, memory=LENGTH, nearest=4),
    JOINT: NearestMemory(window=SEEN, memory=LENGTH, nearest=4, joined="joint"),
}
# two layers of the window reach 30 back, of segments with their memory 32 at least and 62 at most
NEAR, BEYOND, FAR = 8, 40, 120


def run(case: Case) -> Measures:
    model = gf.load(case.train(recipe(case["memory"], case["steps"])))
    data, right = asked(case["distance"]).build(), list[torch.Tensor]()
    for i in range(BATCHES):
        batch = data.batch(i, "heldout")
        with torch.no_grad():
            found = model(batch.tokens)[batch.weight].argmax(-1)
        right.append((found == batch.targets[batch.weight]).double())
    return {"accuracy": float(torch.cat(right).mean())}


def asked(distance: int) -> Needle:
    """Return rows whose question stands about so many positions behind the fact."""
    return Needle(batch_size=32, length=LENGTH, depth=1 - distance / (LENGTH - 3))


def layer(memory: str) -> BlockConfig:
    slots: dict[str, Any] = {} if memory == SEGMENTS else {"positions": Rope()}
    return published_block(MIXERS[memory], n_heads=4, mlp=Mlp(2 * WIDTH), **slots)


def recipe(memory: str, steps: int) -> TrainConfig:
    data = Needle(batch_size=32, length=LENGTH)
    model = DecoderConfig(len(data.symbols()), WIDTH, repeat(layer(memory), 2), max_len=LENGTH)
    optim = OptimConfig(lr=3e-3, warmup=50)
    return TrainConfig(model, data, steps=steps, optim=optim, log_every=50, evaluate_every=steps, save_every=steps)


def accuracy(memory: str, distance: int) -> Quantity:
    return value("accuracy", memory=memory, distance=distance)


def finds(memory: str, distance: int) -> Quantity:
    return counted(accuracy(memory, distance), above(0.9))


def guesses(memory: str, distance: int) -> Quantity:
    return counted(accuracy(memory, distance), below(0.3))


FOUND = {
    distance: (Condition(f"Attention to all finds it {distance} positions back", accuracy(FULL, distance), above(0.9)),)
    for distance in (NEAR, BEYOND, FAR)
}

STUDY = Study(
    "memory-beyond-window",
    paper='Dai et al. 2019, "Transformer-XL", arXiv 1901.02860; Wu et al. 2022, "Memorizing Transformers", arXiv '
    "2203.08913: both find what a window of the same size has lost",
    question="What is found of a fact that has left the window?",
    run=run,
    grid={"memory": tuple(MIXERS), "distance": (NEAR, BEYOND, FAR)},
    scales={"smoke": Scale(2, {"steps": 4}), "small": Scale(8, {"steps": 1500})},
    measures={"accuracy": Measure("Share of facts that are found; guessing among values finds 0.06", learned=True)},
    claims=(
        Claim("all-far", "Attention to all finds a fact wherever it stands", finds(FULL, FAR), MAJORITY),
        Claim("window-near", "A window finds what is in it", finds(WINDOW, NEAR), MAJORITY, FOUND[NEAR]),
        Claim("window-beyond", "What two windows do not reach is guessed", guesses(WINDOW, BEYOND), MAJORITY,
              FOUND[BEYOND]),
        Claim("segments-beyond", "Segment recurrence of two layers finds it", finds(SEGMENTS, BEYOND), MAJORITY,
              FOUND[BEYOND]),
        Claim("segments-far", "It guesses what lies beyond its memory times its layers", guesses(SEGMENTS, FAR),
              MAJORITY, FOUND[FAR]),
        Claim("gate-far", "Nearest neighbours find it there, by a gate", finds(GATE, FAR), MAJORITY, FOUND[FAR]),
        Claim("joint-far", "And by one softmax", finds(JOINT, FAR), MAJORITY, FOUND[FAR]),
    ),
    differs=(
        "The papers measure language models; this is one fact in noise, for models of two layers and width 64.",
        "All layers have the memory; Wu et al. give it to one of twelve.",
        "Positions are rotary, but for segments, whose paper's relative sinusoids they have.",
    ),
    mechanisms=("softmax", "segment_recurrence", "nearest_memory"),
    references={"memory": (FULL,), "distance": (NEAR, BEYOND, FAR)},
)  # fmt: skip
