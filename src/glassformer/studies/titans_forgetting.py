"""Whether a memory has to forget: facts that are told anew, with other values or with the same.

A row has topics, each begun by a token that says so; every topic tells a fact for each key and then asks for them.
Where values are others in each topic, what a memory holds of the last one is in its way; where they are the same it is
not. A memory by itself learns both kinds of texts as it is, with a share alpha that each position forgets, and with
alpha = 0 in every pass.
"""

from functools import partial

import torch

import glassformer as gf
from glassformer.models import Decoder
from glassformer.studies.titans_memory import (
    ALL,
    BATCHES,
    NEW,
    ROWS,
    Rows,
    answered,
    decoder,
    layers,
    learned,
    told,
)
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

REDEFINED, KEPT = "redefined", "kept"
FORGETS, HOLDS = "memory that forgets", "memory that does not"
TOPICS = 4
SLOWER = 4  # attention takes more steps to learn these rows than a memory does, and has them
# the logarithm of 1 - alpha
NEVER = (gf.Scale("*.log_decay", 0.0),)


def run(case: Case) -> Measures:
    draw = partial(told, topics=TOPICS, redefined=case["texts"] == REDEFINED)
    edit = NEVER if case["model"] == HOLDS else ()
    config, steps = decoder(layers(ALL if case["model"] == ALL else "alone")), case["steps"]
    model = learned(config, case, draw, steps * SLOWER if case["model"] == ALL else steps, edit)
    rows = draw(BATCHES * ROWS, case.generator())
    later = rows.asked & (torch.arange(rows.tokens.shape[1]) >= rows.tokens.shape[1] // TOPICS)
    accuracy, loss = answered(model, rows, later, edit)
    return {"accuracy": accuracy, "loss": loss, **(forgotten(model, rows) if case["model"] == FORGETS else {})}


def forgotten(model: Decoder, rows: Rows) -> dict[str, float]:
    """Return the mean of alpha where a topic begins, but for the first, and elsewhere."""
    alpha = 1 - gf.run(model, rows.tokens, read="*.log_decay")["blocks.0.attn.log_decay"].values.exp().mean(1)
    new = rows.tokens == NEW
    new[:, 0] = False
    return {"alpha_new": float(alpha[new].mean()), "alpha_elsewhere": float(alpha[~new].mean())}


def right(model: str, texts: str) -> Quantity:
    return value("accuracy", model=model, texts=texts)


def gain(texts: str) -> Quantity:
    return right(FORGETS, texts) - right(HOLDS, texts)


def of(measure: str, model: str = FORGETS) -> Quantity:
    return value(measure, model=model, texts=REDEFINED)


LEARNED = {
    texts: (Condition(f"Attention to all answers where values are {texts}", right(ALL, texts), above(0.8)),)
    for texts in (REDEFINED, KEPT)
}

STUDY = Study(
    "titans-forgetting",
    paper='Behrouz, Zhong, Mirrokni 2025, "Titans: Learning to Memorize at Test Time", arXiv 2501.00663, section 3.1: '
    "a memory that forgets can wipe what it holds where the context changes; table 5: without, it is worse",
    question="Does forgetting help a memory where the topic changes, and only there?",
    run=run,
    grid={"model": (ALL, FORGETS, HOLDS), "texts": (REDEFINED, KEPT)},
    scales={"smoke": Scale(1, {"steps": 2}), "small": Scale(8, {"steps": 300})},
    measures={
        "accuracy": Measure("Share of right answers in all topics but the first; guessing has 0.25", learned=True),
        "loss": Measure("Loss on these answers; guessing has 1.39", "nats"),
        "alpha_new": Measure("Share of the memory that is forgotten where a topic begins, mean over heads"),
        "alpha_elsewhere": Measure("The same at all other positions"),
    },
    claims=(
        Claim("all-redefined", "Attention to all answers by the last value", counted(right(ALL, REDEFINED), above(0.8)),
              MAJORITY),
        Claim("forgets-redefined", "So does a memory that forgets", counted(right(FORGETS, REDEFINED), above(0.9)),
              MAJORITY, LEARNED[REDEFINED]),
        Claim("forgets-kept", "And it answers where values are kept", counted(right(FORGETS, KEPT), above(0.9)),
              MAJORITY, LEARNED[KEPT]),
        Claim("helps", "Where values are redefined it is right more often than one that does not forget",
              counted(gain(REDEFINED), above(0.02)), MAJORITY, LEARNED[REDEFINED]),
        Claim("helps-loss", "Its loss there is lower", of("loss") - of("loss", HOLDS), below(0), LEARNED[REDEFINED]),
        Claim("no-help", "Where they are kept it is not", counted(gain(KEPT), within(0.02, 0)), MAJORITY,
              LEARNED[KEPT]),
        Claim("at-topics", "It forgets more where a topic begins than elsewhere",
              of("alpha_new") - of("alpha_elsewhere"), above(0), LEARNED[REDEFINED]),
    ),
    differs=(
        "One block of width 32, with a memory of one matrix, that learns facts and questions alone; the paper's models "
        "are of memories of two layers and more, and learn text. Attention to all has four times as many steps.",
        "A token says that a topic begins. The paper trains without forgetting and does not say on what texts that "
        "matters.",
    ),
    mechanisms=("linear_memory",),
    references={"model": (ALL,), "texts": (REDEFINED, KEPT)},
)  # fmt: skip
