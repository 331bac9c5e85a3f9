"""Which functions sharpen weights: PolaFormer's theorem, the condition that it lacks, and what its powers are put on.

Weights x over their sum are sharpened by g if g(x) / x rises: then g(x) over its sum majorises x over its sum, and has
the lower entropy. g' > 0 and g'' > 0, as the theorem asks, let g(x) / x rise where g(0) = 0, too; where it is not, the
ratio may fall: of e^x it does for x < 1, and rows of numbers below one become flatter, each of them.

In the mechanism the power is not on weights but on each number of queries and keys, whose products they are sums of:
there the theorem says nothing of a single row.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from glassformer.attention import Attention, Context, Mask, Pola
from glassformer.study import Case, Claim, Measure, Measures, Quantity, Scale, Study, above, below, value, within

SQUARE, SQUARE_AND_MORE, LESS_ONE, EXPONENTIAL, AND_ONE = "x^2", "x^2 + x", "e^x - 1", "e^x", "x^2 + 1"
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    SQUARE: Tensor.square,
    SQUARE_AND_MORE: lambda x: x.square() + x,
    LESS_ONE: Tensor.expm1,
    EXPONENTIAL: Tensor.exp,
    AND_ONE: lambda x: x.square() + 1,
}
KEYS, FEW, WIDTH = 50, 4, 8


def run(case: Case) -> Measures:
    g, generator = FUNCTIONS[case["function"]], case.generator()
    x = torch.rand(case["rows"], KEYS, generator=generator, dtype=torch.float64)
    change = entropy(g(x)) - entropy(x)
    of_powers = of_square(case["rows"], KEYS, generator)
    return {
        "lower": float((change < 0).double().mean()),
        "higher": float((change > 0).double().mean()),
        "of_two": float(entropy(g(torch.tensor([0.1, 0.2], dtype=torch.float64)))),
        "powers": float(of_powers.mean()),
        "powers_higher": float((of_powers > 0).double().mean()),
        "powers_higher_of_few": float((of_square(case["rows"], FEW, generator) > 0).double().mean()),
    }


def entropy(weights: Tensor) -> Tensor:
    """Return the entropy of each row over its sum, in nats."""
    share = weights / weights.sum(-1, keepdim=True)
    return -torch.special.xlogy(share, share).sum(-1)


def of_square(rows: int, keys: int, generator: torch.Generator) -> Tensor:
    """Return what the power 2 in place of 1 adds to entropies of rows of PolaFormer's attention over so many keys."""
    q, k = torch.randn(2, rows // keys, keys, WIDTH, generator=generator, dtype=torch.float64)
    return entropy(same_signs(q, k, 2)) - entropy(same_signs(q, k, 1))


def same_signs(q: Tensor, k: Tensor, power: int) -> Tensor:
    """Return the pattern of equal signs of PolaFormer's attention, whose powers are as they begin."""
    mixer = Pola(alpha=2.0 * (power - 1), eps=0.0).build(Attention(1).dims(WIDTH, q.shape[1]), "").double()
    positions = torch.arange(q.shape[1])[None]
    with torch.no_grad():
        return mixer.pattern(q[:, None], k[:, None], q, Context(Mask(), positions, positions), None)[:, 0, 0]


def of(measure: str, function: str = SQUARE) -> Quantity:
    return value(measure, function=function)


RISES, FALLS = "g(x) / x rises on these numbers, of whatever row", "g(x) / x falls for x < 1, whatever the row"
TWO = "no number is drawn"

STUDY = Study(
    "pola-entropy",
    paper='Meng et al. 2025, "PolaFormer: Polarity-aware Linear Attention for Vision Transformers", arXiv 2501.15061, '
    "theorem 1 and section 4.2",
    question="Does every function with positive first and second derivatives lower the entropy of weights?",
    run=run,
    grid={"function": tuple(FUNCTIONS)},
    scales={"smoke": Scale(2, {"rows": 500}), "small": Scale(5, {"rows": 20_000})},
    measures={
        "lower": Measure("Share of rows of 50 numbers below one whose entropy g lowers"),
        "higher": Measure("Share of them whose entropy it raises"),
        "of_two": Measure("Entropy of g(0.1) and g(0.2) over their sum; of 0.1 and 0.2 it is 0.637", "nats"),
        "powers": Measure("What the power 2 in place of 1 adds to the mean entropy of equal signs, of 50 keys", "nats"),
        "powers_higher": Measure("Share of rows of equal signs whose entropy it raises, of 50 keys"),
        "powers_higher_of_few": Measure("Share of them of 4 keys"),
    },
    claims=(
        Claim("square-lowers", "x^2 lowers the entropy of every row", of("lower"), within(0, 1), exact=RISES),
        Claim("more-lowers", "x^2 + x lowers it", of("lower", SQUARE_AND_MORE), within(0, 1), exact=RISES),
        Claim("less-one-lowers", "e^x - 1 lowers it", of("lower", LESS_ONE), within(0, 1), exact=RISES),
        Claim("exponential-lowers", "e^x, whose derivatives are positive, lowers it, as the theorem says",
              of("lower", EXPONENTIAL), within(0, 1), exact=FALLS),
        Claim("exponential-raises", "e^x raises it in every row, as g(0) is not 0", of("higher", EXPONENTIAL),
              within(0, 1), exact=FALLS),
        Claim("and-one-raises", "x^2 + 1 raises it in every row, too", of("higher", AND_ONE), within(0, 1),
              exact=FALLS),
        Claim("counterexample", "Of 0.1 and 0.2, e^x raises the entropy from 0.637 to 0.692",
              of("of_two", EXPONENTIAL), within(0.0005, 0.692), exact=TWO),
        Claim("powers-lower", "Powers of queries and keys lower the entropy of equal signs in the mean", of("powers"),
              below(0)),
        Claim("powers-not-each", "In some rows of four keys they raise it: what holds of weights does not of features",
              of("powers_higher_of_few"), above(0)),
    ),
    differs=(
        "The theorem asks for g' > 0 and g'' > 0 alone; that g(0) = 0 is the condition which its proof needs.",
        "Rows are drawn evenly between 0 and 1, queries and keys from a normal distribution, with the powers that all "
        "heads and channels of an untrained layer share. That powers raise the entropy of no row of 50 keys was seen "
        "before the claim about four was written.",
    ),
    mechanisms=("pola",),
    references={"function": (SQUARE,)},
)  # fmt: skip
