"""Why scores are divided by the root of the width: without it the softmax saturates and its gradient vanishes.

Queries and keys are drawn, so the claims are about the mechanism and not about what a model made of it.
"""

import torch

from glassformer.study import (
    Case,
    Claim,
    Condition,
    Measure,
    Measures,
    Scale,
    Study,
    above,
    below,
    growth,
    value,
    within,
)

SCALED, PLAIN = "1/sqrt(d)", "1"


def run(case: Case) -> Measures:
    width, length, rows = case["width"], case["length"], case["rows"]
    generator = case.generator()
    q, k = (torch.randn(rows, 1, length, width, generator=generator, dtype=torch.float64) for _ in range(2))
    scores = (q @ k.mT) * (1.0 if case["scale"] == PLAIN else width**-0.5)
    scores.requires_grad_()
    weights = scores.softmax(-1)
    (weights * torch.randn(weights.shape, generator=generator, dtype=torch.float64)).sum().backward()
    entropy = -(weights * weights.clamp_min(1e-300).log()).sum(-1).mean()
    assert scores.grad is not None, "scores were differentiated"
    return {
        "variance": float(scores.detach().var()),
        "entropy": float(entropy.detach()),
        "largest_weight": float(weights.detach().amax(-1).mean()),
        # of the median query: a few whose two best keys are near each other hold nearly all of the whole norm
        "gradient": float(scores.grad.norm(dim=-1).median()),
    }


def drawn(width: int) -> Condition:
    said = f"Without the scale, scores of width {width} have variance {width}, give or take a tenth"
    return Condition(said, value("variance", width=width, scale=PLAIN), within(width / 10, width))


def scaled(width: int) -> Condition:
    said = f"With it, scores of width {width} have variance 1, give or take a tenth"
    return Condition(said, value("variance", width=width, scale=SCALED), within(0.1, 1))


WIDTHS = (4, 16, 64, 256, 1024)
WIDEST = WIDTHS[-1]

STUDY = Study(
    "scaled-scores",
    paper='Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1',
    question="Does the softmax saturate with the width of heads, and does the scale keep it from that?",
    run=run,
    grid={"width": WIDTHS, "scale": (SCALED, PLAIN)},
    scales={
        "smoke": Scale(seeds=2, settings={"length": 16, "rows": 2}, grid={"width": (4, 64)}),
        "small": Scale(seeds=5, settings={"length": 64, "rows": 16}),
    },
    measures={
        "variance": Measure("Variance of the scores"),
        "entropy": Measure("Mean entropy of the weights", "nats"),
        "largest_weight": Measure("Mean of the largest weight of each query"),
        "gradient": Measure("Norm of the median query's gradient at the scores, for random gradients at the weights"),
    },
    claims=(
        Claim(
            "variance-grows",
            "Products of random queries and keys have variance d",
            growth("variance", "width", scale=PLAIN),
            within(0.05, 1),
        ),
        Claim(
            "variance-scaled",
            "Divided by the root of d they have variance 1",
            value("variance", scale=SCALED),
            within(0.05, 1),
        ),
        Claim(
            "saturates",
            "Without the scale wide heads put nearly all weight on one key",
            value("largest_weight", width=64, scale=PLAIN),
            above(0.9),
            (drawn(64),),
        ),
        Claim(
            "gradients-vanish",
            "Gradients at the scores become extremely small without the scale",
            value("gradient", width=WIDEST, scale=PLAIN) / value("gradient", width=WIDEST, scale=SCALED),
            below(0.1),
            (drawn(WIDEST), scaled(WIDEST)),
        ),
        Claim(
            "gradients-fall",
            "Without the scale they fall faster than the width grows",
            growth("gradient", "width", scale=PLAIN),
            below(-1),
            (drawn(WIDEST),),
        ),
        Claim(
            "gradients-stay",
            "With it they stay as they are",
            growth("gradient", "width", scale=SCALED),
            within(0.1, 0),
            (scaled(WIDEST),),
        ),
        Claim(
            "entropy-level",
            "With the scale, entropy does not depend on the width",
            value("entropy", width=64, scale=SCALED) - value("entropy", width=4, scale=SCALED),
            within(0.1, 0),
            (scaled(64),),
        ),
    ),
    differs=("Queries, keys and the gradients that reach the weights are normal noise; no model is trained.",),
    mechanisms=("softmax",),
    references={"width": (64, WIDEST), "scale": (SCALED, PLAIN)},
)
