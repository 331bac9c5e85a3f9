"""Composition: how much a later head's queries, keys and values read of what an earlier head wrote.

    Q   norm(OV1 QK2)  / (norm(OV1) norm(QK2))        row-vector convention, Frobenius norms
    K   norm(OV1 QK2') / (norm(OV1) norm(QK2))
    V   norm(OV1 OV2)  / (norm(OV1) norm(OV2))

A score lies in [0, 1]. Independent random matrices give about 1 / sqrt(d_model) whatever the width of the heads; how
far they stray from it is drawn for the shapes at hand. Norms' scales cancel in the ratio, those of norms on queries and
keys too, so there is no frozen or live. Biases are left out. Weights say what a head could read, not what it uses:
patch to know that.

Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits", Q-, K-, V-composition, as corrected
there: norm(A B) is not norm(B A).
"""
# torch does not type its linear algebra
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import dataclasses
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer import weights
from glassformer.analysis.from_weights._pair_norms import BUDGET, Side, grams, products
from glassformer.analysis.from_weights._reads_and_writes import (
    KINDS,
    Form,
    Layers,
    carried,
    comes_before,
    defined_values,
    matrices,
    norms_passed,
    sides,
)
from glassformer.analysis.question import question
from glassformer.arguments import Natural
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.labelled import Labelled, Result
from glassformer.models import Model, SubLayer
from glassformer.numerics import decompositions
from glassformer.weights import AttentionWeights, WeightsLike

Covariance = Float[Tensor, "d_model d_model"] | Sequence[Float[Tensor, "d_model d_model"]]


class ComposingHeads(NamedTuple):
    """One pair of heads that compose.

    Args:
        kind: `Q`, `K` or `V`.
        earlier: The head that writes.
        later: The head that reads.
        score: In [0, 1].
        over_null: Score divided by the mean of random matrices.
        deviations: Standard deviations of random matrices above their mean.
    """

    kind: str
    earlier: str
    later: str
    score: float
    over_null: float
    deviations: float


@dataclasses.dataclass(frozen=True, eq=False)
class Composition(Result):
    """Composition scores of all pairs of heads.

    Args:
        scores: `kind earlier later`; NaN where the later head does not come after the earlier one on the stream it
            reads, where a score is undefined (see `left_out`), and where a norm is zero.
        null_mean: Mean score of random matrices of the pair's shapes, `kind earlier later`; NaN if none were drawn.
        null_sd: Their standard deviation.
        baseline: 1 / sqrt(d_model), the root mean square of random scores.
        form: `product` as above; `read` has W_Q, W_K, W_V alone in place of QK2, QK2', OV2: what no position turns.
            Gains of norms on queries and keys are in them.
        offsets: For rotary positions: squared norms of QK2, and of its products, are means over keys so far before the
            query. Empty if nothing turns.
        without_top: Whether the largest singular direction of each OV1, QK2 and OV2 was taken out first.
        weighted: Whether rows of the stream were weighted by a covariance.
        folded: Whether norms' gains and means are in the matrices.
        left_out: Why a layer has no score, by its path and kind, or `write` for what it writes.
    """

    HEADLINE = ("scores",)

    scores: Labelled
    null_mean: Labelled
    null_sd: Labelled
    baseline: float
    form: Form
    offsets: tuple[int, ...]
    without_top: bool
    weighted: bool
    folded: bool
    left_out: Mapping[str, str]

    def excess(self) -> Labelled:
        """Scores as standard deviations of random matrices above their mean, `kind earlier later`."""
        values = (self.scores.values - self.null_mean.values) / self.null_sd.values
        return Labelled(values, self.scores.axes, self.scores.coords)

    def edges(self, deviations: float = 4.0, *, kind: str | None = None) -> list[ComposingHeads]:
        """The pairs that score above what random matrices give, the highest score first.

        Args:
            deviations: How many standard deviations above the mean of random matrices.
            kind: Only `Q`, `K` or `V`.
        """
        excess, scores, mean = self.excess().values, self.scores.values, self.null_mean.values
        earlier, later = self.scores.labels("earlier"), self.scores.labels("later")
        found: list[ComposingHeads] = []
        for at in (excess > deviations).nonzero().tolist():
            c, i, j = at
            if kind in (None, KINDS[c]):
                score = float(scores[c, i, j])
                names = KINDS[c], str(earlier[i]), str(later[j])
                found.append(ComposingHeads(*names, score, score / float(mean[c, i, j]), float(excess[c, i, j])))
        return sorted(found, key=lambda edge: -edge.score)


