"""Where attention goes over a long context: first tokens, last tokens, in between.

For a query q with weights A[q, k]: sink = mass on keys before s, recent = mass on the last r keys up to q itself,
middle = the rest; entropy in nats; effective count e^entropy. Classes of heads, from means over queries:

    uniform               effective count at least half of what is visible
    V                     sink + recent at least .9, each at least .1
    sink only             sink + recent at least .9, recent below .1
    recent only           sink + recent at least .9, sink below .1
    concentrated middle   else, middle at least .5, and the 16 largest weights hold at least half of the mass
    scattered middle      else, middle at least .5
    mixed                 else

V and sink only are said of heads that have more on the first keys than heads with weights drawn anew hardly ever reach.
Rows that sum to less than one lack the mass of a learned sink that is no key: it is counted as such, and in the classes
with the first keys. Of rows with signs a key's mass is the size of its weight over the sum of the sizes.

A weight is not an effect: a head may rest on a token whose value is nearly zero (`value_norms`). The text is read a
block of queries at a time on top of a state, so that only block x keys weights of one layer exist at once.

Source: Fu 2024, "How Do Language Models put Attention Weights over Long Context?" (classes; the thresholds of the last
three are ours); Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks"; Gu et al. 2024, "When
Attention Sink Emerges in Language Models" (share of sink heads).
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.analysis.behaviour._resting import DRAWS, hardly_reached, rests, say_rate
from glassformer.analysis.behaviour._row_shares import Shares, say, shares, shares_of
from glassformer.analysis.heads.roles import Head, heads, layer_of, patterned, rows_of
from glassformer.analysis.prepare import prepare
from glassformer.analysis.question import question
from glassformer.arguments import Count, Natural
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.labelled import Labelled, Result
from glassformer.models import ModelLike
from glassformer.models.evaluation import evaluating
from glassformer.trace import Read, Tape

AttentionClass = Literal["uniform", "V", "sink only", "recent only", "concentrated middle", "scattered middle", "mixed"]
CLASSES: tuple[AttentionClass, ...] = (
    "uniform", "V", "sink only", "recent only", "concentrated middle", "scattered middle", "mixed",
)  # fmt: skip
ENDS = 0.1  # mass from which a head looks at an end
TOP = (1, 3, 16, 256)
MEASURES = (
    "first", "sink", "recent", "middle", "entropy_nats", "effective_count", "effective_share",
    *(f"top_{k}" for k in TOP), "distance",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class LongContext(Result):
    """Where heads look, over the queries that were measured.

    Args:
        measures: Means, `head measure`: masses of the first key, of sink, recent and middle keys and of the largest
            weights (`top_16`), entropy in nats, effective count, its share of the keys up to the query, mean distance
            in positions of what is on keys. The sink of rows that lack mass counts as one more place for the entropy
            and what is made of it.
        missing: Mean mass that rows lack to one, by `head`: what a learned sink has; 0 where there is none.
        spread: Standard deviation over queries and rows, same axes.
        distances: Mass by distance, `head distance`, in bins that double: 0, 1, 2-3, 4-7, ….
        classes: One per head.
        by_layer: Share of each layer's heads that is of each class, `layer class`.
        sink_rate: Share of heads whose mean mass on the first key, if it is beyond `chance`, and what their rows lack
            is above `sink_above`.
        sink: s; how many first keys count as sink.
        recent: r; how many last keys count as recent, the query's own included.
        sink_above: See `sink_rate`.
        chance: Mass on the first key that heads hardly ever reach here with weights drawn anew (entries of each tensor
            shuffled): their largest and two deviations. NaN where the weights are not in memory.
        chance_of_sink: The same of mass on all sink keys, beyond which a head is of class `V` or `sink only`.
        queries: First and last query measured.
        length: Of the text.
        readings: For each head, what its shares are: `mass`, as the weights are; `sink`, what rows lack beside them;
            `signed`, of the sizes of weights.
        left_out: Heads of layers without such weights, and why.
    """

    HEADLINE = ("by_layer", "distances", "measures")

    measures: Labelled
    missing: Labelled
    spread: Labelled
    distances: Labelled
    classes: Mapping[str, AttentionClass]
    by_layer: Labelled
    sink_rate: float
    sink: int
    recent: int
    sink_above: float
    chance: float
    chance_of_sink: float
    queries: tuple[int, int]
    length: int
    readings: Mapping[str, Shares]
    left_out: Mapping[str, str]


@dataclasses.dataclass(frozen=True, eq=False)
class EffectiveMemory(Result):
    """How long heads with a decaying memory keep what they read, whatever the text.

    Args:
        measures: `head measure`: `decay` per position, `half_life` in positions, and `reach`, the mean age in positions
            of what the memory holds of equally strong keys; infinite without decay.
    """

    HEADLINE = ("measures",)

    measures: Labelled


@question("Where do heads look in a long text?", of="texts")
@torch.no_grad()
def long_context(
    model: ModelLike,
    text: Any,
    *,
    target: Any = None,
    sink: Natural = 4,
    recent: Natural = 16,
    last: int | None = None,
    block: Count = 256,
    sink_above: float = 0.3,
    report: Callable[[int, int], None] | None = None,
) -> LongContext:
    """Measure where every self-attention head of a decoder looks.

    Args:
        model: A decoder, or an encoder-decoder, whose decoder is measured.
        text: Text or ids, any number of rows of one length.
        sink: How many first keys count as sink.
        recent: How many last keys count as recent.
        last: Measure so many last queries; all by default that have room for both windows.
        block: Queries read at once.
        sink_above: Mean mass on the first key from which a head counts into the sink rate.

    Raises:
        AnalysisUnavailable: No layer has scores and patterns of weights; `effective_memory` may be defined.
        ShapeMismatch: The text is too short for the windows, or a batch is padded or packs several texts in a row.
    """
    known, left_out = _measurable(model)
    given = prepare(model, text, target)
    ids = given.require_ids("long_context")
    padded = given.lengths is not None and bool((given.lengths < ids.shape[1]).any())
    if padded or given.kwargs.get("documents") is not None:
        raise ShapeMismatch(
            "long_context is of rows of one length, with one text in each.\n"
            "    Of several lengths: [long_context(model, one) for one in prompts]."
        )
    if sink < 1 or recent < 1 or block < 1:
        raise ShapeMismatch(f"long_context: sink={sink}, recent={recent} and block={block} must be at least 1.")
    length = ids.shape[1]
    start = max(sink + recent - 1, 0 if last is None else length - last)
    if start >= length:
        raise ShapeMismatch(
            f"long_context: {length} tokens leave no query with {sink} sink and {recent} recent keys apart; "
            "give a longer text or smaller windows."
        )
    read_as: dict[str, Shares] = {head.path: shares_of(layer_of(model, head)) for head in known}
    say(read_as.values())
    done = 0

    def more(n: int) -> None:
        nonlocal done
        done += n
        if report is not None:
            report(done, length * (1 + DRAWS))

    def read(one: ModelLike) -> dict[str, _WeightMeter]:
        meters = {path: _WeightMeter(sink, recent, length, as_what) for path, as_what in read_as.items()}
        _read(one, meters, ids, given.source_ids, start, block, more)
        return meters

    def masses(drawn: ModelLike) -> Float[Tensor, "head place"]:
        return _by_head(read(drawn), known, "total")[:, [MEASURES.index("first"), MEASURES.index("sink")]]

    with evaluating(model):
        meters = read(model)
    reached = hardly_reached(model, masses)
    chance = (math.nan, math.nan) if reached is None else (float(reached[0]), float(reached[1]))
    return _result(known, meters, left_out, (sink, recent, sink_above), chance, (start, length - 1), length)


@question("How fast do linear-attention heads forget?", of="weights")
def effective_memory(model: ModelLike) -> EffectiveMemory:
    """Effective memory of linear-attention heads: how fast they forget, in place of attention over distance.

    With decay d the weight of a key of age t is d^t times what query and key make of it.

    Args:
        model: A decoder or an encoder-decoder.

    Raises:
        AnalysisUnavailable: No layer is linear attention with a fixed decay, or with none.
    """
    labels, rows = list[str](), list[list[float]]()
    for head in heads(model):
        layer = layer_of(model, head)
        kept = layer.mixer.decay(layer.merge.output.weight.double())
        if kept is None:
            continue
        decay = float(kept[head.head])
        labels.append(head.label)
        forgets = decay < 1
        half = math.log(0.5) / math.log(decay) if forgets else math.inf
        rows.append([decay, half, decay / (1 - decay) if forgets else math.inf])
    if not rows:
        kinds = ", ".join(sorted({head.mechanism for head in heads(model)}))
        raise AnalysisUnavailable(
            f"effective_memory: no layer keeps a decaying memory ({kinds}).\n"
            "    long_context(model, text) measures heads with weights over keys."
        )
    axes, coords = ("head", "measure"), {"head": labels, "measure": ("decay", "half_life", "reach")}
    return EffectiveMemory(Labelled(torch.tensor(rows, dtype=torch.float64), axes, coords))


def _read(
    model: ModelLike,
    meters: Mapping[str, "_WeightMeter"],
    ids: Int[Tensor, "row pos"],
    source: Int[Tensor, "row source_pos"] | None,
    start: int,
    block: int,
    more: Callable[[int], None],
) -> None:
    """Read a text a block of queries at a time, metering weights from query `start` on; `more` is told its size."""
    length = ids.shape[1]
    state = model.begin(source if model.reads_pairs else len(ids))
    first = 0
    while first < length:
        # up to the first query that counts, nothing has to be looked at
        stop = min(start, first + block) if first < start else min(length, first + block)
        read = [Read(f"{path}.pattern", reduce=meter) for path, meter in meters.items()] if stop > start else []
        for meter in meters.values():
            meter.first = first
        tape = Tape(model, read) if read else None
        args = (None, ids[:, first:stop]) if model.reads_pairs else (ids[:, first:stop],)
        _, state = model(*args, state=state, tape=tape)
        more(stop - first)
        first = stop


class _WeightMeter:
    """Sums over queries of what is measured of one layer's weights; `first` is the first query of the block."""

    def __init__(self, sink: int, recent: int, length: int, reading: Shares) -> None:
        self.sink, self.recent, self.first, self.count = sink, recent, 0, 0
        self.reading: Shares = reading
        self.bins = 1 + max(length - 1, 0).bit_length()
        self.total = self.square = self.distances = torch.zeros(())

    def __call__(self, pattern: Float[Tensor, "batch *value_stream head query key"]) -> Float[Tensor, ""]:
        pattern = rows_of(pattern)
        batch, _, n, m = pattern.shape
        a, missing = shares(pattern.double(), self.reading)
        q = torch.arange(self.first, self.first + n, device=a.device)
        # a layer with a window keeps fewer keys than there are positions: columns are aligned at the end
        k = torch.arange(self.first + n - m, self.first + n, device=a.device)
        distance = (q[:, None] - k).clamp_min(0)
        sink = a[..., k < self.sink].sum(-1)
        recent = (a * (distance < self.recent)).sum(-1)
        entropy = -torch.xlogy(a, a).sum(-1) - torch.xlogy(missing, missing)
        count = entropy.exp()
        largest = a.topk(min(max(TOP), m), -1).values.cumsum(-1)
        on_keys, places = 1 - missing, q + 1 + (self.reading == "sink")
        found = [a[..., k < 1].sum(-1), sink, recent, on_keys - sink - recent, entropy, count, count / places]
        found += [largest[..., min(top, m) - 1] for top in TOP]
        far = (a * distance).sum(-1) / on_keys.clamp_min(torch.finfo(a.dtype).tiny)
        values = torch.stack([*found, far, missing], -1)
        mean = values.sum((0, 2))
        self.total, self.square = self.total + mean, self.square + values.square().sum((0, 2))
        edges = 2 ** torch.arange(self.bins - 1, device=a.device)
        at = torch.bucketize(distance, edges, right=True)
        by_bin = a.new_zeros(*a.shape[:3], self.bins).scatter_add_(-1, at.expand(a.shape), a)
        self.distances = self.distances + by_bin.sum((0, 2))
        self.count += batch * n
        # all that is wanted has been added up: nothing of the pattern is kept
        return pattern.new_zeros(())


