"""Pages stay short enough to be read: what each may hold, whoever adds to it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts)]
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)

CELL = 160  # characters of a table's cell, as a reader sees them: a link counts by its words
LIMITS = {
    "README.md": ("bytes", 9_000),
    "README.zh.md": ("characters", 9_000),
    "docs/architecture.md": ("lines", 250),
    "CHANGELOG.md": ("lines of the first release", 220),  # and 10 for each later group of work
}
MEASURES = {
    "bytes": lambda text: len(text.encode()),
    "characters": len,
    "lines": lambda text: len(text.splitlines()),
    "lines of the first release": lambda text: len(text.splitlines()),
}


def cells(text: str) -> list[str]:
    """The cells of all tables of a page, with the words of links in place of links."""
    rows = [line for line in FENCED.sub("", text).splitlines() if line.startswith("|")]
    seen = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", row) for row in rows)
    return [cell.strip() for row in seen for cell in re.split(r"(?<!\\)\|", row)[1:-1]]


@pytest.mark.parametrize("name", LIMITS)
def test_a_page_is_no_longer_than_people_read(name: str) -> None:
    measure, limit = LIMITS[name]
    assert MEASURES[measure]((ROOT / name).read_text(encoding="utf-8")) <= limit, f"{name}: {measure}"


def test_no_cell_of_a_table_is_a_paragraph() -> None:
    long = {(str(page.relative_to(ROOT)), cell) for page in PAGES for cell in cells(page.read_text("utf-8"))}
    assert [(page, cell) for page, cell in sorted(long) if len(cell) > CELL] == []


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_half_of_a_readme_is_prose_and_code(name: str) -> None:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines(keepends=True)
    tables = sum(len(line) for line in lines if line.startswith("|"))
    assert 2 * tables <= sum(map(len, lines))


def test_the_architecture_begins_with_six_files_that_are_there() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.partition("## Read these six files first\n")[2].partition("\n## ")[0]
    named = re.findall(r"^\| `([^`]+)` \| .+ \|$", section, re.MULTILINE)
    assert len(named) == 6 and all((ROOT / "src" / "glassformer" / name).is_file() for name in named)


def test_the_first_page_has_a_command_a_picture_and_four_sections_and_how_to_pages_stand_in_five_groups() -> None:
    index, how_to = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("index.md", "how-to/index.md"))
    assert "$ glassformer " in index and re.search(r"```\{image\} (\S+)", index)
    assert len(re.findall("^## ", index, re.MULTILINE)) == len(re.findall(":caption:", index)) == 4
    assert len(re.findall("^## ", how_to, re.MULTILINE)) == 5
    listed = re.findall(r"^- \[[^\]]+\]\(([\w-]+)\.md\)", how_to, re.MULTILINE)
    assert sorted(listed) == sorted(p.stem for p in (ROOT / "docs" / "how-to").glob("*.md") if p.stem != "index")
