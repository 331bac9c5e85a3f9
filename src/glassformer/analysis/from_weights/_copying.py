"""Copying heads: those whose output makes the token they look at likelier.

The full OV circuit M = E V O U of a head says how attending to a token changes each logit; copying shows on its
diagonal. Two views, none of which builds M:

    by eigenvalues    sum of lambda / sum of |lambda| in [-1, 1]; 1 if every direction is copied, -1 if every one is
                      suppressed, about 0 for a random head. The eigenvalues that are not zero are those of O G V with
                      G = U E, summed once over the vocabulary: d_value x d_value per head.
    by rows           how often, and by how much, the diagonal stands out from its row.

Eigenvalues say nothing of single tokens: matrices that are not normal can have positive eigenvalues and a negative
diagonal. Heads that attend together share the work: look at the sum of their circuits too.

Token vectors are read through the layer's norm as if the stream held only them, so behind the first layer this is the
direct path; the final norm's scale is left at one, constants play no part.

Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits" (copying, eigenvalues).
"""

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer import weights
from glassformer.analysis.from_weights.selection import LeftOut, by_head, filled, labels_of, layers_for, token_choice
from glassformer.analysis.question import question
from glassformer.arguments import Count, Several
from glassformer.attention import linear
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Labelled, Result
from glassformer.numerics import decompositions
from glassformer.weights import AttentionWeights, Factored, HeadWeights, WeightsLike

CHUNK = 4096  # tokens whose vectors are normed at a time
BLOCK = 1 << 22  # logits held at a time


@dataclasses.dataclass(frozen=True, eq=False)
class Copying(Result):
    """How much each head copies, by the eigenvalues of its full OV circuit.

    Args:
        ratio: Sum of the eigenvalues over the sum of their sizes, in [-1, 1], by `head`; NaN for a head without any, or
            with none but rounding errors.
        positive: Share of the eigenvalues that are not negligible whose real part is positive, by `head`.
        trace: Sum of the eigenvalues, which is that of the diagonal, in logits per unit of attention, by `head`.
        eigenvalues: `head eigenvalue`, complex, largest first; filled with NaN where heads have fewer.
        folded: Whether norms were folded into the matrices.
        n_tokens: Size of the vocabulary that was looked at.
        left_out: Heads the analysis is not defined for, and why.
    """

    HEADLINE = ("ratio", "positive", "eigenvalues")
    SIGNED = ("ratio", "trace")

    ratio: Labelled
    positive: Labelled
    trace: Labelled
    eigenvalues: Labelled
    folded: bool
    n_tokens: int
    left_out: LeftOut

    def heads(self, above: float = 0.5) -> list[tuple[str, float]]:
        """The heads whose ratio is higher, best first."""
        return [(str(label), x) for (label,), x in self.ratio.top(self.ratio.size("head")) if x > above]


@dataclasses.dataclass(frozen=True, eq=False)
class CopyingRates(Result):
    """How much each head copies, row by row of its full OV circuit.

    Args:
        rate: Share of tokens whose own logit is among the k that attending to them raises most, `head k`.
        suppressed: Share of tokens whose own logit is among the k it lowers most, `head k`.
        positive: Share of tokens whose own logit is raised more than the average one, by `head`.
        z: By how many standard deviations of its row the diagonal is above its mean, averaged, by `head`.
        folded: Whether norms were folded into the matrices.
        n_rows: How many tokens were looked at; against the whole vocabulary each (what `tokens` leaves of it).
        left_out: Heads the analysis is not defined for, and why.
    """

    HEADLINE = ("rate", "suppressed", "z")
    SIGNED = ("z",)

    rate: Labelled
    suppressed: Labelled
    positive: Labelled
    z: Labelled
    folded: bool
    n_rows: int
    left_out: LeftOut