@question(
    "Which heads read what earlier heads write?",
    of="weights",
    holds=("gates", "latent scales"),
    judge="norms of whole products of the matrices",
)
def composition(
    model: WeightsLike | Layers,
    *,
    form: Form = "product",
    offsets: Iterable[int] = range(1, 33),
    without_top: bool = False,
    covariance: Covariance | None = None,
    exact: bool | None = None,
    draws: Natural = 128,
    seed: int = 0,
    budget: int = BUDGET,
) -> Composition:
    """Score Q-, K- and V-composition of every pair of heads, from weights alone.

    In post-norm models a write is carried through the gains of the norms that stand on the stream before it is read. A
    head with two maps, or several values, has what each of them reads or writes, values that are no matrix times what
    is read left aside: squared norms add up. Cross-attention has Q-composition with earlier decoder heads, K- and
    V-composition with the encoder's.

    Args:
        model: A model, whose weights are folded first; or weights (`weights.of`), taken as they are, in memory or read
            layer by layer.
        form: As in `Composition`; `read` is defined for mechanisms without bilinear scores too.
        offsets: As in `Composition`; used for layers with rotary positions.
        without_top: Take the largest singular direction out of each head's matrices first: where one direction
            dominates, it hides the others.
        covariance: Second moments of what the heads' matrices read: rows of the stream behind the norm, less gain and
            bias if weights are folded. One for all attention layers, or one for each. Norms then say what is moved and
            compared of vectors like these: OV1 is weighted at its input, QK2 at its other side.
        exact: Multiply the matrices that meet, instead of taking inner products of Gram matrices, which is good to 3e-4
            at worst in float32 (1e-6 is usual). Default: in float64, in post-norm models, and in models so small that
            it is no more work.
        draws: Random pairs of heads drawn for each shape, at least; 0 for none.
        budget: Bytes of Gram matrices held at a time.

    Raises:
        AnalysisUnavailable: No pair of layers has any score: the message says why.
    """
    w: Layers = model if isinstance(model, Layers) else weights.of(model, fold=True)
    offsets = tuple(offsets)
    exact = _prefers_products(w) if exact is None else exact
    if not exact and _on_stream_norms(w):
        raise AnalysisUnavailable(
            "composition: in post-norm blocks writes change on their way, which exact=False has no room for.\n"
            "    Use exact=True, the default for such models."
        )
    options = _Options(form, offsets, without_top, exact)
    nulls = _Nulls(options, draws, seed)
    if len(w) == 0:
        raise _no_pairs([], {})
    read = [
        # nothing comes before the first layer or after the last
        _Heads.of(w.model, layer, options, half, nulls, (*KINDS,) * (i > 0) + ("write",) * (i + 1 < len(w)))
        for i, (layer, half) in enumerate(zip(w, _halves(w, covariance)))
    ]
    starts = [sum(len(heads.labels) for heads in read[:i]) for i in range(len(read) + 1)]
    scores = torch.full((3, starts[-1], starts[-1]), math.nan, **read[0].like)
    mean, sd = scores.clone(), scores.clone()
    for kind, i, j, squared in _by_products(w, read) if exact else _by_grams(w, read, budget):
        at = KINDS.index(kind), slice(*starts[i : i + 2]), slice(*starts[j : j + 2])
        scores[at] = squared.sqrt().to(scores.dtype)
        mean[at], sd[at] = nulls(read[i].shape, read[j].shape, kind)
    left_out = {key: reason for heads in read for key, reason in heads.missing.items()}
    if not scores.isfinite().any():
        raise _no_pairs(read, left_out)
    names = [label for heads in read for label in heads.labels]
    axes, coords = ("kind", "earlier", "later"), {"kind": KINDS, "earlier": names, "later": names}
    turned = form == "product" and any(heads.rotates for heads in read)
    scored, mean, sd = (Labelled(values, axes, coords) for values in (scores, mean, sd))
    return Composition(
        scores=scored,
        null_mean=mean,
        null_sd=sd,
        baseline=read[0].width ** -0.5,
        form=form,
        offsets=offsets if turned else (),
        without_top=without_top,
        weighted=covariance is not None,
        folded=w.folded,
        left_out=left_out,
    )


class _Options(NamedTuple):
    form: Form
    offsets: tuple[int, ...]
    without_top: bool
    exact: bool

    def sides(
        self, layer: AttentionWeights, half: Tensor | None, wanted: Collection[str]
    ) -> tuple[dict[str, Side], dict[str, str]]:
        rooted = self.exact or self.without_top
        found, missing = sides(layer, self.form, self.offsets, rooted=rooted, half=half, wanted=wanted)
        if self.without_top:
            found = {name: s.without_top() for name, s in found.items()}
        return found, missing


