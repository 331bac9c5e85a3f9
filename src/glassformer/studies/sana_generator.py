"""A generator of digits with SANA's attention, and with the mean of all patches in its place.

Sixteen patches of 8 x 8 pixels hardly need to be told apart: what each becomes depends on all, and a mean tells that
too. So the mean is what attention is measured by. Both models have the same number of parameters, since neurons stand
in for matrices of queries and keys, and the same steps. Both stand in two blocks: SANA's, which has no positions, so
that the convolution of the Mix-FFN alone says where a patch is, and reads its neighbours besides; and that of other
generators, with positions and an MLP at each patch by itself, where what mixes patches is attention or the mean and
nothing else. How far samples are from images is the Fréchet distance on the 64 pixels themselves, which is not the FID
of papers: that is of features of a large network.
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
    SinusoidalGrid,
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
CONVOLUTION, POSITIONS = "convolution", "positions"
# neurons by what says where a patch is: with the uniform mean as many more as queries and keys have parameters
NEURONS = {CONVOLUTION: {SANA: 160, UNIFORM: 198}, POSITIONS: {SANA: 256, UNIFORM: 320}}
# how many times the steps of a case: without the convolution images take longer to learn
LONGER = {CONVOLUTION: 1, POSITIONS: 4}
UNTRAINED_STEPS = 5


def run(case: Case) -> Measures:
    data = Digits(batch_size=64, packaged=case["packaged"])
    train, heldout = (stretched(data.every(split).images) for split in ("train", "heldout"))
    recipe = generator(case["mixer"], case["places"], data, case["steps"])
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


def layers(mixer: str, places: str) -> tuple[BlockConfig, ...]:
    neurons = NEURONS[places][mixer]
    mlp = MixMlp(neurons, grid=PATCHES.grid) if places == CONVOLUTION else Mlp(neurons)
    if mixer == SANA:
        return sana(DEPTH, n_heads=HEADS, grid=PATCHES.grid, mlp=mlp)
    # as far as the image goes, from whatever patch
    mean = Pooling(window=PATCHES.n_tokens, less_itself=False)
    return repeat(block(mean, n_heads=HEADS, projection=Tied(query="identity"), mlp=mlp), DEPTH)


def generator(mixer: str, places: str, data: Digits, steps: int) -> TrainConfig:
    positions = SinusoidalGrid() if places == POSITIONS else None
    model = image_generator(PATCHES, WIDTH, layers(mixer, places), CLASSES, positions=positions, init="xavier")
    optim = OptimConfig(lr=2e-3, warmup=50, floor=0.0, betas=(0.9, 0.98))
    return of(model, Noised(data, data.batch_size), optim, LONGER[places] * steps)


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


def apart(measure: str, places: str) -> Quantity:
    return value(measure, mixer=SANA, places=places) - value(measure, mixer=UNIFORM, places=places)


def learns(places: str) -> tuple[Condition]:
    far = value("excess", mixer=UNIFORM, places=places)
    return (Condition("With the mean of all patches it learns to make digits", far, below(0.05)),)


STUDY = Study(
    "sana-generator",
    paper='Xie et al. 2024, "SANA: Efficient High-Resolution Image Synthesis with Linear Diffusion Transformers", '
    'arXiv 2410.10629, section 2.2; Peebles and Xie 2022, "Scalable Diffusion Models with Transformers", '
    "arXiv 2212.09748",
    question="Does SANA's linear attention make better images than the mean of all patches in its place?",
    run=run,
    grid={"mixer": (SANA, UNIFORM), "places": (CONVOLUTION, POSITIONS)},
    scales={
        "smoke": Scale(1, {"steps": 3, "samples": 20, "sampling": 2, "packaged": True}),
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
              counted(value("excess", mixer=SANA, places=CONVOLUTION), below(0.05)), MAJORITY),
        Claim("learned-with-positions", "So it does with SANA's attention, positions and an MLP at each patch by "
              "itself",
              counted(value("excess", mixer=SANA, places=POSITIONS), below(0.05)), MAJORITY),
        Claim("untrained-far", "Samples of an untrained model are farther away",
              value("distance", mixer=SANA, places=CONVOLUTION)
              - value("of_untrained", mixer=SANA, places=CONVOLUTION), below(0)),
        Claim("below-uniform", "In SANA's block its samples are nearer than with the mean of all patches in the place "
              "of attention",
              apart("distance", CONVOLUTION), below(0), learns(CONVOLUTION)),
        Claim("below-uniform-with-positions", "So they are where nothing else mixes patches: with positions, and an "
              "MLP at each patch by itself",
              apart("distance", POSITIONS), below(0), learns(POSITIONS)),
        Claim("convolution-mixes", "The convolution does what is asked of attention: with the mean, samples are nearer "
              "than those of attention beside positions, in a quarter of the steps",
              value("distance", mixer=UNIFORM, places=CONVOLUTION) - value("distance", mixer=SANA, places=POSITIONS),
              below(0), learns(CONVOLUTION)),
        Claim("class-accuracy", "Classes do not tell attention and mean apart in SANA's block: as many samples are of "
              "the class that was asked for",
              apart("class_accuracy", CONVOLUTION), within(0.03, 0), learns(CONVOLUTION)),
        Claim("not-copied", "Samples are no copies: the nearest digit of training is farther from them than from "
              "held-out ones",
              value("nearest", mixer=SANA, places=CONVOLUTION)
              - value("nearest_heldout", mixer=SANA, places=CONVOLUTION), above(0), learns(CONVOLUTION)),
    ),
    differs=(
        "Digits of 8 x 8 pixels, and no autoencoder before them: 16 patches, width 64, four blocks; class and no text.",
        "Time and class are added to the stream; in the papers they set gains, offsets and gates of sub-layers. The "
        "rate falls to zero in place of an average of weights over steps; times are drawn evenly.",
        "The mean has values and an output matrix, and 198 neurons in place of 160, or 320 in place of 256 beside "
        "positions, for queries and keys.",
        "Beside positions both take four times the steps, set on a seed that is none of these: after 500, as with the "
        "convolution, both are above 5, and neither is counted as having learned.",
        "The Fréchet distance is of pixels, not of features of a network.",
    ),
    mechanisms=("linear", "pooling"),
    kinds={SANA: ("linear",), UNIFORM: ("pooling",)},
    references={"mixer": (UNIFORM,), "places": (CONVOLUTION, POSITIONS)},
)  # fmt: skip
