"""Write what the code says of itself: `python docs/make_catalogue.py`.

docs/which-analysis.md      every analysis by its question, from the cards
docs/what-applies.md        which analysis answers of which kind of model, from the table that `make applies` makes
docs/atlas.md               what studies found, by mechanism and analysis, from their reports and that table
docs/architecture/tree.md   the tree, from the first lines of docstrings, between `<!-- tree -->` and `<!-- /tree -->`
"""

import ast
import re
import textwrap
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from glassformer.analysis import ROOMS
from glassformer.analysis.cards import Card, cards
from glassformer.applicability import Outcome, Row, Table, applied
from glassformer.applicability.table import STATUSES
from glassformer.study.atlas import NONE, Atlas, Cell, Entry, atlas, tally
from glassformer.study.claims import VERDICTS

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "glassformer"
WIDTH = 120
# of a cell of a table
WIDEST = 160
# of these the files are many and alike: their names say enough
NAMES_ONLY = ("families", "mechanisms", "kernels", "zoo")
INTRODUCTION = """\
# Which analysis?

Find the analysis for a question here, and see what it takes. Each lies in a room: `analysis.lens.logit_lens`.

| asked of | is called with |
|---|---|
| one pass | a run that read for it, or a model and a text: `logit_lens(run)`, `logit_lens(model, text)` |
| weights | a model; no text is run |
| texts | a model and what it runs itself: texts, batches, random tokens |
| pairs of prompts | a model and `(clean, corrupt)`, or pairs of any other form |
| training runs | folders that training wrote, or what was measured of them |

In `read=` an analysis of one pass stands for the sites it reads, so that one run serves several:

```python
import glassformer as gf
from glassformer import analysis

model = gf.load("attn-only-2l")
run = gf.run(model, "for i in range(", read=[analysis.lens.logit_lens, analysis.heads.head_roles, "L1H6.pattern"])
print(analysis.lens.logit_lens(run).rank.values.tolist(), analysis.heads.head_roles(run).best("previous_token"))
```

Most have a command too: `explain`, `lens`, `attribute`, `route`, `trace`, `patch`, `paths`, `edges`, `prune`,
`circuits`, `behaviour` for known habits (`glassformer behaviour MODEL TEXT --habits sinks`), and `attention`: with
`--head` it says why a head looks there (`score_paths`).

What an analysis *assumes* are traits of the mechanism, which [mechanisms](mechanisms.md) lists; without one it raises
`AnalysisUnavailable` and names what works instead. `linear_in_value` stands for a pattern that multiplies values. Which
analysis answers of which mechanism, wiring and model, and what it holds fixed of a run: [what applies to
what](what-applies.md). Where an analysis has a *judge*, another way to its numbers, both were compared on every one of
these.
"""
APPLIES = """\
# What applies to what

Look up which analyses answer for a mechanism, a part, a wiring or a family of models, and why others do not. Nothing
here is written by hand: every analysis was asked of a tiny model of every kind (`make applies`), with default options.

| outcome | sign | means |
|---|---|---|
| exact | ● | it answers, and nothing of a run is held fixed |
| per run | ◐ | it answers for one run, and takes something of it as it was |
| refused | – | it raises `AnalysisUnavailable`, which gives the reason and what works instead |
| compared | ✓ | beside one of the first two: its judge came to the same numbers, in float64 |

What is taken as it was are `patterns`, `norm scales`, `gates` on mixed values or the activation of a `readout`; what
goes by `gradients` takes the model to be as it is near what it read. Where mixed values are gated, analyses of weights
are given weights with the gates of a text, `output_gates(run).hold(model)`. An answer may leave out heads or settings
it is not defined for; its result says which in `left_out`.

A judge is another way to the numbers of an analysis: loops, derivatives, whole products, plain passes with hooks.
[Which one an analysis has](#what-is-compared) stands below, and the code in `glassformer.testing.judges`. Without ✓ an
analysis answers, and its laws are tested on models of a few kinds; its numbers were not compared on this one.

The same on a terminal: `glassformer models --applies linear`, or `--applies rollout` for one analysis; `--json` gives
the data. A mechanism of your own gets its row from `glassformer.testing`:

```py
from glassformer.testing.applies import built, outcomes

outcomes(built(mixer=Mine()))["rollout"]
```
"""
ATLAS = """\
# Atlas of claims

Look up what is known here of a mechanism: what was claimed of it, how that ended, with numbers and intervals, by which
analysis, and what cannot be asked of it at all. All of it is made of the reports of [studies](claims.md) and the table
of [what applies to what](what-applies.md); nothing is written by hand.

| sign | a claim | means |
|---|---|---|
| ✓ | holds | the 95 % interval over seeds lies in the range that was expected beforehand |
| ✗ | fails | it lies outside |
| ? | undecided | it reaches across an end, or there are too few seeds |
| ∅ | not testable here | something that has to be true first is not: the reference has not learned the task, say |

| sign | a mechanism and an analysis | means |
|---|---|---|
| – | not testable here | the analysis is refused for this mechanism; [why](what-applies.md) |
| · | open | it answers, and no study claims anything by it |

A claim stands once under each mechanism that it is about: one that compares two stands under both. *Measured by* names
the analysis that its numbers are taken from; a study measures losses, accuracies and costs itself. Models are small and
trained for minutes: what fails here is not refuted where it was made. [How a claim is
decided](how-to/check-a-claim.md) stands on a page of its own.

To cite a line, give study and claim, the version of the package, and the digest of the report: `glassformer study
report NAME --json` ends with its SHA-256. The same as data:

```console
$ glassformer study atlas differential           # its claims, and what is refused
$ glassformer study atlas differential patch     # one cell
$ glassformer study atlas --csv atlas.csv        # a row for each claim and mechanism, and for each empty cell
$ glassformer study atlas --json
```
"""
VERDICT_SIGNS = {"holds": "✓", "fails": "✗", "undecided": "?", "not testable here": "∅", "not defined": "n/a"}
EMPTY_SIGNS = {"not testable here": "–", "open": "·"}
SIGNS = {"exact": "●", "per run": "◐", "refused": "–"}
COMPARED = "✓"
BASE, BESIDE = "softmax", ("softmax(cap=0.5)", "softmax(sinks=True)")