@dataclasses.dataclass(frozen=True, eq=False)
class _Heads:
    """What is kept of a layer: its factors, or (for Gram matrices) only the small cores between them."""

    layer: SubLayer
    labels: list[str]
    squared: dict[str, Tensor]
    kept: dict[str, Tensor]
    missing: dict[str, str]
    rotates: bool
    width: int
    shape: tuple[Any, ...]
    like: dict[str, Any]

    @classmethod
    def of(
        cls,
        model: Model,
        layer: AttentionWeights,
        options: _Options,
        half: Tensor | None,
        nulls: "_Nulls",
        wanted: Collection[str],
    ) -> "_Heads":
        found, missing = options.sides(layer, half, wanted)
        if options.exact:
            kept = {name: s.factor() for name, s in found.items()}
            squared = {name: factor.square().sum((1, 2)) for name, factor in kept.items()}
        else:
            kept, squared = (
                {name: s.gram() for name, s in found.items()},
                {name: s.squared() for name, s in found.items()},
            )
        like = {"dtype": torch.promote_types(layer.Q.dtype, torch.float32), "device": layer.Q.device}
        return cls(
            layer=model.sub_layer(layer.path),
            labels=layer.labels,
            squared=squared,
            kept=kept,
            missing={f"{layer.path} {name}": reason for name, reason in missing.items()},
            rotates=layer.module.positions.rotates,
            width=layer.Q.shape[-2] - layer.augmented,
            shape=nulls.see(layer, half),
            like=like,
        )

    def meets(self, later: "_Heads", kind: str) -> bool:
        return "write" in self.kept and kind in later.kept and comes_before(self.layer, later.layer, kind)


Block = tuple[str, int, int, Tensor]


def _by_products(w: Layers, read: list[_Heads]) -> Iterator[Block]:
    """Yield kind, earlier layer, later layer, squared scores `earlier later`."""
    for j, later in enumerate(read):
        for i, earlier in enumerate(read[:j]):
            kinds = [kind for kind in KINDS if earlier.meets(later, kind)]
            if not kinds:
                continue
            write, squared = earlier.kept["write"], earlier.squared["write"]
            for norm in norms_passed(w.model, earlier.layer, later.layer):
                write = carried(write, norm, w.norms)
                squared = write.square().sum((1, 2))
            for kind in kinds:
                met = products(write, later.kept[kind])
                yield kind, i, j, met / (squared[:, None] * later.squared[kind])


def _by_grams(w: Layers, read: list[_Heads], budget: int) -> Iterator[Block]:
    def layers() -> Iterator[tuple[Side | None, list[Side]]]:
        for layer, heads in zip(w, read):
            touching = matrices(layer)
            made = {name: Side(touching[name], core, rooted=False) for name, core in heads.kept.items()}
            yield made.pop("write", None), list(made.values())

    names = [[name for name in heads.kept if name != "write"] for heads in read]
    n = [len(heads.labels) for heads in read]
    writes = [count if "write" in heads.kept else 0 for count, heads in zip(n, read)]
    sizes = [(write, [count] * len(kinds)) for write, count, kinds in zip(writes, n, names)]
    found = grams(layers, sizes, read[0].width, torch.empty(0, **read[0].like), budget)
    for j, later in enumerate(read):
        for i, earlier in enumerate(read[:j]):
            rows = slice(sum(writes[:i]), sum(writes[: i + 1]))
            for place, kind in enumerate(names[j]):
                if earlier.meets(later, kind):
                    met = found[j][rows, place * n[j] : (place + 1) * n[j]]
                    yield kind, i, j, met / (earlier.squared["write"].double()[:, None] * later.squared[kind])


