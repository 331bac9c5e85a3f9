"""Judges of what is said from weights: circuits written out as whole matrices, products and eigenvalues of those."""

import math
from collections.abc import Iterable, Iterator
from itertools import product

import torch
from torch import Tensor

from glassformer import weights
from glassformer.numerics.decompositions import eigenvalues
from glassformer.testing.judges.judge import Asked, Judge, Pair
from glassformer.weights import AttentionWeights, HeadWeights


def token_circuits(w: HeadWeights, labels: list[str]) -> dict[str, Tensor]:
    """Return what attending to each token does to each logit, `vocab vocab`, by head."""
    found: dict[str, Tensor] = {}
    for layer in (one for every in w.attention for one in every.by_value()):
        for h, label in enumerate(layer.labels):
            if label in labels:
                found[label] = w.source_rows(layer, "value", "token") @ _moved(layer, h) @ w.read_out()
    return found


def _copying(asked: Asked) -> Iterator[Pair]:
    found = asked.found
    labels = [str(label) for label in found.ratio.labels("head")]
    circuits = token_circuits(weights.matrices(asked.given["model"]), labels)
    # of 11 tokens there are more eigenvalues than of the width of a head: those beyond are zero but for rounding
    values = [eigenvalues(circuits[label]) for label in labels]
    kept = [(~row.isnan()).sum() for row in found.eigenvalues.values]
    values = [row[row.abs().argsort(descending=True)][: int(n)] for row, n in zip(values, kept)]
    yield Pair("traces", found.trace.values, [float(circuits[label].trace()) for label in labels])
    ratios = torch.stack([row.real.sum() / row.abs().sum() for row in values])
    yield Pair("ratios", found.ratio.values, ratios, 1e-6)
    large = [row.abs() > 1e-6 * row.abs().max() for row in values]
    shares = [float((row.real[keep] > 0).double().mean()) for row, keep in zip(values, large)]
    yield Pair("shares of positive ones", found.positive.values, shares)
    for label, row, expected in zip(labels, found.eigenvalues.values, values):
        n = len(expected)
        # of a conjugate pair either may come first
        yield Pair(f"sizes of {label}", row[:n].abs(), expected.abs(), 1e-6)
        yield Pair(f"sum of {label}", row[:n].real.sum(), expected.real.sum(), 1e-6)


def composition_score(w: HeadWeights, kind: str, earlier: str, later: str, offsets: Iterable[int]) -> float:
    """Return how much a head's queries, keys or values read of what an earlier head writes.

    Norms of whole products; of rotary positions one product for each offset.
    """
    (one, i), (other, j) = (_found(w, label) for label in (earlier, later))
    # of several values below each other: squared norms add up
    moved = torch.cat([_moved(of_value, i) for of_value in one.moving("composition")])
    write, reads = _carried(w, one, other, moved), _reads(other, j, kind, offsets)
    met = sum(float((write @ read).square().sum()) for read in reads)
    whole = float(write.square().sum()) * sum(float(read.square().sum()) for read in reads)
    return math.sqrt(met / whole) if whole else math.nan


def _composition(asked: Asked) -> Iterator[Pair]:
    found, model = asked.found, asked.parts
    w, left_out = weights.matrices(asked.given["model"]), found.left_out
    kinds, earlier, later = ([str(label) for label in found.scores.labels(axis)] for axis in found.scores.axes)
    expected = torch.full_like(found.scores.values, math.nan)
    for (c, kind), (a, first), (b, second) in product(enumerate(kinds), enumerate(earlier), enumerate(later)):
        one, other = (model.sub_layer(_found(w, label)[0].path) for label in (first, second))
        of_source = other.crosses and kind != "Q"
        meets = one.stack != other.stack if of_source else other.reads(one)
        if meets and f"{one.path} write" not in left_out and f"{other.path} {kind}" not in left_out:
            expected[c, a, b] = composition_score(w, kind, first, second, found.offsets)
    # square roots of shares that are next to nothing
    yield Pair("scores", found.scores.values, expected, 1e-6)


def _found(w: HeadWeights, label: str) -> tuple[AttentionWeights, int]:
    return next((layer, layer.labels.index(label)) for layer in w.attention if label in layer.labels)


def _moved(layer: AttentionWeights, head: int) -> Tensor:
    """Return what a head's values and its output matrix make of the stream, `d_model d_model`."""
    ov = layer[head].ov()
    return ov.left[0] @ ov.right[0]


def _reads(layer: AttentionWeights, head: int, kind: str, offsets: Iterable[int]) -> list[Tensor]:
    """Return the matrices that a head reads by: several for the streams of a head, and for offsets."""
    if kind == "V":
        return [_moved(one, head) for one in layer.moving("composition")]
    found: list[Tensor] = []
    for offset in offsets if layer.module.positions.rotates else (None,):
        qk = layer[head].qk(offset)
        products = (qk.left[0] @ qk.right[0]).reshape(-1, qk.left.shape[-2], qk.right.shape[-1])
        found += [one if kind == "Q" else one.mT for one in products]
    return found


def _carried(w: HeadWeights, one: AttentionWeights, other: AttentionWeights, write: Tensor) -> Tensor:
    """Return a write behind the norms that stand on the stream until it is read, up to their scales."""
    earlier, later = (w.model.sub_layer(layer.path) for layer in (one, other))
    for layer in w.model.sub_layers(earlier.stack)[earlier.index :]:
        norm = layer.stream_norm
        if norm is not None and (later.stack != earlier.stack or layer.index < later.entry):
            write = write - write.mean(-1, keepdim=True) if norm.centred else write
            write = write if norm.gain is None else write * norm.gain.detach()
    return write


JUDGES = {
    "copying": Judge(_copying, ("ratio", "positive", "trace", "eigenvalues")),
    "composition": Judge(_composition, ("scores",)),
}
