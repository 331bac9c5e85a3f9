"""What attention mechanisms cost: time, memory, state and growth with length, beside PyTorch's fused softmax attention.

    z, state = mixer(q, k, v)        against        z = scaled_dot_product_attention(q, k, v)

Mechanisms alone are timed, in layers of equal width n_heads x d_head: no projections, no positions. Five calls are:

    forward, forward + backward      causal, over one text; and packed, over several documents in a row
    decode step                      one position more, on the state of a text of this length

Subject and baseline take turns in one process (`paired`), every call with A/A. Masks are made once per pass and shared
by all layers of a model: they count as memory, and not as time.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.arguments import Amount, Count, Several, checked
from glassformer.attention import Attention, Context, Dims, Mixer, MixerConfig
from glassformer.attention.mixer import several
from glassformer.bench.growth import growth_exponent
from glassformer.bench.machine import processor
from glassformer.bench.memory import SEEN, UNSEEN, peak_bytes
from glassformer.bench.paired import LEAST_ROUNDS, Comparison, Spread, Timing, compare, compare_timed, timed
from glassformer.config import require
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Labelled, Result
from glassformer.models.stack import make_context, tensors
from glassformer.numerics.placement import (
    Device,
    NumberType,
    device_name,
    device_of,
    free_memory,
    is_accelerator,
    number_type,
)
from glassformer.provenance import Note, Provenance
from glassformer.version import __version__
from glassformer.words import sentence

LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384)
FORWARD, PACKED = sentence("forward"), sentence("forward, packed")
BACKWARD, PACKED_BACKWARD = sentence("forward + backward"), sentence("forward + backward, packed")
STEP = sentence("decode step")
CALLS = (FORWARD, PACKED, BACKWARD, PACKED_BACKWARD, STEP)
FUSED = sentence("fused softmax")
ROUNDS = 20  # most ratios per comparison
DOCUMENTS = 4  # in a packed row, of equal length
STEPS = 16  # decode steps between two readings of the clock
SMALL = 1024  # from here on, what a length takes is foretold by one of half its size
WIDE = 0.1  # an A/A interval wider than this says that the machine was too busy

Report = Callable[[int, int, str], object]


@dataclass(frozen=True, eq=False)
class AttentionCosts(Result):
    """What attention mechanisms cost by length, beside PyTorch's fused softmax attention of the same width.

    NaN is what was not measured; `left_out` says why. The first mechanism of `seconds`, `peak_bytes` and `state_bytes`
    is the fused baseline.

    Args:
        seconds: Median seconds of a call, `call mechanism length`, by the clock that `measured_by` names.
        peak_bytes: Most bytes that a call held at once beyond its inputs, `call mechanism length`: masks, z, and
            gradients included.
        state_bytes: What a decode step carries after a text of this length, `mechanism length`.
        ratio: Time over that of the fused baseline, `call mechanism length`: median over rounds, below 1 is faster.
        ratio_low: Lower end of the 95 % interval of that median.
        ratio_high: Upper end of it.
        same_low: Lower end of the interval of the baseline over itself (A/A), in the same rounds: what two equal things
            differ by here.
        same_high: Upper end of it.
        rounds: Ratios that each median is of.
        growth: Exponent of growth with length, `cost call mechanism`: 1 is linear, 2 quadratic.
        growth_low: Least exponent between neighbouring lengths.
        growth_high: Largest exponent between neighbouring lengths.
        left_out: What was not measured, and why.
        measured_by: How time and memory were measured, and what that does not see.
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
    peak_bytes: Labelled
    state_bytes: Labelled
    ratio: Labelled
    ratio_low: Labelled
    ratio_high: Labelled
    same_low: Labelled
    same_high: Labelled
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


