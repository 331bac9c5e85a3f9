"""PolaFormer trained on images, beside softmax and two kinds of features: what it learns, and how sharp its rows are.

Two tasks: handwritten digits, and drawn shapes of which the one in a marked quarter is asked for, so that patches have
to see each other. All models read 4 x 4 patches, with the same positions, and have as many parameters: what gates,
convolutions and vectors of places take, MLPs lack.

PolaFormer's layer is more than two signs and a power. It is trained as published and, to tell what does what, without
its convolution, gate and vectors of places.
"""

from functools import cache
from typing import Any

import torch

import glassformer as gf
from glassformer.attention import Linear, MixerConfig, Performer, Pola, Softmax
from glassformer.data import Digits, Shapes
from glassformer.data.images import ImageConfig
from glassformer.models import (
    BlockConfig,
    EncoderConfig,
    LearnedGrid,
    Mlp,
    Patches,
    block,
    image_encoder,
    metaformer,
    published_block,
    repeat,
)
from glassformer.models.accounting import count_parameters
from glassformer.studies import pola_entropy
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

SOFTMAX, RELU, PERFORMER, POLA, BARE, NONE = "softmax", "relu", "performer", "polaformer", "signs and powers", "none"
MIXERS: dict[str, MixerConfig] = {SOFTMAX: Softmax(), RELU: Linear("relu"), PERFORMER: Performer(), BARE: Pola()}
SHAPES, DIGITS = "shapes", "digits"
TASKS: dict[str, ImageConfig] = {SHAPES: Shapes(batch_size=32), DIGITS: Digits(batch_size=32, packaged=True)}
# patches along a side
GRID, WIDTH, HEADS, DEPTH, BATCHES = 4, 64, 4, 2, 16
# softmax with these neurons says how many parameters everybody has
NEURONS = 128


def run(case: Case) -> Measures:
    model: Any = gf.load(case.train(recipe(case["mixer"], case["task"], case[f"{case['task']}_steps"])))
    images, classes = heldout(case["task"])
    with torch.no_grad():
        answers = model.class_logits(model(images)).argmax(-1)
    found = {
        "accuracy": float((answers == classes).double().mean()),
        "parameters": float(sum(count_parameters(model.config).values())),
    }
    if case["mixer"] == NONE:
        return found
    read = gf.run(model, images[:64], read=["blocks.*.attn.pattern"])
    rows = [entropy(read[f"blocks.{i}.attn.pattern"].values) for i in range(DEPTH)]
    return found | {"entropy": float(torch.cat(rows).mean())}


