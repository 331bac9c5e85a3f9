"""What attention mechanisms cost: time, memory, state and growth with length, beside PyTorch's fused softmax attention.

    z, state = mixer(q, k, v)        against        z = scaled_dot_product_attention(q, k, v)

Mechanisms alone are timed, in layers of equal width n_heads x d_head: no projections, no positions. Five calls are:

    forward, forward + backward      causal, over one text; and packed, over several documents in a row
    decode step                      one position more, on the state of a text of this length

What needs a text whole is measured, like the baseline beside it, without the causal mask, and has no step. Subject and
baseline take turns in one process (`paired`), every call with A/A. The baseline is given packed documents as a dense
mask, and writes no key in a decode step; `measured_by` says so by call. Masks are made once per pass and shared by all
layers of a model: they count as memory, and not as time.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.arguments import Amount, Count, Several, checked
from glassformer.attention import Attention, Context, Dims, Mixer, MixerConfig, Tied
from glassformer.attention.mixer import several
from glassformer.bench.costs import (
    BACKWARD,
    CALLS,
    FORWARD,
    PACKED,
    PACKED_BACKWARD,
    STEP,
    AttentionCosts,
    CostTable,
    MeasuredCall,
)  # fmt: skip
from glassformer.bench.machine import processor
from glassformer.bench.memory import KEPT, SEEN, UNSEEN, keep_freed_memory, peak_bytes
from glassformer.bench.paired import LEAST_ROUNDS, Timing, compare, compare_timed, timed
from glassformer.config import require
from glassformer.errors import AnalysisUnavailable, ConfigError
from glassformer.models.stack import make_context, tensors
from glassformer.numerics.placement import (
    Device,
    NumberType,
    device_name,
    device_of,
    free_memory,
    is_accelerator,
    number_type,
)  # fmt: skip
from glassformer.words import sentence

LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384)
ROUNDS = 20  # most ratios per comparison
DOCUMENTS = 4  # in a packed row, of equal length
STEPS = 16  # decode steps between two readings of the clock
# what the baseline does otherwise, said beside what is measured against it
DENSE_MASK = sentence(
    "the fused baseline is given the documents as a dense mask and works through all of it, forbidden places too; a "
    "call for each document would take it a part of that"
)
NO_WRITE = sentence(
    "the fused baseline reads keys and values that lie ready, and writes none; a mechanism also writes what the step "
    "adds to its state"
)
SMALL = 1024  # from here on, what a length takes is foretold by one of half its size

Report = Callable[[int, int, str], object]


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
    keep_freed: bool = False,
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
        keep_freed: Let the process keep the memory it frees to its end, where its allocator can: time then is that of
            kernels, and not of the system that hands out pages anew for whatever is larger than 32 MiB.
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
    kept = keep_freed and not is_accelerator(where) and keep_freed_memory()
    setting = _Setting(
        n_heads=n_heads, d_head=d_head, batch=batch, device=where, dtype=kind, seconds=seconds, seed=seed, kept=kept
    )
    table = CostTable(names, lengths, setting.clock)
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
    return table.result(
        seed, measured_by=setting.measured_by(), n_heads=n_heads, d_head=d_head, batch=batch, documents=DOCUMENTS,
        dtype=str(kind).removeprefix("torch."), device=device_name(where), processor=processor(), threads=threads,
    )  # fmt: skip


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
    kept: bool

    @property
    def clock(self) -> str:
        """Which clock is judged by: CPU time where the CPU does the work, as others use it too."""
        return "wall" if is_accelerator(self.device) else "cpu"

    @property
    def wait(self) -> Callable[[], object] | None:
        return partial(torch.accelerator.synchronize, self.device) if is_accelerator(self.device) else None

    def outgrown(self, config: MixerConfig, dims: Dims) -> bool:
        """Whether a mechanism's parameters take more than a quarter of the memory that is free."""
        free = free_memory(self.device)
        if free is None:
            return False
        with torch.device("meta"):
            made = config.build(dims, "")
        numbers = sum(one.numel() for one in (*made.parameters(), *made.buffers()))
        return numbers * self.dtype.itemsize > free / 4

    def measured_by(self) -> dict[str, str]:
        """Return how time and memory are measured, in words."""
        by_cpu = sentence("CPU time of all threads of the process: what it takes of a machine that others use too")
        by_wall = sentence("time by the clock, until the device is done")
        found: dict[str, str] = {"time": by_cpu if self.clock == "cpu" else by_wall}
        found["memory"] = SEEN.get(self.device.type, UNSEEN)
        found |= dict.fromkeys((PACKED, PACKED_BACKWARD), DENSE_MASK) | {STEP: NO_WRITE}
        if self.kept:
            found[sentence("allocator")] = KEPT
        return found

    def context(self, length: int, *, causal: bool = True, packed: bool = False, past: int = 0) -> Context:
        """Return the facts of a pass, with masks still to be made."""
        ids = (torch.arange(length, device=self.device) * DOCUMENTS // length).expand(self.batch, -1)
        return make_context(
            self.batch, length, self.device, is_causal=causal, past=past, document_ids=ids if packed else None
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


class _Mechanism:
    """One mechanism and the fused baseline beside it, at any length."""

    def __init__(self, config: MixerConfig, setting: _Setting, max_len: int) -> None:
        self.name, self.setting = config.described, setting
        width, layer = setting.n_heads * setting.d_head, Attention(setting.n_heads, mixer=config)
        # matrices of places may be larger than memory
        while max_len > 1 and setting.outgrown(config, layer.dims(width, max_len + STEPS + 1)):
            max_len //= 2
        self.longest = max_len
        self.dims: Dims = layer.dims(width, max_len + STEPS + 1)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(setting.seed)
            self.mixer: Mixer = config.build(self.dims, "attn").to(setting.device, setting.dtype).eval()
        # keys that its paper makes as queries are the same numbers
        made = config.as_published().get("projection")
        self.shared = isinstance(made, Tied) and made.key == "query"
        # what a call took at the last length: seconds of a round, bytes
        self.taken: dict[str, tuple[int, float, float]] = {}
        self.stopped: set[str] = set()

    def measure(self, call: str, length: int, table: CostTable) -> None:
        """Measure one call at one length, or say why not; of a length that only foretells, a single round."""
        if call in self.stopped:
            return
        why = self._too_much(call, length)
        try:
            if not why:
                return self._measure(call, length, table)
        except (AnalysisUnavailable, ConfigError) as error:
            why = str(error)
        self.stopped.add(call)
        first = next(asked for asked in table.lengths if asked >= length)
        table.left_out[f"{self.name}: {call}"] = sentence("from {n:,} tokens on: {why}", n=first, why=why)

    def _too_much(self, call: str, length: int) -> str:
        """Return why a length is not tried, foretold from the last one as if all grew with its square; or nothing."""
        if length > self.longest:
            return sentence("its parameters for so many positions would take more than a quarter of the free memory")
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

    def _measure(self, call: str, length: int, table: CostTable) -> None:
        asked = length in table.lengths
        if call == STEP:
            return self._measure_step(length, table) if asked else None
        packed, backward = call in (PACKED, PACKED_BACKWARD), call in (BACKWARD, PACKED_BACKWARD)
        inputs = self._inputs(length)
        fused = self._fused_inputs(length)
        wait, device = self.setting.wait, self.setting.device
        of = partial(self.setting.context, length, causal=not self.mixer.config.bidirectional, packed=packed)
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
                found = compare(subject, baseline, rounds=ROUNDS, seconds=self.setting.seconds, warmup=1, wait=wait)
                table.measured[call, self.name, length] = MeasuredCall(found, *map(_number, peaks))
                round_ = found.subject.wall + 2 * found.baseline.wall
            else:
                round_ = timed(subject, wait=wait).wall + 2 * timed(baseline, wait=wait).wall
        self.taken[call] = (length, round_, float(max(peak or 0 for peak in peaks)))

    @torch.no_grad()
    def _measure_step(self, length: int, table: CostTable) -> None:
        """Time steps in a row, each on the state of the one before it, and count what the first of them begins with."""
        setting = self.setting
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
        found = compare_timed(subject, baseline, rounds=ROUNDS, seconds=setting.seconds)
        kept = fused.first(length)
        held = _bytes(tensors(state)), _bytes([kept.k, kept.v])
        table.measured[STEP, self.name, length] = MeasuredCall(found, *map(_number, peaks), *map(float, held))

    def _mixed(self, inputs: _Inputs, context: Context) -> Tensor:
        return self.mixer(*inputs, context, None, None)[0]

    def _inputs(self, length: int) -> _Inputs:
        dims, traits, draw, batch = self.dims, self.mixer.traits, self.setting.draw, self.setting.batch
        q, k = draw(2, batch, *several(traits.streams), dims.n_heads, length, dims.d_head)
        k = q if self.shared else k
        v = draw(batch, *several(traits.value_streams), dims.n_heads, length, dims.d_value)
        return _Inputs(q, k, v, draw(batch, length, dims.d_model))

    def _fused_inputs(self, length: int) -> _Inputs:
        setting = self.setting
        q, k, v = setting.draw(3, setting.batch, setting.n_heads, length, setting.d_head)
        return _Inputs(q, k, v, v)


def _fused(inputs: _Inputs, context: Context) -> Tensor:
    n = inputs.q.shape[-2]
    mask = None if context.is_causal else context.allowed(n, n)
    return F.scaled_dot_product_attention(*inputs[:3], attn_mask=mask, is_causal=context.is_causal)


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
