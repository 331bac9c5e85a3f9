"""Memory beyond the window: a fact that has left it, for segment recurrence and for nearest neighbours.

A row tells one fact and asks for it at its end; noise lies between. All layers see the same window or segment. What
recurrence reaches grows by a memory with every layer; what neighbours reach is all that is kept. Models are trained on
facts that stand anywhere, and as many that all of them see, and asked about those that stand at one distance.

A question is the last of the 8 positions of its segment: it sees the 7 before it, and 8 more with a memory. Two layers
reach 23 back by segments with their memory, 14 by a window, and 7 by segments alone.
"""

import torch

import glassformer as gf
from glassformer.attention import MixerConfig, NearestMemory, Rope, SegmentRecurrence, Softmax
from glassformer.data import MixtureConfig, Needle
from glassformer.models import BlockConfig, DecoderConfig, Mlp, RmsNorm, published_block, repeat
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
    kinds_of,
    value,
)
from glassformer.training import OptimConfig, TrainConfig

FULL, WINDOW, APART, SEGMENTS = "all", "window", "segments alone", "segments"
GATE, JOINT = "neighbours, gate", "neighbours, one softmax"
SEEN, LENGTH, WIDTH, BATCHES = 8, 48, 32, 4
MIXERS: dict[str, MixerConfig] = {
    FULL: Softmax(),
    WINDOW: Softmax(window=SEEN),
    APART: SegmentRecurrence(segment=SEEN, memory=0),
    SEGMENTS: SegmentRecurrence(segment=SEEN, memory=SEEN),
    GATE: NearestMemory(window=SEEN, memory=LENGTH, nearest=4),
    JOINT: NearestMemory(window=SEEN, memory=LENGTH, nearest=4, joined="joint"),
}
NEAR, RECENT, BEYOND, FAR = 4, 12, 20, 40


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
    """Return rows whose question stands so many positions behind the value that it asks for."""
    return Needle(batch_size=32, length=LENGTH, depth=1 - (distance - 1) / (LENGTH - 4))


def layer(memory: str) -> BlockConfig:
    return published_block(MIXERS[memory], n_heads=2, positions=Rope(), mlp=Mlp(2 * WIDTH), norm=RmsNorm())


def recipe(memory: str, steps: int) -> TrainConfig:
    parts = (Needle(length=LENGTH), asked(NEAR))
    data = MixtureConfig(parts, (0.5, 0.5), batch_size=32, length=LENGTH)
    model = DecoderConfig(len(parts[0].symbols()), WIDTH, repeat(layer(memory), 2), max_len=LENGTH)
    optim = OptimConfig(lr=4e-3, warmup=30)
    return TrainConfig(model, data, steps=steps, optim=optim, log_every=50, evaluate_every=steps, save_every=steps)


def accuracy(memory: str, distance: int) -> Quantity:
    return value("accuracy", memory=memory, distance=distance)


def finds(memory: str, distance: int) -> Quantity:
    return counted(accuracy(memory, distance), above(0.9))


def guesses(memory: str, distance: int) -> Quantity:
    return counted(accuracy(memory, distance), below(0.3))


FOUND = {
    distance: (Condition(f"Attention to all finds it {distance} positions back", accuracy(FULL, distance), above(0.9)),)
    for distance in (NEAR, RECENT, BEYOND, FAR)
}

STUDY = Study(
    "memory-beyond-window",
    paper='Dai et al. 2019, "Transformer-XL", arXiv 1901.02860; Wu et al. 2022, "Memorizing Transformers", arXiv '
    "2203.08913: both predict text better by what a window of the same size has lost",
    question="What is found of a fact that has left the window?",
    run=run,
    grid={"memory": tuple(MIXERS), "distance": (NEAR, RECENT, BEYOND, FAR)},
    scales={"smoke": Scale(1, {"steps": 2}, {"distance": (NEAR,)}), "small": Scale(8, {"steps": 400})},
    measures={"accuracy": Measure("Share of facts that are found; guessing among values finds 0.06", learned=True)},
    claims=(
        Claim("all-far", "Attention to all finds a fact wherever it stands", finds(FULL, FAR), MAJORITY),
        Claim("window-near", "A window finds what is in it", finds(WINDOW, NEAR), MAJORITY, FOUND[NEAR]),
        Claim("apart-near", "Segments alone find what is in them", finds(APART, NEAR), MAJORITY, FOUND[NEAR]),
        Claim("apart-recent", "They guess what is in the segment before", guesses(APART, RECENT), MAJORITY,
              FOUND[RECENT]),
        Claim("segments-recent", "Segment recurrence finds it", finds(SEGMENTS, RECENT), MAJORITY, FOUND[RECENT]),
        Claim("window-beyond", "What two windows do not reach is guessed", guesses(WINDOW, BEYOND), MAJORITY,
              FOUND[BEYOND]),
        Claim("segments-beyond", "Segment recurrence finds it, through its second layer", finds(SEGMENTS, BEYOND),
              MAJORITY, FOUND[BEYOND]),
        Claim("segments-far", "It guesses what lies beyond its memory times its layers", guesses(SEGMENTS, FAR),
              MAJORITY, FOUND[FAR]),
        Claim("gate-far", "Nearest neighbours find it there, by a gate", finds(GATE, FAR), MAJORITY, FOUND[FAR]),
        Claim("joint-far", "And by one softmax", finds(JOINT, FAR), MAJORITY, FOUND[FAR]),
    ),
    differs=(
        "The papers measure language models; this is one fact in 48 tokens of noise, for models of two layers of "
        "width 32.",
        "All layers have the memory; Wu et al. give it to one of twelve.",
        "Positions are rotary in all, so that they differ in nothing but what they see; Dai et al. have relative "
        "sinusoids.",
    ),
    mechanisms=("softmax", "segment_recurrence", "nearest_memory"),
    kinds=kinds_of(MIXERS),
    references={"memory": (FULL,), "distance": (NEAR, RECENT, BEYOND, FAR)},
)  # fmt: skip