@question(
    "Which heads copy tokens, by the eigenvalues of their circuits?",
    of="weights",
    holds=("gates", "latent scales"),
    judge="eigenvalues of the whole circuit, vocabulary by vocabulary",
)
def copying(
    model: WeightsLike,
    heads: Several[str] | None = None,
    *,
    sums: Sequence[Sequence[str]] = (),
    tokens: Int[Tensor, " n"] | Sequence[int] | None = None,
) -> Copying:
    """Score heads by the eigenvalues of their full OV circuits.

    Args:
        heads: Labels; by default all heads of the stack that ends in the logits for which it is defined.
        sums: Sets of heads whose circuits are added before the eigenvalues are taken; called `L1H4+L1H10`.

    Raises:
        AnalysisUnavailable: A named head, or every head, has no OV circuit that ends in the logits; or these are not
            of the tokens that are read.
    """
    w = weights.matrices(model)
    w.model.require_one_vocabulary("copying by eigenvalues")
    layers, left_out = layers_for(w, heads, _check(w, "copying by eigenvalues"), by_value=True)
    ids = None if tokens is None else token_choice(w, tokens)
    grams = _Grams(w, ids)
    values = [decompositions.eigenvalues(_small(layer, grams[layer])) for layer in layers]
    floors = [rounding(layer.ov(), grams[layer]) for layer in layers]
    labels = labels_of(layers)
    for names in sums:
        parts = [w[name] for name in names]
        for part in parts:
            _check(w, "copying by eigenvalues")(part)
        values.append(decompositions.eigenvalues(_joint(parts, grams)))
        floors.append(torch.stack([rounding(part.ov(), grams[part])[0] for part in parts]).sum(0, keepdim=True))
        labels.append("+".join(names))
    spectra = _named(labels, values, "eigenvalue")
    total = _each(values, lambda x: x.real.sum(-1))
    real = _each(values, lambda x: x.abs().amax(-1)) > torch.cat(floors)
    size = _each(values, lambda x: x.abs().sum(-1))
    # what rounding leaves of zero eigenvalues has no sign
    large = [x.abs() > 1e-6 * x.abs().amax(-1, keepdim=True) for x in values]
    positive = torch.cat([((x.real > 0) & keep).sum(-1).double() / keep.sum(-1) for x, keep in zip(values, large)])
    coords = {"head": labels}
    return Copying(
        ratio=Labelled((total / size).where(real, torch.nan), ("head",), coords),
        positive=Labelled(positive, ("head",), coords),
        trace=Labelled(total, ("head",), coords),
        eigenvalues=spectra,
        folded=w.folded,
        n_tokens=w.U.shape[-1] if ids is None else len(ids),
        left_out=left_out,
    )


@question("Which heads raise the token they look at above others?", of="weights", holds=("gates", "latent scales"))
def copying_rates(
    model: WeightsLike,
    heads: Several[str] | None = None,
    *,
    k: Several[int] = (1, 5),
    tokens: Int[Tensor, " n"] | Sequence[int] | None = None,
    rows: Count | None = 1000,
) -> CopyingRates:
    """Score heads by how the diagonal of their full OV circuit stands out from its row.

    Args:
        heads: As for `copying`.
        k: Ranks to count.
        rows: How many tokens to look at, evenly spread over the vocabulary; None for all of them.

    Raises:
        AnalysisUnavailable: As for `copying`.
    """
    w = weights.matrices(model)
    w.model.require_one_vocabulary("copying by rows")
    layers, left_out = layers_for(w, heads, _check(w, "copying by rows"), by_value=True)
    ids = token_choice(w, tokens)
    picked = torch.arange(len(ids), device=ids.device)
    if rows is not None and rows < len(ids):
        picked = torch.linspace(0, len(ids) - 1, rows, device=ids.device).long()
    out = w.read_out() if tokens is None else w.read_out()[:, ids]
    found = [_rates(w, layer, ids[picked], picked, out, k) for layer in layers]
    rate, suppressed, positive, z = (list(column) for column in zip(*found))
    return CopyingRates(
        rate=by_head(layers, rate, "k", k=list(k)),
        suppressed=by_head(layers, suppressed, "k", k=list(k)),
        positive=by_head(layers, positive),
        z=by_head(layers, z),
        folded=w.folded,
        n_rows=len(picked),
        left_out=left_out,
    )


def _check(w: HeadWeights, analysis: str) -> Any:
    def check(layer: AttentionWeights) -> None:
        w.require_logits(layer, analysis)
        layer.require_ov(analysis)
        if layer.crosses:
            raise AnalysisUnavailable(
                f"{analysis}: {layer.labels[0]} moves the encoder's output, which no token's vector stands for.\n"
                "    The copying score of analysis.heads.head_scores goes by what heads do."
            )

    return check