@checked
def attention_costs(
    mechanisms: Sequence[str | MixerConfig] = (),
    *,
    lengths: Several[Count] = LENGTHS,
    n_heads: Count = 4,
    d_head: Count = 64,
    batch: Count = 1,
    device: Device = "auto",
    dtype: NumberType = torch.float32,
    threads: Count = 1,
    seconds: Amount = 5.0,
    seed: int = 0,
    report: Report | None = None,
) -> AttentionCosts:
    """Measure what attention mechanisms cost by length, beside PyTorch's fused softmax attention.

    Args:
        mechanisms: Kinds, or configs with settings; every registered kind in its default by default.
        lengths: Tokens of a row.
        n_heads: Heads of a layer.
        d_head: Width of a head, its streams together.
        batch: Rows.
        device: Where to measure; `"auto"` is this machine's accelerator if it has one, and the CPU otherwise.
        dtype: Type of queries, keys and values.
        threads: Threads on the CPU.
        seconds: Longest time per comparison. What would take longer with the fewest rounds there are is left out, as is
            what would take more than half of the memory that is free.
        seed: Of what is drawn: queries, keys, values, and weights of mechanisms.
        report: Told how much is done, of how much, and what is measured now.

    Raises:
        UnknownKind: There is no mechanism of a name.
        ConfigError: Sizes do not fit together, or there is no such device or type.

    Example:
        costs = attention_costs(["softmax", Softmax(window=128)], lengths=[256, 512])
        costs.ratio.select(call="forward", length=1)  # over mechanisms, at 512 tokens
    """
    configs = [_config(one) for one in mechanisms] or [_config(kind) for kind in sorted(MixerConfig.registry)]
    names = [config.described for config in configs]
    require(len(set(names)) == len(names), f"mechanisms: each may be named once, found {', '.join(names)}.")
    where, kind = device_of(device), number_type(dtype)
    assert where is not None and kind is not None, "neither was None"
    lengths = sorted(set(lengths))
    setting = _Setting(n_heads, d_head, batch, where, kind, seconds, seed)
    table = _Table(names, lengths)
    done, total = 0, sum(lengths) * len(CALLS) * len(configs)
    with _threads(threads):
        for config in configs:
            mechanism = _Mechanism(config, setting, max(lengths))
            for length in _ascending(lengths):
                for call in CALLS:
                    if report is not None:
                        report(done, total, f"{mechanism.name}, {call}, {length:,}")
                    mechanism.measure(call, length, table)
                    done += length if length in lengths else 0
    return _result(table, setting, threads)


def _config(mechanism: str | MixerConfig) -> MixerConfig:
    return MixerConfig.from_dict({"kind": mechanism}) if isinstance(mechanism, str) else mechanism


def _ascending(lengths: Sequence[int]) -> list[int]:
    """Return lengths in order, with shorter ones between that foretell what the longer ones take."""
    doubled = (SMALL << i for i in range(32))
    return sorted({*lengths, *(length for length in doubled if length < lengths[-1])})