class _Nulls:
    """Mean and standard deviation of scores of random matrices, drawn once for each pair of shapes."""

    def __init__(self, options: _Options, draws: int, seed: int) -> None:
        self.options, self.draws = options._replace(exact=True), draws
        self.generator = torch.Generator().manual_seed(seed)
        self.sides: dict[tuple[Any, ...], dict[str, Tensor]] = {}
        self.found: dict[tuple[Any, ...], tuple[float, float]] = {}

    def see(self, layer: AttentionWeights, half: Tensor | None) -> tuple[Any, ...]:
        """Draw matrices of a layer's shapes, unless there are some; return what the shapes go by."""
        shapes = (tuple(u.shape) for u in (layer.Q, layer.K, layer.V, layer.O))
        traits = layer.module.mixer.traits
        shape = (*shapes, layer.module.positions.key, traits, *defined_values(layer), half is None or id(half))
        if self.draws and shape not in self.sides:
            times = math.ceil(self.draws**0.5 / len(layer.Q))
            # what is written and what is read are drawn apart, so that a layer can be paired with its own shape
            write = [self.options.sides(self._random(layer), half, ["write"])[0].get("write") for _ in range(times)]
            reads = [self.options.sides(self._random(layer), half, KINDS)[0] for _ in range(times)]
            self.sides[shape] = {
                name: torch.cat([s.factor() for s in found if s is not None])
                for name, found in [("write", write), *((kind, [r.get(kind) for r in reads]) for kind in KINDS)]
                if found[0] is not None
            }
        return shape

    def __call__(self, earlier: tuple[Any, ...], later: tuple[Any, ...], kind: str) -> tuple[float, float]:
        if not self.draws:
            return math.nan, math.nan
        if (earlier, later, kind) not in self.found:
            write, read = self.sides[earlier]["write"], self.sides[later][kind]
            sizes = write.square().sum((1, 2))[:, None] * read.square().sum((1, 2))
            drawn = (products(write, read) / sizes).sqrt()
            self.found[earlier, later, kind] = float(drawn.mean()), float(drawn.std())
        return self.found[earlier, later, kind]

    def _random(self, layer: AttentionWeights) -> AttentionWeights:
        dtype = torch.promote_types(layer.Q.dtype, torch.float32)
        drawn = [
            torch.randn(u.shape, generator=self.generator, dtype=dtype).to(u.device)
            for u in (layer.Q, layer.K, layer.V, layer.O)
        ]
        return dataclasses.replace(layer, **dict(zip("QKVO", drawn)), gain=None, after=None, bare=True)


def _on_stream_norms(w: Layers) -> bool:
    return any(layer.stream_norm for stack in w.model.stacks for layer in w.model.sub_layers(stack))


def _prefers_products(w: Layers) -> bool:
    """Return whether products are asked for by accuracy, or are no more work than Gram matrices."""
    first = next(iter(w), None)
    if first is None or first.Q.dtype == torch.float64 or _on_stream_norms(w):
        return True
    (heads, *_, width, rank), value = first.Q.shape, first.V.shape[-1]
    pairs = heads * heads * len(w) * (len(w) - 1) // 2
    by_products = pairs * 2 * width * value * (2 * rank + value)
    by_grams = pairs * 3 * width**2 + heads * (len(w) - 1) * width**2 * (2 * rank + 2 * value)
    # thin products run at half the speed of square ones
    return by_products < 2 * by_grams


def _halves(w: Layers, covariance: Covariance | None) -> Iterable[Tensor | None]:
    """Return a root of the covariance for each attention layer."""
    if covariance is None:
        return [None] * len(w)
    if any(layer.module.config.cross for layer in w):
        raise AnalysisUnavailable(
            "composition: in cross-attention queries and keys read two streams, and one covariance stands for one.\n"
            "    Leave covariance out."
        )
    if isinstance(covariance, Tensor):
        return [_half(covariance)] * len(w)
    if len(covariance) != len(w):
        raise ShapeMismatch(f"composition: {len(covariance)} covariances for {len(w)} attention layers.")
    return [_half(one) for one in covariance]


def _half(covariance: Tensor) -> Tensor:
    values, vectors = decompositions.eigh(covariance)
    return vectors * values.clamp_min(0).sqrt() @ vectors.mT


def _no_pairs(read: list[_Heads], left_out: Mapping[str, str]) -> AnalysisUnavailable:
    if left_out:
        reasons = list(dict.fromkeys(left_out.values()))
        return AnalysisUnavailable("\n".join(reasons[:2]) + "\n    Without products of two matrices: form='read'.")
    found = ", ".join(heads.labels[0] + " …" for heads in read) or "none"
    if len(read) > 1:
        # 0 / 0: the scores are shares of norms
        return AnalysisUnavailable(
            f"composition: no head writes or none reads: a product of their matrices is zero in every pair ({found}), "
            "and a share of nothing is no number.\n    What heads write: weights.of(model)[0].O; a model whose layers "
            "were switched off by their weights has no composition."
        )
    return AnalysisUnavailable(
        f"composition needs two attention layers one behind the other on a stream; found: {found}.\n"
        "    What one head copies: weights.of(model)[0].ov()."
    )