def pages() -> dict[Path, str]:
    """Return every generated page by its file."""
    docs = ROOT / "docs"
    page = docs / "architecture" / "tree.md"
    text = page.read_text(encoding="utf-8")
    place = re.compile(r"(<!-- tree -->\n).*?(<!-- /tree -->)", re.DOTALL)
    if not place.search(text):
        raise SystemExit("no <!-- tree --> … <!-- /tree --> to fill in docs/architecture/tree.md")
    drawn = place.sub(lambda match: f"{match[1]}\n```\n{tree()}\n```\n\n{match[2]}", text)
    return {
        docs / "which-analysis.md": which_analysis(),
        docs / "what-applies.md": what_applies(),
        docs / "atlas.md": atlas_of_claims(),
        page: drawn,
    }


def which_analysis() -> str:
    """Return the page of analyses: a table for each room."""
    found: dict[str, list[Card]] = {room: [] for room in ROOMS}
    for card in cards():
        found[card.room].append(card)
    sections = [INTRODUCTION]
    for room, asked in ROOMS.items():
        heads = ("question", "ask", "of", "assumes", "judge", "source")
        rows = [heads, ("---",) * len(heads), *(_row(card) for card in found[room])]
        sections.append(f"## {room}: {asked[0].lower()}{asked[1:]}\n\n{_table(rows)}\n")
    return "\n".join(sections)


def what_applies() -> str:
    """Return the page of what applies to what: mechanisms side by side, then each row with its reasons."""
    table = applied()
    base = next(row for row in table.rows if row.name == BASE)
    sections = [APPLIES, f"## Mechanisms side by side\n\n{_side_by_side(table)}\n"]
    sections.append(f"## What is held\n\n{_held(base)}\n")
    sections.append(f"## What is compared\n\n{_judges(table)}\n")
    for group, rows in table.groups.items():
        shared = len({row.about for row in rows}) == 1
        counts = [("", *STATUSES, "compared"), ("---",) * 5, *(_counted(row) for row in rows)]
        parts = [
            f"## {group.capitalize()}: each with its reasons",
            *([_about(rows[0])] if shared else []),
            _table(counts),
        ]
        sections.append("\n\n".join([*parts, *(_reasons(row, base, alone=not shared) for row in rows)]) + "\n")
    return "\n".join(sections)


