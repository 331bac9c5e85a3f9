"""What a softmax made of a few decisions costs, in operations and in loss, where words are as unequal as in language.

Words follow Zipf's law and each other: the word before says which of some classes it is of, and each class has words of
its own that it favours. The best loss is known. One small decoder is trained with each of three output layers, on the
same rows, counts of the words given to the layers that ask for them.
"""

import torch
from torch import Tensor

from glassformer.data.batch import Batch, next_token_batch
from glassformer.models import AdaptiveSoftmax, DecoderConfig, HierarchicalSoftmax, Mlp, OutputLayer, block
from glassformer.study import Case, Claim, Measure, Measures, Scale, Study, above, below, value

FULL, ADAPTIVE, TREE = "full", "adaptive", "hierarchical"
WIDTH, CLASSES, ROWS, LENGTH = 64, 8, 32, 32
HELD_OUT = 8  # batches


def run(case: Case) -> Measures:
    words, generator = case["words"], case.generator()
    table = source(words, generator)
    frequency = shares(table)
    config = recipe(case["layer"], frequency)
    model = config.build(case.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    held_out = [rows(table, generator) for _ in range(HELD_OUT)]
    for _ in range(case["steps"]):
        model.loss(rows(table, generator)).backward()
        optimizer.step()
        optimizer.zero_grad()
    losses, rare = list[Tensor](), list[Tensor]()
    # half of all words one reads are among the frequent ones
    is_rare = frequency.sort(descending=True).values.cumsum(0).gt(0.5)[frequency.argsort(descending=True).argsort()]
    for batch in held_out:
        with torch.no_grad():
            losses.append(-model.unembed.log_prob(model.stream(batch.tokens), batch.targets))
        rare.append(is_rare[batch.targets])
    loss, of_rare = torch.cat(losses), torch.cat(rare)
    layer = config.output_layer
    each = torch.full((words,), 2 * WIDTH * words) if layer is None else layer.target_flops(words, WIDTH)
    return {
        "loss": float(loss.mean()),
        "excess": float(loss.mean()) - best_loss(table),
        "loss_rare": float(loss[of_rare].mean()),
        "loss_frequent": float(loss[~of_rare].mean()),
        "operations": float(frequency @ each.double()),
        "operations_rare": float(each[is_rare].double().mean()),
        "operations_frequent": float(each[~is_rare].double().mean()),
    }


def recipe(layer: str, frequency: Tensor) -> DecoderConfig:
    """Return one block around an output layer that knows how frequent words are."""
    counts = tuple(frequency.tolist())
    layers: dict[str, OutputLayer | None] = {
        FULL: None, ADAPTIVE: AdaptiveSoftmax(counts, positions=ROWS * LENGTH), TREE: HierarchicalSoftmax(counts),
    }  # fmt: skip
    parts = block(n_heads=4, mlp=Mlp(2 * WIDTH))
    return DecoderConfig(
        len(frequency), WIDTH, (parts,), max_len=LENGTH, tied=False, output_layer=layers[layer], unembed_bias=False
    )


def source(words: int, generator: torch.Generator) -> Tensor:
    """Return the probability of each word after a word of each class, `class word`; word w is of class w mod 8."""
    favour = torch.randn(CLASSES, words, generator=generator, dtype=torch.float64)
    weight = favour.exp() / torch.arange(1, words + 1, dtype=torch.float64)
    # no order of ids that a layer could rely on
    weight = weight[:, torch.randperm(words, generator=generator)]
    return weight / weight.sum(-1, keepdim=True)


def classes(table: Tensor) -> Tensor:
    """Return how often the word before is of each class, in the long run."""
    step = torch.stack([table[:, one::CLASSES].sum(-1) for one in range(CLASSES)], -1)
    return torch.matrix_power(step, 256)[0]


def shares(table: Tensor) -> Tensor:
    return classes(table) @ table


def best_loss(table: Tensor) -> float:
    """Return the entropy of the next word where the one before is known, in nats."""
    return float(-(classes(table) @ (table * table.log()).sum(-1)))


def rows(table: Tensor, generator: torch.Generator) -> Batch:
    below = table.cumsum(-1)
    drawn = torch.rand(LENGTH, ROWS, 1, generator=generator, dtype=torch.float64)
    found = [torch.multinomial(shares(table), ROWS, replacement=True, generator=generator)]
    for row in drawn:
        word = torch.searchsorted(below[found[-1] % CLASSES], row)[:, 0]
        found.append(word.clamp_max(table.shape[-1] - 1))
    return next_token_batch(torch.stack(found, 1))


STUDY = Study(
    "output-layers",
    paper='Grave et al. 2016, "Efficient softmax approximation for GPUs", arXiv 1609.04309; Mikolov et al. 2013, '
    '"Distributed Representations of Words and Phrases", arXiv 1310.4546, section 2.1',
    question="What do an adaptive and a hierarchical softmax save in operations, and what do they cost in loss?",
    run=run,
    grid={"layer": (FULL, ADAPTIVE, TREE)},
    scales={
        "smoke": Scale(seeds=2, settings={"words": 200, "steps": 5}),
        "small": Scale(seeds=3, settings={"words": 2000, "steps": 250}),
        "full": Scale(seeds=5, settings={"words": 20_000, "steps": 10_000}),
    },
    measures={
        "loss": Measure("Held-out loss", "nats"),
        "excess": Measure("The same beyond the best loss there is", "nats"),
        "loss_rare": Measure("Held-out loss of rare words, which are half of what is read", "nats"),
        "loss_frequent": Measure("Held-out loss of frequent words", "nats"),
        "operations": Measure("Forward FLOPs of the output layer for a target, on average"),
        "operations_rare": Measure("The same of rare words, each counted once"),
        "operations_frequent": Measure("The same of frequent words"),
    },
    claims=(
        Claim(
            "The adaptive softmax ends within 3 % of the full one's loss",
            value("loss", layer=ADAPTIVE) / value("loss", layer=FULL),
            below(1.03),
        ),
        Claim(
            "A tree of words by frequency alone loses more than the full softmax",
            value("loss", layer=TREE) / value("loss", layer=FULL),
            above(1),
        ),
        Claim(
            "It loses more than the adaptive softmax",
            value("loss", layer=TREE) / value("loss", layer=ADAPTIVE),
            above(1),
        ),
        Claim(
            "The adaptive softmax takes less than a third of the operations",
            value("operations", layer=ADAPTIVE) / value("operations", layer=FULL),
            below(1 / 3),
        ),
        Claim(
            "A tree takes less than a fiftieth",
            value("operations", layer=TREE) / value("operations", layer=FULL),
            below(1 / 50),
        ),
        Claim(
            "In the tree frequent words cost less than rare ones",
            value("operations_frequent", layer=TREE) / value("operations_rare", layer=TREE),
            below(0.75),
        ),
        Claim(
            "In the adaptive softmax they do, too",
            value("operations_frequent", layer=ADAPTIVE) / value("operations_rare", layer=ADAPTIVE),
            below(0.9),
        ),
        Claim(
            "What the adaptive softmax loses it loses on rare words, which have fewer dimensions",
            value("loss_rare", layer=ADAPTIVE) - value("loss_rare", layer=FULL),
            above(0),
        ),
    ),
    differs=(
        "A made-up language of 2,000 words, a decoder of one block and 250 steps, in place of text and recurrent "
        "networks; cutoffs are those of least cost under the default cost of products.",
        "All three train for as many steps, not for as long: 250, after which none is at its best. The tree and the "
        "clusters know how frequent words are before the first step, and the full softmax has no bias to learn it by.",
    ),
    mechanisms=("softmax",),
)
