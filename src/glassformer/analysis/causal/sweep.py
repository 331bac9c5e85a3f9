"""Sweeps: many interventions on one base run, measured together.

    clean = Donor("When Mary and John went out, John gave a drink to")
    plan = grid(
        lambda layer, pos: [Set(f"blocks.{layer}.resid_pre", clean, at=At(pos=pos))], layer=range(4), pos=range(9)
    )
    sweep(model, corrupt, plan, logit_difference(" Mary", " John")).values       # metric layer pos batch

What rows share is computed once. Layers before a row's first edit are those of the base run; with causal attention so
are the positions before it, whose keys and values (or matrix states) are carried. Rows that start at the same place are
worlds side by side in one batch, and the unembedding runs where a metric looks. The numbers are those of
`one_by_one`, the plain loop.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.analysis.causal.kept import Kept
from glassformer.analysis.causal.metrics import Metric
from glassformer.analysis.causal.plan import Donor, EditLike, Plan
from glassformer.analysis.causal.prefix import Prefix
from glassformer.analysis.causal.schedule import Pass, Unit, passes
from glassformer.analysis.causal.worlds import Worlds, circle, first_position, localised, positional
from glassformer.analysis.inputs import Inputs, prepare
from glassformer.analysis.run import evaluating, run
from glassformer.errors import ShapeMismatch
from glassformer.labelled import Labelled, Result
from glassformer.models import Decoder, Encoder, EncoderDecoder
from glassformer.trace import Apply, At, Edit, Foreign, Set, Site, Take, Tape

MetricLike = Metric | Callable[[Tensor], Tensor]


@dataclasses.dataclass(frozen=True, eq=False)
class Sweep(Result):
    """What every row of a plan does to the metrics.

    Args:
        values: `metric`, the plan's axes, `batch`.
        base: Without any row's edits, `metric batch`.
        work: Layers times tokens that were run, as a share of what the plain loop runs.
        passes: How many forward passes there were besides those of base and donors.
    """

    values: Labelled
    base: Labelled
    work: float
    passes: int

    @property
    def change(self) -> Labelled:
        """What each row adds to the base's number: axes as in `values`."""
        between = (1,) * (self.values.values.ndim - 2)
        base = self.base.values.reshape(len(self.base.values), *between, -1)
        return dataclasses.replace(self.values, values=self.values.values - base)

    @property
    def mean(self) -> Labelled:
        """`values` averaged over the batch."""
        return _over_batch(self.values, self.values.values.mean(-1))

    @property
    def spread(self) -> Labelled:
        """Standard error of `mean` over prompts; NaN for one prompt."""
        n = self.values.size("batch")
        return _over_batch(self.values, self.values.values.std(-1) / n**0.5)


def sweep(
    model: Any,
    base: Any,
    plan: Plan | Sequence[Sequence[EditLike]],
    metric: MetricLike | Sequence[MetricLike] | Mapping[str, MetricLike],
    *,
    target: Any = None,
    base_edit: Sequence[EditLike] = (),
    rows: int | None = None,
    memory: int | None = None,
    grad: bool = False,
    report: Callable[[int, int], None] | None = None,
    save_to: str | Path | None = None,
) -> Sweep:
    """Run every row of a plan on the base, and measure.

    Args:
        model: A decoder or an encoder-decoder; any other module runs row by row.
        base: What every row reads, as in `run`: a text, ids, a `Batch`. A row's edits apply to the whole batch.
        plan: Rows of edits. Values may come from a `Donor`, a run, a tensor or a number; `Take(…, row=i)` copies from
            row `i` of the plan.
        metric: One metric or several. A plain function gets logits `world batch pos vocab`.
        target: Text or ids of the decoder, for an encoder-decoder.
        base_edit: Edits of the base run and of every row, before the row's own.
        rows: Rows per forward pass at most; by default what fits `memory`, and what is worth batching.
        memory: Bytes for what is held at once besides the model and the base run.
        grad: Keep the graph, so that gradients flow to parameters and to what edits hold.
        report: Called with (rows done, rows in all).
        save_to: File for finished rows. A sweep that was interrupted goes on from it; the file of another sweep is
            refused.

    Raises:
        UnknownSite: An edit or a metric names a site the model does not have.
        ShapeMismatch: A value does not fit its site, or rows take from each other in a circle at one site.
        CheckpointError: `save_to` holds another sweep, or is damaged.
    """
    plan, metrics = Plan.of(plan), _named(metric)
    if not isinstance(model, (Decoder, Encoder, EncoderDecoder)):
        return one_by_one(model, base, plan, metrics, target=target, base_edit=base_edit, grad=grad, report=report)
    with evaluating(model), torch.set_grad_enabled(grad):
        given = prepare(model, base, target)
        table = model.sites()
        common = _resolved(base_edit, table)
        rows_of_edits = [_resolved(row, table) for row in plan.rows]
        _lend(model, [*common, *(pair for row in rows_of_edits for pair in row)], grad)
        engine = _Engine(model, given, common, rows_of_edits, metrics, memory)
        values = engine.measure(rows, report, None if save_to is None else Path(save_to))
    return _result(plan, metrics, values, engine.base_values, engine.work, engine.count)


