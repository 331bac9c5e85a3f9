"""How far back a fact may stand: a recurrence, convolutions and attention, which have it one step away or many.

A row tells one fact at its beginning and asks for it at its end; noise fills what lies between. A recurrence carries
the fact through every position in between; convolutions whose dilation triples pass it on through as many layers as the
logarithm of the distance, undilated ones through as many as the distance itself takes; attention reads it at once.
"""

import math
from pathlib import Path

import torch

import glassformer as gf
from glassformer.data import Batch, Needle
from glassformer.models import BlockConfig, Convolution, Decoder, DecoderConfig, Gru, Learned, Mlp, block, repeat
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
    growth,
    slope,
    value,
)
from glassformer.training import OptimConfig, TrainConfig, read_metrics

ATTENTION, RECURRENT, DILATED, PLAIN = "attention", "recurrent", "convolution, dilated", "convolution"
WIDTH, KERNEL, DEPTH, BATCHES, NOTED = 64, 3, 5, 8, 25
NEAR, MIDDLE, FAR = 8, 32, 128
LAYERS: dict[str, tuple[BlockConfig, ...]] = {
    ATTENTION: repeat(block(n_heads=4, mlp=Mlp(2 * WIDTH)), 2),
    RECURRENT: repeat(BlockConfig((Gru(), Mlp(2 * WIDTH))), 2),
    # five layers of three positions reach 3^5 - 1 = 242 back, and 10 if none is dilated
    DILATED: tuple(BlockConfig((Convolution(KERNEL, KERNEL**i), Mlp(2 * WIDTH))) for i in range(DEPTH)),
    PLAIN: repeat(BlockConfig((Convolution(KERNEL), Mlp(2 * WIDTH))), DEPTH),
}
CHANCE = math.log(Needle().n_values)
FACT = 2  # behind <bos> and the needle
NOTHING = -300.0  # below what float64 tells from nothing
LEARNED = CHANCE / 2  # the loss from which on half of what there is to know is known


def run(case: Case) -> Measures:
    decoder, data = decoder_of(case["layers"], case["distance"]), facts(case["distance"]).build()
    folder = case.train(recipe(decoder, case["distance"], case["steps"]))
    model = gf.load(folder)
    right, losses = list[torch.Tensor](), list[torch.Tensor]()
    for i in range(BATCHES):
        batch = data.batch(i, "heldout")
        with torch.no_grad():
            logits = model(batch.tokens)[batch.weight]
        losses.append(torch.nn.functional.cross_entropy(logits, batch.targets[batch.weight], reduction="none"))
        right.append((logits.argmax(-1) == batch.targets[batch.weight]).double())
    return {
        "accuracy": float(torch.cat(right).mean()),
        "loss": float(torch.cat(losses).mean()),
        "steps_until": float(steps_until(folder, case["steps"])),
        "felt": felt(decoder.build(case.seed), data.batch(0, "heldout")),
    }


def facts(distance: int) -> Needle:
    """Return rows whose question stands so many positions behind the fact."""
    # <bos>, the needle, its value, noise, the needle again
    return Needle(batch_size=32, length=distance + 3, depth=0.0)


def decoder_of(layers: str, distance: int) -> DecoderConfig:
    vocab_size = len(facts(distance).symbols())
    return DecoderConfig(
        vocab_size, WIDTH, LAYERS[layers], max_len=facts(distance).length, positions=Learned(), init="xavier"
    )


def recipe(decoder: DecoderConfig, distance: int, steps: int) -> TrainConfig:
    optim = OptimConfig(lr=3e-3, warmup=50)
    return TrainConfig(
        decoder, facts(distance), steps=steps, optim=optim, log_every=NOTED, evaluate_every=NOTED, save_every=steps
    )


def steps_until(folder: Path, steps: int) -> int:
    """Return the first step whose held-out loss is half of guessing's, and the last one if none is."""
    for line in read_metrics(folder):
        if line.get("heldout_loss", math.inf) < LEARNED:
            return int(line["step"])
    return steps


