"""How many rows a text's keys may be mixed into: the rank of trained patterns, and Linformer's answers by its rank.

Wang et al. find that patterns have few large singular values, and fewer the deeper the layer; so that a few mixtures of
keys will do. Ranks are those of the shipped decoder's patterns; encoders with Linformer look for a fact in noise.
"""

import torch
from torch import Tensor

import glassformer as gf
from glassformer.attention import Linformer, MixerConfig, Softmax
from glassformer.data import Needle
from glassformer.numerics.decompositions import singular_values
from glassformer.studies.long_needle import asked
from glassformer.studies.window_and_first_tokens import DATA
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

LENGTH, SHARE = 128, 0.9
PATTERNS, FACTS, FULL = "patterns", "facts", 0
NOISE, RANKS = 32, (FULL, 1, 2, 4, 16)


def run(case: Case) -> Measures:
    return patterns(case) if case["of"] == PATTERNS else facts(case)


def patterns(case: Case) -> Measures:
    model = gf.load("gpt-4l")
    encode = model.require_tokenizer().encode
    ids = [torch.tensor(encode(document.text)) for document in DATA.documents()["heldout"]]
    rows = torch.cat([text.unfold(0, LENGTH, LENGTH) for text in ids if len(text) >= LENGTH])
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    rows = rows[case.seed * case["rows"] : (case.seed + 1) * case["rows"]]
    read, untrained = (gf.run(one, rows, read="pattern") for one in (model, model.config.build(case.seed)))
    ranks = [rank(read["pattern", layer].values) for layer in range(4)]
    even = torch.rand(rows.shape[0], 8, LENGTH, LENGTH, generator=case.generator()).tril()
    return {
        "first": ranks[0], "last": ranks[-1], "all": sum(ranks) / 4,
        "untrained": sum(rank(untrained["pattern", layer].values) for layer in range(4)) / 4,
        "drawn": rank(even / even.sum(-1, keepdim=True)),
    }  # fmt: skip


def rank(pattern: Tensor) -> float:
    """Return how many singular values hold nine tenths of the sum of all, mean over heads and rows."""
    values = singular_values(pattern)
    held = values.cumsum(-1) / values.sum(-1, keepdim=True)
    return float(((held < SHARE).sum(-1) + 1).double().mean())


def facts(case: Case) -> Measures:
    mixer: MixerConfig = Softmax() if case["rank"] == FULL else Linformer(case["rank"])
    return {"loss": asked(mixer, Needle(length=NOISE), case, width=128, lr=1e-3)["loss"]}


def of(measure: str) -> Quantity:
    return value(measure, of=PATTERNS, rank=FULL)


def loss(rank: int, than: int = FULL) -> Quantity:
    return value("loss", of=FACTS, rank=rank) - value("loss", of=FACTS, rank=than)


FOUND = Condition("Full attention finds the fact", value("loss", of=FACTS, rank=FULL), below(0.2))
MIXED = Condition("With 16 mixtures of 32 it is found, so that fewer may be too few", loss(16), below(0.2))

STUDY = Study(
    "linformer-rank",
    paper='Wang et al. 2020, "Linformer: Self-Attention with Linear Complexity", arXiv 2006.04768, figure 1',
    question="Are patterns of low rank, lower the deeper the layer, and do few mixtures of keys suffice?",
    run=run,
    grid={"of": (PATTERNS, FACTS), "rank": RANKS},
    scales={"smoke": Scale(1, {"steps": 2, "rows": 1}), "small": Scale(8, {"steps": 3000, "rows": 8})},
    measures={
        "first": Measure("Singular values that hold 9/10 of their sum, of 128, in the lowest layer's patterns"),
        "last": Measure("The same in the highest layer"),
        "all": Measure("The same, mean over layers"),
        "untrained": Measure("The same in the decoder before training"),
        "drawn": Measure("The same of rows drawn at random"),
        "loss": Measure("Loss on a fact in noise; guessing among values has 2.77", "nats", learned=True),
    },
    claims=(
        Claim("below-drawn", "Trained patterns have lower ranks than rows drawn at random", of("all") - of("drawn"),
              below(0)),
        Claim("half", "Nine tenths are held by half of the singular values", of("all"), below(64)),
        Claim("deeper-lower", "The highest layer's rank is lower than the lowest's", of("last") - of("first"),
              below(0)),
        Claim("many-mixtures", "With 16 mixtures of 32 facts are found as by full attention",
              counted(loss(16), within(0.2, 0)), MAJORITY, (FOUND,)),
        Claim("one-mixture", "With one they are not", counted(loss(1), above(0.5)), MAJORITY, (FOUND, MIXED)),
        Claim("more-mixtures", "More mixtures find more", counted(loss(4, 16), above(0)), MAJORITY, (FOUND, MIXED)),
    ),
    differs=(
        "Patterns are those of a decoder of four layers, which see what came before; the paper's are of RoBERTa's.",
        "Encoders of two layers learn one task; the paper's are trained on text with masks. Of 128 tokens 64 mixtures "
        "learned nothing in 1,000 steps; length, width and learning rate are those with which 16 of 32 learned it in "
        "one seed.",
    ),
    mechanisms=("linformer",),
    references={"of": (FACTS,), "rank": (FULL, 16)},
    skip=lambda at: at["of"] == PATTERNS and at["rank"] != FULL,
)  # fmt: skip
