"""What was measured of attention mechanisms, as a result: costs by call, mechanism and length, and how they grow."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from glassformer.bench.growth import growth_exponent
from glassformer.bench.paired import Comparison, Seconds, Spread
from glassformer.labelled import Labelled, Result
from glassformer.provenance import Note, Provenance
from glassformer.version import __version__
from glassformer.words import sentence

FORWARD, PACKED = sentence("forward"), sentence("forward, packed")
BACKWARD, PACKED_BACKWARD = sentence("forward + backward"), sentence("forward + backward, packed")
STEP = sentence("decode step")
CALLS = (FORWARD, PACKED, BACKWARD, PACKED_BACKWARD, STEP)
FUSED = sentence("fused softmax")
WIDE = 0.1  # an A/A interval wider than this says that the machine was too busy
NAN = float("nan")


@dataclass(frozen=True, eq=False)
class AttentionCosts(Result):
    """What attention mechanisms cost by length, beside PyTorch's fused softmax attention of the same width.

    NaN is what was not measured; `left_out` says why. The first mechanism of `seconds`, `peak_bytes` and `state_bytes`
    is the fused baseline.

    Args:
        seconds: Median seconds of a call, `call mechanism length`, by the clock that `measured_by` names.
        seconds_low: Lower end of the 95 % interval of that median.
        seconds_high: Upper end of it.
        peak_bytes: Most bytes that a call held at once beyond its inputs, `call mechanism length`: masks, z, and
            gradients included.
        state_bytes: What a decode step carries after a text of this length, `mechanism length`.
        ratio: Time over that of the fused baseline, `call mechanism length`: median over rounds, below 1 is faster.
        ratio_low: Lower end of the 95 % interval of that median.
        ratio_high: Upper end of it.
        same_low: Lower end of the interval of the baseline over itself (A/A), in the same rounds: what two equal things
            differ by here.
        same_high: Upper end of it.
        ratio_least: Least ratio of a round.
        ratio_largest: Largest ratio of a round.
        rounds: Ratios that each median is of.
        growth: Exponent of growth with length, `cost call mechanism`: 1 is linear, 2 quadratic.
        growth_low: Least exponent between neighbouring lengths.
        growth_high: Largest exponent between neighbouring lengths.
        left_out: What was not measured, and why.
        measured_by: How time and memory were measured, and what that does not see; and of a call, by its name, what the
            baseline does in it that is not the same.
        n_heads: Heads of a layer.
        d_head: Width of a head, streams together; n_heads x d_head is the width of the layer.
        batch: Rows.
        documents: Documents in a packed row, of equal length.
        dtype: Type of queries, keys and values.
        device: Where it ran.
        processor: The machine's processor.
        threads: Threads on the CPU.
    """

    HEADLINE = ("seconds", "peak_bytes", "state_bytes")

    seconds: Labelled
    seconds_low: Labelled
    seconds_high: Labelled
    peak_bytes: Labelled
    state_bytes: Labelled
    ratio: Labelled
    ratio_low: Labelled
    ratio_high: Labelled
    same_low: Labelled
    same_high: Labelled
    ratio_least: Labelled
    ratio_largest: Labelled
    rounds: Labelled
    growth: Labelled
    growth_low: Labelled
    growth_high: Labelled
    left_out: dict[str, str]
    measured_by: dict[str, str]
    n_heads: int
    d_head: int
    batch: int
    documents: int
    dtype: str
    device: str
    processor: str
    threads: int

    @property
    def memory_ratio(self) -> Labelled:
        """Peak memory over that of the fused baseline, `call mechanism length`."""
        values = self.peak_bytes.values
        return Labelled(values[:, 1:] / values[:, :1], self.ratio.axes, self.ratio.coords)


@dataclass(frozen=True)
class MeasuredCall:
    """One call of a mechanism at one length, beside the fused baseline.

    Args:
        comparison: Times.
        peak: Most bytes held at once; NaN where that is not known.
        fused_peak: The same of the baseline.
        state: Bytes of the state that a decode step begins with; NaN for other calls.
        fused_state: Bytes of keys and values that the baseline reads in that step.
    """

    comparison: Comparison
    peak: float
    fused_peak: float
    state: float = NAN
    fused_state: float = NAN


@dataclass
class CostTable:
    """What was measured, by call, mechanism and length; and what was not, by mechanism and call.

    Args:
        names: Of mechanisms.
        lengths: In ascending order.
        clock: Which of the clocks of a comparison counts: `cpu`, `wall`.
    """

    names: list[str]
    lengths: list[int]
    clock: str
    measured: dict[tuple[str, str, int], MeasuredCall] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def result(self, seed: int, **facts: Any) -> AttentionCosts:
        """All as a result; `facts` are its fields that say how it was measured."""
        seconds, seconds_low, seconds_high = (self._seconds(of) for of in ("median", "low", "high"))
        peaks = self.beside(lambda m: m.peak, lambda m: m.fused_peak)
        same_low, same_high = (self.each(lambda m, end=end: getattr(self._same(m), end)) for end in ("low", "high"))
        found = AttentionCosts(
            seconds=seconds,
            seconds_low=seconds_low,
            seconds_high=seconds_high,
            peak_bytes=peaks,
            state_bytes=self.beside(lambda m: m.state, lambda m: m.fused_state).select(call=STEP),
            ratio=self.each(lambda m: self._ratio(m).median),
            ratio_low=self.each(lambda m: self._ratio(m).low),
            ratio_high=self.each(lambda m: self._ratio(m).high),
            same_low=same_low,
            same_high=same_high,
            ratio_least=self.each(lambda m: self._ratio(m).least),
            ratio_largest=self.each(lambda m: self._ratio(m).largest),
            rounds=self.each(lambda m: float(m.comparison.rounds)),
            **_growths(self.lengths, {"time": seconds, "memory": peaks}),
            left_out=self.left_out,
            **facts,
        )
        notes = _busy(same_high.values - same_low.values)
        return found.noted(*notes).bound(_provenance(found, self.names, seed))

    def each(self, of: Callable[[MeasuredCall], float]) -> Labelled:
        """A number of each call of each mechanism at each length; NaN where it was not measured."""
        values = [[[self._number(call, name, n, of) for n in self.lengths] for name in self.names] for call in CALLS]
        coords = {"call": list(CALLS), "mechanism": self.names, "length": self.lengths}
        return Labelled(torch.tensor(values, dtype=torch.float64), ("call", "mechanism", "length"), coords)

    def beside(self, of: Callable[[MeasuredCall], float], fused: Callable[[MeasuredCall], float]) -> Labelled:
        """The same with the baseline before them: the median of what it was beside each mechanism."""
        ours, theirs = self.each(of), self.each(fused)
        values = torch.cat((theirs.values.nanmedian(1, keepdim=True).values, ours.values), 1)
        return Labelled(values, ours.axes, {**ours.coords, "mechanism": [FUSED, *self.names]})

    def _seconds(self, of: Literal["median", "low", "high"]) -> Labelled:
        def taken(seconds: Seconds) -> float:
            return getattr(getattr(seconds, self.clock), of)

        return self.beside(
            lambda m: taken(m.comparison.subject_seconds), lambda m: taken(m.comparison.baseline_seconds)
        )

    def _number(self, call: str, name: str, length: int, of: Callable[[MeasuredCall], float]) -> float:
        found = self.measured.get((call, name, length))
        return NAN if found is None else of(found)

    def _ratio(self, measured: MeasuredCall) -> Spread:
        return getattr(measured.comparison, self.clock)

    def _same(self, measured: MeasuredCall) -> Spread:
        return getattr(measured.comparison, f"{self.clock}_same")


def _growths(lengths: Sequence[int], costs: Mapping[str, Labelled]) -> dict[str, Labelled]:
    """Return exponents of growth, and the least and largest of them between neighbouring lengths."""
    coords = next(iter(costs.values())).coords
    labels = {"cost": list(costs), "call": coords["call"], "mechanism": coords["mechanism"]}
    found = [
        [[growth_exponent(lengths, row) for row in rows] for rows in cost.values.tolist()] for cost in costs.values()
    ]
    ends = torch.tensor(found, dtype=torch.float64).unbind(-1)
    return {
        name: Labelled(values, ("cost", "call", "mechanism"), labels)
        for name, values in zip(("growth", "growth_low", "growth_high"), ends)
    }


def _busy(same: Tensor) -> list[Note]:
    """Return a note if the machine was too busy for small differences to be seen."""
    wide = int((same > WIDE).sum())
    if not wide:
        return []
    seen = sentence(
        "In {n} of {all} comparisons, what two equal things differ by (A/A) is known to a tenth at best.",
        n=wide, all=int(same.isfinite().sum()),
    )  # fmt: skip
    return [Note(seen, sentence("Ratios near 1 say little there."), sentence("Measure on an idle machine, or longer."))]


def _provenance(found: AttentionCosts, names: Sequence[str], seed: int) -> Provenance:
    why = sentence("mechanisms with weights as they are drawn, which do not change what they cost")
    return Provenance(
        analysis="attention_costs",
        model=", ".join(names),
        digest="",
        why=why,
        trained_length=None,
        dtype=found.dtype,
        device=found.device,
        input=(),
        seed=seed,
        version=__version__,
        torch=str(torch.__version__),
    )