def _measurable(model: ModelLike) -> tuple[list[Head], dict[str, str]]:
    """Return the decoder's self-attention heads with scores and patterns, and the others with the reason."""
    own = [h for h in heads(model) if h.stack != "encoder" and not h.crosses]
    scored = {h.path for h in own if layer_of(model, h).mixer.traits.has_scores}
    known = [h for h in patterned(model) if h.stack != "encoder" and h.path in scored]
    measured, left_out = {h.path for h in known}, dict[str, str]()
    for head in own:
        traits = layer_of(model, head).mixer.traits
        if head.path not in measured:
            missing = "has_scores=False" if traits.has_patterns else f'linear_in_value="{traits.linear_in_value}"'
            left_out[head.label] = f'"{head.mechanism}" ({missing})'
    if not known:
        why = ", ".join(sorted(set(left_out.values()))) or "no attention"
        offer = (
            "effective_memory(model) gives the decay of its memory."
            if any(not layer_of(model, head).config.mixer.stores_keys for head in own)
            else "head_roles(run) reads signed patterns."
        )
        raise AnalysisUnavailable(f"long_context needs weights that are shares of keys; found {why}.\n    {offer}")
    return known, left_out


def _by_head(meters: Mapping[str, _WeightMeter], known: list[Head], name: str) -> Float[Tensor, "head _"]:
    """Return means of what meters have summed."""
    n = next(iter(meters.values())).count
    return torch.stack([getattr(meters[head.path], name)[head.row] for head in known]).cpu() / n


