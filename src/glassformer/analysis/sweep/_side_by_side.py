"""Rows of a sweep over a module we did not write: whole passes, with several rows in one batch.

What the rows share cannot be left out, since nothing says how to start such a module in the middle; but a batch of rows
costs far less than as many passes. Whether a module treats the rows of a batch by themselves is not taken on trust: an
edited base and an untouched one, side by side, have to come out as each does alone. Otherwise the plain loop runs.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis._run import output_logits
from glassformer.analysis.coordinates import in_own_rows
from glassformer.analysis.prepare import prepare
from glassformer.analysis.sweep._closeness import difference, rounding
from glassformer.analysis.sweep._plain_loop import Loop
from glassformer.analysis.sweep._prefix import PASS_BYTES
from glassformer.analysis.sweep._resolve import joined
from glassformer.analysis.sweep._result import Sweep, result
from glassformer.analysis.sweep._saved_rows import SavedRows
from glassformer.analysis.sweep._schedule import worthwhile
from glassformer.analysis.sweep._worlds import Worlds, localised
from glassformer.analysis.sweep.metrics import Metric, apply_metric, in_worlds, logits_of, positions_of, stacked
from glassformer.analysis.sweep.plan import EditLike, Plan
from glassformer.analysis.sweep.shared_rows import SharedRows, agreed, sharing
from glassformer.errors import AnalysisUnavailable, GlassformerError
from glassformer.models.evaluation import evaluating
from glassformer.models.readable import PositionLabels
from glassformer.models.reading import Inputs
from glassformer.numerics.placement import place_of, work_memory
from glassformer.provenance import Binding
from glassformer.trace import Apply, Edit, Foreign, Read, Site, Take, Tape

Edits = Sequence[tuple[Site, Edit]]


def side_by_side(
    model: Foreign,
    base: Any,
    plan: Plan,
    metrics: Mapping[str, Metric],
    *,
    target: Any = None,
    base_edit: Sequence[EditLike] = (),
    rows: int | None = None,
    memory: int | None = None,
    grad: bool = False,
    report: Callable[[int, int], None] | None = None,
    save_to: Path | None = None,
) -> Sweep:
    """Return what `one_by_one` returns, by passes that hold several rows of the plan; arguments as in `sweep`.

    Raises:
        AnalysisUnavailable: The module does not give the same numbers twice, so that rows cannot be compared.
    """
    loop = Loop(model=model, inputs=base, target=target, base_edit=base_edit, plan=plan, metrics=metrics, grad=grad)
    whole = loop.base()
    if not difference(loop.base(), whole) <= rounding(whole):
        raise AnalysisUnavailable(
            "sweep: the module gives other numbers when it runs again on the same inputs: it keeps a state, or draws "
            "at random.\n    Leave caches out of its arguments, and give it no randomness of its own."
        )
    given = prepare(model, base, target)
    batches = _Batches(model, loop, given, whole.shape[1])
    units = joined([[edit.row for _, edit in row if isinstance(edit, Take)] for row in loop.rows])
    ranks = sharing(model, grad)
    whole, shares = agreed(ranks, loop.rows, metrics, whole), SharedRows(ranks, units, [len(unit) for unit in units])
    alone = len(units) < 2 or rows == 1
    refused = "" if alone else batches.refusal()
    kept = SavedRows(save_to, whole, loop.rows, Binding("sweep", model, given.shown), ranks)
    found: list[tuple[tuple[int, ...], Tensor]] = []
    own = [unit for i, unit in enumerate(units) if shares.owns(i)]
    passes = seen = 0
    with kept:
        for group in batches.groups(own, 1 if alone or refused else rows, memory):
            if not kept.holds(group):
                apart = alone or refused or not batches.shares(group)
                done = torch.stack([loop.row(row) for row in group], 1) if apart else batches.run(group)
                passes += len(group) if apart else 1
                found.append((group, done))
                kept.add(group, done)
            seen += len(group)
            if report is not None and ranks.rank == 0:
                report(shares.reached(seen), len(loop.rows))
    values = shares.gathered(kept.merged(found, shares.own))
    kept.complete(shares.rows, values)
    (passes,) = shares.totals(passes)
    values = values[:, torch.tensor(shares.rows).argsort()]
    how = f"row by row: {refused}" if refused else "row by row" if alone else "side by side"
    return result(plan, metrics, values, whole, 1.0, passes, how)


class _Batches:
    """Passes of several rows of one loop."""

    def __init__(self, model: Foreign, loop: Loop, given: Inputs, batch: int) -> None:
        self.model, self.loop, self.given, self.batch = model, loop, given, batch
        self.length, self.labels = given.shape[1] or None, PositionLabels(given)
        touched = {name for row in (loop.common, *loop.rows) for name in _touched(row)}
        measured = {metric.site for metric in loop.metrics.values()} - {"logits"}
        self.read, self.looked = sorted(measured), touched | measured

    def shares(self, rows: Sequence[int]) -> bool:
        """Return whether everything that these rows edit or measure has a value for each row of a batch."""
        return self._batched({name for row in rows for name in _touched(self.loop.rows[row])})

    def _batched(self, names: Iterable[str]) -> bool:
        sites = [self.loop.table[name] for name in {*names, *self.read, *_touched(self.loop.common)}]
        return all(s.axes[:1] == ("batch",) and self.sizes[s.name][0] == self.batch for s in sites)

    def refusal(self) -> str:
        """Return why rows cannot stand side by side; empty if they can.

        A site that the plan edits is changed in one world and left alone in the world beside it; both have to come out
        as they do in passes of their own.
        """
        arguments = [*self.given.args, *self.given.kwargs.values()]
        if self.batch == self.length and any(isinstance(a, Tensor) and a.ndim == 1 for a in arguments):
            return "an argument has one axis, and it may be the batch or the positions"
        edited = {site.name for row in self.loop.rows for site, _ in row}
        # the earliest, so that as much as possible comes after it
        tested = next(
            (site for name, site in self.loop.table.items() if name in edited and self._batched([name])), None
        )
        if tested is None:
            return "no site of the plan has a value of its own for each row of a batch"
        # no norm undoes it, as it would a factor
        test = [(tested, Apply(tested.name, lambda value: value + value.flip(-1) / 2))]
        expected = [torch.stack(pair) for pair in zip(self._seen([test]), self._seen([[]]))]
        try:
            found = self._seen([test, []])
        except GlassformerError:
            raise
        except (RuntimeError, ValueError, IndexError) as error:
            return f"the module does not take a larger batch ({str(error).splitlines()[0][:80]})"
        for together, apart in zip(found, expected):
            # a batch of another size takes other kernels, so numbers agree up to rounding
            error = difference(together.unflatten(0, (2, -1)), apart)
            if not error <= rounding(apart):
                return f"in a batch the numbers are other ones (by {error:.1e} of their RMS)"
        return ""

    def groups(self, units: Sequence[tuple[int, ...]], rows: int | None, memory: int | None) -> list[tuple[int, ...]]:
        """Return which rows run together; rows that read each other always do."""
        device = place_of(self.model)
        tokens = self.batch * (self.length or 1)
        fits = (work_memory(device, PASS_BYTES) if memory is None else memory) // max(self._row_bytes(), 1)
        at_most = max(1, min(fits, worthwhile(device) // tokens) if rows is None else rows)
        found: list[list[int]] = []
        for unit in units:
            together = found and len(found[-1]) + len(unit) <= at_most
            if together and self.shares(found[-1]) == self.shares(unit):
                found[-1] += unit
            else:
                found.append(list(unit))
        return [tuple(group) for group in found]

    def run(self, rows: Sequence[int]) -> Float[Tensor, "metric world batch *axes"]:
        """Return the metrics of some rows from one pass."""
        order = {row: world for world, row in enumerate(rows)}
        return self._measured(*self._pass([self.loop.rows[row] for row in rows], order), len(rows))

    def _seen(self, worlds: Sequence[Edits]) -> list[Tensor]:
        """Return everything that metrics could look at: the logits, and the sites that are read."""
        logits, tape = self._pass(worlds, {})
        found = [*([] if logits is None else [logits]), *(tape.values[name] for name in self.read)]
        return [value.detach() for value in found if value.is_floating_point()]

    def _pass(self, rows: Sequence[Edits], order: Mapping[int, int]) -> tuple[Tensor | None, Tape]:
        """Run one world per row of edits; `order` says where a row of the plan stands."""
        worlds = len(rows)
        by_site: dict[str, dict[int, list[Edit]]] = defaultdict(lambda: defaultdict(list))
        for world, own in enumerate(rows):
            for site, edit in (*self.loop.common, *own):
                (edit,) = in_own_rows(self.given, self.labels, site, [edit])
                by_site[site.name][world].append(localised(edit, site, 0, self.length or 0))
        edits = [Worlds(name, parts, worlds, order) for name, parts in by_site.items()]
        tape = Tape(self.model, self.read, edits, grad=self.loop.grad)
        with evaluating(self.model), torch.set_grad_enabled(self.loop.grad):
            args = [self._repeated(a, worlds) for a in self.given.args]
            kwargs = {name: self._repeated(a, worlds) for name, a in self.given.kwargs.items()}
            output = self.model(*args, **kwargs, tape=tape)
        tape.check_visited()
        return output_logits(output), tape

    def _measured(self, logits: Tensor | None, tape: Tape, worlds: int) -> Float[Tensor, "metric world batch *axes"]:
        found: list[Tensor] = []
        for metric in self.loop.metrics.values():
            if metric.site == "logits":
                value = logits_of(logits).unflatten(0, (worlds, self.batch))
                if metric.pos is not None:
                    at = positions_of(self.given.token_rows, value.shape[1:3], metric.pos)
                    value = value[:, torch.arange(self.batch), at]
            else:
                value = tape.values[metric.site].unflatten(0, (worlds, self.batch))
                value = in_worlds(metric.at, value, self.loop.table[metric.site])
            ids = metric.ids(self.model, self.batch, value.device)
            found.append(apply_metric(metric, value, ids))
        return stacked(self.loop.metrics, found)

    def _repeated(self, argument: Any, worlds: int) -> Any:
        """Return an argument once per world, if it has a row per prompt."""
        if not isinstance(argument, Tensor) or argument.ndim == 0 or len(argument) != self.batch:
            return argument
        return argument.repeat(worlds, *[1] * (argument.ndim - 1))

    @cached_property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """(Rows, bytes) of sites' values in the base's pass."""
        reads = [Read(name, reduce=_rows_and_bytes) for name in self.looked]
        tape = Tape(self.model, reads)
        with evaluating(self.model), torch.no_grad():
            self.model(*self.given.args, **self.given.kwargs, tape=tape)
        tape.check_visited()
        return {name: (int(value[0]), int(value[1])) for name, value in tape.values.items()}

    def _row_bytes(self) -> int:
        """Return about how much a row of the plan holds while it runs: some values as large as the largest known."""
        return 24 * max((size for _, size in self.sizes.values()), default=0)


def _touched(edits: Edits) -> list[str]:
    """Return the names of the sites that some edits change or read."""
    return [name for site, edit in edits for name in (site.name, *edit.reads)]


def _rows_and_bytes(value: Tensor) -> Tensor:
    return torch.tensor([value.shape[0] if value.ndim else 1, value.numel() * value.element_size()])
