"""Rank collapse: without skip connections, attention makes all tokens alike, doubly exponentially in depth.

One layer, tokens that are nearly alike: the residual that is left grows with the third power of the one before, where
every row has the same softmax; a mask gives rows softmaxes of their own, and the power is one. Many layers at random
weights: what skips, MLPs and norms change.
"""

import math
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from glassformer.study import Case, Claim, Condition, Measure, Measures, Scale, Study, above, below, value, within

VARIANTS = ("attention", "with norm", "with MLP", "with skip", "with skip, MLP and norm")
DEPTHS = (3, 12)


def run(case: Case) -> Measures:
    generator = case.generator()
    n, d, heads = case["tokens"], case["width"], 4

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) / math.sqrt(d)

    layers = [[drawn(heads, d, d) for _ in range(3)] + [drawn(d, d), drawn(d, d)] for _ in range(max(DEPTHS))]
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    skip, mlp, norm = (part in case["variant"] for part in ("skip", "MLP", "norm"))
    shares = [share(x)]
    for query, key, out, first, second in layers:
        x = attention(x, query, key, out, masked=False) + (x if skip else 0)
        x = layer_norm(x, (d,)) if norm else x
        if mlp:
            x = torch.relu(x @ first) @ second + (x if skip else 0)
            x = layer_norm(x, (d,)) if norm else x
        shares.append(share(x))
    return {f"residual_{depth}": math.log10(max(shares[depth], 1e-300)) for depth in DEPTHS} | {
        f"power_{name}": _power(layers[0], n, d, generator, masked=masked)
        for name, masked in (("unmasked", False), ("masked", True))
    }


def attention(x: Tensor, query: Tensor, key: Tensor, out: Tensor, *, masked: bool = False) -> Tensor:
    """Return what heads write, `token d`; weights are `head d d`, queries and keys of full width."""
    return (patterns(x, query, key, masked=masked) @ x @ out).sum(0) / math.sqrt(len(query))


def patterns(x: Tensor, query: Tensor, key: Tensor, *, masked: bool = False) -> Tensor:
    """Return where heads look, `head query key`."""
    scores = (x @ query) @ (x @ key).mT / math.sqrt(x.shape[-1])
    if masked:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    return scores.softmax(-1)


def residual(x: Tensor) -> Tensor:
    """Return the distance of every token from their mean."""
    return x - x.mean(0)


def _size(x: Tensor) -> float:
    """Return the norm of the paper: the root of the largest column sum times the largest row sum."""
    return float((x.abs().sum(0).max() * x.abs().sum(1).max()).sqrt())


def share(x: Tensor) -> float:
    """Return the residual relative to the whole: a stream that shrinks as a whole does not count as collapse."""
    return _size(residual(x)) / _size(x)


def _power(layer: list[Tensor], n: int, d: int, generator: torch.Generator, *, masked: bool) -> float:
    """Return the fitted slope of the residual behind one layer over that before it, in logarithms, where small."""
    common = torch.randn(d, generator=generator, dtype=torch.float64)
    apart = residual(torch.randn(n, d, generator=generator, dtype=torch.float64))
    nearly = [common + 10**exponent * apart for exponent in (-3.0, -2.5, -2.0)]
    before = torch.stack([residual(x).norm().log() for x in nearly])
    behind = torch.stack([residual(attention(x, *layer[:3], masked=masked)).norm().log() for x in nearly])
    return float(torch.cov(torch.stack((before, behind)))[0, 1] / before.var())


after_3, after_12 = (partial(value, f"residual_{depth}") for depth in DEPTHS)

COLLAPSES = Condition("Attention alone collapses over twelve layers", after_12(variant="attention"), below(-5))
CUBES = Condition("Without a mask it shrinks by a power", value("power_unmasked", variant="attention"), within(0.1, 3))

STUDY = Study(
    "rank-collapse",
    paper='Dong, Cordonnier and Loukas 2021, "Attention is not all you need", theorem 2.2 and section 3; masks: Wu et '
    "al. 2024, arXiv 2405.18781",
    question="Does attention alone make all tokens alike, how fast, and what prevents it?",
    run=run,
    grid={"variant": VARIANTS},
    scales={
        "smoke": Scale(seeds=2, settings={"tokens": 8, "width": 16}),
        "small": Scale(seeds=5, settings={"tokens": 32, "width": 64}),
    },
    measures={
        "residual_3": Measure("Residual relative to the stream behind 3 layers, power of ten"),
        "residual_12": Measure("The same behind 12 layers"),
        "power_unmasked": Measure("Power with which the residual behind one layer grows with that before it"),
        "power_masked": Measure("The same under a causal mask"),
    },
    claims=(
        Claim("cubes", "One layer cubes the residual", value("power_unmasked", variant="attention"), within(0.1, 3)),
        Claim("three-layers", "Three layers of attention alone leave next to nothing", after_3(variant="attention"),
              below(-5)),
        Claim("skips", "Skip connections keep tokens apart over twelve layers", after_12(variant="with skip"),
              above(-2), (COLLAPSES,)),
        Claim("mlps", "MLPs alone do not stop the collapse", after_12(variant="with MLP"), below(-5), (COLLAPSES,)),
        Claim("norms", "Norms alone do not stop the collapse", after_12(variant="with norm"), below(-5), (COLLAPSES,)),
        Claim(
            "masked", "Under a causal mask the residual shrinks by a factor, not by a power",
            value("power_masked", variant="attention"), within(0.1, 1), (CUBES,),
        ),
    ),
    differs=(
        "Weights are drawn, not trained; the paper measures BERT, ALBERT and XLNet.",
        "Heads are of full width, their outputs summed and divided by the root of their number.",
    ),
    mechanisms=("softmax",),
    references={"variant": ("attention",)},
)  # fmt: skip
