"""The HTML page of a circuits report, opened from disk in a real browser."""

import copy
import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from glassformer.render.page import circuits_page
from glassformer.render.terminal import lines
from glassformer.render.terminal.tables import tables
from pages import NASTY, Opener, accessibility_report, open_everything
from reports import SAMPLES, sample

browser_test = pytest.mark.browser


@pytest.mark.full
@browser_test
@pytest.mark.parametrize(("name", "scheme", "width"), [("gpt", "light", 1280), ("translation", "dark", 390)])
def test_the_page_is_accessible(opened: Opener, name: str, scheme: str, width: int) -> None:
    assert accessibility_report(opened(sample(name).to_dict(), scheme=scheme, width=width)) == ""


@browser_test
@pytest.mark.full
@pytest.mark.parametrize(("scheme", "width"), [("dark", 1280), ("light", 390)])
@pytest.mark.parametrize("name", SAMPLES)
def test_every_sample_is_accessible_with_everything_open(opened: Opener, name: str, scheme: str, width: int) -> None:
    shown = opened(sample(name).to_dict(), scheme=scheme, width=width)
    open_everything(shown)
    assert accessibility_report(shown) == ""


def test_a_report_writes_the_page_of_its_own(tmp_path: Path) -> None:
    found = sample("hand")
    assert found.html(tmp_path / "page.html").read_text() == circuits_page(found.to_dict())


@browser_test
@pytest.mark.parametrize("name", SAMPLES)
def test_a_narrow_window_scrolls_only_downwards(opened: Opener, name: str) -> None:
    shown = opened(sample(name).to_dict(), width=360)
    assert shown.evaluate("document.documentElement.scrollWidth") == 360


@browser_test
def test_the_page_states_the_documents_numbers(opened: Opener) -> None:
    payload = sample("hand").to_dict()
    shown = opened(payload)
    assert shown.locator("header .findings li").all_inner_texts() == list(payload["findings"])
    rows = shown.locator("#heads tbody tr")
    assert rows.count() == len(payload["heads"])
    for row, head in zip(rows.all(), payload["heads"]):
        cells = row.locator("th, td").all_inner_texts()
        assert cells[0] == head["label"] and number(cells[1]) == pytest.approx(
            head["roles"]["previous_token"], abs=6e-3
        )
        assert number(cells[-3]) == pytest.approx(head["ablation_icl"], abs=6e-4)
    edge = payload["edges"][0]
    assert f"{edge['score']:.3f}" in shown.inner_text("#composition tbody tr:first-child")
    assert shown.locator("#eigenvalues .planes > *").count() == len(payload["eigenvalues"])


def number(cell: str) -> float:
    return float(re.sub(r"[^\d.+-]", "", cell.replace("−", "-")))


@browser_test
def test_sections_that_have_nothing_to_show_are_not_there(opened: Opener) -> None:
    shown = opened(sample("translation").to_dict())
    found = {section.get_attribute("id") for section in shown.locator("main > section").all()}
    assert {"heads", "eigenvalues", "unavailable", "words"} <= found
    assert not {"composition", "importance", "phase"} & found
    assert {link.get_attribute("href") for link in shown.locator("nav a").all()} == {f"#{name}" for name in found}


@browser_test
def test_training_is_drawn_where_a_run_is_given(opened: Opener) -> None:
    payload = sample("gpt").to_dict()
    shown = opened(payload)
    assert shown.locator("#phase svg").count() == len(payload["training"]["charts"])
    assert f"{payload['training']['change']:,}" in shown.inner_text("#phase").replace("\u202f", ",").replace(" ", ",")


@browser_test
def test_no_token_becomes_markup(opened: Opener) -> None:
    payload: dict[str, Any] = copy.deepcopy(sample("gpt").to_dict())
    payload["model"]["name"] = NASTY[2]
    payload["findings"] = NASTY
    for pairs in payload["pairs"]:
        for i, pair in enumerate([*pairs["ov"], *pairs["qk"]]):
            pair["first"], pair["second"] = NASTY[i % len(NASTY)], NASTY[(i + 3) % len(NASTY)]
    for i, rule in enumerate(payload["trigrams"]):
        rule["source"] = rule["destination"] = rule["out"] = NASTY[i % len(NASTY)]
    shown = opened(payload)
    assert shown.evaluate("window.ran") is None
    assert shown.locator("img").count() == 0 and shown.locator("main > section").count() >= 6
    first = shown.locator("#trigrams tbody tr").first.locator("td").first
    assert first.inner_text().strip() == NASTY[0]


@pytest.mark.full
def test_a_number_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        circuits_page({"model": {"name": "m"}, "edges": float("inf")})


@browser_test
def test_columns_are_called_as_on_the_terminal_and_say_what_they_hold(opened: Opener) -> None:
    report = sample("gpt")
    shown = opened(report.to_dict())
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(tables(report))
    lines = console.export_text().splitlines()
    printed = next(line.split() for line in lines if line.startswith("head ") and "ICL" in line)
    columns = shown.locator("#heads thead th").all_inner_texts()
    assert set(printed) <= set(columns) and max(map(len, lines)) <= 80
    for table in ("#heads", "#induction"):
        for name in shown.locator(f"{table} thead th.number").all():
            term = name.locator("a.term")
            entry = shown.locator(f"{term.get_attribute('href')} dd")
            assert entry.inner_text() == term.get_attribute("title") != ""


@browser_test
def test_words_stand_left_under_their_headings_and_numbers_right(opened: Opener) -> None:
    shown = opened(sample("gpt").to_dict())
    heads, cells = (shown.locator(f"#trigrams {where}") for where in ("thead th", "tbody tr:first-child > *"))
    sides = [
        each.evaluate_all("all => all.map(c => getComputedStyle(c).textAlign.replace('start', 'left'))")
        for each in (heads, cells)
    ]
    assert sides[0] == sides[1] and sides[0][1:4] == ["left"] * 3 and set(sides[0][4:]) == {"right"}


@browser_test
def test_columns_are_called_on_the_page_as_on_the_terminal_which_cuts_them_short(opened: Opener) -> None:
    report = next(sample(name) for name in SAMPLES if sample(name).importance)
    shown = opened(report.to_dict())
    printed = list(lines(report, 100))

    def heads(first: str) -> list[str]:
        """Return the heads of the terminal's table below the line that begins so."""
        at = next(i for i, line in enumerate(printed) if line.startswith(first))
        return re.split("  +", printed[at + 1].strip())

    page = shown.locator("#heads thead th").all_inner_texts()
    roles = [head for head in heads("Heads by role") if head not in ("head", "behind", "loss", "ICL")]
    assert all(any(name.startswith(head) for name in page) for head in roles), (roles, page)
    assert heads("Term importance") == shown.locator("#importance thead th").all_inner_texts()
