"""Do eigenvalues tell which heads copy? What weights predict, beside what heads do.

The score of a head's weights is the sum of the eigenvalues of its full OV circuit over the sum of their sizes. What it
predicts is measured where nothing but copying helps: on random tokens repeated, how much of what a head raises among
the row's tokens is the token that it looks at.
"""

import math

import torch
from torch import Tensor

import glassformer as gf
from glassformer.analysis.from_weights import copying, copying_rates
from glassformer.analysis.heads import evaluate_heads, head_scores
from glassformer.models import Decoder
from glassformer.study import Case, Claim, Condition, Measure, Measures, Scale, Study, above, value, within

ONE, TWO, UNTRAINED = "attn-only-1l", "attn-only-2l", "untrained"


def run(case: Case) -> Measures:
    model = gf.load(TWO if case["model"] == UNTRAINED else case["model"])
    assert isinstance(model, Decoder), "the models with attention only are decoders"
    if case["model"] == UNTRAINED:
        # weights of this seed in place of those that were learned
        model = Decoder(model.config)
    predicted, measured = scores(model, case.seed, case["rows"])
    return {
        "rank_correlation": rank_correlation(predicted, measured),
        "by_rows": rank_correlation(predicted, copying_rates(model).z.values.double()),
        "eigenvalues": float(predicted.mean()),
        "copying": float(measured.mean()),
        "copying_heads": float((predicted > 0.5).double().mean()),
        "best_copies": float(measured[predicted.argmax()]),
        "induction_head": lambda: copying(model, [head_scores(model).best("induction")[0]]).ratio.values.item(),
    }


def scores(model: Decoder, seed: int, rows: int) -> tuple[Tensor, Tensor]:
    """Return the eigenvalue score and the measured copying of every head that writes something."""
    evaluated = evaluate_heads(model, seed=seed, n_sequences=rows).scores.select(
        setting="repeated", evaluator="copying"
    )
    ratio = copying(model).ratio
    assert list(ratio.coords["head"]) == list(evaluated.coords["head"]), "both go head by head"
    defined = ~ratio.values.isnan()
    return ratio.values[defined].double(), evaluated.values[defined].double()


def rank_correlation(first: Tensor, second: Tensor) -> float:
    """Return Spearman's correlation of numbers of which no two are equal."""
    ranks = torch.stack((first, second)).argsort(-1).argsort(-1).double()
    return float(torch.corrcoef(ranks)[0, 1]) if len(first) > 1 else math.nan


APART = {
    model: Condition(
        f"Measured copying tells heads of {model} from heads of random weights",
        value("copying", model=model) - value("copying", model=UNTRAINED),
        above(0),
    )
    for model in (ONE, TWO)
}
SHIPPED = "it is of the weights of one shipped model, and no seed enters it"

STUDY = Study(
    "one-copying-head",
    paper='Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits", copying and "How can you detect '
    'copying from the eigenvalues?"; the measure: Olsson et al. 2022, appendix on data collection',
    question="Do the eigenvalues of a head's OV circuit tell whether it copies?",
    run=run,
    grid={"model": (ONE, TWO, UNTRAINED)},
    scales={
        "smoke": Scale(seeds=2, settings={"rows": 2}),
        "small": Scale(seeds=5, settings={"rows": 20}),
    },
    measures={
        "rank_correlation": Measure("Rank correlation, over heads, of the eigenvalue score with measured copying"),
        "by_rows": Measure(
            "The same with how far a token's own logit stands out when it is looked at, mean over the vocabulary",
            analysis=copying_rates,
        ),
        "eigenvalues": Measure("Sum of eigenvalues over sum of their sizes, mean of heads", analysis=copying),
        "copying": Measure(
            "Measured copying, mean of heads; 1 if only the attended token is raised", analysis=evaluate_heads
        ),
        "copying_heads": Measure("Share of heads whose eigenvalue score is above 0.5"),
        "best_copies": Measure("Measured copying of the head with the highest eigenvalue score"),
        "induction_head": Measure("Eigenvalue score of the head that matches prefixes best"),
    },
    claims=(
        Claim(
            "one-layer-ranks",
            "Eigenvalues rank heads of one layer as they copy",
            value("rank_correlation", model=ONE),
            above(0.5),
            (APART[ONE],),
        ),
        Claim(
            "two-layers-rank",
            "Eigenvalues rank heads of two layers as they copy",
            value("rank_correlation", model=TWO),
            above(0.5),
            (APART[TWO],),
        ),
        Claim(
            "as-rows", "Eigenvalues rank heads as rows do, token by token", value("by_rows", model=TWO), above(0.5),
            exact=SHIPPED,
        ),
        Claim(
            "ten-of-twelve",
            "Ten of twelve heads of a one-layer model copy",
            value("copying_heads", model=ONE),
            within(0.2, 10 / 12),
            exact=SHIPPED,
        ),
        Claim(
            "induction-positive",
            "Induction heads have positive eigenvalues",
            value("induction_head", model=TWO),
            above(0.5),
            exact=SHIPPED,
        ),
        Claim(
            "best-copies",
            "The head with the highest score does copy",
            value("best_copies", model=TWO),
            above(0.5),
            (APART[TWO],),
        ),
        Claim("random-no-sign", "Heads of random weights have no sign", value("eigenvalues", model=UNTRAINED),
              within(0.1, 0)),
    ),
    differs=(
        "Eight heads a layer and a vocabulary of 1,024; the paper has twelve and 50,000.",
        "Of the trained models there is one each: seeds draw the tokens that copying is measured on, and the interval "
        "says nothing of other trained models. Claims about weights alone are the same in every seed.",
        "Measured copying also counts how sharply a head attends: heads of random weights, which attend evenly, have "
        "-0.85 whatever their circuits, and among trained heads the sharpest lead.",
        "In the second layer the score is that of the direct path from the embedding: what heads of the first layer "
        "wrote is read along with it where copying is measured.",
    ),
    mechanisms=("softmax",),
    references={"model": (ONE, TWO, UNTRAINED)},
)  # fmt: skip
