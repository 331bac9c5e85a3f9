"""Paths of heads: a network with skip connections is a sum over paths, and only short paths keep tokens apart.

Through each layer a path goes by one head or by the skip connection, and its length is how many heads it meets. It is
measured twice: taken out of the network, so that each head attends by what the head before it wrote; and within, where
heads attend by the whole stream. Then all paths of one length are summed, which a recursion does exactly:

    X_l^(k) = X_{l-1}^(k) + sum_h A_h X_{l-1}^(k-1) W_h,   sum_k X_L^(k) = what the network returns
"""

import math

import torch
from torch import Tensor

from glassformer.studies.rank_collapse import attention, patterns, residual, share
from glassformer.study import Case, Claim, Condition, Measure, Measures, Scale, Study, above, below, value, within

HEADS, SHORT = 4, 3


def run(case: Case) -> Measures:
    generator = case.generator()
    n, d = case["tokens"], case["width"]

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) / math.sqrt(d)

    layers = [[drawn(HEADS, d, d) for _ in range(3)] for _ in range(case["layers"])]
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    sums, seen = by_length(x, layers)
    whole = torch.stack(sums).sum(0)
    alone, within_network = x, x
    shares = [(share(x), share(x))]
    for (query, key, out), pattern in zip(layers[:SHORT], seen, strict=False):
        alone = attention(alone, query[:1], key[:1], out[:1])
        within_network = pattern[0] @ within_network @ out[0]
        shares.append((share(alone), share(within_network)))
    logs = [[math.log10(max(found, 1e-300)) for found in column] for column in zip(*shares, strict=True)]
    short = torch.stack(sums[: SHORT + 1]).sum(0)
    return {
        "alone": logs[0][SHORT],
        "within": logs[1][SHORT],
        "rate_alone": (logs[0][3] - logs[0][2]) / (logs[0][2] - logs[0][1]),
        "rate_within": (logs[1][3] - logs[1][2]) / (logs[1][2] - logs[1][1]),
        "error": float((whole - network(x, layers)).norm() / whole.norm()),
        "short_paths": float((residual(short) * residual(whole)).sum() / residual(whole).square().sum()),
        "longest_share": share(sums[-1]),
    }


def network(x: Tensor, layers: list[list[Tensor]]) -> Tensor:
    """Return what layers of heads with skip connections make of tokens."""
    for query, key, out in layers:
        x = x + attention(x, query, key, out)
    return x


def by_length(x: Tensor, layers: list[list[Tensor]]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the sums of all paths of each length, from 0 to the number of layers, and each layer's patterns."""
    sums, seen = [x], []
    for query, key, out in layers:
        seen.append(patterns(torch.stack(sums).sum(0), query, key))
        longer = [(seen[-1] @ found @ out).sum(0) / math.sqrt(len(out)) for found in sums]
        zero = torch.zeros_like(x)
        sums = [kept + added for kept, added in zip([*sums, zero], [zero, *longer], strict=True)]
    return sums, seen


SUMS = Condition("All paths sum to what the network returns", value("error"), below(1e-9))
ALONE = Condition("Taken alone, each head shrinks it three times as much", value("rate_alone"), within(1, 3))

STUDY = Study(
    "path-collapse",
    paper='Dong, Cordonnier and Loukas 2021, "Attention is not all you need", path decomposition (section 2) and '
    "section 4: what paths of each length are worth",
    question="Do paths through more heads collapse faster, and do short ones carry what the network returns?",
    run=run,
    scales={
        "smoke": Scale(seeds=2, settings={"tokens": 8, "width": 16, "layers": 6}),
        "small": Scale(seeds=5, settings={"tokens": 32, "width": 64, "layers": 12}),
    },
    measures={
        "alone": Measure(f"Residual relative to the whole behind a path of {SHORT} heads, taken alone, power of ten"),
        "within": Measure("The same with patterns of the whole network, which has skip connections"),
        "rate_alone": Measure("By how much more powers of ten the third head shrinks it than the second, alone"),
        "rate_within": Measure("The same within the network"),
        "error": Measure("Distance of the sum over all paths from what the network returns, relative"),
        "short_paths": Measure(f"Share of the residual of what the network returns by paths of at most {SHORT} heads"),
        "longest_share": Measure("Residual relative to the whole, of the paths that meet a head in every layer"),
    },
    claims=(
        Claim("sum-of-paths", "A network with skip connections is the sum of its paths", value("error"), below(1e-9)),
        Claim("three-alone", "A path of three heads taken alone leaves next to nothing", value("alone"), below(-4)),
        Claim(
            "rate-alone",
            "Taken alone, each head shrinks it three times as much as the one before",
            value("rate_alone"),
            within(1, 3),
        ),
        Claim(
            "rate-within",
            "With the patterns of the whole network a path collapses as fast",
            value("rate_within"),
            within(1, 3),
            (ALONE,),
        ),
        Claim("short-paths", "Short paths carry what the network returns", value("short_paths"), above(0.5), (SUMS,)),
        Claim("longest-paths", "The longest paths have collapsed", value("longest_share"), below(0.1), (SUMS,)),
    ),
    differs=(
        "Weights are drawn, not trained: the paper takes paths out of models trained to sort, to find convex hulls and "
        "to remember, and measures what each length answers right.",
        "No MLPs and no norms. Heads are of full width, their outputs summed and divided by the root of their number.",
    ),
    mechanisms=("softmax",),
)