def one_by_one(
    model: Any,
    base: Any,
    plan: Plan | Sequence[Sequence[EditLike]],
    metric: MetricLike | Sequence[MetricLike] | Mapping[str, MetricLike],
    *,
    target: Any = None,
    base_edit: Sequence[EditLike] = (),
    grad: bool = False,
    report: Callable[[int, int], None] | None = None,
) -> Sweep:
    """Return what `sweep` returns, by one whole forward pass per row: slow, and what `sweep` is judged by."""
    plan, metrics = Plan.of(plan), _named(metric)
    view: Any = model if hasattr(model, "sites") else Foreign(model)
    table = view.sites()
    order = {name: i for i, name in enumerate(table)}
    common = _resolved(base_edit, table)
    rows = [_resolved(row, table) for row in plan.rows]
    _lend(model, [*common, *(pair for row in rows for pair in row)], grad)
    read = sorted({m.site for m in metrics.values()} - {"logits"})

    def edits(row: int, until: Site | None = None, above: tuple[int, ...] = ()) -> list[Edit]:
        """Return a row's edits as far as a site, with what it takes from other rows put in."""
        found: list[Edit] = []
        for site, edit in (*common, *rows[row]):
            if until is not None and order[site.name] > order[until.name]:
                continue
            edit = dataclasses.replace(edit, site=site.name)
            if isinstance(edit, Take):
                if edit.row in above and site == until:
                    raise circle(site)
                lender = edits(edit.row, site, (*above, row))
                edit = Set(site.name, run(model, base, target, read=[site.name], edit=lender, grad=grad), at=edit.at)
            found.append(edit)
        return found

    def measured(changes: list[Edit]) -> Tensor:
        done = run(model, base, target, read=read, edit=changes, grad=grad)
        values: list[Tensor] = []
        for metric in metrics.values():
            if metric.site == "logits":
                assert done.logits is not None, "a model without logits needs metrics of sites"
                value = done.logits
                if metric.pos is not None:
                    at = [done.place(metric.pos, row) for row in range(len(value))]
                    value = value[torch.arange(len(value)), at]
            else:
                value = metric.at.take(done[metric.site].values, table[metric.site])
            values.append(_apply(metric, value[None], metric.ids(model, len(value), value.device)))
        return torch.stack(values)[:, 0]

    found: list[Tensor] = []
    for row in range(len(rows)):
        found.append(measured(edits(row)))
        if report is not None:
            report(row + 1, len(rows))
    whole = measured([dataclasses.replace(edit, site=site.name) for site, edit in common])
    return _result(plan, metrics, torch.stack(found, 1), whole, 1.0, len(rows))


