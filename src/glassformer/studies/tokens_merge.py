"""Tokens of real texts in shipped models: do their streams come closer to each other as layers go on, as particles do?

Cosines of all pairs of tokens of a text, before the first layer and behind the last, of models as trained and with
their weights drawn anew. A seed is a text.
"""

import inspect
from importlib import import_module
from typing import Any

from torch import Tensor

import glassformer as gf
from glassformer.dynamics import token_cosines
from glassformer.study import Case, Claim, Measure, Measures, Quantity, Scale, Study, above, below, value

TRAINED, DRAWN = "trained", "drawn anew"
MODELS = ("attn-only-2l", "gpt-4l", "hybrid-4l", "encoder-4l")
TEXTS = ("heapq", "textwrap", "bisect", "shlex", "json.decoder", "fractions", "statistics", "calendar")


def run(case: Case) -> Measures:
    model: Any = gf.load(case["model"])
    text = inspect.getsource(import_module(TEXTS[case.seed % len(TEXTS)]))
    ids = model.tokenizer.encode(text)[: case["tokens"]]
    if case["weights"] == DRAWN:
        model = model.config.build(case.seed)
    cosines, centred = (means(token_cosines(model, ids, centred=on).values) for on in (False, True))
    return {"first": cosines[0], "last": cosines[-1], "last_centred": centred[-1]}


def means(cosines: Tensor) -> list[float]:
    """Return the mean over pairs of two tokens, by depth."""
    n = cosines.shape[-1]
    return ((cosines.sum((-2, -1)) - n) / (n * (n - 1))).tolist()


def risen(model: str, weights: str = TRAINED) -> Quantity:
    where = {"model": model, "weights": weights}
    return value("last", **where) - value("first", **where)


STUDY = Study(
    "tokens-merge",
    paper='Geshkovski et al. 2023, "A mathematical perspective on Transformers", arXiv 2312.10794, figure 1 (ALBERT)',
    question="Do tokens of a text come closer to each other from layer to layer in trained models?",
    run=run,
    grid={"model": MODELS, "weights": (TRAINED, DRAWN)},
    scales={
        "smoke": Scale(1, {"tokens": 12}, {"model": MODELS[:1]}),
        "small": Scale(8, {"tokens": 96}),
    },
    measures={
        "first": Measure("Mean cosine of two tokens before the first layer"),
        "last": Measure("Mean cosine behind the last layer"),
        "last_centred": Measure("The same with the mean of all tokens taken out"),
    },
    claims=(
        *(Claim(f"closer-{name}", f"They come closer in {name}", risen(name), above(0)) for name in MODELS),
        Claim("far-from-one", "They do not merge: behind the last layer of gpt-4l they are far from alike",
              value("last", model="gpt-4l", weights=TRAINED), below(0.9)),
        Claim("drawn", "They come closer with weights drawn anew, too", risen("gpt-4l", DRAWN), above(0)),
    ),
    differs=(
        "Small decoders and an encoder on Python's own sources, some of which they were trained on; the paper shows "
        "one text in ALBERT, whose layers share their weights.",
        "These models have MLPs, several heads, positions and norms in front, none of which the theory has.",
    ),
    references={"model": ("gpt-4l",), "weights": (TRAINED,)},
)  # fmt: skip
