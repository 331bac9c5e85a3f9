"""The table of what applies to what: a row for each kind of model, an outcome for each analysis.

In `table.json` equal outcomes stand once, and rows point to them:

    analyses    name, room, question and judge of each, in the order of columns
    outcomes    status, and what goes with it: `held`, `reason`, `left_out`, `compared`
    rows        name, group, what it is, settings with the same outcomes (`also`), and the place of each outcome
"""

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files as resources
from typing import Any, Literal, get_args

from glassformer.errors import UnknownKind, nearest
from glassformer.files import json_text

FORMAT = 1
FILE = "table.json"
Status = Literal["exact", "per run", "refused"]
STATUSES = get_args(Status)


@dataclass(frozen=True)
class Outcome:
    """What became of asking one analysis of one model.

    Args:
        status: `exact`, it answers, and nothing of a run is held fixed; `per run`, it answers for one run, of which
            something is held; `refused`, with a reason.
        held: What is held as it was in the run, as cards of analyses name it.
        reason: Why it is refused: the first sentence of the error.
        left_out: Why it answers without some heads or settings: the first sentences.
        compared: Whether its judge came to the same numbers in another way, in float64. An analysis without a judge
            answers, and nothing more is known.
    """

    status: Status
    held: tuple[str, ...] = ()
    reason: str = ""
    left_out: tuple[str, ...] = ()
    compared: bool = False

    @property
    def words(self) -> str:
        """What goes with the status: what is held, why it is refused, what is missing."""
        return "; ".join(part for part in (", ".join(self.held), self.reason, *self.left_out) if part)

    def to_dict(self) -> dict[str, Any]:
        """JSON data, without what is empty."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Outcome":
        lists = {name: tuple(data.get(name, ())) for name in ("held", "left_out")}
        return cls(data["status"], reason=data.get("reason", ""), compared=data.get("compared", False), **lists)


@dataclass(frozen=True)
class Analysis:
    """A column: one analysis.

    Args:
        name: Of the function.
        room: It lies in.
        question: What it answers.
        judge: What its numbers are compared with, in words; empty if there is none.
    """

    name: str
    room: str
    question: str
    judge: str = ""


@dataclass(frozen=True)
class Row:
    """A kind of model.

    Args:
        name: Of a mechanism with its settings, a wiring, a sub-layer, a part of attention layers, a tiny model.
        group: Which of these it is.
        about: What the model is made of.
        outcomes: By name of the analysis.
        also: Settings with the same outcomes.
    """

    name: str
    group: str
    about: str
    outcomes: Mapping[str, Outcome]
    also: tuple[str, ...] = ()

    def called(self) -> dict[str, Any]:
        """Name and kind of the row, without its outcomes, as JSON data."""
        return {"name": self.name, "group": self.group, "about": self.about, "also": self.also}


@dataclass(frozen=True)
class Table:
    """Every analysis, and every row.

    Args:
        analyses: The columns.
        rows: In groups.
    """

    analyses: tuple[Analysis, ...]
    rows: tuple[Row, ...]

    @property
    def groups(self) -> dict[str, list[Row]]:
        """The rows of each group, in order."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.group, []).append(row)
        return found

    def named(self, name: str) -> list[Row] | Analysis:
        """The rows that a name begins, `softmax` with all its settings; or the analysis of that name.

        Raises:
            UnknownKind: There is neither.
        """
        analysis = next((one for one in self.analyses if one.name == name), None)
        if analysis is not None:
            return analysis
        rows = [row for row in self.rows if name in (_kind(row.name), *row.also, row.name)]
        if not rows:
            known = [*dict.fromkeys(_kind(row.name) for row in self.rows), *(one.name for one in self.analyses)]
            raise UnknownKind(
                f'nothing is called "{name}" among mechanisms, wirings, parts and models, nor among analyses.'
                f"{nearest(name, known)}\n    All of them: glassformer models --applies."
            )
        return rows

    def to_json(self) -> str:
        """The text of the file: a line for each analysis, outcome and row."""
        distinct = list(dict.fromkeys(row.outcomes[one.name] for row in self.rows for one in self.analyses))
        place = {outcome: i for i, outcome in enumerate(distinct)}
        rows = [
            row.called() | {"outcomes": [place[row.outcomes[one.name]] for one in self.analyses]} for row in self.rows
        ]
        parts = {
            "analyses": [dataclasses.asdict(one) for one in self.analyses],
            "outcomes": [outcome.to_dict() for outcome in distinct],
            "rows": rows,
        }
        lists = [f'"{name}": [\n{_lines(found)}\n]' for name, found in parts.items()]
        return "{\n" + ",\n".join([f'"format": {FORMAT}', *lists]) + "\n}\n"

    @classmethod
    def from_json(cls, text: str) -> "Table":
        data = json.loads(text)
        analyses = tuple(Analysis(**one) for one in data["analyses"])
        distinct = [Outcome.from_dict(one) for one in data["outcomes"]]
        rows = [
            Row(
                row["name"], row["group"], row["about"],
                {one.name: distinct[i] for one, i in zip(analyses, row["outcomes"], strict=True)}, tuple(row["also"]),
            )
            for row in data["rows"]
        ]  # fmt: skip
        return cls(analyses, tuple(rows))


@functools.cache
def applied() -> Table:
    """The table that comes with the package."""
    text = resources("glassformer.applicability").joinpath(FILE).read_text(encoding="utf-8")
    return Table.from_json(text)


def _kind(name: str) -> str:
    """Return a row's name without its settings: `softmax` of `softmax(cap=0.5)`."""
    return name.partition("(")[0].partition(",")[0]


def _lines(found: Sequence[Any]) -> str:
    return ",\n".join(json_text(one, ascii_only=False) for one in found)