def felt(model: Decoder, batch: Batch) -> float:
    """Return how strongly the answer feels the fact, of what it feels of a position on average, in decades.

    Measured by the norms of the gradient of the answer's logit at what the first layer reads.
    """
    model = model.double()
    stream = gf.run(model, batch.tokens, read="blocks.0.resid_pre")["blocks.0.resid_pre"].values.detach()
    stream.requires_grad_(True)
    answer = model.resume(0, stream)[:, -1].gather(-1, batch.targets[:, -1:]).sum()
    norms = torch.autograd.grad(answer, stream)[0].norm(dim=-1).mean(0)
    return math.log10(float(norms[FACT] / norms.mean())) if norms[FACT] > 0 else NOTHING


def accuracy(layers: str, distance: int) -> Quantity:
    return value("accuracy", layers=layers, distance=distance)


FOUND = {
    distance: (Condition(f"Attention finds it {distance} positions back", accuracy(ATTENTION, distance), above(0.9)),)
    for distance in (NEAR, MIDDLE, FAR)
}

STUDY = Study(
    "recall-by-distance",
    paper='Vaswani et al. 2017, "Attention Is All You Need", section 4 and table 1: path lengths of 1 for attention, n '
    "for recurrence, log_k n for dilated convolutions; the shorter, the easier distant things are learned",
    question="How far back may a fact stand for a recurrence, convolutions and attention to find it?",
    run=run,
    grid={"layers": tuple(LAYERS), "distance": (NEAR, MIDDLE, FAR)},
    scales={"smoke": Scale(1, {"steps": 4}, {"distance": (NEAR,)}), "small": Scale(8, {"steps": 600})},
    measures={
        "accuracy": Measure("Share of facts that are found; guessing among values finds 0.06", learned=True),
        "loss": Measure("Loss on the fact; guessing among values has 2.77", "nats", learned=True),
        "steps_until": Measure("Step at which that is half of guessing's; the last one if it never is"),
        "felt": Measure(
            "Gradient of the answer at the fact, of that at a position on average, before training", "decades"
        ),
    },
    claims=(
        Claim(
            "attention-far", "Attention finds a fact 128 positions back",
            counted(accuracy(ATTENTION, FAR), above(0.9)), MAJORITY,
        ),
        Claim(
            "dilated-far", "So do dilated convolutions, five layers away from it",
            counted(accuracy(DILATED, FAR), above(0.9)), MAJORITY, FOUND[FAR],
        ),
        Claim(
            "recurrent-near", "A recurrence finds one eight positions back",
            counted(accuracy(RECURRENT, NEAR), above(0.9)), MAJORITY, FOUND[NEAR],
        ),
        Claim(
            "recurrent-far", "At 128 it does not",
            counted(accuracy(RECURRENT, FAR), below(0.5)), MAJORITY, FOUND[FAR],
        ),
        Claim(
            "plain-near", "Convolutions without dilation find what they reach",
            counted(accuracy(PLAIN, NEAR), above(0.9)), MAJORITY, FOUND[NEAR],
        ),
        Claim(
            "plain-guesses", "What they do not reach they guess",
            counted(accuracy(PLAIN, MIDDLE), below(0.15)), MAJORITY, FOUND[MIDDLE],
        ),
        Claim(
            "recurrence-fades", "Untrained, a recurrence feels a fact exponentially less with distance",
            slope("felt", "distance", layers=RECURRENT), below(-0.1),
        ),
        Claim(
            "attention-feels", "Attention feels it alike at every distance",
            slope("felt", "distance", layers=ATTENTION), above(-0.01),
        ),
        Claim(
            "steps-grow", "Steps that a recurrence takes grow faster with distance than attention's",
            growth("steps_until", "distance", layers=RECURRENT) - growth("steps_until", "distance", layers=ATTENTION),
            above(0.2), tuple(condition for found in FOUND.values() for condition in found),
        ),
    ),
    differs=(
        "The paper states path lengths and measures none; this is one task of one fact, learned for minutes by layers "
        "of width 64.",
        "Embeddings of positions tell convolutions and the recurrence where they are, too.",
        "Five convolutions have as many layers as their reach takes; attention and the recurrence have two.",
    ),
    mechanisms=("softmax",),
    kinds={ATTENTION: ("softmax",), RECURRENT: (), DILATED: (), PLAIN: ()},
    references={"layers": (ATTENTION,), "distance": (NEAR, MIDDLE, FAR)},
)  # fmt: skip