class _Grams:
    """G = U E, the sum over tokens of unembedding column times vector read, once per way of reading."""

    def __init__(self, w: HeadWeights, ids: Tensor | None) -> None:
        self.w, self.ids = w, ids
        self.known: dict[Hashable, Tensor] = {}
        self.out = w.read_out() if ids is None else w.read_out()[:, ids]

    def __getitem__(self, layer: AttentionWeights) -> Float[Tensor, "d_model d_model"]:
        key, bare, gain = self.w.but_for_gain(layer)
        if key not in self.known:
            self.known[key] = self._sum(bare, layer)
        gram = self.known[key]
        return gram if gain is None else gram * gain

    def _sum(self, w: HeadWeights, layer: AttentionWeights) -> Tensor:
        n = self.out.shape[-1]
        wide = torch.float64 if self.out.dtype == torch.float64 else torch.float32
        total = torch.zeros(len(self.out), len(self.out), dtype=wide, device=self.out.device)
        scale = w.source_scale(layer)
        for start in range(0, n, CHUNK):
            stop = min(start + CHUNK, n)
            ids = torch.arange(start, stop, device=total.device) if self.ids is None else self.ids[start:stop]
            rows = w.source_rows(layer, "value", "token", ids, scale=scale)
            total += linear(self.out[:, start:stop].to(wide), rows.to(wide).mT)
        return total


def _small(layer: AttentionWeights, gram: Tensor) -> Float[Tensor, "head d_value d_value"]:
    ov = layer.ov()
    wide = gram.dtype
    # all heads' values side by side: one product instead of one per head
    read = (gram @ ov.left.to(wide).movedim(0, 1).flatten(1)).unflatten(1, (len(ov.left), -1)).movedim(1, 0)
    return ov.right.to(wide) @ read


def rounding(ov: Factored, between: Float[Tensor, "d_model d_model"]) -> Float[Tensor, " head"]:
    """Return how large eigenvalues of `right @ between @ left` can be by rounding alone."""
    norms = ov.left.norm(dim=(-2, -1)) * ov.right.norm(dim=(-2, -1))
    return 8 * torch.finfo(between.dtype).eps * between.norm() * norms.to(between.dtype)


def _joint(parts: Sequence[AttentionWeights], grams: _Grams) -> Float[Tensor, "1 width width"]:
    """Return the small matrix of a sum of circuits: rows of blocks by who writes, columns by who reads."""
    ovs = [part.ov() for part in parts]
    reads = torch.cat([grams[part] @ ov.left[0].to(grams[part].dtype) for part, ov in zip(parts, ovs)], -1)
    return (torch.cat([ov.right[0].to(reads.dtype) for ov in ovs], -2) @ reads)[None]


def _named(labels: Sequence[str], values: Sequence[Tensor], axis: str) -> Labelled:
    width = max(v.shape[-1] for v in values)
    return Labelled(torch.cat([filled(v, width) for v in values]), ("head", axis), {"head": list(labels)})


def _each(values: Sequence[Tensor], what: Any) -> Tensor:
    return torch.cat([what(v) for v in values])


def _rates(
    w: HeadWeights, layer: AttentionWeights, ids: Tensor, places: Tensor, out: Tensor, k: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return rates among the highest and the lowest k, share above the mean, and mean z, by head."""
    ov = layer.ov()
    left = w.source_rows(layer, "value", "token", ids) @ ov.left
    right = ov.right @ out
    heads, n, m = len(right), len(ids), out.shape[-1]
    sums = [left.new_zeros(heads, len(k)), left.new_zeros(heads, len(k)), left.new_zeros(heads), left.new_zeros(heads)]
    limits = torch.tensor(list(k), device=ids.device)
    step = max(1, BLOCK // (heads * m))
    for start in range(0, n, step):
        made = left[:, start : start + step] @ right
        own = made.gather(-1, places[None, start : start + step, None].expand(heads, -1, 1))
        above, below = (made > own).sum(-1), (made < own).sum(-1)
        # a row of equal numbers tells nothing: what is not above the others is not copied
        varied = (above + below > 0)[..., None]
        sums[0] += ((above[..., None] < limits) & varied).sum(1)
        sums[1] += ((below[..., None] < limits) & varied).sum(1)
        mean, deviation = made.mean(-1), made.std(-1, correction=0)
        sums[2] += (own[..., 0] > mean).sum(1)
        sums[3] += torch.where(deviation > 0, (own[..., 0] - mean) / deviation, 0.0).sum(1)
    rate, suppressed, positive, z = (s / n for s in sums)
    return rate, suppressed, positive, z
