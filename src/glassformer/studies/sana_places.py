"""SANA's blocks without positions: does the convolution of the Mix-FFN say where things are?

Linear attention and a mean over patches see a bag of them, and an MLP sees one patch at a time: of an image and of the
same patches in other places such a model says the same. The question asked here, on which side of a bar a square lies,
is answered by places alone, so that what it cannot tell it has to guess. A convolution sees what is beside what, and,
since it takes zeros for what lies outside, where the image ends.
"""

from functools import cache

import torch

import glassformer as gf
from glassformer.data import Shapes
from glassformer.models import EncoderConfig, LearnedGrid, MixMlp, Mlp, Patches, image_encoder, sana
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
    within,
)
from glassformer.training import OptimConfig, TrainConfig

MIX, POINTWISE, PLACED = "Mix-FFN", "MLP", "MLP and positions"
WIDTH, HEADS, DEPTH, SIZE, BATCHES = 64, 2, 2, 4, 8
# the Mix-FFN with these neurons says how many parameters everybody has
NEURONS = 64
DATA = Shapes(batch_size=32, task="side")


def run(case: Case) -> Measures:
    model = gf.load(case.train(recipe(case["layer"], case["steps"])))
    built, random, right = DATA.build(), case.generator(), {"accuracy": 0.0, "moved": 0.0}
    for i in range(BATCHES):
        batch = built.batch(i, "heldout")
        for name, images in (("accuracy", batch.tokens), ("moved", moved(batch.tokens, random))):
            with torch.no_grad():
                answers = model.class_logits(model(images)).argmax(-1)
            right[name] += float((answers == batch.targets[:, 0]).double().mean()) / BATCHES
    return right | {"parameters": float(sum(count_parameters(model.config).values()))}


def moved(images: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Return images with their patches in other places, drawn anew for each."""
    n = images.shape[-1] // SIZE
    patches = torch.nn.functional.unfold(images, SIZE, stride=SIZE)  # batch pixel patch
    order = torch.rand(len(images), 1, n * n, generator=random).argsort(-1)
    patches = patches.gather(-1, order.expand_as(patches))
    return torch.nn.functional.fold(patches, images.shape[-2:], SIZE, stride=SIZE)


@cache
def neurons(layer: str) -> int:
    """Return how many neurons give a model as many parameters as the Mix-FFN's."""

    def parameters(name: str, width: int) -> int:
        return sum(count_parameters(encoder(name, width)).values())

    less = parameters(layer, 1)
    each = parameters(layer, 2) - less
    return 1 + round((parameters(MIX, NEURONS) - less) / each)


def encoder(layer: str, width: int) -> EncoderConfig:
    """Return a model whose patches each say a class, which are averaged."""
    patches = Patches(DATA.image(), SIZE)
    mlp = MixMlp(width, grid=patches.grid) if layer == MIX else Mlp(width, "silu", gated=True)
    positions = LearnedGrid() if layer == PLACED else None
    blocks = sana(DEPTH, n_heads=HEADS, mlp=mlp)
    return image_encoder(patches, WIDTH, blocks, len(DATA.classes()), positions=positions)


def recipe(layer: str, steps: int) -> TrainConfig:
    optim = OptimConfig(lr=3e-3, warmup=50)
    model = encoder(layer, neurons(layer))
    return TrainConfig(model, DATA, steps=steps, optim=optim, log_every=50, evaluate_every=steps, save_every=steps)


def of(layer: str, measure: str = "accuracy") -> Quantity:
    return value(measure, layer=layer)


LEARNED = (Condition("With positions it is learned", of(PLACED), above(0.9)),)

STUDY = Study(
    "sana-places",
    paper='Xie et al. 2024, "SANA: Efficient High-Resolution Image Synthesis with Linear Diffusion Transformers", '
    "arXiv 2410.10629, section 2.2: with Mix-FFN, positions can be left out at no loss",
    question="Does the convolution of the Mix-FFN tell places, where there are no positions?",
    run=run,
    grid={"layer": (PLACED, MIX, POINTWISE)},
    scales={"smoke": Scale(1, {"steps": 4}), "small": Scale(8, {"steps": 200})},
    measures={
        "accuracy": Measure("Share of held-out images that are answered right; guessing finds 0.25", learned=True),
        "moved": Measure("The same with the patches of each image in other places, drawn at random"),
        "parameters": Measure("Parameters of the model"),
    },
    claims=(
        Claim("placed-learns", "With positions and an MLP the side is learned", counted(of(PLACED), above(0.9)),
              MAJORITY),
        Claim("mix-learns", "With the Mix-FFN it is learned without positions", counted(of(MIX), above(0.9)), MAJORITY,
              LEARNED),
        Claim("pointwise-guesses", "With an MLP and without positions it is guessed",
              counted(of(POINTWISE), below(0.35)), MAJORITY, LEARNED),
        Claim("mix-by-places", "It is places that the Mix-FFN tells: of patches moved about it guesses",
              counted(of(MIX, "moved"), below(0.35)), MAJORITY, LEARNED),
        Claim("parameters", "All have as many parameters, to two hundredths", of(POINTWISE, "parameters")
              / of(MIX, "parameters"), within(0.02, 1.0), exact="parameters are counted"),
    ),
    differs=(
        "The paper makes images from text, with 28 blocks and more; this tells four answers apart, with two blocks of "
        "width 64 and a loss on the mean over patches.",
        "Its attention to a prompt and its time steps are left out.",
    ),
    mechanisms=("linear",),
    references={"layer": (PLACED,)},
)  # fmt: skip
