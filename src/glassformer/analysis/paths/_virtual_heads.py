"""Virtual heads: two heads in a row, which move and move again, act as one.

    pattern A2 A1,   OV = OV1 OV2,   contribution at q: sum over k of (A2 A1)[q, k] x_k OV1 OV2 W_U

There is one for every two heads that can follow each other. Each alone is often small; together they are the paths of
order two (see `importance`). Patterns and norm scales are frozen to those of the run. Of heads with several values each
value is one, with a pattern of its own: `L0H1/0`.

Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits" (virtual attention heads).
"""

import dataclasses
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer import weights
from glassformer.analysis._run import Run
from glassformer.analysis.components import require_next_tokens, require_one_pattern
from glassformer.analysis.paths._steps import Step, Steps, step_sites, steps_of
from glassformer.analysis.question import question
from glassformer.arguments import Count
from glassformer.errors import AnalysisUnavailable, ShapeMismatch, nearest
from glassformer.labelled import Labelled, Result
from glassformer.models import SubLayer
from glassformer.numerics import decompositions
from glassformer.weights import AttentionWeights, Factored, WeightsLike

# numbers held at once: first heads are taken in pieces that stay below it
BUDGET = 2**24


@dataclasses.dataclass(frozen=True, eq=False)
class VirtualHeads(Result):
    """All pairs of heads, the ones that matter most first.

    Args:
        size: Mean over positions of the absolute contribution to the logit of the next token, `pair`.
        mean: Mean contribution, signed, `pair`.
        offsets: For the first pairs, how much weight the composed pattern puts on each distance between destination and
            source, mean over the destinations that have one, `pair offset`.
        pairs: First and second head of each pair.
        sum: Mean contribution of all pairs together.
        positions: Number of positions the means are over.
    """

    HEADLINE = ("size", "mean", "offsets")
    SIGNED = ("mean",)

    size: Labelled
    mean: Labelled
    offsets: Labelled
    pairs: tuple[tuple[str, str], ...]
    sum: float
    positions: int


@dataclasses.dataclass(frozen=True, eq=False)
class VirtualCopying(Result):
    """Whether virtual heads copy: eigenvalues of the circuit from token to logit, W_E OV1 OV2 W_U.

    Args:
        score: Sum of the eigenvalues over the sum of their absolute values, `first second`, in [-1, 1]; 1 if all are
            positive, NaN if all are zero.
        positive: Share of the eigenvalues that are not zero (to rounding) whose real part is positive, `first second`.
        eigenvalues: `first second rank`, complex.
    """

    HEADLINE = ("score", "positive")
    SIGNED = ("score",)

    score: Labelled
    positive: Labelled
    eigenvalues: Labelled


@question(
    "Which pairs of heads add to the next token together?",
    reads=step_sites,
    traits=("linear_in_value",),
    holds=("patterns", "norm scales", "gates", "value slopes"),
)
@torch.no_grad()
def virtual_heads(
    run: Any,
    text: Any = None,
    target: Any = None,
    *,
    centred: bool = True,
    n_offsets: Count = 8,
    top: Count = 10,
) -> VirtualHeads:
    """Rank all pairs of heads by what they contribute together to the logit of the token that comes next in the text.

    Args:
        run: A forward pass over any number of rows that read `[virtual_heads]`, or a model.
        centred: Take the logit less the mean over the vocabulary, which softmax does not see.
        n_offsets: Distances of the composed patterns to report, from 0.
        top: Number of pairs whose composed pattern is looked at.

    Raises:
        SiteNotRead: The run lacks a site.
        NoPattern: A mechanism has no pattern that multiplies values.
        AnalysisUnavailable: No head can follow another, or the text has no next token.
    """
    steps = steps_of(run, "virtual_heads")
    counts, direction = _next_tokens(run, steps, centred)
    rows = pair_contributions(steps, direction)
    if not rows:
        raise AnalysisUnavailable(
            f"virtual_heads: no head follows another here (depth {steps.depth}).\n"
            "    Single heads are in analysis.attribution.direct_logit_attribution(run) and "
            "analysis.paths.expand_paths(run)."
        )
    pairs = [pair for found, _ in rows for pair in found]
    values = torch.cat([value.flatten(0, 1) for _, value in rows]).double() * counts
    n = int(counts.sum())
    size, mean = values.abs().sum((1, 2)) / n, values.sum((1, 2)) / n
    order = size.argsort(descending=True)
    pairs = [pairs[i] for i in order.tolist()]
    names = {"pair": [" > ".join(pair) for pair in pairs]}
    shown = pairs[:top]
    n_offsets = min(n_offsets, steps.token.shape[1])
    profiles = torch.stack([_profile(_composed(steps, pair), n_offsets, run.lengths) for pair in shown])
    return VirtualHeads(
        Labelled(size[order], ("pair",), names),
        Labelled(mean[order], ("pair",), names),
        Labelled(profiles, ("pair", "offset"), {"pair": names["pair"][:top], "offset": list(range(n_offsets))}),
        tuple(pairs), float(mean.sum()), n,
    )  # fmt: skip


