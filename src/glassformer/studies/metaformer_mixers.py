"""MetaFormer's frame: what a block learns whose mixer looks at no token, and what it does not.

To recall what came with a key is to route: which position matters is known by comparing tokens. To say what follows a
symbol of a chain takes no other position. The frame is the same for all: norm, mixer, MLP, and embeddings of positions.
What the matrices around attention weigh, other mixers have in neurons.
"""

import math
from functools import cache

import torch

import glassformer as gf
from glassformer.attention import Softmax
from glassformer.data import Markov, Recall
from glassformer.data.tasks.task import TaskConfig
from glassformer.models import BlockConfig, DecoderConfig, Learned, Mlp, block, metaformer, repeat
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
from glassformer.training import OptimConfig, TrainConfig

ATTENTION, IDENTITY, POOLING = "attention", "identity", "pooling"
WIDTH, LENGTH, DEPTH, BATCHES, SYMBOLS = 64, 24, 2, 8, 16
# attention with these neurons in its MLP says how many parameters everybody has
NEURONS = 128
ROUTED, CHAIN = "recall", "chain"
TASKS: dict[str, TaskConfig] = {
    ROUTED: Recall(batch_size=32, length=LENGTH, n_pairs=4, n_keys=SYMBOLS, n_values=SYMBOLS),
    CHAIN: Markov(batch_size=32, length=LENGTH, n_symbols=SYMBOLS),
}


def blocks(mixer: str, width: int) -> BlockConfig:
    """Return a block with so many neurons in its MLP."""
    mlp = Mlp(width)
    if mixer == ATTENTION:
        # keys know what came before them: recall is what routing is asked for here, not how pairs are joined
        return block(Softmax(), n_heads=4, mlp=mlp, smeared=True)
    return metaformer(mixer, n_heads=4, mlp=mlp)  # type: ignore[arg-type]


def run(case: Case) -> Measures:
    data = TASKS[case["task"]]
    model = gf.load(case.train(recipe(case["mixer"], case["task"], case["steps"])))
    built, losses = data.build(), list[torch.Tensor]()
    for i in range(BATCHES):
        batch = built.batch(i, "heldout")
        with torch.no_grad():
            logits = model(batch.tokens)
        losses.append(torch.nn.functional.cross_entropy(logits[batch.weight], batch.targets[batch.weight]))
    least, guessed = data.optimal_loss(), math.log(SYMBOLS)
    return {
        "share_unlearned": (float(torch.stack(losses).mean()) - least) / (guessed - least),
        "parameters": float(sum(p.numel() for p in model.parameters())),
    }


@cache
def neurons(mixer: str, task: str) -> int:
    """Return how many neurons give a model as many parameters as attention has."""

    def parameters(name: str, width: int) -> int:
        return sum(count_parameters(decoder(name, task, width)).values())

    less = parameters(mixer, 1)
    each = parameters(mixer, 2) - less
    return 1 + round((parameters(ATTENTION, NEURONS) - less) / each)


def decoder(mixer: str, task: str, width: int) -> DecoderConfig:
    n_words = TASKS[task].build().vocab_size
    return DecoderConfig(n_words, WIDTH, repeat(blocks(mixer, width), DEPTH), max_len=LENGTH, positions=Learned())


def recipe(mixer: str, task: str, steps: int) -> TrainConfig:
    model, optim = decoder(mixer, task, neurons(mixer, task)), OptimConfig(lr=3e-3, warmup=50)
    data = TASKS[task]
    return TrainConfig(model, data, steps=steps, optim=optim, log_every=50, evaluate_every=steps, save_every=steps)


def unlearned(mixer: str, task: str) -> Quantity:
    return value("share_unlearned", mixer=mixer, task=task)


LEARNS = {task: (Condition(f"Attention learns the {task}", unlearned(ATTENTION, task), below(0.1)),) for task in TASKS}


def learned(mixer: str, task: str) -> Quantity:
    return counted(unlearned(mixer, task), below(0.1))


def missed(mixer: str, task: str) -> Quantity:
    return counted(unlearned(mixer, task), above(0.3))


STUDY = Study(
    "metaformer-mixers",
    paper='Yu et al. 2022, "MetaFormer Is Actually What You Need for Vision", arXiv 2111.11418: the frame matters more '
    "than the mixer, and pooling does nearly as well as attention",
    question="What does the frame learn without attention in it?",
    run=run,
    grid={"mixer": (ATTENTION, IDENTITY, POOLING), "task": tuple(TASKS)},
    scales={"smoke": Scale(1, {"steps": 4}), "small": Scale(8, {"steps": 150})},
    measures={
        "share_unlearned": Measure(
            "Loss above the best there is, of what guessing any symbol is above it; guessing one of the four values "
            "of a row is 0.5",
            learned=True,
        ),
        "parameters": Measure("Parameters of the model"),
    },
    claims=(
        Claim("attention-routes", "Attention learns to recall", learned(ATTENTION, ROUTED), MAJORITY),
        Claim("attention-chain", "It learns a chain", learned(ATTENTION, CHAIN), MAJORITY),
        Claim("identity-chain", "Without any mixing the frame learns a chain", learned(IDENTITY, CHAIN), MAJORITY,
              LEARNS[CHAIN]),
        Claim("pooling-chain", "With pooling too", learned(POOLING, CHAIN), MAJORITY, LEARNS[CHAIN]),
        Claim("identity-recall", "Without mixing nothing is recalled", missed(IDENTITY, ROUTED), MAJORITY,
              LEARNS[ROUTED]),
        Claim("pooling-recall", "Pooling does not recall", missed(POOLING, ROUTED), MAJORITY, LEARNS[ROUTED]),
    ),
    differs=(
        "The paper classifies pictures, whose pools lie on all sides; these texts are read forwards, by models of two "
        "blocks and width 64.",
        "Attention's keys are smeared with the one before, so that a pair is one key; other mixers have no keys.",
    ),
    mechanisms=("softmax", "pooling"),
    kinds={ATTENTION: ("softmax",), IDENTITY: ()},
    references={"mixer": (ATTENTION,), "task": tuple(TASKS)},
)  # fmt: skip
