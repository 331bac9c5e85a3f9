"""Pages of the book are programs: what stands on them is what their blocks compute."""

import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import pytest

import glassformer as gf
from glassformer.cli import main
from glassformer.serve.permalink import Opened

DOCS = Path(__file__).parents[2] / "docs"
EXTENSION = runpy.run_path(str(DOCS / "_extensions" / "executed.py"))
executed, PART = EXTENSION["executed"], EXTENSION["PART"]


def test_what_a_block_prints_stands_below_it_and_values_stand_in_sentences() -> None:
    block = "A.\n\n```python\nx = 2 / 3\nprint(x > 0.5)\n```\n\n"
    page = block + "It is {{ x:.2f }}, or {{ f'{x:.0%}' }}; {{ {'a': 5}['a'] }}.\n"
    shown = executed(page, "page.md")
    assert shown.startswith(f"{block}```{{code-block}} text\n:class: printed\n\nTrue\n```\n")
    assert shown.endswith("\nIt is 0.67, or 67%; 5.\n")


def test_a_block_that_prints_nothing_and_blocks_of_other_languages_stay_as_they_are() -> None:
    page = "```python\nx = 1\n```\n\n```console\n$ echo {{ x }}\n```\n\n```py\nnever()\n```\n"
    assert executed(page, "page.md") == page


def test_a_figure_becomes_a_picture_with_its_words() -> None:
    page = (
        "<!--\n```python\nimport torch\nimport glassformer as gf\nfrom glassformer.figures import Panel, draw\n"
        'drawn = draw([Panel("numbers", gf.Labelled(torch.ones(3), ("key",)))])\n```\n-->\n\n'
        "![Three numbers]({{ drawn }})\n"
    )
    assert re.search(r"!\[Three numbers\]\(data:image/png;base64,[\w+/]+=*\)\n$", executed(page, "page.md"))


@pytest.mark.parametrize("wrong", ["```python\nassert 1 > 2\n```\n", "so {{ 1 / 0 }} it is\n"])
def test_what_is_not_so_fails_and_names_page_and_line(wrong: str) -> None:
    with pytest.raises((AssertionError, ZeroDivisionError)) as raised:
        executed(f"First.\n\n{wrong}", "page.md")
    [note] = raised.value.__notes__
    assert note in ("in page.md, in what begins at line 3", "in page.md, in what begins at line 4")


def test_an_empty_block_is_that_of_the_page_which_is_translated() -> None:
    first, sketch, last = "```python\nx = 2\n```\n", "```py\nnever()\n```\n", "```python\nx += 1\n```\n{{ x }}"
    english = f"{first}{sketch}```python\nprint('two', x)\n```\n{last}"
    chinese = "```python\n```\n```python\nprint('二', x)\n```\n```python\n```\n{{ x }}"
    shown = executed(chinese, "page.md", english)
    assert shown.startswith(first) and shown.endswith("```python\nx += 1\n```\n3")
    assert "\n二 2\n" in shown and "two" not in shown


def commands(page: Path) -> list[str]:
    """Return what is typed below the last figure of each section of a page that has one."""
    found = list[str]()
    for section in re.split("^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE):
        *_, below = re.split(r"^!\[.*\]\(\{\{", section, flags=re.MULTILINE)
        typed = re.findall(r"^\$ glassformer (serve .*)$", below, re.MULTILINE) if below != section else []
        assert len(typed) == (below != section), f"{page.name}: {section[:40]}"
        found += typed
    return found


def test_under_each_figure_of_the_book_stands_one_command_that_opens_its_state() -> None:
    typed = [line for page in DOCS.glob("book/**/*.md") for line in commands(page)]
    assert len(typed) == 10 and all(re.search("--(text|learn) ", line) for line in typed)


@pytest.mark.full
def test_the_state_that_a_command_of_the_book_opens_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, Opened]] = []

    def serving(models: dict[str, Any], *, opened: Opened, **_: Any) -> None:
        [(name, load)] = models.items()
        asked.append((load(), opened))
        # an unknown head is refused here
        opened.fragment(name, asked[-1][0])

    monkeypatch.setattr("glassformer.serve.serve", serving)
    for page in DOCS.glob("book/**/*.md"):
        for line in commands(page):
            # $'…' of a shell, in which \n is a new line
            assert main([re.sub(r"^\$", "", word).replace("\\n", "\n") for word in shlex.split(line)]) == 0
    for model, opened in asked:
        if opened.text is not None:
            tokens = opened.text if opened.head and "enc" in opened.head else gf.run(model, opened.text).tokens
            assert max(opened.query or 0, opened.key or 0) < len(tokens)


@pytest.mark.full
@pytest.mark.parametrize("page", sorted(DOCS.glob("book/**/*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_every_page_of_the_book_runs_and_shows_the_same_values_in_both_languages(page: Path) -> None:
    english, chinese = (file.read_text(encoding="utf-8") for file in (page, DOCS / "zh" / page.relative_to(DOCS)))
    assert values(chinese, english) == values(english)


def values(source: str, original: str = "") -> list[tuple[str, str]]:
    """Return the expressions of a page and what it shows of them, but for what is said in a language."""
    beside = PART.sub(lambda part: f"\0{part['value']}\1{part[0]}\0" if part["value"] else part[0], source)
    found = re.findall("\0(.*?)\1(.*?)\0", executed(beside, "page.md", original), re.DOTALL)
    assert len(found) == beside.count("\1")
    return sorted(
        (words.strip(), shown) for words, shown in found if not words.strip().startswith(("exercise", "glossary"))
    )