def atlas_of_claims() -> str:
    """Return the page of claims: counts of each mechanism, mechanisms and analyses side by side, and every claim."""
    found = atlas()
    unreported = ", ".join(f"`{name}`" for name in found.unreported) or "none"
    sections = [
        ATLAS,
        f"## Mechanisms\n\n{_mechanisms(found)}\n",
        f"## Analyses and mechanisms\n\n{_by_analysis(found)}\n",
        f"Studies of which no report ships yet: {unreported}.\n",
    ]
    for mechanism, cells in found.mechanisms.items():
        claims = [entry for cell in cells for entry in cell.claims]
        rows = [("claim", "verdict", "found", "expected", "measured by", "study"), ("---",) * 6, *map(_claim, claims)]
        refused = [f"`{cell.analysis}`" for cell in cells if cell.state == "not testable here"]
        sections += [
            f"## {mechanism or 'Claims about no mechanism'}\n",
            f"{_table(rows)}\n" if claims else "No report that ships claims anything of it.\n",
            *([f"Not testable here, as the analysis is refused: {', '.join(refused)}.\n"] if refused else []),
        ]
    return "\n".join(sections)


def _mechanisms(found: Atlas) -> str:
    """Return one row per mechanism, and their sums: claims by verdict, analyses by what can be asked of them."""
    rows: list[Sequence[str]] = [
        ("mechanism", *VERDICTS, "all claims", "analyses that answer", "refused"),
        ("---",) * 9,
    ]
    for mechanism, cells in found.mechanisms.items():
        claims, asked = [entry for cell in cells for entry in cell.claims], [cell for cell in cells if cell.outcome]
        refused = sum(cell.state == "not testable here" for cell in asked)
        link = f"[`{mechanism}`](mechanisms/{mechanism}.md)" if mechanism else "of no mechanism"
        rows.append((link, *_counts(claims), *map(str, (len(claims), len(asked) - refused, refused))))
    return _table([*rows, ("together", *_counts(found.claims), str(len(found.claims)), "", "")])


def _counts(claims: Sequence[Entry]) -> list[str]:
    return [str(n or "") for n in tally(claims).values()]


def _by_analysis(found: Atlas) -> str:
    """Return one row per analysis and one column per mechanism: signs of verdicts, or of what can be asked."""
    cells = {(cell.mechanism, cell.analysis): cell for cell in found.cells}
    kinds = [kind for kind in found.mechanisms if kind != NONE]
    lines: list[Sequence[str]] = [("analysis", *(f"`{kind}`" for kind in kinds)), ("---",) * (len(kinds) + 1)]
    for name in (NONE, *(one.name for one in applied().analyses)):
        said = f"`{name}`" if name else "measured by the study itself"
        lines.append((said, *(_signs(cells.get((kind, name))) for kind in kinds)))
    return _table(lines)


def _signs(cell: Cell | None) -> str:
    if cell is None or not cell.claims:
        return EMPTY_SIGNS.get(cell.state, "") if cell else ""
    return " ".join(f"{n}{VERDICT_SIGNS[verdict]}" for verdict, n in tally(cell.claims).items() if n)


def _claim(entry: Entry) -> Sequence[str]:
    said = entry.claim.replace("<", "\\<").replace("*", "\\*")
    by = f"`{entry.analysis}`" if entry.analysis else ""
    return said, entry.verdict, entry.found, entry.expected, by, f"[{entry.study}]({entry.link.removeprefix('docs/')})"


def _side_by_side(table: Table) -> str:
    """Return signs of all analyses, for mechanisms as they are, as published, and with settings that matter."""
    rows = [row for row in table.groups["mechanism"] if "(" not in row.name or row.name in BESIDE]
    lines: list[Sequence[str]] = [("analysis", *(f"`{row.name}`" for row in rows)), ("---",) * (len(rows) + 1)]
    for one in table.analyses:
        lines.append((f"`{one.name}`", *(_sign(row.outcomes[one.name]) for row in rows)))
    return _table(lines)


def _sign(outcome: Outcome) -> str:
    return SIGNS[outcome.status] + COMPARED * outcome.compared


def _judges(table: Table) -> str:
    """Return what each analysis that has a judge is compared with, and of how many rows."""
    lines: list[Sequence[str]] = [("analysis", "compared with", "answers", "of them compared"), ("---",) * 4]
    for one in table.analyses:
        if one.judge:
            answers = [row.outcomes[one.name] for row in table.rows if row.outcomes[one.name].status != "refused"]
            compared = sum(outcome.compared for outcome in answers)
            lines.append((f"`{one.name}`", one.judge, str(len(answers)), str(compared)))
    return _table(lines)


def _held(base: Row) -> str:
    """Return what analyses hold of a run, of a model that has norms and patterns."""
    by_held: dict[str, list[str]] = {}
    for name, outcome in base.outcomes.items():
        if outcome.held:
            by_held.setdefault(", ".join(outcome.held), []).append(f"`{name}`")
    said = [f"- {held}: {', '.join(names)}" for held, names in by_held.items()]
    return "\n".join([f"With {BASE}; where a model has none of it, nothing is held.", "", *said])


