"""Sweeps: many interventions on one base run, measured together.

    clean = Donor("When Mary and John went out, John gave a drink to")
    plan = grid(
        lambda layer, pos: [Set(f"blocks.{layer}.resid_pre", clean, at=At(pos=pos))], layer=range(4), pos=range(9)
    )
    sweep(model, corrupt, plan, logit_difference(" Mary", " John")).values       # metric layer pos batch

What rows share is computed once. Layers before a row's first edit are those of the base run; with causal attention so
are the positions before it, whose keys and values (or matrix states) are carried: what is copied from a donor begins at
the first token in which that differs from the base. Rows that start at the same position are worlds side by side in one
batch, which grows from layer to layer as they come in, so that each layer's weights are read once for all; a row that
changes nothing is not run. The unembedding runs where a metric looks. Ranks share rows where they are told to
(`models.row_ranks`). The numbers are those of `one_by_one`, the plain loop.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.analysis.prepare import prepare
from glassformer.analysis.question import question
from glassformer.analysis.sweep._plain_loop import one_by_one
from glassformer.analysis.sweep._prefix import Prefix
from glassformer.analysis.sweep._resolve import Lender, asked, joined, lend, placed
from glassformer.analysis.sweep._result import Sweep, result
from glassformer.analysis.sweep._saved_rows import SavedRows
from glassformer.analysis.sweep._schedule import Entry, RowGroup, ScheduledPass, passes, worthwhile
from glassformer.analysis.sweep._side_by_side import side_by_side
from glassformer.analysis.sweep._worlds import Lent, Worlds, first_position, from_position, localised, positional
from glassformer.analysis.sweep.metrics import Metric, MetricsLike, apply_metric, in_worlds, stacked
from glassformer.analysis.sweep.plan import EditLike, Plan
from glassformer.analysis.sweep.shared_rows import SharedRows, agreed, sharing
from glassformer.arguments import Count
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.models import Model, ModuleLike, require_module
from glassformer.models.evaluation import evaluating
from glassformer.models.reading import Inputs
from glassformer.provenance import Binding
from glassformer.trace import Edit, Set, Site, Take, Tape, is_named


@question("What does each of many interventions do to a metric?", of="texts")
def sweep(
    model: ModuleLike,
    base: Any,
    plan: Plan | Sequence[Sequence[EditLike]],
    metric: MetricsLike,
    *,
    target: Any = None,
    base_edit: Sequence[EditLike] = (),
    rows: Count | None = None,
    memory: int | None = None,
    grad: bool = False,
    report: Callable[[int, int], None] | None = None,
    save_to: str | Path | None = None,
) -> Sweep:
    """Run every row of a plan on the base, and measure.

    Args:
        model: A decoder or an encoder-decoder. A module seen through a spec (`foreign`) runs rows side by side where
            it treats them alike (see `side_by_side`); any other module runs row by row.
        base: What every row reads, as in `run`: a text, ids, a `Batch`, several texts. A row's edits apply to the whole
            batch; single positions are counted in each text by itself, those of a `Batch` by its columns.
        plan: Rows of edits. Values may come from a `Donor`, a run, a tensor or a number; `Take(…, row=i)` copies from
            row `i` of the plan.
        metric: One metric or several, which keep the same axes. A plain function gets logits `world batch pos vocab`.
        base_edit: Edits of the base run and of every row, before the row's own.
        grad: Keep the graph, so that gradients flow to parameters and to what edits hold.

    Raises:
        UnknownSite: An edit or a metric names a site the model does not have.
        ShapeMismatch: A value does not fit its site, rows take from each other in a circle at one site, or a metric
            returns other axes than it says.
        CheckpointError: `save_to` holds another sweep, or is damaged.
        ConfigError: Ranks that share the rows ask different things.
        AnalysisUnavailable: Ranks that would share the rows hold parts of the model.
    """
    require_module(model, "sweep")
    plan, metrics = asked(plan, metric, model)
    if is_named(model):
        return side_by_side(
            model, base, plan, metrics, target=target, base_edit=base_edit, rows=rows, memory=memory, grad=grad,
            report=report, save_to=None if save_to is None else Path(save_to),
        )  # fmt: skip
    if not isinstance(model, Model):
        if save_to is not None:
            raise AnalysisUnavailable(
                f"sweep: save_to keeps rows of one of our models, or of a module seen through a spec (foreign); "
                f"{type(model).__name__} is neither.\n    Leave save_to out, or write a spec."
            )
        return one_by_one(model, base, plan, metrics, target=target, base_edit=base_edit, grad=grad, report=report)
    if not model.predicts and any(metric.site == "logits" for metric in metrics.values()):
        # raises, and says what there is instead, if there are none
        _ = model.unembed
    with evaluating(model), torch.set_grad_enabled(grad):
        given = prepare(model, base, target)
        table = model.sites()
        common = placed(base_edit, table, given)
        rows_of_edits = [placed(row, table, given) for row in plan.rows]
        lenders = lend(model, [*common, *(pair for row in rows_of_edits for pair in row)], grad)
        engine = _Engine(
            model, given, common=common, rows=rows_of_edits, metrics=metrics, memory=memory, lenders=lenders
        )
        values = engine.measure(rows, report, None if save_to is None else Path(save_to))
    return result(plan, metrics, values, engine.base_values, engine.work, engine.count, "resumed")


class _Engine:
    """Runs the rows of one sweep."""

    def __init__(
        self,
        model: Model,
        given: Inputs,
        common: Sequence[tuple[Site, Edit]],
        rows: Sequence[Sequence[tuple[Site, Edit]]],
        metrics: Mapping[str, Metric],
        memory: int | None,
        lenders: Sequence[Lender],
    ) -> None:
        self.model, self.given, self.common, self.rows, self.metrics = model, given, common, rows, metrics
        # up to where a donor reads what the base reads it has what the base has, if nothing is edited in either
        past = not (common or model.reads_whole())
        self.alike = {id(each.donor): given.reads_alike(each.given) for each in lenders if past and not each.donor.edit}
        ranks = sharing(model, torch.is_grad_enabled())
        for metric in metrics.values():
            if "batch" not in model.sites()[model.sites().match(metric.site)[0]].axes:
                raise ShapeMismatch(f'metric "{metric.name}": site "{metric.site}" has no axis "batch".')
        self.batch, self.length = given.shape
        self.prefix = Prefix(model, given, [edit for _, edit in common], memory)
        self.table = model.sites()
        self.entries = {name: self.prefix.entry(site) for name, site in self.table.items()}
        self.ids = [metric.ids(model, self.batch, given.device) for metric in metrics.values()]
        idle, units = self._units()
        self.looked = sites = {metric.site for metric in metrics.values()} - {"logits"}
        read = {name for row in (common, *rows) for _, edit in row for name in edit.reads}
        # who edits logits or what they are made of, or reads that, gets those of all positions
        named = {*sites, *(site.name for row in (common, *rows) for site, _ in row)}
        self.picked = None if model.makes_logits_for(named) else self._looked()
        if ranks.size > 1:
            # neighbours then start alike, and a rank has few positions to start at
            units.sort(key=lambda unit: (unit.position, unit.entry))
        self.shares = SharedRows(ranks, [unit.rows for unit in units], list(map(self._cost, units)))
        units = [unit for i, unit in enumerate(units) if self.shares.owns(i)]
        self.prefix.run({unit.entry for unit in units}, {unit.position for unit in units}, sites | read, self.picked)
        self.units = [unit._replace(position=self.prefix.reachable(unit.position)) for unit in units]
        base = self._measured(self.prefix.logits[None], self.prefix.sites, 1)[:, 0]
        self.base_values = agreed(ranks, rows, metrics, base)
        self.idle = idle
        self.work, self.count = 0.0, 0

    def measure(
        self, rows: int | None, report: Callable[[int, int], None] | None, path: Path | None
    ) -> Float[Tensor, "metric row batch *axes"]:
        cheap = worthwhile(self.prefix.logits.device)
        plan = passes(
            self.units, self.length, self.batch, rows, self.prefix.budget(), self._row_bytes(), cheap,
            self.prefix.joins, self.prefix.layers_from,
        )  # fmt: skip
        base, shares = self.base_values, self.shares
        own, found = shares.own, list[tuple[tuple[int, ...], Tensor]]()
        kept = SavedRows(path, base, self.rows, Binding("sweep", self.model, self.given.shown), shares.ranks)
        with kept:
            for done in plan:
                if not kept.holds(done.rows):
                    found.append((done.rows, self._run(done)))
                    kept.add(*found[-1])
                self.count += 1
                if report is not None and shares.ranks.rank == 0:
                    seen = sum(len(p.rows) for p in plan[: self.count])
                    report(len(self.idle) + shares.reached(seen), len(self.rows))
        values = shares.gathered(kept.merged(found, own))
        kept.complete(shares.rows, values)
        layers = sum(len(stack.blocks) for stack in self.model.stacks.values())
        ran = sum(
            len(rows) * self.prefix.layers_from(entry) * (self.length - one.position)
            for one in plan
            for entry, rows in one.joining
        )
        ran, self.count = shares.totals(ran, self.count)
        self.work = ran / (len(self.rows) * layers * self.length)
        still = base[:, None].expand(len(base), len(self.idle), *base.shape[1:])
        order = torch.tensor([*self.idle, *shares.rows])
        return torch.cat((still, values), 1)[:, order.argsort()]

    def _run(self, one: ScheduledPass) -> Float[Tensor, "metric row batch *axes"]:
        order = {row: world for world, row in enumerate(one.rows)}
        read = {name for row in one.rows for _, edit in (*self.common, *self.rows[row]) for name in edit.reads}
        sites, logits, stream = dict(self.prefix.sites), None, None
        for i, (entry, _) in enumerate(one.joining):
            until = one.joining[i + 1].entry if i + 1 < len(one.joining) else None
            worlds = sum(len(rows) for _, rows in one.joining[: i + 1])
            here = [name for name, at in self.entries.items() if at >= entry and (until is None or at < until)]
            tape = self._tape(one.rows[:worlds], order, one.position, here, read, sites, until)
            at = None if self.picked is None or until is not None else self._picked_in(one.position, worlds)
            stream = self.prefix.resume(entry, one.position, worlds, at, tape, stream)
            if until is None:
                logits = stream if tape.logits else None
            else:
                stream = tape.values[self.prefix.stream_into(until)]
            for name in sites.keys() & tape.values.keys():
                sites[name] = self._of_all(name, tape.values[name], one.position, worlds, len(order))
        return self._measured(self._whole_logits(logits, one.position, len(order)), sites, len(order))

    def _tape(
        self,
        rows: Sequence[int],
        order: Mapping[int, int],
        start: int,
        here: Sequence[str],
        read: Collection[str],
        sites: Mapping[str, Tensor],
        until: Entry | None,
    ) -> Tape:
        """Return the reads and edits of some rows at the sites that are here, in a pass from a position on."""
        by_site: dict[str, dict[int, list[Edit]]] = defaultdict(lambda: defaultdict(list))
        inside = set(here)
        for row in rows:
            for site, edit in (*self.common, *self.rows[row]):
                if site.name in inside:
                    by_site[site.name][order[row]].append(localised(edit, site, start, self.length))
        known = {name: value for name, value in sites.items() if name not in inside}
        lent = Lent(known, frozenset(name for name in sites if "batch" not in self.table[name].axes))
        edits = [Worlds(name, parts, len(rows), order, lent) for name, parts in by_site.items()]
        wanted = [name for name in here if name in self.looked or (until is not None and name in read)]
        if until is not None:
            wanted.append(self.prefix.stream_into(until))
        logits = until is None and self.model.makes_logits_for(metric.site for metric in self.metrics.values())
        return Tape(self.model, wanted, edits, grad=torch.is_grad_enabled(), logits=logits)

    def _picked_in(self, start: int, worlds: int) -> Int[Tensor, "row n"]:
        """Return where the positions that metrics look at lie in a pass from a position on."""
        assert self.picked is not None
        return (self.picked - start).clamp_min(0).repeat(worlds, 1)

    def _whole_logits(self, logits: Tensor | None, start: int, worlds: int) -> Tensor | None:
        """Return the logits of a pass, `world batch …`, with those of the base where the pass did not come by."""
        if logits is None:
            return None
        logits, base = logits.unflatten(0, (worlds, self.batch)), self.prefix.logits
        if not start:
            return logits
        if self.picked is None:
            return torch.cat((base[:, :start].expand(worlds, -1, -1, -1), logits), 2)
        # what lies before the pass is as in the base run
        return torch.where((self.picked < start)[None, :, :, None], base, logits)

    def _of_all(self, name: str, value: Tensor, start: int, worlds: int, count: int) -> Tensor:
        """Return a site's value in all worlds of a pass, `world batch …`: in those yet to join it is the base's."""
        if "batch" not in self.table[name].axes:
            return value[None]
        found = self._whole(name, value.unflatten(0, (worlds, self.batch)), start)
        base = self.prefix.sites[name]
        return torch.cat((found, base.expand(count - worlds, *base.shape[1:]))) if worlds < count else found

    def _whole(self, name: str, value: Tensor, start: int) -> Tensor:
        """Return a site's value at all positions, `world batch …`: the earlier ones are the base's."""
        axes = positional(self.model.sites()[name])
        if not start or not axes:
            return value
        dim = self.model.sites()[name].axes.index(axes[0])
        base = self.prefix.sites[name].narrow(dim + 1, 0, start)
        return torch.cat((base.expand(len(value), *base.shape[1:]), value), dim + 1)

    def _measured(
        self, logits: Tensor | None, sites: Mapping[str, Tensor], worlds: int
    ) -> Float[Tensor, "metric world batch *axes"]:
        found: list[Tensor] = []
        column = 0
        for metric, ids in zip(self.metrics.values(), self.ids):
            if metric.site != "logits":
                site = self.model.sites()[metric.site]
                # the axis of worlds has no name: take parts of each one's value, which all have the same shape
                value = in_worlds(metric.at, sites[metric.site], site)
            else:
                assert logits is not None
                value = logits
                if metric.pos is not None:
                    place = self._places(metric.pos)
                    rows = torch.arange(self.batch)
                    value = logits[:, rows, place] if self.picked is None else logits[:, :, column]
                    column += 1
            value = value.expand(worlds, *value.shape[1:])
            found.append(apply_metric(metric, value, ids))
        return stacked(self.metrics, found)

    def _looked(self) -> Int[Tensor, "batch n"] | None:
        """Return the positions whose logits metrics look at; None for all of them."""
        on_logits = [metric for metric in self.metrics.values() if metric.site == "logits"]
        if any(metric.pos is None for metric in on_logits):
            return None
        columns = [self._places(metric.pos) for metric in on_logits if metric.pos is not None]
        return torch.stack(columns, 1) if columns else None

    def _places(self, pos: int) -> Int[Tensor, " batch"]:
        device, lengths = self.given.device, self.given.lengths
        lengths = torch.full((self.batch,), self.length, device=device) if lengths is None else lengths
        places = torch.where(torch.tensor(pos >= 0, device=device), pos, lengths + pos)
        if bool(((places < 0) | (places >= lengths)).any()):
            raise ShapeMismatch(f"sweep: a metric looks at position {pos}; the shortest row has {int(lengths.min())}.")
        return places

    def _units(self) -> tuple[tuple[int, ...], list[RowGroup]]:
        """Return the rows that change nothing; and where the others start, together with those they take from."""
        members = joined([[edit.row for _, edit in row if isinstance(edit, Take)] for row in self.rows])
        idle: list[int] = []
        units: list[RowGroup] = []
        table, apart = self.model.sites(), self._apart()
        looked = [table[metric.site] for metric in self.metrics.values()]
        for rows in members:
            pairs = [pair for row in rows for pair in self.rows[row]]
            if all(self._is_idle(edit, site) for site, edit in pairs) or not self._reaches(pairs):
                idle += rows
                continue
            entry = min(self.entries[site.name] for site, _ in pairs)
            touched = [*pairs, *(pair for pair in self.common if self.prefix.entry(pair[0]) >= entry)]
            position = min(self._first_change(edit, site) for site, edit in touched)
            carried = self.prefix.carries(entry, [*(site for site, _ in touched), *looked])
            # what an edit reads would lack the positions before the pass
            carried = carried and not any(edit.reads for _, edit in touched)
            shared = [site for site, _ in touched if "batch" not in site.axes]
            if shared and len(rows) > 1:
                raise ShapeMismatch(
                    f'sweep: rows {rows} read each other, and one of them edits "{shared[0].name}", which has one '
                    "value for all rows of a pass.\n    Give it in a sweep of its own."
                )
            held = next((site.name for site, _ in pairs if site.name in apart), None)
            if held is not None and len(rows) > 1:
                raise AnalysisUnavailable(
                    f'sweep: rows {rows} read each other, one of them edits "{held}", and rows edit what heads read '
                    "before that norm: side by side each would reach the others.\n    Give it in a sweep of its own."
                )
            alone = bool(shared) or held is not None
            units.append(RowGroup(rows, entry, position if carried else 0, alone))
        return tuple(idle), units

    def _cost(self, unit: RowGroup) -> int:
        """Return what rows cost, the more the earlier they start; what follows the last block costs something too."""
        return len(unit.rows) * (self.prefix.layers_from(unit.entry) + 1) * (self.length - unit.position)

    def _first_change(self, edit: Edit, site: Site) -> int:
        """Return the first position that an edit may change, of a row in which nothing was changed before it."""
        first = first_position(edit, site, self.length)
        return min(max(first, self._read_alike(edit, site)), self.length - 1)

    def _is_idle(self, edit: Edit, site: Site) -> bool:
        """Whether an edit changes nothing of a row in which nothing was changed before it."""
        alike = self._read_alike(edit, site)
        left = from_position(edit.at, site, alike, self.length).where
        return alike > 0 and any(left[axis] == [] for axis in positional(site))

    def _reaches(self, pairs: Sequence[tuple[Site, Edit]]) -> bool:
        """Whether what some edits change comes before something that a metric looks at, in depth and position."""
        on_logits = [metric.pos for metric in self.metrics.values() if metric.site == "logits"]
        first = min(self.entries[site.name] for site, _ in pairs)
        if not on_logits and first > max(self.entries[metric.site] for metric in self.metrics.values()):
            return False
        if len(on_logits) < len(self.metrics) or self.model.reads_whole():
            return True
        places = [None if pos is None else int(self._places(pos).max()) for pos in on_logits]
        ends = [place for place in places if place is not None]
        of_output = all(site.stack == self.model.output for site, _ in pairs)
        begins = min(first_position(edit, site, self.length) for site, edit in pairs)
        return len(ends) < len(places) or not of_output or begins <= max(ends)

    def _read_alike(self, edit: Edit, site: Site) -> int:
        """Return up to which position what an edit puts there is what the base has, but for what other edits do."""
        if not isinstance(edit, Set) or site.stack != self.model.output or not positional(site) or edit.at.by_row:
            return 0
        return self.alike.get(id(edit.value), 0)

    def _apart(self) -> set[str]:
        """Return the sites of norms whose edits would reach other rows: those that edit what heads read before."""
        edited = {site.name for row in (self.common, *self.rows) for site, _ in row}
        blocks = [block for stack in self.model.stacks.values() for block in stack.blocks]
        pairs = [pair for block in blocks for pair in block.around_inputs()]
        return {name for norms, inputs in pairs if not edited.isdisjoint(inputs) for name in norms}

    def _row_bytes(self) -> int:
        """Return about how much a row holds while it runs: streams, hidden layers, dense patterns, logits."""
        config, element = self.model.config, self.prefix.logits.element_size()
        widest = max((site.sizes.get("neuron", 0) for site in self.model.sites().values()), default=0)
        heads = max((site.sizes.get("head", 0) for site in self.model.sites().values()), default=0)
        looked = self.length if self.picked is None else self.picked.shape[1]
        per_row = self.length * (12 * config.d_model + 3 * widest + 3 * heads * self.length)
        return self.batch * element * (per_row + 2 * looked * config.n_outputs)
