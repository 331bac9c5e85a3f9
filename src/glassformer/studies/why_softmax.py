"""Why softmax: what a head cannot say whose weights are scores, or powers of them, over their sum.

Scores of a head of width d have rank d, and dividing rows by numbers changes no rank: a pattern of scores themselves
has rank d, one of their squares d (d + 1) / 2, and one of exponentials all the rank there is. In a pattern of rank r
over n keys whose rows have sizes that sum to one, the weight on the key that each row looks for is sqrt(r / n) at best,
in the mean. And a factor on scores, which makes softmax a look-up of one key, cancels in a power over their sum.
"""

import torch
from torch import Tensor

from glassformer.attention import Attention, MixerConfig, Softmax, SumNormalised
from glassformer.models.stack import cross_context, make_context
from glassformer.numerics.decompositions import singular_values
from glassformer.study import (
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
    kinds_of,
    value,
    within,
)

SOFTMAX, IDENTITY, SQUARE, RELU = "softmax", "score", "square", "relu"
MIXERS: dict[str, MixerConfig] = {
    SOFTMAX: Softmax(),
    IDENTITY: SumNormalised("identity"),
    SQUARE: SumNormalised("square"),
    RELU: SumNormalised("relu"),
}
DRAWN, WIDTH = 128, 8  # of the patterns whose rank is taken
KEYS, NARROW = 64, 4  # of the tables that are learned
FACTOR = 150.0


def run(case: Case) -> Measures:
    mixer, generator = MIXERS[case["weights"]], case.generator()
    q, k = torch.randn(2, DRAWN, WIDTH, generator=generator, dtype=torch.float64)
    directions = torch.nn.functional.normalize(k, dim=-1)
    nearest = (directions @ directions.T).fill_diagonal_(-1).amax(-1)
    sizes = singular_values(pattern(mixer, q, k))
    errors = [missed(pattern(mixer, times * FACTOR * directions, directions)) for times in (1, 2)]
    return {
        "rank": float((sizes > 1e-10 * sizes[0]).sum()),
        "found": float(learned(mixer, case["steps"], generator).diagonal().mean()),
        "rate": float(((errors[0] / errors[1]).log() / (FACTOR * (1 - nearest) * WIDTH**-0.5)).mean()),
    }


def pattern(mixer: MixerConfig, q: Tensor, k: Tensor) -> Tensor:
    """Return the weights of queries, each of which sees all keys."""
    context = cross_context(make_context(1, len(q), q.device, is_causal=True), len(k), None)
    head = mixer.build(Attention(1).dims(q.shape[-1], len(k)), "head")
    return head.pattern(q[None, None], k[None, None], q[None], context, None)[0, 0]


def missed(weights: Tensor) -> Tensor:
    """Return what each query leaves to keys that are not its own, in the sum of sizes."""
    return weights.abs().fill_diagonal_(0).sum(-1)


def learned(mixer: MixerConfig, steps: int, generator: torch.Generator) -> Tensor:
    """Return the weights of a table of queries and one of keys, trained so that each query has its own key alone."""
    tables = torch.randn(2, KEYS, NARROW, generator=generator, dtype=torch.float64).requires_grad_()
    optimiser = torch.optim.Adam([tables], lr=0.03)
    for _ in range(steps):
        optimiser.zero_grad()
        (pattern(mixer, *tables) - torch.eye(KEYS, dtype=torch.float64)).square().sum().backward()
        optimiser.step()
    return pattern(mixer, *tables).detach()


def of(measure: str, weights: str) -> Quantity:
    return value(measure, weights=weights)


LOOKS_UP = Condition("Softmax learns to look up one of 64 keys", of("found", SOFTMAX), above(0.99))
RANK = "tables drawn at random have the largest rank there is, whichever are drawn"
CANCELS = "a factor cancels in what is divided by its sum"

STUDY = Study(
    "why-softmax",
    paper='Katharopoulos et al. 2020, "Transformers are RNNs", section 3.2, for other similarities; '
    'Zhang et al. 2021, "Sparse Attention with Linear Units"; Bhojanapalli et al. 2020, "Low-Rank Bottleneck in '
    'Multi-head Attention Models", arXiv 2002.07028',
    question="What is an exponential for, where scores over their sum would be weights, too?",
    run=run,
    grid={"weights": tuple(MIXERS)},
    scales={"smoke": Scale(1, {"steps": 20}), "small": Scale(5, {"steps": 4000})},
    measures={
        "rank": Measure("Rank of the pattern of 128 queries and keys of width 8, drawn at random"),
        "found": Measure("Weight on the right one of 64 keys, learned with width 4"),
        "rate": Measure("How fast the weight on wrong keys falls with a factor on scores, over the margin of scores"),
    },
    claims=(
        Claim("rank-score", "Scores over their sum have the rank of a head's width", of("rank", IDENTITY), within(0, 8),
              exact=RANK),
        Claim("rank-square", "Squares have d (d + 1) / 2", of("rank", SQUARE), within(0, 36), exact=RANK),
        Claim("rank-softmax", "Softmax has full rank", of("rank", SOFTMAX), within(0, 128), exact=RANK),
        Claim("rank-relu", "ReLU has full rank, too", of("rank", RELU), within(0, 128), exact=RANK),
        Claim("softmax-finds", "Softmax learns to look up one of 64 keys in 4 dimensions", of("found", SOFTMAX),
              above(0.99)),
        Claim("score-misses", "Scores over their sum do not: at best sqrt(4 / 64)", of("found", IDENTITY), below(0.25),
              (LOOKS_UP,)),
        Claim("square-misses", "Squares do not: at best sqrt(10 / 64)", of("found", SQUARE), below(0.4), (LOOKS_UP,)),
        Claim("relu-nearer", "ReLU comes nearer than squares", of("found", RELU) - of("found", SQUARE), above(0),
              (LOOKS_UP,)),
        Claim("rate-softmax", "With softmax errors fall exponentially, by the margin", of("rate", SOFTMAX),
              within(0.05, 1)),
        Claim("rate-score", "With scores over their sum they do not fall", of("rate", IDENTITY), within(1e-6, 0),
              exact=CANCELS),
        Claim("rate-square", "With squares they do not fall", of("rate", SQUARE), within(1e-6, 0), exact=CANCELS),
        Claim("rate-relu", "With ReLU they do not fall", of("rate", RELU), within(1e-6, 0), exact=CANCELS),
    ),
    differs=(
        "Tables of queries and keys in place of a model that makes them. What is learned by are squared differences, "
        "as weights of scores themselves may be negative.",
        "The bound sqrt(r / n) is none of the papers': the trace of a pattern is at most sqrt(r) times its norm, and "
        "that at most sqrt(n).",
    ),
    mechanisms=("softmax", "sum_normalised"),
    kinds=kinds_of(MIXERS),
    references={"weights": (SOFTMAX,)},
)  # fmt: skip