@question(
    "Where does a pair of heads look together?",
    reads=step_sites,
    traits=("linear_in_value",),
    holds=("patterns", "norm scales", "gates", "value slopes"),
)
@torch.no_grad()
def composed_pattern(
    run: Any,
    text: Any = None,
    target: Any = None,
    *,
    first: str,
    second: str,
    row: int = 0,
) -> Labelled:
    """The pattern of a virtual head, A2 A1, over `query key`.

    Rows sum to one where those of both heads do.

    Args:
        first: Label of the lower head, `L0H1`, or `L0H1/0` where heads have several values.
        second: Label of the head that reads what it wrote, likewise.
    """
    pattern = _composed(steps_of(run, "composed_pattern"), (first, second))[0]
    labels = [f"{i}:{token}" for i, token in enumerate(run.tokens)]
    return Labelled(pattern, ("query", "key"), {"query": labels, "key": labels})


def pair_contributions(
    steps: Steps, direction: Float[Tensor, "batch pos d_model"]
) -> list[tuple[list[tuple[str, str]], Float[Tensor, "first second batch pos"]]]:
    """Return what every two heads in a row contribute along a direction of the last stream, position by position.

    What the first head moves is all that reaches it without another head: tokens, positions, biases, MLPs as recorded.

    Args:
        steps: The frozen stack.
        direction: Above the last sub-layer, one for each position.

    Returns:
        For every two layers, the pairs (second heads fastest) and their contributions.
    """
    entering = steps.streams(heads=False)
    found: list[tuple[int, int, list[tuple[str, str]], Tensor]] = []
    for j, write, _ in steps.down(direction):
        second = steps.steps[j] if j >= 0 else None
        if second is None or not second.n_heads:
            continue
        above = second.mixed(write)
        for i in range(second.entry):
            first = steps.steps[i]
            if first.n_heads:
                pairs = [(a, b) for a in first.pattern_labels for b in second.pattern_labels]
                found.append((i, j, pairs, _pairs(steps, i, j, entering[i], above)))
    found.sort(key=lambda each: each[:2])
    return [(pairs, values) for _, _, pairs, values in found]


