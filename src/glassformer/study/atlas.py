"""The atlas: what reports found, claim by claim, for each mechanism and by each analysis, and what cannot be asked.

    found = atlas()
    found.cell("differential", "head_scores").claims        decided by that analysis, of that mechanism
    found.cell("linear", "offset_profile").state            not testable here: the analysis is refused
    found.named("softmax", "patch").claims                  what is left of one mechanism and one analysis

A claim is entered once for each mechanism that it is about, under the analysis that its numbers are taken from. Under
no analysis stands what a study measures itself, losses and accuracies; under no mechanism, what is about none.
"""

import csv
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from typing import Any, Literal

from glassformer.applicability import Outcome, applied
from glassformer.errors import UnknownKind, nearest
from glassformer.files import json_text
from glassformer.study.claims import VERDICTS, Verdict
from glassformer.study.definition import Study
from glassformer.study.report import found_in_words
from glassformer.study.shelf import find, names, shipped

FORMAT, VERSION = "glassformer.atlas", 1
NONE = ""  # stands for no mechanism, and for no analysis
State = Literal["claimed", "open", "not testable here"]


@dataclass(frozen=True)
class Entry:
    """A claim of a report, under one of the mechanisms that it is about.

    Args:
        mechanism: Its kind; empty if the claim is about none.
        analysis: That its numbers are taken from; empty if the study measures them itself.
        study: Of the report.
        name: Of the claim in its study.
        claim: Its sentence.
        quantity: What was measured, in words.
        expected: Of the quantity, in words.
        verdict: One of `VERDICTS`.
        found: The numbers in words, with their interval.
        mean: Over seeds, or the share of those that count; None without any.
        low: Lower end of the 95 % interval.
        high: Upper end.
        seeds: How many gave a number.
        why: What keeps the claim from being decided, in words.
        paper: That claims it.
        link: To the study on the page of claims.
    """

    mechanism: str
    analysis: str
    study: str
    name: str
    claim: str
    quantity: str
    expected: str
    verdict: Verdict
    found: str
    mean: float | None
    low: float | None
    high: float | None
    seeds: int
    why: str
    paper: str
    link: str


@dataclass(frozen=True)
class Cell:
    """A mechanism and an analysis: what was claimed, or whether anything could be.

    Args:
        mechanism: Its kind; empty for none.
        analysis: Its name; empty for what studies measure themselves.
        outcome: What becomes of asking this analysis of a tiny model of this mechanism; None where either is missing.
        claims: Entries of this cell.
    """

    mechanism: str
    analysis: str
    outcome: Outcome | None
    claims: tuple[Entry, ...]

    @property
    def state(self) -> State:
        """`not testable here` exactly where the analysis is refused; else whether anything is claimed."""
        if self.outcome is not None and self.outcome.status == "refused":
            return "not testable here"
        return "claimed" if self.claims else "open"


