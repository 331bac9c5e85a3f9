"""Write what the code says of itself: `python docs/make_catalogue.py`.

docs/which-analysis.md      every analysis by its question, from the cards
docs/what-applies.md        which analysis answers of which kind of model, from the table that `make applies` makes
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
    return {docs / "which-analysis.md": which_analysis(), docs / "what-applies.md": what_applies(), page: drawn}


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