class _Engine:
    """Runs the rows of one sweep."""

    def __init__(
        self,
        model: Any,
        given: Inputs,
        common: Sequence[tuple[Site, Edit]],
        rows: Sequence[Sequence[tuple[Site, Edit]]],
        metrics: Mapping[str, Metric],
        memory: int | None,
    ) -> None:
        self.model, self.given, self.common, self.rows, self.metrics = model, given, common, rows, metrics
        assert given.ids is not None
        for metric in metrics.values():
            if "batch" not in model.sites()[model.sites().match(metric.site)[0]].axes:
                raise ShapeMismatch(f'metric "{metric.name}": site "{metric.site}" has no axis "batch".')
        self.batch, self.length = given.ids.shape
        self.prefix = Prefix(model, given, [edit for _, edit in common], memory)
        self.ids = [metric.ids(model, self.batch, given.ids.device) for metric in metrics.values()]
        units = self._units()
        sites = {metric.site for metric in metrics.values()} - {"logits"}
        # who edits logits, or reads them raw, gets those of all positions
        named = {*sites, *(site.name for row in (common, *rows) for site, _ in row)}
        self.picked = None if named & {"logits", "logits_raw"} else self._looked()
        self.prefix.run({unit.entry for unit in units}, {unit.position for unit in units}, sites, self.picked)
        self.units = [unit._replace(position=self.prefix.reachable(unit.position)) for unit in units]
        self.base_values = self._measured(self.prefix.logits[None], self.prefix.sites, 1)
        self.work, self.count = 0.0, 0

    def measure(
        self, rows: int | None, report: Callable[[int, int], None] | None, path: Path | None
    ) -> Float[Tensor, "metric row batch"]:
        cheap = 1024 if self.prefix.logits.device.type == "cpu" else 1 << 16
        plan = passes(self.units, self.length, self.batch, rows, self.prefix.budget(), self._row_bytes(), cheap)
        found: list[tuple[tuple[int, ...], Tensor]] = []
        kept = Kept(path, self.base_values, [[(s.name, repr(e.at), type(e).__name__) for s, e in r] for r in self.rows])
        with kept:
            for done in plan:
                if not kept.holds(done.rows):
                    found.append((done.rows, self._run(done)))
                    kept.add(*found[-1])
                self.count += 1
                if report is not None:
                    report(sum(len(p.rows) for p in plan[: self.count]), len(self.rows))
        found = kept.merged(found)
        layers = sum(len(stack.blocks) for stack in self.model.stacks.values())
        ran = sum(len(p.rows) * self.prefix.layers_from(p.entry) * (self.length - p.position) for p in plan)
        self.work = ran / (len(self.rows) * layers * self.length)
        order = torch.tensor([row for rows, _ in found for row in rows])
        return torch.cat([values for _, values in found], 1)[:, order.argsort()]

    def _run(self, one: Pass) -> Float[Tensor, "metric row batch"]:
        worlds, start = len(one.rows), one.position
        order = {row: world for world, row in enumerate(one.rows)}
        by_site: dict[str, dict[int, list[Edit]]] = defaultdict(lambda: defaultdict(list))
        for row, world in order.items():
            for site, edit in (*self.common, *self.rows[row]):
                if self.prefix.entry(site) >= one.entry:
                    by_site[site.name][world].append(localised(edit, site, start, self.length))
        edits = [Worlds(name, parts, worlds, order) for name, parts in by_site.items()]
        logits_wanted = any(metric.site.startswith("logits") for metric in self.metrics.values())
        later = [n for n in self.prefix.sites if self.prefix.entry(self.model.sites()[n]) >= one.entry]
        tape = Tape(self.model, later, edits, grad=torch.is_grad_enabled(), logits=logits_wanted)
        at = None if self.picked is None else (self.picked - start).clamp_min(0).repeat(worlds, 1)
        logits = self.prefix.resume(one.entry, start, worlds, at, tape)
        sites = {name: value for name, value in self.prefix.sites.items()}
        for name in later:
            sites[name] = self._whole(name, tape.values[name].unflatten(0, (worlds, self.batch)), start)
        if not logits_wanted:
            return self._measured(None, sites, worlds)
        logits = logits.unflatten(0, (worlds, self.batch))
        base = self.prefix.logits
        if self.picked is None:
            logits = torch.cat((base[:, :start].expand(worlds, -1, -1, -1), logits), 2)
        else:
            # what lies before the pass is as in the base run
            logits = torch.where((self.picked < start)[None, :, :, None], base, logits)
        return self._measured(logits, sites, worlds)

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
    ) -> Float[Tensor, "metric world batch"]:
        found: list[Tensor] = []
        column = 0
        for metric, ids in zip(self.metrics.values(), self.ids):
            if metric.site != "logits":
                site = self.model.sites()[metric.site]
                # the axis of worlds has no name: take parts of each one's value, which all have the same shape
                value = _take(metric.at, sites[metric.site], site)
            else:
                assert logits is not None
                value = logits
                if metric.pos is not None:
                    place = self._places(metric.pos)
                    rows = torch.arange(self.batch)
                    value = logits[:, rows, place] if self.picked is None else logits[:, :, column]
                    column += 1
            value = value.expand(worlds, *value.shape[1:])
            found.append(_apply(metric, value, ids))
        return torch.stack(found)

    def _looked(self) -> Int[Tensor, "batch n"] | None:
        """Return the positions whose logits metrics look at; None for all of them."""
        on_logits = [metric for metric in self.metrics.values() if metric.site == "logits"]
        if any(metric.pos is None for metric in on_logits):
            return None
        columns = [self._places(metric.pos) for metric in on_logits if metric.pos is not None]
        return torch.stack(columns, 1) if columns else None

    def _places(self, pos: int) -> Int[Tensor, " batch"]:
        assert self.given.ids is not None
        device, lengths = self.given.ids.device, self.given.lengths
        lengths = torch.full((self.batch,), self.length, device=device) if lengths is None else lengths
        places = torch.where(torch.tensor(pos >= 0, device=device), pos, lengths + pos)
        if bool(((places < 0) | (places >= lengths)).any()):
            raise ShapeMismatch(f"sweep: a metric looks at position {pos}; the shortest row has {int(lengths.min())}.")
        return places

    def _units(self) -> list[Unit]:
        """Return the rows, together with those they take from, and where they start."""
        members = _joined([[edit.row for _, edit in row if isinstance(edit, Take)] for row in self.rows])
        units: list[Unit] = []
        table = self.model.sites()
        looked = [table[metric.site] for metric in self.metrics.values()]
        for rows in members:
            pairs = [pair for row in rows for pair in self.rows[row]]
            entry = min((self.prefix.entry(site) for site, _ in pairs), default=self.prefix.last)
            touched = [*pairs, *(pair for pair in self.common if self.prefix.entry(pair[0]) >= entry)]
            position = min((first_position(edit, site, self.length) for site, edit in touched), default=self.length - 1)
            carried = self.prefix.carries(entry, [*(site for site, _ in touched), *looked])
            shared = [site for site, _ in touched if "batch" not in site.axes]
            if shared and len(rows) > 1:
                raise ShapeMismatch(
                    f'sweep: rows {rows} read each other, and one of them edits "{shared[0].name}", which has one '
                    "value for all rows of a pass.\n    Give it in a sweep of its own."
                )
            units.append(Unit(rows, entry, position if carried else 0, bool(shared)))
        return units

    def _row_bytes(self) -> int:
        """Return about how much a row holds while it runs: streams, hidden layers, dense patterns, logits."""
        config, element = self.model.config, self.prefix.logits.element_size()
        widest = max((site.sizes.get("neuron", 0) for site in self.model.sites().values()), default=0)
        heads = max((site.sizes.get("head", 0) for site in self.model.sites().values()), default=0)
        looked = self.length if self.picked is None else self.picked.shape[1]
        per_row = self.length * (12 * config.d_model + 3 * widest + 3 * heads * self.length)
        return self.batch * element * (per_row + 2 * looked * config.vocab_size)


