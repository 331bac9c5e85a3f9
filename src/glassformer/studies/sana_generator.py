"""A generator of digits with SANA's block, and with the mean of all patches in the place of its attention.

Sixteen patches of 8 x 8 pixels hardly need to be told apart: what each becomes depends on all, and a mean tells that
too. So the mean is what attention is measured by. Both models have the same number of parameters, since neurons stand
in for matrices of queries and keys, and the same steps; neither has positions, so that the convolution of the Mix-FFN
alone says where a patch is. How far samples are from images is the Fréchet distance on the 64 pixels themselves, which
is not the FID of papers: that is of features of a large network.
"""

from typing import Any

import torch
from torch import Tensor

import glassformer as gf
from glassformer.attention import Pooling, Tied
from glassformer.data import Digits, Noised, stretched
from glassformer.models import (
    BlockConfig,
    MixMlp,
    Mlp,
    Patches,
    block,
    image_encoder,
    image_generator,
    repeat,
    sample_images,
    sana,
)
from glassformer.numerics.frechet import frechet_distance
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

SANA, UNIFORM = "sana", "uniform"
WIDTH, HEADS, DEPTH, PATCHES, CLASSES = 64, 4, 4, Patches((8, 8), 2), 10
# neurons of the Mix-FFN: with the uniform mean those of a head's queries and keys, too
NEURONS = {SANA: 160, UNIFORM: 198}
UNTRAINED_STEPS = 5


def run(case: Case) -> Measures:
    data = Digits(batch_size=64, packaged=case["packaged"])
    train, heldout = (stretched(data.every(split).images) for split in ("train", "heldout"))
    recipe = generator(case["mixer"], data, case["steps"])
    model = gf.load(case.train(recipe))
    classes = torch.arange(case["samples"]) % CLASSES
    # an image has the seed of the first one and its number: none is of two cases
    first = case.seed * case["samples"]
    made = sample_images(model, classes, steps=case["sampling"], seed=first)
    untrained = sample_images(recipe.model.build(case.seed), classes, steps=UNTRAINED_STEPS, seed=first)
    noise = torch.randn(made.shape, generator=case.generator())
    judge = gf.load(case.train(classifier(data, case["steps"])))
    halves = distance(*halved(torch.cat((train, heldout)), case.generator()))
    found = {name: distance(these, heldout) for name, these in (("made", made), ("noise", noise), ("train", train))}
    return {
        "distance": found["made"],
        "excess": (found["made"] - halves) / (found["noise"] - halves),
        "of_halves": halves,
        "of_train": found["train"],
        "of_noise": found["noise"],
        "of_untrained": distance(untrained, heldout),
        "class_accuracy": accuracy(judge, made, classes),
        "real_accuracy": accuracy(judge, heldout, data.every("heldout").classes),
        "nearest": nearest(made, train),
        "nearest_heldout": nearest(heldout, train),
        "parameters": float(sum(p.numel() for p in model.parameters())),
    }


def layers(mixer: str) -> tuple[BlockConfig, ...]:
    if mixer == SANA:
        return sana(DEPTH, n_heads=HEADS, grid=PATCHES.grid, d_mlp=NEURONS[SANA])
    # as far as the image goes, from whatever patch
    mean = Pooling(window=PATCHES.n_tokens, less_itself=False)
    mlp = MixMlp(NEURONS[UNIFORM], grid=PATCHES.grid)
    return repeat(block(mean, n_heads=HEADS, projection=Tied(query="identity"), mlp=mlp), DEPTH)


def generator(mixer: str, data: Digits, steps: int) -> TrainConfig:
    model = image_generator(PATCHES, WIDTH, layers(mixer), CLASSES, init="xavier")
    optim = OptimConfig(lr=2e-3, warmup=50, floor=0.0, betas=(0.9, 0.98))
    return of(model, Noised(data, data.batch_size), optim, steps)


def classifier(data: Digits, steps: int) -> TrainConfig:
    """Return the recipe of what says which digit an image is: an MLP on all pixels at once."""
    model = image_encoder(Patches((8, 8), 8), WIDTH, (BlockConfig((Mlp(4 * WIDTH),)),), CLASSES)
    return of(model, data, OptimConfig(lr=3e-3, warmup=50), steps)


def of(model: Any, data: Any, optim: OptimConfig, steps: int) -> TrainConfig:
    return TrainConfig(model, data, steps=steps, optim=optim, log_every=50, evaluate_every=steps, save_every=steps)


