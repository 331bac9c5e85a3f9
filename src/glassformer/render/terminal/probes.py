"""What probes tell, on the terminal: a row for each site, with what says as much without it beside it."""

import math

from rich.console import RenderableType
from rich.text import Text

from glassformer.analysis.probes import ErasureEffects, Probes
from glassformer.labelled import Labelled
from glassformer.render.terminal.tables import QUIET, section, table, tables
from glassformer.words import sentence, spoken, spoken_each

# what is told by, as the head of a column
HEADS = {
    "the site": sentence("told"),
    "untrained model": sentence("untrained"),
    "random vector by token": sentence("token"),
    "majority": sentence("majority"),
    "shuffled labels": sentence("shuffled"),
}


@tables.register
def _(result: Probes) -> RenderableType:
    own, *beside = (name for name in map(str, result.accuracy.labels("told_by")) if name in HEADS)
    grid = table(spoken("site"), spoken(HEADS[own]), spoken("95 %"), *(spoken(HEADS[name]) for name in beside))
    for site in result.accuracy.labels("site"):
        low, high = (100 * _of(result.bounds, bound=end, site=site, told_by=own) for end in ("low", "high"))
        told, *others = (_percent(_of(result.accuracy, site=site, told_by=name)) for name in (own, *beside))
        grid.add_row(str(site), told, f"{low:.0f}–{high:.0f}", *others)
    note = spoken(
        "Share of the labelled tokens of a document that a probe of other documents tells: {rows:,} tokens of "
        "{documents:,} documents, {n} classes. token: a random vector for each token instead of the site.",
        rows=result.rows, documents=result.documents, n=len(result.classes),
    )  # fmt: skip
    notes = [note] if len(result.accuracy.labels("site")) == 1 else [note, _layers(result, own)]
    return section(spoken("What can be read linearly"), grid, *(Text(one, style=QUIET) for one in notes))


def _layers(result: Probes, own: str) -> str:
    """Return in words where along the sites a property comes from."""
    expected, centre = (
        _of(result.layers, measure=name, told_by=own) for name in map(str, result.layers.labels("measure"))
    )
    low, high = (_of(result.layer_bounds, bound=end, measure="expected layer", told_by=own) for end in ("low", "high"))
    if math.isnan(expected):
        return spoken("No site tells more than the first.")
    return spoken(
        "Of sites counted from 0, what is told more than at the first comes at {layer:.1f} ({low:.1f} to {high:.1f}); "
        "the centre of gravity of all that is told more than by the majority is {centre:.1f}.",
        layer=expected, low=low, high=high, centre=centre,
    )  # fmt: skip


@tables.register
def _(result: ErasureEffects) -> RenderableType:
    grid = table(*spoken_each("site", "told", "left", "majority", "rise", "95 %", "shuffled"))
    cost, at_random = result.cost.labels("erased")
    for site in result.told.labels("site"):
        shares = [_percent(_of(result.told, site=site, told_by=by)) for by in result.told.labels("told_by")]
        low, high = (_of(result.cost_bounds, bound=end, site=site, erased=cost) for end in ("low", "high"))
        nats, others = (_of(result.cost, site=site, erased=name) for name in (cost, at_random))
        grid.add_row(str(site), *shares, f"{nats:+.2f}", f"{low:+.2f} {high:+.2f}", f"{others:+.2f}")
    note = spoken(
        "left: what probes tell once the property is erased at a site; rise: by how much the loss of next tokens, "
        "{loss:.3f} nats, then rises; shuffled: the same when as many directions of shuffled labels are erased.",
        loss=result.loss,
    )
    return section(spoken("What is used costs the model when it is erased"), grid, Text(note, style=QUIET))


def _of(values: Labelled, **place: object) -> float:
    return float(values.select(**place).values)  # type: ignore[arg-type]


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