def _take(at: At, value: Tensor, site: Site) -> Tensor:
    return at.take(value, dataclasses.replace(site, axes=("world", *site.axes)))


def _apply(metric: Metric, value: Tensor, ids: Sequence[Tensor]) -> Float[Tensor, "world batch"]:
    found = metric.function(value, *ids)
    if found.shape != value.shape[:2]:
        raise ShapeMismatch(
            f'metric "{metric.name}" returned {tuple(found.shape)} for a value of {tuple(value.shape)}; '
            f"it returns one number per world and prompt: {tuple(value.shape[:2])}."
        )
    return found


def _named(metric: MetricLike | Sequence[MetricLike] | Mapping[str, MetricLike]) -> dict[str, Metric]:
    if isinstance(metric, Mapping):
        pairs = list(metric.items())
    else:
        several = list(metric) if isinstance(metric, Sequence) else [metric]
        pairs = [(m.name if isinstance(m, Metric) else getattr(m, "__name__", "metric"), m) for m in several]
    if len({name for name, _ in pairs}) < len(pairs) or not pairs:
        raise ShapeMismatch("sweep: give at least one metric, and metrics of different names: {name: metric, …}.")
    return {n: m if isinstance(m, Metric) else Metric(n, m, (), None) for n, m in pairs}