def _pairs(
    steps: Steps, i: int, j: int, entering: Tensor, above: Float[Tensor, "batch head pos d_value"]
) -> Float[Tensor, "first second batch pos"]:
    first, second = steps.steps[i], steps.steps[j]
    of_first, of_second = (range(len(step.pattern_labels) // step.n_heads) for step in (first, second))
    z = torch.stack([first.mix(entering, bias=True, value=value) for value in of_first])
    size = above.numel() + z.shape[0] * z.shape[1] * z.shape[3] * steps.token.shape[-1]
    parts = []
    piece = max(1, BUDGET // size)
    for start in range(0, first.n_heads, piece):
        # value batch head pos d_model -> (head value) batch pos d_model
        wrote = first.write_per_head(z, slice(start, start + piece)).movedim(2, 0).flatten(0, 1)
        y = first.on_stream(first.behind(wrote))
        for k in range(i + 1, second.entry):
            y = steps.steps[k].passed(y)
        met = [torch.einsum("fbhte,bhte->fhbt", second.mix(y, value=value), above) for value in of_second]
        parts.append(torch.stack(met, 2).flatten(1, 2))
    return torch.cat(parts)


def _next_tokens(
    run: Run, steps: Steps, centred: bool
) -> tuple[Bool[Tensor, "batch pos"], Float[Tensor, "batch pos d_model"]]:
    """Return which positions have a next token, and the direction of its logit above the last sub-layer."""
    require_next_tokens(run.model, "virtual_heads")
    run.model.require_one_vocabulary("virtual_heads")
    ids = run.inputs.require_ids("virtual_heads")
    if ids.shape[1] < 2:
        raise AnalysisUnavailable("virtual_heads: the text has one token and so no next one; give at least two.")
    places = torch.arange(ids.shape[1], device=ids.device)
    last = ids.shape[1] if run.lengths is None else run.lengths[:, None]
    counts = (places + 1 < last).expand(ids.shape)
    matrix = steps.unembed.weight
    u = matrix[ids.roll(-1, 1)] - (matrix.mean(0) if centred else 0)
    return counts, steps.final.adjoint(u * counts[..., None])


def _composed(steps: Steps, pair: tuple[str, str]) -> Float[Tensor, "batch query key"]:
    (first, a), (second, b) = (_find(steps, label) for label in pair)
    if steps.steps.index(first) >= second.entry:
        raise AnalysisUnavailable(f'virtual heads: "{pair[1]}" does not read what "{pair[0]}" writes.')
    return second.pattern_of(b) @ first.pattern_of(a)


def _find(steps: Steps, label: str) -> tuple[Step, int]:
    for step in steps:
        if label in step.pattern_labels:
            return step, step.pattern_labels.index(label)
        if label in step.labels and step.attention is not None:
            require_one_pattern(step.attention, "virtual heads", f'Name one of its values: "{label}/0".')
    known = [name for step in steps for name in step.pattern_labels]
    raise AnalysisUnavailable(f'virtual heads: no head "{label}".{nearest(label, known)}')


def _profile(pattern: Tensor, n_offsets: int, lengths: Tensor | None) -> Float[Tensor, " offset"]:
    length = pattern.shape[-1]
    real = torch.full((len(pattern),), length, device=pattern.device) if lengths is None else lengths
    found = []
    for offset in range(n_offsets):
        diagonal = pattern.diagonal(-offset, -2, -1)
        counts = torch.arange(offset, length, device=pattern.device) < real[:, None]
        found.append((diagonal * counts).sum() / counts.sum())
    return torch.stack(found)


@question("Which pairs of heads copy tokens together?", of="weights", holds=("gates", "latent scales"))
@torch.no_grad()
def virtual_copying(model: WeightsLike, first: int, second: int) -> VirtualCopying:
    """Say from the weights alone whether the virtual heads of two layers copy tokens.

    The eigenvalues of the vocabulary-sized circuit are those of a matrix of the size of one head, for all pairs at
    once. Norms' gains are folded in; the scale of the norm between the two heads is left at one, which changes no
    score. The unembedding is centred over the vocabulary (unless logits are capped): raising all logits alike is no
    copying, and where that is an eigenvector its eigenvalue is zero. Position vectors are left out.

    Args:
        model: A decoder, whose weights are folded first; or its folded weights (`weights.of`).
        first: Index of the lower attention layer among those of the stack that ends in the logits.
        second: Index of the upper one.

    Raises:
        AnalysisUnavailable: No such layers, no OV circuit, or post-norm blocks, whose norms stand in between.
    """
    w = weights.matrices(model)
    if not w.folded or w.augmented:
        raise AnalysisUnavailable(
            "virtual_copying takes folded weights without a constant coordinate, and these are others.\n"
            "    Give the model, or weights.of(model, fold=True)."
        )
    w.model.require_one_vocabulary("virtual_copying")
    w.model.unembed.require_matrix("virtual_copying")
    layers = w.of_stack()
    if len(layers) < 2:
        raise AnalysisUnavailable(
            f"virtual_copying joins heads of two layers of self-attention; the stack that ends in the logits has "
            f"{len(layers)}."
        )
    if not 0 <= first < second < len(layers):
        raise ShapeMismatch(f"virtual_copying: layers {first} and {second} of {len(layers)} do not follow each other.")
    low, high = layers[first], layers[second]
    places = w.sub_layers[low.path], w.sub_layers[high.path]
    _require_open(low, high, *places)
    # several values of a head one after the other
    (ov1, firsts), (ov2, seconds) = map(_moved_by_value, (low, high))
    # W_E without positions, through the first head's norm; then d_model x d_model once for all heads
    embed = w.read(w.E, low)
    final = w.final_norm()
    around = (w.U - w.U.mean(0) if final.centred else w.U) @ embed
    before = places[1].before
    # what the second head reads, mean taken out where its norm takes it out
    values = ov2.left - ov2.left.mean(-2, keepdim=True) if before is not None and before.centred else ov2.left
    # O2 (W_U W_E) V1, then O1 V2
    left = torch.einsum("jed,dc,icf->ijef", ov2.right, around, ov1.left)
    right = torch.einsum("ied,jdf->ijef", ov1.right, values)
    found = decompositions.eigenvalues(left @ right)
    coords = {"first": firsts, "second": seconds}
    size = found.abs()
    there = size > size.amax(-1, keepdim=True) * size.shape[-1] * torch.finfo(size.dtype).eps
    axes = ("first", "second")
    return VirtualCopying(
        Labelled(found.real.sum(-1) / size.sum(-1), axes, coords),
        Labelled(((found.real > 0) & there).sum(-1) / there.sum(-1), axes, coords),
        Labelled(found, (*axes, "rank"), coords),
    )


def _moved_by_value(layer: AttentionWeights) -> tuple[Factored, list[str]]:
    """Return OV circuits of a layer's heads, one for each value, and their labels."""
    every = layer.moving("virtual_copying")
    left, right = (torch.cat([getattr(one.ov(), side) for one in every]) for side in ("left", "right"))
    return Factored(left, right), [label for one in every for label in one.labels]


def _require_open(low: AttentionWeights, high: AttentionWeights, first: SubLayer, second: SubLayer) -> None:
    for layer, place in ((low, first), (high, second)):
        layer.moving("virtual_copying")
        if place.stream_norm:
            raise AnalysisUnavailable(
                f"virtual_copying: layer {layer.layer} is post-norm: the stream itself is normalised between two "
                "heads, so the weights alone do not say what passes.\n"
                "    analysis.paths.virtual_heads(run) freezes those norms."
            )
    if not second.reads(first):
        raise AnalysisUnavailable(
            f"virtual_copying: both layers lie in the parallel block {low.layer} and read the same stream; neither "
            "reads what the other writes.\n    Give layers of different blocks."
        )
