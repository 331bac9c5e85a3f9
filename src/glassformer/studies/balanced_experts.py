"""Routers of mixtures of experts, charged for an uneven load and not: how even it is, at what loss, and who does what.

Four Markov chains of the same symbols are mixed row by row, so that what comes next is known only to who has found out
from the row which chain it is of. Small decoders learn them with four experts in each layer, of which one runs at a
position. What a router tells of the chain is the mutual information of the expert it chooses and the chain, in bits:
2 if each chain has an expert of its own, 0 if experts are chosen whatever the chain.
"""

import math
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor

import glassformer as gf
from glassformer.analysis.behaviour import expert_load
from glassformer.attention import Rope
from glassformer.data import Markov, MixtureConfig
from glassformer.models import DecoderConfig, MixtureOfExperts, RmsNorm, block, repeat
from glassformer.study import Case, Claim, Condition, Measure, Measures, Quantity, Scale, Study, above, below, value
from glassformer.training import OptimConfig, TrainConfig

CHAINS, SYMBOLS, LENGTH, WIDTH, EXPERTS = 4, 16, 64, 64, 4
FREE, CHARGED = "without", "with"
# a chain is found out by then
KNOWN = 16


def run(case: Case) -> Measures:
    asked = recipe(case["charge"], case["steps"], case.seed)
    model: Any = gf.load(case.train(asked)).eval()
    # as the mixture has them: it combines their seeds with its own
    mixture: Any = asked.data.build(model.tokenizer)
    chains = mixture.parts
    batches = [chain.batch(0, "heldout") for chain in chains]
    with torch.no_grad():
        losses = [float(model.loss(batch)) for batch in batches]
    best = sum(chain.config.optimal_loss() for chain in chains) / CHAINS
    loss = sum(losses) / CHAINS
    ids = torch.cat([batch.tokens for batch in batches])
    run = gf.run(model, ids, read=[expert_load])
    entropy = expert_load(run).measures.values[:, 0]
    found = [told(run[f"blocks.{i}.mlp.chosen"].values[:, KNOWN:]) for i in range(len(entropy))]
    return {
        "loss": loss,
        "excess": (loss - best) / (math.log(SYMBOLS) - best),
        "load_bits": float(entropy.min()),
        "told_bits": max(found),
    }


def told(chosen: Shaped[Tensor, "batch pos expert"]) -> float:
    """Return the mutual information of chain and expert in bits; rows come in equal parts of each chain."""
    joint = chosen.double().unflatten(0, (CHAINS, -1)).sum((1, 2))
    joint = joint / joint.sum()
    apart = joint.sum(0) * joint.sum(1, keepdim=True)
    return float(torch.special.xlogy(joint, joint / apart).nansum()) / math.log(2)


def recipe(charge: str, steps: int, seed: int) -> TrainConfig:
    chains = tuple(Markov(32, LENGTH, seed=i, n_symbols=SYMBOLS) for i in range(CHAINS))
    experts = MixtureOfExperts(EXPERTS, 1, WIDTH, balance=0.01 if charge == CHARGED else None, renormalised=False)
    layer = block(n_heads=4, positions=Rope(), norm=RmsNorm(), mlp=experts)
    data = MixtureConfig(chains, shares=(1 / CHAINS,) * CHAINS, batch_size=32, length=LENGTH, seed=seed)
    model = DecoderConfig(SYMBOLS + 1, WIDTH, repeat(layer, 2), max_len=LENGTH, final_norm=RmsNorm())
    optim = OptimConfig(lr=3e-3, warmup=50)
    return TrainConfig(model, data, optim=optim, steps=steps, log_every=50, evaluate_every=steps, save_every=steps)


def of(measure: str, charge: str) -> Quantity:
    return value(measure, charge=charge)


LEARNED = Condition("Routers that are not charged have learned the chains", of("excess", FREE), below(0.25))

STUDY = Study(
    "balanced-experts",
    paper='Shazeer et al. 2017, arXiv 1701.06538, section 4; Fedus et al. 2021, "Switch Transformers", arXiv '
    "2101.03961, section 2.2: a loss on the load keeps experts evenly busy, and small as it is, costs nothing",
    question="Does a balance loss make the load even at no cost, and do experts still take a chain each?",
    run=run,
    grid={"charge": (FREE, CHARGED)},
    scales={"smoke": Scale(1, {"steps": 5}), "small": Scale(8, {"steps": 400})},
    measures={
        "loss": Measure("Loss on held-out rows, mean over the chains", "nats"),
        "excess": Measure("What it is above the best possible, of what guessing symbols is above that"),
        "load_bits": Measure("Entropy of the load, of the layer where it is less; 2 is even", "bits"),
        "told_bits": Measure("What the choice of an expert tells of the chain, in the better layer", "bits"),
    },
    claims=(
        Claim("learned", "Charged for the load, models learn the chains", of("excess", CHARGED), below(0.25)),
        Claim("evener", "The load is evener with the loss", of("load_bits", CHARGED) - of("load_bits", FREE), above(0),
              (LEARNED,)),
        Claim("even", "With it, the load is within a tenth of a bit of even", of("load_bits", CHARGED), above(1.9),
              (LEARNED,)),
        Claim("free-of-cost", "It costs no prediction: less than .02 nats", of("loss", CHARGED) - of("loss", FREE),
              below(0.02), (LEARNED,)),
        Claim("specialised", "Choices tell a quarter of what there is to tell of the chain", of("told_bits", CHARGED),
              above(0.5), (LEARNED,)),
        Claim("no-less-specialised", "They tell no less than without it",
              of("told_bits", CHARGED) - of("told_bits", FREE), above(-0.1), (LEARNED,)),
    ),
    differs=(
        "Two layers of width 64 with four experts, and chains of 16 symbols whose best loss is known; the papers' have "
        "hundreds of experts and text.",
        "No noise on the router, and no limit on what an expert holds.",
        "Three seeds were run first, and left three claims undecided; with that known, eight were, and no more.",
    ),
    mechanisms=("softmax",),
    references={"charge": (FREE,)},
)  # fmt: skip