def _as_edit(edit: EditLike) -> Edit:
    return edit if isinstance(edit, Edit) else Apply(str(edit[0]), edit[1])


def _resolved(edits: Sequence[EditLike], table: Any) -> list[tuple[Site, Edit]]:
    found: list[tuple[Site, Edit]] = []
    for edit in map(_as_edit, edits):
        for name in table.match(edit.site):
            if not isinstance(edit, Take):
                edit.check(table[name])
            found.append((table[name], edit))
    return found


def _lend(model: Any, pairs: Sequence[tuple[Site, Edit]], grad: bool) -> None:
    """Run every donor once, reading the sites that are copied from it."""
    wanted: dict[int, tuple[Donor, set[str]]] = {}
    for site, edit in pairs:
        if isinstance(donor := getattr(edit, "value", None), Donor):
            wanted.setdefault(id(donor), (donor, set()))[1].add(site.name)
    for donor, sites in wanted.values():
        if missing := sites - set(donor.found):
            if not isinstance(model, (Decoder, Encoder, EncoderDecoder)):
                found = run(model, donor.inputs, donor.target, read=sorted(missing), edit=donor.edit, grad=grad)
                donor.found |= {name: value.values for name, value in found.items()}
                continue
            tape = Tape(model, sorted(missing), donor.edit, grad=grad)
            # no one looks at a donor's logits, unless they are what is copied
            tape.logits = any(name.startswith("logits") for name in (*tape.reads, *tape.edits))
            with evaluating(model), torch.set_grad_enabled(grad):
                given = prepare(model, donor.inputs, donor.target)
                model(*given.args, **given.kwargs, tape=tape)
            tape.check_visited()
            donor.found |= tape.values


def _joined(links: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Return rows in groups that nothing links to another group."""
    group = list(range(len(links)))

    def root(row: int) -> int:
        while group[row] != row:
            group[row] = row = group[group[row]]
        return row

    for row, others in enumerate(links):
        for other in others:
            if not 0 <= other < len(links):
                raise ShapeMismatch(
                    f"sweep: row {row} takes from row {other}; the plan has rows 0 to {len(links) - 1}."
                )
            group[root(other)] = root(row)
    members: dict[int, list[int]] = defaultdict(list)
    for row in range(len(links)):
        members[root(row)].append(row)
    return [tuple(rows) for rows in members.values()]


def _result(plan: Plan, metrics: Mapping[str, Metric], values: Tensor, base: Tensor, work: float, count: int) -> Sweep:
    sizes = [len(labels) for labels in plan.axes.values()]
    values = values.unflatten(1, sizes)
    names = {"metric": list(metrics)}
    return Sweep(
        Labelled(values, ("metric", *plan.axes, "batch"), names | {a: list(labels) for a, labels in plan.axes.items()}),
        Labelled(base.reshape(len(metrics), -1), ("metric", "batch"), names),
        work,
        count,
    )


def _over_batch(values: Labelled, reduced: Tensor) -> Labelled:
    coords = {axis: labels for axis, labels in values.coords.items() if axis != "batch"}
    return Labelled(reduced, values.axes[:-1], coords)
