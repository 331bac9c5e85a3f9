"""What a softmax made of a few decisions costs, in operations and in loss, where words are as unequal as in language.

One small decoder is trained on words of known best loss (`ZipfMarkov`) with each of three output layers, on the same
rows, the words' shares given to the layers that ask for counts.
"""

from functools import partial

import torch
from torch import Tensor

from glassformer.data import ZipfMarkov
from glassformer.models import AdaptiveSoftmax, DecoderConfig, HierarchicalSoftmax, Mlp, OutputLayer, block
from glassformer.study import Case, Claim, Condition, Measure, Measures, Quantity, Scale, Study, above, below, value

FULL, ADAPTIVE, TREE, RARE = "full", "adaptive", "hierarchical", "loss_rare"
WIDTH, HELD_OUT = 64, 8  # held-out batches


def run(case: Case) -> Measures:
    source = ZipfMarkov(seed=case.seed, n_words=case["words"])
    data, share = source.build(), source.shares()
    config = recipe(case["layer"], source)
    model = config.build(case.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    for step in range(case[case["trained"]]):
        model.loss(data.batch(step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    held_out = [data.batch(i, "heldout") for i in range(HELD_OUT)]
    with torch.no_grad():
        loss = -torch.cat([model.unembed.log_prob(model.stream(batch.tokens), batch.targets) for batch in held_out])
    rare = is_rare(share)
    of_rare = rare[torch.cat([batch.targets for batch in held_out])]
    layer = config.output_layer
    each = torch.full_like(share, 2 * WIDTH * len(share)) if layer is None else layer.target_flops(len(share), WIDTH)
    return {
        "loss": float(loss.mean()),
        "excess": float(loss.mean()) - source.optimal_loss(),
        RARE: float(loss[of_rare].mean()),
        "loss_frequent": float(loss[~of_rare].mean()),
        "operations": float(share @ each.double()),
        "operations_rare": float(each[rare].double().mean()),
        "operations_frequent": float(each[~rare].double().mean()),
    }


def recipe(layer: str, source: ZipfMarkov) -> DecoderConfig:
    """Return one block around an output layer that knows how frequent words are."""
    counts, positions = tuple(source.shares().tolist()), source.batch_size * source.length
    layers: dict[str, OutputLayer | None] = {
        FULL: None, ADAPTIVE: AdaptiveSoftmax(counts, positions=positions), TREE: HierarchicalSoftmax(counts),
    }  # fmt: skip
    blocks = (block(n_heads=4, mlp=Mlp(2 * WIDTH)),)
    return DecoderConfig(len(counts), WIDTH, blocks, source.length, tied=False, output_layer=layers[layer])


def is_rare(share: Tensor) -> Tensor:
    """Return whether each word is beyond the frequent ones, which are half of all that one reads."""
    falling, order = share.sort(descending=True)
    return falling.cumsum(0).gt(0.5)[order.argsort()]


def of(layer: str, measure: str = "loss", steps: str = "steps") -> Quantity:
    return value(measure, layer=layer, trained=steps)


long, cost = partial(of, steps="more steps"), partial(of, measure="operations")
often, seldom = partial(of, measure="operations_frequent"), partial(of, measure="operations_rare")

NEAR = {
    steps: Condition(
        f"The full softmax is at most a tenth of a nat from the best loss after these {steps}",
        of(FULL, "excess", steps), below(0.1),
    )
    for steps in ("steps", "more steps")
}  # fmt: skip
SOON, LATE = (NEAR["steps"],), (NEAR["more steps"],)

STUDY = Study(
    "output-layers",
    paper='Grave et al. 2016, "Efficient softmax approximation for GPUs", arXiv 1609.04309; Mikolov et al. 2013, '
    '"Distributed Representations of Words and Phrases", arXiv 1310.4546, section 2.1',
    question="What do an adaptive and a hierarchical softmax save in operations, and what do they cost in loss?",
    run=run,
    grid={"layer": (FULL, ADAPTIVE, TREE), "trained": ("steps", "more steps")},
    scales={
        "smoke": Scale(seeds=2, settings={"words": 200, "steps": 5, "more steps": 10}),
        "small": Scale(seeds=3, settings={"words": 2000, "steps": 250, "more steps": 2500}),
        "full": Scale(seeds=5, settings={"words": 20_000, "steps": 10_000, "more steps": 40_000}),
    },
    measures={
        "loss": Measure("Held-out loss", "nats"),
        "excess": Measure("The same beyond the best loss there is", "nats"),
        RARE: Measure("Held-out loss of rare words, which are half of what is read", "nats"),
        "loss_frequent": Measure("Held-out loss of frequent words", "nats"),
        "operations": Measure("Forward FLOPs of the output layer for a target, on average"),
        "operations_rare": Measure("The same of rare words, each counted once"),
        "operations_frequent": Measure("The same of frequent words"),
    },
    claims=(
        Claim("adaptive-loss", "The adaptive softmax ends within 3 % of the full one's loss", of(ADAPTIVE) / of(FULL),
              below(1.03), SOON),
        Claim("tree-full", "A tree of words by frequency alone loses more than the full softmax", of(TREE) / of(FULL),
              above(1), SOON),
        Claim("tree-adaptive", "It loses more than the adaptive softmax", of(TREE) / of(ADAPTIVE), above(1), SOON),
        Claim(
            "adaptive-operations", "The adaptive softmax takes less than a third of the operations",
            cost(ADAPTIVE) / cost(FULL), below(1 / 3),
        ),
        Claim("tree-operations", "A tree takes less than a fiftieth", cost(TREE) / cost(FULL), below(1 / 50)),
        Claim("tree-frequent", "In the tree frequent words cost less than rare ones", often(TREE) / seldom(TREE),
              below(0.75)),
        Claim("adaptive-frequent", "In the adaptive softmax they do, too", often(ADAPTIVE) / seldom(ADAPTIVE),
              below(0.9)),
        Claim(
            "adaptive-rare",
            "What the adaptive softmax loses it loses on rare words, which have fewer dimensions",
            of(ADAPTIVE, RARE) - of(FULL, RARE), above(0), SOON,
        ),
        Claim("long-adaptive-loss", "Trained longer, the adaptive one ends within 3 %, too",
              long(ADAPTIVE) / long(FULL), below(1.03), LATE),
        Claim("long-adaptive-rare", "Trained longer, it still loses on rare words",
              long(ADAPTIVE, RARE) - long(FULL, RARE), above(0), LATE),
        Claim("long-tree-full", "Trained longer, the tree loses more than the full one", long(TREE) / long(FULL),
              above(1), LATE),
        Claim("long-tree-adaptive", "Trained longer, the tree loses more than the adaptive one",
              long(TREE) / long(ADAPTIVE), above(1), LATE),
    ),
    differs=(
        "A made-up language of 2,000 words and a decoder of one block in place of text and recurrent networks; cutoffs "
        "are those of least cost under the default cost of products.",
        "All three train for as many steps, not for as long; after 250 none is at its best. The tree and the clusters "
        "know how frequent words are before the first step, and the full softmax has no bias to learn it by. Therefore "
        "2,500 steps were added, with claims of the same ranges, after what 250 led to was known.",
        "With eight classes of contexts a tree in 64 dimensions lacks nothing: what it may lose on text is not seen.",
    ),
    mechanisms=("softmax",),
    references={"layer": (FULL,), "trained": ("steps", "more steps")},
)  # fmt: skip