def heldout(task: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return held-out images and their classes: of digits all that there are."""
    data = TASKS[task]
    if isinstance(data, Digits):
        return data.every("heldout")
    batches = [data.build().batch(i, "heldout") for i in range(BATCHES)]
    return torch.cat([batch.tokens for batch in batches]), torch.cat([batch.targets[:, 0] for batch in batches])


def entropy(pattern: torch.Tensor) -> torch.Tensor:
    """Return the entropy in nats of each row over its sum, of rows that have one."""
    rows = pattern.double().flatten(0, -2)
    return pola_entropy.entropy(rows[rows.sum(-1) > 0])


def layer(mixer: str, width: int) -> BlockConfig:
    """Return a block with so many neurons in its MLP."""
    if mixer == NONE:
        return metaformer("identity", mlp=Mlp(width))
    if mixer == POLA:
        return published_block(Pola(convolution=3), n_heads=HEADS, mlp=Mlp(width))
    return block(MIXERS[mixer], n_heads=HEADS, mlp=Mlp(width))


def encoder(mixer: str, task: str, width: int) -> EncoderConfig:
    data = TASKS[task]
    patches = Patches(data.image(), data.image()[0] // GRID)
    blocks = repeat(layer(mixer, width), DEPTH)
    return image_encoder(patches, WIDTH, blocks, len(data.classes()), positions=LearnedGrid())


@cache
def neurons(mixer: str, task: str) -> int:
    """Return how many neurons give a model as many parameters as softmax has."""

    def parameters(name: str, width: int) -> int:
        return sum(count_parameters(encoder(name, task, width)).values())

    less = parameters(mixer, 1)
    each = parameters(mixer, 2) - less
    return 1 + round((parameters(SOFTMAX, NEURONS) - less) / each)


def recipe(mixer: str, task: str, steps: int) -> TrainConfig:
    model = encoder(mixer, task, neurons(mixer, task))
    optim = OptimConfig(lr=3e-3, warmup=50, betas=(0.9, 0.98))
    return TrainConfig(
        model, TASKS[task], steps=steps, optim=optim, log_every=50, evaluate_every=steps, save_every=steps
    )


def of(mixer: str, task: str, measure: str = "accuracy") -> Quantity:
    return value(measure, mixer=mixer, task=task)


def more(mixer: str, than: str, task: str, measure: str = "accuracy") -> Quantity:
    return of(mixer, task, measure) - of(than, task, measure)


ENOUGH = {SHAPES: 0.6, DIGITS: 0.8}
LEARNED = {task: (Condition(f"Softmax learns the {task}", of(SOFTMAX, task), above(ENOUGH[task])),) for task in TASKS}


def on(task: str) -> tuple[Claim, ...]:
    """Return the claims of one task."""
    given = LEARNED[task]
    return (
        Claim(f"{task}-learned", f"Softmax learns the {task}", of(SOFTMAX, task), above(ENOUGH[task])),
        Claim(f"{task}-sharper", f"Trained on {task}, PolaFormer's rows have a lower entropy than those of relu",
              more(POLA, RELU, task, "entropy"), below(0), given),
        Claim(f"{task}-powers-sharper", "So have those of signs and powers alone",
              more(BARE, RELU, task, "entropy"), below(0), given),
        Claim(f"{task}-over-relu", "PolaFormer is right more often than relu", more(POLA, RELU, task), above(0), given),
        Claim(f"{task}-over-performer", "And more often than Performer", more(POLA, PERFORMER, task), above(0), given),
        Claim(f"{task}-over-softmax", "And more often than softmax, as in the paper's smaller models",
              more(POLA, SOFTMAX, task), above(0), given),
        Claim(f"{task}-powers-over-relu", "Signs and powers alone are right more often than relu",
              more(BARE, RELU, task), above(0), given),
        Claim(f"{task}-parameters", "PolaFormer has as many parameters as softmax, to two hundredths",
              of(POLA, task, "parameters") / of(SOFTMAX, task, "parameters"), within(0.02, 1.0),
              exact="parameters are counted"),
    )  # fmt: skip


STUDY = Study(
    "pola-accuracy",
    paper='Meng et al. 2025, "PolaFormer: Polarity-aware Linear Attention for Vision Transformers", arXiv 2501.15061, '
    "sections 4 and 5",
    question="Are PolaFormer's rows sharper than those of relu features once trained, and is it right more often?",
    run=run,
    grid={"mixer": (SOFTMAX, RELU, PERFORMER, POLA, BARE, NONE), "task": tuple(TASKS)},
    skip=lambda point: point["mixer"] == NONE and point["task"] == DIGITS,
    scales={
        "smoke": Scale(1, {"shapes_steps": 3, "digits_steps": 3}),
        "small": Scale(3, {"shapes_steps": 800, "digits_steps": 300}),
    },
    measures={
        "accuracy": Measure("Share of held-out images that are told; guessing finds 0.2 of shapes, 0.1 of digits"),
        "entropy": Measure("Mean entropy of rows of patterns over their sum, both signs' of PolaFormer; at most 2.77",
                           "nats"),
        "parameters": Measure("Parameters of the model"),
    },
    claims=(
        *on(SHAPES),
        Claim("shapes-take-attention", "Of shapes, a mixer that mixes nothing says far fewer",
              more(SOFTMAX, NONE, SHAPES), above(0.1), LEARNED[SHAPES]),
        *on(DIGITS),
    ),
    differs=(
        "The paper trains on 1.3 million photographs, and on text of 1,000 tokens and more; these are 400 digits and "
        "shapes drawn by the thousand, 16 patches each, for models of two layers and width 64.",
        "The convolution is 3 wide where the paper's is 5, for a grid 4 wide.",
        "Digits are the 500 that come with this package, of which about a hundred are held out: one of them is 0.01.",
    ),
    mechanisms=("pola", "linear", "performer", "softmax"),
    kinds={**kinds_of(MIXERS), POLA: ("pola",), NONE: ()},
    references={"mixer": (SOFTMAX,), "task": tuple(TASKS)},
)  # fmt: skip