def _result(
    known: list[Head],
    meters: Mapping[str, _WeightMeter],
    left_out: dict[str, str],
    windows: tuple[int, int, float],
    chances: tuple[float, float],
    queries: tuple[int, int],
    length: int,
) -> LongContext:
    sink, recent, sink_above = windows
    chance, chance_of_sink = chances
    total, square, distances = (_by_head(meters, known, name) for name in ("total", "square", "distances"))
    labels, missing = [head.label for head in known], total[:, -1]
    total, square = total[:, :-1], square[:, :-1]
    over = (("head", "measure"), {"head": labels, "measure": MEASURES})
    resting = rests(total[:, MEASURES.index("first")], missing, sink_above, chance)
    say_rate(resting, sink_above, chance)
    at_sinks = rests(total[:, MEASURES.index("sink")], missing, ENDS, chance_of_sink)
    rows = zip(labels, total.tolist(), missing.tolist(), at_sinks.tolist())
    classes: dict[str, AttentionClass] = {x: _class(dict(zip(MEASURES, row)), *more) for x, row, *more in rows}
    layers = list(dict.fromkeys(label[: label.index("H")] for label in labels))
    shares = torch.zeros(len(layers), len(CLASSES), dtype=torch.float64)
    for label, found in classes.items():
        shares[layers.index(label[: label.index("H")]), CLASSES.index(found)] += 1
    bins = ["0", "1", *(f"{1 << i}-{(2 << i) - 1}" for i in range(1, distances.shape[1] - 1))]
    return LongContext(
        measures=Labelled(total, *over),
        missing=Labelled(missing, ("head",), {"head": labels}),
        spread=Labelled((square - total.square()).clamp_min(0).sqrt(), *over),
        distances=Labelled(distances, ("head", "distance"), {"head": labels, "distance": bins[: distances.shape[1]]}),
        classes=classes,
        by_layer=Labelled(
            shares / shares.sum(1, keepdim=True), ("layer", "class"), {"layer": layers, "class": CLASSES}
        ),
        sink_rate=float(resting.double().mean()),
        sink=sink,
        recent=recent,
        sink_above=sink_above,
        chance=chance,
        chance_of_sink=chance_of_sink,
        queries=queries,
        length=length,
        readings={head.label: meters[head.path].reading for head in known},
        left_out=left_out,
    )


def _class(mean: dict[str, float], missing: float, at_sinks: bool) -> AttentionClass:
    sink, recent = mean["sink"] + missing, mean["recent"]
    if mean["effective_share"] >= 0.5:
        return "uniform"
    if sink + recent >= 0.9 and sink < ENDS:
        return "recent only"
    if sink + recent >= 0.9 and at_sinks:
        return "V" if recent >= ENDS else "sink only"
    if mean["middle"] < 0.5:
        return "mixed"
    return "concentrated middle" if mean["top_16"] >= 0.5 else "scattered middle"
