"""The Synthesizer against the dot product: scores that depend on places alone copy, and do not recall.

Copying at a fixed offset is the same attention in every text: a random matrix can learn it. To recall what came with a
key is to compare two tokens, which no score does that is made of one or of none.
"""

import math

import torch

import glassformer as gf
from glassformer.attention import MixerConfig, Softmax, Synthesizer
from glassformer.data import Copy, Recall
from glassformer.data.tasks.task import TaskConfig
from glassformer.models import DecoderConfig, Learned, Mlp, block, repeat
from glassformer.study import Case, Claim, Measure, Measures, Quantity, Scale, Study, above, below, value
from glassformer.training import OptimConfig, TrainConfig

DOT, RANDOM, FIXED, DENSE, MIXTURE = "dot product", "random", "fixed random", "dense", "random and dot product"
MIXERS: dict[str, MixerConfig] = {
    DOT: Softmax(),
    RANDOM: Synthesizer(("random",)),
    FIXED: Synthesizer(("fixed",)),
    DENSE: Synthesizer(("dense",)),
    MIXTURE: Synthesizer(("random", "dot_product")),
}
# the tasks, and what guessing costs in each: one of sixteen symbols
TASKS: dict[str, TaskConfig] = {
    "copy": Copy(batch_size=32, length=24),
    "recall": Recall(batch_size=32, length=24, n_pairs=4, n_keys=16, n_values=16),
}
WIDTH, BATCHES, CHANCE = 64, 16, math.log(16)


def run(case: Case) -> Measures:
    model = gf.load(case.train(recipe(case["mechanism"], case["task"], case["steps"])))
    data, losses = TASKS[case["task"]].build(), list[torch.Tensor]()
    for i in range(BATCHES):
        batch = data.batch(i, "heldout")
        with torch.no_grad():
            logits = model(batch.tokens)
        losses.append(torch.nn.functional.cross_entropy(logits[batch.weight], batch.targets[batch.weight]))
    return {
        "share_of_chance": float(torch.stack(losses).mean()) / CHANCE,
        "parameters": float(sum(p.numel() for p in model.parameters())),
    }


def recipe(mechanism: str, task: str, steps: int) -> TrainConfig:
    data = TASKS[task]
    layers = repeat(block(MIXERS[mechanism], n_heads=4, mlp=Mlp(WIDTH)), 2)
    symbols = data.symbols() or []
    return TrainConfig(
        DecoderConfig(len(symbols), WIDTH, layers, max_len=24, positions=Learned()), data, steps=steps,
        optim=OptimConfig(lr=3e-3, warmup=50), log_every=50, evaluate_every=steps, save_every=steps,
    )  # fmt: skip


def share(mechanism: str, task: str) -> Quantity:
    return value("share_of_chance", mechanism=mechanism, task=task)


STUDY = Study(
    "synthesizer",
    paper='Tay et al. 2020, "Synthesizer: Rethinking Self-Attention in Transformer Models", arXiv 2005.00743',
    question="What can be learned without comparing tokens, and what cannot?",
    run=run,
    grid={"mechanism": tuple(MIXERS), "task": tuple(TASKS)},
    scales={"smoke": Scale(2, {"steps": 8}), "small": Scale(3, {"steps": 800}), "full": Scale(5, {"steps": 4000})},
    measures={
        "share_of_chance": Measure("Loss on what is determined, of that of guessing among sixteen symbols"),
        "parameters": Measure("Parameters of the model, maps of queries and keys that nothing reads among them"),
    },
    claims=(
        Claim("Random scores learn to copy at a fixed offset", share(RANDOM, "copy"), below(0.1)),
        Claim("Dense scores learn it too", share(DENSE, "copy"), below(0.1)),
        Claim("So does a mixture of random scores and products", share(MIXTURE, "copy"), below(0.1)),
        Claim(
            "Scores that stay as they were drawn learn it worse than trained ones",
            share(FIXED, "copy") - share(RANDOM, "copy"), above(0.1),
        ),
        Claim("Random scores do not learn to recall", share(RANDOM, "recall"), above(0.4)),
        Claim("Dense scores do not learn to recall", share(DENSE, "recall"), above(0.4)),
        Claim("The dot product learns to recall", share(DOT, "recall"), below(0.1)),
        Claim("The mixture learns to recall", share(MIXTURE, "recall"), below(0.1)),
    ),
    differs=(
        "The paper translates, models language and classifies; these are two tasks of 24 tokens with known answers.",
        "Guessing among the four values of a text costs half of guessing among all sixteen: a model that finds them "
        "and compares nothing has a share of 0.5.",
        "Layers of the Synthesizer hold maps of queries and keys that only the mixture reads.",
        "Seeds draw weights, and what is fixed; the rows are the same for all.",
    ),
    mechanisms=("softmax", "synthesizer"),
)  # fmt: skip