def _counted(row: Row) -> Sequence[str]:
    counted = Counter(outcome.status for outcome in row.outcomes.values())
    named = f"`{row.name}`" + (f" and {len(row.also)} more" if row.also else "")
    compared = sum(outcome.compared for outcome in row.outcomes.values())
    return named, *(str(counted[status]) for status in STATUSES), str(compared)


def _about(row: Row) -> str:
    return f"{row.about[0].upper()}{row.about[1:]}."


def _reasons(row: Row, base: Row, *, alone: bool) -> str:
    """Return why analyses are refused or leave something out, each reason once, and what else than usual is held.

    Args:
        row: Of which.
        base: What is usual.
        alone: Say what it is of, too.
    """
    found: dict[str, list[str]] = {}
    for name, outcome in row.outcomes.items():
        for said in _said(name, outcome, base.outcomes):
            found.setdefault(said, []).append(f"`{name}`")
    lines = [f"- {', '.join(names)}: {said}" for said, names in found.items()]
    also = [f"As it is, and as {', '.join(f'`{name}`' for name in row.also)}."] if row.also else []
    parts = [f"### {row.name}", *([_about(row)] if alone else []), *also, "\n".join(lines) or f"As {BASE}."]
    return "\n\n".join(parts)


def _said(name: str, outcome: Outcome, usual: Mapping[str, Outcome]) -> Iterator[str]:
    if outcome.reason:
        # who refuses stands before the reason already
        yield f"refused; {outcome.reason.removeprefix(f'{name}: ')}"
    if outcome.status != "refused" and outcome.held != usual[name].held:
        yield f"holds {', '.join(outcome.held) or 'nothing'}"
    if outcome.left_out:
        yield f"leaves out; {outcome.left_out[0]}"


def _row(card: Card) -> Sequence[str]:
    link = f"[`{card.name}`](api/generated/glassformer.analysis.{card.room}.rst)"
    # the first sentence: what follows says how ours differs
    source = re.split(r"(?<!et al)\.\s+(?=[A-Z])", card.source)[0].rstrip(".")
    if len(source) > WIDEST:
        # authors and years tell which papers; titles stand in the reference
        source = textwrap.shorten(re.sub(r', "[^"]+"', "", source), WIDEST, placeholder=" …")
    return card.question, link, card.of, ", ".join(f"`{trait}`" for trait in card.traits), card.judge, source


def _table(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def tree() -> str:
    """Return packages in the order of their layers, lowest first, each with its files and what they say first.

    What `python -m glassformer` runs stands above them all.
    """
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = config["tool"]["importlinter"]["contracts"][0]["layers"]
    names = [name.strip() for layer in reversed(layers) for name in layer.split("|")]
    lines = ["src/glassformer/"]
    for name in names:
        lines += _package(SOURCE / name, 1) if (SOURCE / name).is_dir() else _file(SOURCE / f"{name}.py", 1)
    lines += _file(SOURCE / "__main__.py", 1)
    return "\n".join(lines)


def _package(folder: Path, depth: int) -> Iterator[str]:
    yield from _line(f"{folder.name}/", _first(folder / "__init__.py"), depth)
    inside = sorted(folder.iterdir(), key=lambda path: (path.is_dir(), path.name))
    files = [path for path in inside if path.suffix == ".py" and path.stem != "__init__"]
    if depth > 1 or folder.name in NAMES_ONLY:
        listed = " ".join(re.sub("^_(?!_)", "", path.stem) for path in files)
        yield from textwrap.wrap(listed, WIDTH, initial_indent=_space(depth + 1), subsequent_indent=_space(depth + 1))
    else:
        for path in files:
            yield from _file(path, depth + 1)
    for path in inside:
        if path.is_dir() and (path / "__init__.py").exists():
            yield from _package(path, depth + 1)


def _file(path: Path, depth: int) -> Iterator[str]:
    yield from _line(path.name, _first(path), depth)


def _line(name: str, about: str, depth: int) -> Iterator[str]:
    start = f"{_space(depth)}{name}".ljust(30)
    yield f"{start} {textwrap.shorten(about, WIDTH - len(start) - 1, placeholder=' …')}".rstrip()


def _space(depth: int) -> str:
    return "  " * depth


def _first(path: Path) -> str:
    """Return the first line of a module's docstring."""
    about = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return about.partition("\n")[0].rstrip(".")


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