def distance(one: Tensor, other: Tensor) -> float:
    return frechet_distance(one.flatten(1), other.flatten(1))


def halved(images: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor]:
    order, half = torch.randperm(len(images), generator=random), len(images) // 2
    return images[order[:half]], images[order[half : 2 * half]]


def nearest(images: Tensor, among: Tensor) -> float:
    """Return how far the nearest image lies, over all pixels, on average."""
    return float(torch.cdist(images.flatten(1), among.flatten(1)).amin(1).mean())


def accuracy(model: Any, images: Tensor, classes: Tensor) -> float:
    # a classifier reads numbers from 0 to 1
    with torch.no_grad():
        said = model.class_logits(model((images + 1) / 2)).argmax(-1)
    return float((said == classes).double().mean())


def apart(measure: str) -> Quantity:
    return value(measure, mixer=SANA) - value(measure, mixer=UNIFORM)


LEARNS = (
    Condition("With the mean of all patches it learns to make digits", value("excess", mixer=UNIFORM), below(0.05)),
)

STUDY = Study(
    "sana-generator",
    paper='Xie et al. 2024, "SANA: Efficient High-Resolution Image Synthesis with Linear Diffusion Transformers", '
    'arXiv 2410.10629, section 2.2; Peebles and Xie 2022, "Scalable Diffusion Models with Transformers", '
    "arXiv 2212.09748",
    question="Does SANA's linear attention make better images than the mean of all patches in its place?",
    run=run,
    grid={"mixer": (SANA, UNIFORM)},
    scales={
        "smoke": Scale(2, {"steps": 3, "samples": 20, "sampling": 2, "packaged": True}),
        "small": Scale(8, {"steps": 500, "samples": 1000, "sampling": 25, "packaged": False}),
    },
    measures={
        "distance": Measure("Fréchet distance of 1,000 samples to held-out digits, on 64 pixels from -1 to 1"),
        "excess": Measure(
            "What it is above that of two halves of the data, of what that of noise is above it", learned=True
        ),
        "of_halves": Measure("Fréchet distance of two halves of all digits"),
        "of_train": Measure("Fréchet distance of the digits it is trained on to held-out ones"),
        "of_noise": Measure("Fréchet distance of noise to held-out digits"),
        "of_untrained": Measure("Fréchet distance of an untrained model's samples, in 5 steps, to held-out digits"),
        "class_accuracy": Measure("Share of samples that a classifier takes for the class that was asked for"),
        "real_accuracy": Measure("Share of held-out digits that this classifier knows"),
        "nearest": Measure("Distance of a sample to the nearest digit of training, on average"),
        "nearest_heldout": Measure("Distance of a held-out digit to that, on average"),
        "parameters": Measure("Parameters of the model"),
    },
    claims=(
        Claim("learned", "With SANA's blocks it learns to make digits: beside noise its samples are nearly as near to "
              "held-out ones as one half of the data is to the other",
              counted(value("excess", mixer=SANA), below(0.05)), MAJORITY),
        Claim("untrained-far", "Samples of an untrained model are farther away",
              value("distance", mixer=SANA) - value("of_untrained", mixer=SANA), below(0)),
        Claim("below-uniform", "Its samples are nearer than with the mean of all patches in the place of attention",
              apart("distance"), below(0), LEARNS),
        Claim("class-accuracy", "Classes do not tell both apart: as many samples are of the class that was asked for",
              apart("class_accuracy"), within(0.03, 0), LEARNS),
        Claim("not-copied", "Samples are no copies: the nearest digit of training is farther from them than from "
              "held-out ones",
              value("nearest", mixer=SANA) - value("nearest_heldout", mixer=SANA), above(0), LEARNS),
    ),
    differs=(
        "Digits of 8 x 8 pixels, and no autoencoder before them: 16 patches, width 64, four blocks; class and no text.",
        "Time and class are added to the stream; in the papers they set gains, offsets and gates of sub-layers. The "
        "rate falls to zero in place of an average of weights over steps; times are drawn evenly.",
        "The mean has values and an output matrix, and 198 neurons in place of 160, for queries and keys.",
        "The Fréchet distance is of pixels, not of features of a network.",
    ),
    mechanisms=("linear", "pooling"),
    references={"mixer": (UNIFORM,)},
)  # fmt: skip