@dataclass(frozen=True)
class Atlas:
    """Every cell, mechanism by mechanism.

    Args:
        cells: One for each mechanism and analysis, and one for each other place where something is claimed.
        unreported: Studies of which no report ships.
    """

    cells: tuple[Cell, ...]
    unreported: tuple[str, ...] = ()

    @property
    def claims(self) -> tuple[Entry, ...]:
        """All entries."""
        return tuple(entry for cell in self.cells for entry in cell.claims)

    @property
    def mechanisms(self) -> dict[str, list[Cell]]:
        """The cells of each mechanism, in order."""
        found: dict[str, list[Cell]] = {}
        for cell in self.cells:
            found.setdefault(cell.mechanism, []).append(cell)
        return found

    def cell(self, mechanism: str, analysis: str) -> Cell:
        """Return one cell; raises `UnknownKind` if there is none."""
        for cell in self.cells:
            if (cell.mechanism, cell.analysis) == (mechanism, analysis):
                return cell
        raise UnknownKind(
            f'the atlas has no cell of "{mechanism}" and "{analysis}".{nearest(mechanism, self.mechanisms)}\n    '
            "All of it: glassformer study atlas."
        )

    def named(self, *names: str) -> "Atlas":
        """Return what is left of mechanisms, analyses and studies that are named; of a sort that is not, all.

        Raises:
            UnknownKind: Nothing is called so.
        """
        studies = {entry.study for entry in self.claims}
        sorts = set(self.mechanisms) - {NONE}, {cell.analysis for cell in self.cells} - {NONE}, studies
        for name in names:
            if not any(name in sort for sort in sorts):
                raise UnknownKind(
                    f'nothing in the atlas is called "{name}": no mechanism, no analysis, no study whose report ships.'
                    f"{nearest(name, set().union(*sorts))}\n    All of it: glassformer study atlas."
                )
        mechanisms, analyses, asked = (sort.intersection(names) or {*sort, NONE} for sort in sorts)
        left = [
            replace(cell, claims=tuple(entry for entry in cell.claims if entry.study in asked))
            for cell in self.cells
            if cell.mechanism in mechanisms and cell.analysis in analyses
        ]
        # of studies only what they claim is asked for
        all_studies = studies <= asked
        return replace(self, cells=tuple(cell for cell in left if all_studies or cell.claims))

    def rows(self) -> list[dict[str, Any]]:
        """Return the table: a row for each entry, and one for each cell without any, which says why."""
        return [row for cell in self.cells for row in _rows(cell)]

    def to_csv(self) -> str:
        """Return the rows as comma-separated values."""
        text = io.StringIO()
        writer = csv.DictWriter(text, [field.name for field in fields(Entry)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows())
        return text.getvalue()

    def to_json(self) -> str:
        """Return entries, and for each mechanism its counts, what answers and what is refused, as JSON."""
        mechanisms = [
            {
                "mechanism": mechanism,
                "claims": tally(entry for cell in cells for entry in cell.claims),
                "open": [cell.analysis for cell in cells if cell.state == "open"],
                "not testable here": {
                    cell.analysis: cell.outcome.reason
                    for cell in cells
                    if cell.outcome is not None and cell.state == "not testable here"
                },
            }
            for mechanism, cells in self.mechanisms.items()
        ]
        told = {"format": FORMAT, "version": VERSION, "unreported": self.unreported, "mechanisms": mechanisms}
        return json_text(told | {"claims": [asdict(entry) for entry in self.claims]}, indent=1, ascii_only=False)


def atlas(reports: Mapping[str, Mapping[str, Any]] | None = None) -> Atlas:
    """Put the claims of reports where they belong, beside the table of what applies to what.

    Args:
        reports: By name of the study; those that come with the package by default.

    Returns:
        Every claim once for each mechanism that it is about; and a cell for each mechanism that ships and each
        analysis, whether anything is claimed there or not.
    """
    return _shipped() if reports is None else _made(reports)


def tally(entries: Iterable[Entry]) -> dict[Verdict, int]:
    """Count entries by verdict, all verdicts in one order."""
    counted = Counter(entry.verdict for entry in entries)
    return {verdict: counted[verdict] for verdict in VERDICTS}


@cache
def _shipped() -> Atlas:
    return _made({name: report for name in names() if (report := shipped(name)) is not None})


def _made(reports: Mapping[str, Mapping[str, Any]]) -> Atlas:
    places: dict[tuple[str, str], list[Entry]] = {}
    for name, report in reports.items():
        study = find(name)
        made = {claim.name: claim for claim in study.claims}
        for told in report["claims"]:
            claim = made[told["name"]]
            for mechanism in study.about(claim) or (NONE,):
                entry = _entry(mechanism, _analysis(study, claim.quantity.measures), report, told)
                places.setdefault((mechanism, entry.analysis), []).append(entry)
    outcomes = {
        (name, analysis): outcome
        for row in applied().groups["mechanism"]
        for name in (row.name, *row.also)
        # as it is, without settings
        if name.isidentifier()
        for analysis, outcome in row.outcomes.items()
    }
    order = {one.name: i for i, one in enumerate(applied().analyses)}
    # what studies measure themselves stands first, and what is about no mechanism last
    where = sorted(places | outcomes, key=lambda at: (at[0] == NONE, at[0], order.get(at[1], -1), at[1]))
    cells = tuple(Cell(*at, outcomes.get(at), tuple(places.get(at, ()))) for at in where)
    return Atlas(cells, tuple(name for name in names() if name not in reports))


def _analysis(study: Study, measures: Sequence[str]) -> str:
    """Return the analysis that the first of some measures with one is taken from."""
    taken = (study.measures[measure].analysis for measure in measures if measure in study.measures)
    return next((analysis.__name__ for analysis in taken if analysis is not None), NONE)


def _entry(mechanism: str, analysis: str, report: Mapping[str, Any], told: Mapping[str, Any]) -> Entry:
    return Entry(
        mechanism=mechanism, analysis=analysis, study=report["study"], name=told["name"], claim=told["text"],
        quantity=told["quantity"], expected=told["expected"], verdict=told["verdict"], found=found_in_words(told),
        mean=told["mean"], low=told["low"], high=told["high"], seeds=len(told["values"]), why=told["why"],
        paper=report["paper"], link=f"docs/claims.md#{report['study']}",
    )  # fmt: skip


def _rows(cell: Cell) -> list[dict[str, Any]]:
    if cell.claims:
        return [asdict(entry) for entry in cell.claims]
    why = cell.outcome.reason if cell.outcome is not None else ""
    said = "no claim" if cell.state == "open" else cell.state
    return [{"mechanism": cell.mechanism, "analysis": cell.analysis, "verdict": said, "why": why}]
