"""From edits as they are given to edits by site: globs expanded, donors run, rows that read each other put together."""

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from glassformer.analysis._run import run
from glassformer.analysis.coordinates import in_own_rows
from glassformer.analysis.prepare import prepare
from glassformer.analysis.sweep.metrics import Metric, MetricsLike, named_metrics
from glassformer.analysis.sweep.plan import Donor, EditLike, Plan
from glassformer.errors import ShapeMismatch
from glassformer.files import json_text
from glassformer.labelled import Labelled
from glassformer.models import Model, ModuleLike
from glassformer.models.evaluation import evaluating
from glassformer.models.readable import PositionLabels, with_coordinates
from glassformer.models.reading import Inputs
from glassformer.trace import Edit, Foreign, Site, SiteTable, Take, Tape


def asked(
    plan: Plan | Sequence[Sequence[EditLike]], metric: MetricsLike, model: ModuleLike
) -> tuple[Plan, dict[str, Metric]]:
    """Return rows as a plan and metrics by name.

    Raises:
        ShapeMismatch: Both have an axis of one name, or a metric names several sites.
        UnknownSite: A metric names a site that the model does not have.
    """
    plan = Plan.of(plan)
    metrics = {name: _of_one_site(found, model) for name, found in named_metrics(metric).items()}
    kept = next(iter(metrics.values())).axes
    if twice := [axis for axis in kept if axis in ("metric", "batch", *plan.axes)]:
        raise ShapeMismatch(
            f'sweep: the metrics keep an axis "{twice[0]}", and the result has one of that name already: '
            f"metric {' '.join(plan.axes)} batch.\n    Call one of the two otherwise."
        )
    return plan, metrics


def _of_one_site(metric: Metric, model: ModuleLike) -> Metric:
    """Return a metric by the name of the one site, and the part of it, that it looks at."""
    view: Any = model if hasattr(model, "sites") else Foreign(model)
    table: SiteTable = view.sites()
    # of any module the logits are what it returns
    if metric.site == "logits" or metric.site in table:
        return metric
    found = table.locate(metric.site, metric.at)
    if len(found) > 1:
        raise ShapeMismatch(
            f'metric "{metric.name}" looks at one site; "{metric.site}" are {", ".join(one.name for one in found)}.'
        )
    return dataclasses.replace(metric, site=found[0].site.name, at=found[0].at)


def resolved(edits: Sequence[EditLike], table: SiteTable) -> list[tuple[Site, Edit]]:
    """Return edits as pairs of a site and an edit there: globs expanded, heads and parts addressed."""
    found = [pair for edit in edits for pair in table.place(edit)]
    for site, edit in found:
        if not isinstance(edit, Take):
            edit.check(site)
    return found


def said(rows: Sequence[Sequence[tuple[Site, Edit]]]) -> str:
    """What rows of edits are, as a text that tells one plan from another: where each edits, and how."""
    return json_text([[(site.name, repr(edit.at), type(edit).__name__) for site, edit in row] for row in rows])


def placed(edits: Sequence[EditLike], table: SiteTable, given: Inputs) -> list[tuple[Site, Edit]]:
    """Return edits as `resolved` does, with single positions counted in each row of what is read, as `run` counts."""
    labels = PositionLabels(given)
    return [(site, own) for site, edit in resolved(edits, table) for own in in_own_rows(given, labels, site, [edit])]


class Lender(NamedTuple):
    """A donor, what it reads, and the sites that are copied from it."""

    donor: Donor
    given: Inputs
    sites: set[str]


def lend(model: ModuleLike, pairs: Sequence[tuple[Site, Edit]], grad: bool) -> list[Lender]:
    """Run donors, reading the sites that are copied from them; those that read and edit the same are one run."""
    lenders: dict[int, Lender] = {}
    for site, edit in pairs:
        if isinstance(donor := getattr(edit, "value", None), Donor):
            if id(donor) not in lenders:
                lenders[id(donor)] = Lender(donor, prepare(model, donor.inputs, donor.target), set())
            lenders[id(donor)].sites.add(site.name)
    for group in _alike(list(lenders.values())):
        missing = [each.sites - set(each.donor.found) for each in group]
        if names := sorted(set[str]().union(*missing)):
            found = _lent(model, group[0], names, grad)
            for each, own in zip(group, missing):
                each.donor.found |= {name: found[name] for name in own}
    return list(lenders.values())


def _alike(lenders: Sequence[Lender]) -> list[list[Lender]]:
    """Return lenders in groups that read and edit the same."""
    groups: dict[Any, list[list[Lender]]] = defaultdict(list)
    for each in lenders:
        ids = each.given.ids
        rows = () if ids is None else tuple(map(tuple, ids.tolist()))
        known = groups[rows, tuple(map(id, each.donor.edit))]
        same = (group for group in known if rows and each.given.reads_alike(group[0].given) == len(rows[0]))
        group = next(same, None)
        if group is None:
            known.append(group := [])
        group.append(each)
    return [group for known in groups.values() for group in known]


def _lent(model: ModuleLike, lender: Lender, names: list[str], grad: bool) -> Mapping[str, Tensor | Labelled]:
    """Return what a donor's run has at some sites, with the positions of its rows unless it counts columns."""
    donor, given = lender.donor, lender.given
    if not isinstance(model, Model):
        found = run(model, donor.inputs, donor.target, read=names, edit=donor.edit, grad=grad)
        return {name: value.values if given.in_columns else value for name, value in found.items()}
    tape = Tape(model, names, [edit for _, edit in placed(donor.edit, model.sites(), given)], grad=grad)
    # no one looks at a donor's logits, unless they are what is copied
    tape.logits = model.makes_logits_for((*tape.reads, *tape.edits))
    with evaluating(model), torch.set_grad_enabled(grad):
        model(*given.args, **given.kwargs, tape=tape)
    tape.check_visited()
    if given.in_columns:
        return tape.values
    labels = PositionLabels(given)
    return {name: with_coordinates(tape[name], tape.requests.get(name), tape.table, labels, ()) for name in names}


def joined(links: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
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
