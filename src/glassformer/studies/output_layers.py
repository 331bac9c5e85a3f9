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
WIDTH, CLASSES, HELD_OUT = 64, 32, 8  # classes of words by what follows them; held-out batches


def run(case: Case) -> Measures:
    source = ZipfMarkov(seed=case.seed, n_words=case["words"], n_classes=CLASSES)
    data, share = source.build(), source.shares()
    config = recipe(case["layer"], source)
    model = config.build(case.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    for step in range(case["steps"]):
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


def of(layer: str, measure: str = "loss") -> Quantity:
    return value(measure, layer=layer)


cost = partial(of, measure="operations")
often, seldom = partial(of, measure="operations_frequent"), partial(of, measure="operations_rare")

NEAR = (Condition("The full softmax is at most a tenth of a nat from the best loss", of(FULL, "excess"), below(0.1)),)

STUDY = Study(
    "output-layers",
    paper='Grave et al. 2016, "Efficient softmax approximation for GPUs", arXiv 1609.04309; Mikolov et al. 2013, '
    '"Distributed Representations of Words and Phrases", arXiv 1310.4546, section 2.1',
    question="What do an adaptive and a hierarchical softmax save in operations, and what do they cost in loss?",
    run=run,
    grid={"layer": (FULL, ADAPTIVE, TREE)},
    scales={
        "smoke": Scale(seeds=1, settings={"words": 200, "steps": 5}),
        "small": Scale(seeds=3, settings={"words": 2000, "steps": 5000}),
        "full": Scale(seeds=5, settings={"words": 2000, "steps": 40_000}),
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
              below(1.03), NEAR),
        Claim("tree-full", "A tree of words by frequency alone loses more than the full softmax", of(TREE) / of(FULL),
              above(1), NEAR),
        Claim("tree-adaptive", "It loses more than the adaptive softmax", of(TREE) / of(ADAPTIVE), above(1), NEAR),
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
            of(ADAPTIVE, RARE) - of(FULL, RARE), above(0), NEAR,
        ),
    ),
    differs=(
        "A made-up language of 2,000 words and a decoder of one block in place of text and recurrent networks; cutoffs "
        "are those of least cost under the default cost of products.",
        "All three train for as many steps, not for as long. The tree and the clusters know how frequent words are "
        "before the first step, and the full softmax has no bias to learn it by.",
        "Words follow in 32 ways. Of eight, all of which 64 dimensions hold, a tree lacked nothing after 2,500 steps; "
        "there, that a tree loses failed.",
    ),
    mechanisms=("softmax",),
    references={"layer": (FULL,)},
)  # fmt: skip