@contextmanager
def _threads(n: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class _Setting:
    """What all mechanisms share; see `attention_costs`."""

    n_heads: int
    d_head: int
    batch: int
    device: torch.device
    dtype: torch.dtype
    seconds: float
    seed: int

    @property
    def clock(self) -> str:
        """Which clock is judged by: CPU time where the CPU does the work, as others use it too."""
        return "wall" if is_accelerator(self.device) else "cpu"

    @property
    def wait(self) -> Callable[[], object] | None:
        return partial(torch.accelerator.synchronize, self.device) if is_accelerator(self.device) else None

    def context(self, length: int, *, packed: bool = False, past: int = 0) -> Context:
        """Return the facts of a pass, with masks still to be made."""
        ids = (torch.arange(length, device=self.device) * DOCUMENTS // length).expand(self.batch, -1)
        return make_context(
            self.batch, length, self.device, is_causal=True, past=past, document_ids=ids if packed else None
        )

    def draw(self, *shape: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randn(shape, generator=generator).to(self.device, self.dtype)


class _Inputs(NamedTuple):
    """Queries, keys, values and the layer's input."""

    q: Tensor
    k: Tensor
    v: Tensor
    x: Tensor

    def first(self, n: int) -> "_Inputs":
        return _Inputs(*(rows[..., :n, :] for rows in self))

    def at(self, i: int) -> "_Inputs":
        return _Inputs(*(rows[..., i : i + 1, :] for rows in self))


@dataclass
class _Table:
    """What was measured: by call, mechanism and length; and what was not, by call and mechanism."""

    names: list[str]
    lengths: list[int]
    comparisons: dict[tuple[str, str, int], Comparison] = field(default_factory=dict)
    peaks: dict[tuple[str, str, int], tuple[float, float]] = field(default_factory=dict)
    states: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


class _Mechanism:
    """One mechanism and the fused baseline beside it, at any length."""

    def __init__(self, config: MixerConfig, setting: _Setting, max_len: int) -> None:
        self.name, self.setting = config.described, setting
        width = setting.n_heads * setting.d_head
        self.dims: Dims = Attention(setting.n_heads, mixer=config).dims(width, max_len + STEPS + 1)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(setting.seed)
            self.mixer: Mixer = config.build(self.dims, "attn").to(setting.device, setting.dtype).eval()
        # what a call took at the last length: seconds of a round, bytes
        self.taken: dict[str, tuple[int, float, float]] = {}
        self.stopped: set[str] = set()

    def measure(self, call: str, length: int, table: _Table) -> None:
        """Measure one call at one length, or say why not; of a length that only foretells, a single round."""
        if call in self.stopped:
            return
        why = self._too_much(call, length)
        try:
            if not why:
                return self._measure(call, length, table)
        except AnalysisUnavailable as error:
            why = str(error)
        self.stopped.add(call)
        first = next(asked for asked in table.lengths if asked >= length)
        table.left_out[f"{self.name}: {call}"] = sentence("from {n:,} tokens on: {why}", n=first, why=why)

    def _too_much(self, call: str, length: int) -> str:
        """Return why a length is not tried, foretold from the last one as if all grew with its square; or nothing."""
        # the state of a decode step is made by a forward pass
        before, spent, held = self.taken.get(FORWARD if call == STEP else call, (length, 0.0, 0.0))
        factor, given = (length / before) ** 2, self.setting.seconds
        if call == STEP and factor * spent > given:
            return sentence(
                "the forward pass that makes the state would take up to {needed:.3g} s, of the {given:g} s that a "
                "comparison has",
                needed=factor * spent, given=given,
            )  # fmt: skip
        if call != STEP and LEAST_ROUNDS * factor * spent > given:
            return sentence(
                "{n} rounds would take up to {needed:.3g} s, of the {given:g} s that a comparison has",
                n=LEAST_ROUNDS, needed=LEAST_ROUNDS * factor * spent, given=given,
            )  # fmt: skip
        free = free_memory(self.setting.device)
        if free is not None and factor * held > free / 2:
            return sentence(
                "up to {needed:.3g} GiB would be held at once, and {free:.3g} GiB are free",
                needed=factor * held / 2**30, free=free / 2**30,
            )  # fmt: skip
        return ""

    def _measure(self, call: str, length: int, table: _Table) -> None:
        asked = length in table.lengths
        if call == STEP:
            return self._measure_step(length, table) if asked else None
        packed, backward = call in (PACKED, PACKED_BACKWARD), call in (BACKWARD, PACKED_BACKWARD)
        inputs = self._inputs(length)
        fused = self._fused_inputs(length)
        wait, device, of = self.setting.wait, self.setting.device, partial(self.setting.context, length, packed=packed)
        weights = list(self.mixer.parameters())
        ours, theirs = partial(self._mixed, inputs), partial(_fused, fused)
        if backward:
            ours = _with_gradients(ours, [*inputs, *weights])
            theirs = _with_gradients(theirs, list(fused[:3]))
        with torch.set_grad_enabled(backward):
            peaks = tuple(peak_bytes(partial(run, of()), device) for run in (ours, theirs))
            context = of()
            subject, baseline = partial(ours, context), partial(theirs, context)
            if asked:
                key = (call, self.name, length)
                found = compare(subject, baseline, rounds=ROUNDS, seconds=self.setting.seconds, warmup=1, wait=wait)
                table.comparisons[key] = found
                table.peaks[key] = (_number(peaks[0]), _number(peaks[1]))
                round_ = found.subject.wall + 2 * found.baseline.wall
            else:
                round_ = timed(subject, wait=wait).wall + 2 * timed(baseline, wait=wait).wall
        self.taken[call] = (length, round_, float(max(peak or 0 for peak in peaks)))

    @torch.no_grad()
    def _measure_step(self, length: int, table: _Table) -> None:
        """Time steps in a row, each on the state of the one before it, and count what the first of them begins with."""
        setting, key = self.setting, (STEP, self.name, length)
        inputs, fused = self._inputs(length + STEPS + 1), self._fused_inputs(length + STEPS + 1)
        rows = inputs.first(length)
        _, state = self.mixer(*rows, setting.context(length), self.mixer.begin(setting.batch, rows.v), None)
        contexts = [setting.context(1, past=length + i) for i in range(STEPS + 1)]

        def steps(state: Any, which: range) -> Any:
            for i in which:
                _, state = self.mixer(*inputs.at(length + i), contexts[i], state, None)
            return state

        def fused_steps(which: range) -> None:
            for i in which:
                F.scaled_dot_product_attention(
                    fused.q[..., length + i : length + i + 1, :],
                    fused.k[..., : length + i + 1, :],
                    fused.v[..., : length + i + 1, :],
                )

        def subject() -> Timing:
            # the first step copies the state to where there is room for more: once in many steps, so it is not timed
            with_room = steps(state, range(1))
            return _each(timed(lambda: steps(with_room, range(1, STEPS + 1)), wait=setting.wait))

        def baseline() -> Timing:
            return _each(timed(lambda: fused_steps(range(1, STEPS + 1)), wait=setting.wait))

        with_room = steps(state, range(1))
        peaks = (
            peak_bytes(lambda: steps(with_room, range(1, 2)), setting.device),
            peak_bytes(lambda: fused_steps(range(1, 2)), setting.device),
        )
        subject()
        baseline()
        table.comparisons[key] = compare_timed(subject, baseline, rounds=ROUNDS, seconds=setting.seconds)
        table.peaks[key] = (_number(peaks[0]), _number(peaks[1]))
        kept = fused.first(length)
        table.states[self.name, length] = (_bytes(tensors(state)), _bytes([kept.k, kept.v]))

    def _mixed(self, inputs: _Inputs, context: Context) -> Tensor:
        return self.mixer(*inputs, context, None, None)[0]

    def _inputs(self, length: int) -> _Inputs:
        dims, traits, draw, batch = self.dims, self.mixer.traits, self.setting.draw, self.setting.batch
        q, k = draw(2, batch, *several(traits.streams), dims.n_heads, length, dims.d_head)
        v = draw(batch, *several(traits.value_streams), dims.n_heads, length, dims.d_value)
        return _Inputs(q, k, v, draw(batch, length, dims.d_model))

    def _fused_inputs(self, length: int) -> _Inputs:
        setting = self.setting
        q, k, v = setting.draw(3, setting.batch, setting.n_heads, length, setting.d_head)
        return _Inputs(q, k, v, v)


def _fused(inputs: _Inputs, context: Context) -> Tensor:
    n = inputs.q.shape[-2]
    mask = None if context.is_causal else context.allowed(n, n)
    return F.scaled_dot_product_attention(*inputs[:3], attn_mask=mask, is_causal=mask is None)


def _with_gradients(forward: Callable[[Context], Tensor], leaves: Sequence[Tensor]) -> Callable[[Context], Any]:
    """Return the forward pass with the backward pass behind it, down to inputs and weights."""
    for leaf in leaves:
        leaf.requires_grad_()

    def both(context: Context) -> Any:
        z = forward(context)
        return torch.autograd.grad(z, leaves, torch.ones_like(z), allow_unused=True)

    return both


def _each(taken: Timing) -> Timing:
    return Timing(taken.cpu / STEPS, taken.wall / STEPS)


def _number(peak: int | None) -> float:
    return float("nan") if peak is None else float(peak)


def _bytes(held: Sequence[Tensor]) -> int:
    return sum(one.numel() * one.element_size() for one in held)


# ---- the result


def _result(table: _Table, setting: _Setting, threads: int) -> AttentionCosts:
    clock, names, lengths = setting.clock, table.names, table.lengths
    everyone = {"call": list(CALLS), "mechanism": [FUSED, *names], "length": lengths}

    def cells(of: Callable[[Comparison], float]) -> Labelled:
        values = [[[_of(table.comparisons.get((c, m, n)), of) for n in lengths] for m in names] for c in CALLS]
        return Labelled(_tensor(values), ("call", "mechanism", "length"), everyone | {"mechanism": names})

    def beside(baseline: Callable[[str, int], float], ours: Labelled) -> Labelled:
        first = _tensor([[[baseline(call, length) for length in lengths]] for call in CALLS])
        return Labelled(torch.cat((first, ours.values), 1), ours.axes, everyone)

    def fused_seconds(call: str, length: int) -> float:
        found = [c for m in names if (c := table.comparisons.get((call, m, length))) is not None]
        return median(getattr(c.baseline, clock) for c in found) if found else float("nan")

    def fused_peak(call: str, length: int) -> float:
        return next((peaks[1] for m in names if (peaks := table.peaks.get((call, m, length)))), float("nan"))

    unknown = (float("nan"), float("nan"))
    ours = _tensor([[[table.peaks.get((c, m, n), unknown)[0] for n in lengths] for m in names] for c in CALLS])
    seconds = beside(fused_seconds, cells(lambda c: getattr(c.subject, clock)))
    peaks = beside(fused_peak, Labelled(ours, seconds.axes, everyone | {"mechanism": names}))
    held = [[table.states.get((m, n), unknown)[0] for n in lengths] for m in names]
    fused = [next((table.states[m, n][1] for m in names if (m, n) in table.states), float("nan")) for n in lengths]
    states = Labelled(_tensor([fused, *held]), ("mechanism", "length"), _less(everyone, "call"))
    same = cells(lambda c: _spread(c, f"{clock}_same").high - _spread(c, f"{clock}_same").low).values
    found = AttentionCosts(
        seconds, peaks, states,
        cells(lambda c: _spread(c, clock).median), cells(lambda c: _spread(c, clock).low),
        cells(lambda c: _spread(c, clock).high), cells(lambda c: _spread(c, f"{clock}_same").low),
        cells(lambda c: _spread(c, f"{clock}_same").high), cells(lambda c: c.rounds),
        *_growths(lengths, {"time": seconds, "memory": peaks}),
        left_out=table.left_out, measured_by=_measured_by(setting), n_heads=setting.n_heads, d_head=setting.d_head,
        batch=setting.batch, documents=DOCUMENTS, dtype=str(setting.dtype).removeprefix("torch."),
        device=device_name(setting.device), processor=processor(), threads=threads,
    )  # fmt: skip
    return found.noted(*_busy(same)).bound(_provenance(found, names, setting.seed))


def _growths(lengths: Sequence[int], costs: dict[str, Labelled]) -> Iterator[Labelled]:
    """Yield exponents of growth, and the least and largest of them between neighbouring lengths."""
    labels = {"cost": list(costs)} | _less(next(iter(costs.values())).coords, "length")
    found = [
        [[growth_exponent(lengths, row) for row in rows] for rows in cost.values.tolist()] for cost in costs.values()
    ]
    for values in _tensor(found).unbind(-1):
        yield Labelled(values, ("cost", "call", "mechanism"), labels)


def _measured_by(setting: _Setting) -> dict[str, str]:
    by_cpu = sentence("CPU time of all threads of the process: what it takes of a machine that others use too")
    by_wall = sentence("time by the clock, until the device is done")
    return {
        "time": by_cpu if setting.clock == "cpu" else by_wall,
        "memory": SEEN.get(setting.device.type, UNSEEN),
    }


def _busy(same: Tensor) -> list[Note]:
    """Return a note if the machine was too busy for small differences to be seen."""
    wide = int((same > WIDE).sum())
    if not wide:
        return []
    seen = sentence("In {n} of {all} comparisons, what two equal things differ by (A/A) is known to a tenth at best.",
                    n=wide, all=int(same.isfinite().sum()))  # fmt: skip
    return [Note(seen, sentence("Ratios near 1 say little there."), sentence("Measure on an idle machine, or longer."))]


def _provenance(found: AttentionCosts, names: Sequence[str], seed: int) -> Provenance:
    why = sentence("mechanisms with weights as they are drawn, which do not change what they cost")
    return Provenance(
        "attention_costs", ", ".join(names), "", why, None, found.dtype, found.device, (), seed, __version__,
        str(torch.__version__),
    )  # fmt: skip


def _spread(comparison: Comparison, clock: str) -> Spread:
    return getattr(comparison, clock)


def _of(comparison: Comparison | None, of: Callable[[Comparison], float]) -> float:
    return float("nan") if comparison is None else float(of(comparison))


def _tensor(values: Sequence[Any]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _less(coords: Any, axis: str) -> dict[str, Any]:
    return {name: labels for name, labels in coords.items() if name != axis}
