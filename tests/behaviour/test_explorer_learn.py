"""The tour of the explorer: chapters are states of the page, sentences are about the run, keys lead through all."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

import glassformer as gf
from glassformer.serve.permalink import Opened
from lessons import Found
from pages import accessibility_report
from served import TOKEN, Listening

pytestmark = pytest.mark.browser

MODELS = ("attn-only-2l", "hybrid-4l")
TEXT = "def add(first, second):\n    return first + second\n\ndef add("
ONCE = "def f(x, yz): return"
LONG = "class Point:\n    def f(self): return self.x, self.y, self.z\n"
Opener = Callable[..., Page]
WORKING = """() => document.querySelector('.stale, [aria-busy=true]')
    || /computing…|running…|计算中|运行中/.test(document.body.innerText)"""


@pytest.fixture(scope="module")
def listening() -> Iterator[Listening]:
    server = Listening({name: lambda name=name: gf.load(name) for name in MODELS})
    _ = server.model(MODELS[0])
    yield server
    server.stop()


@pytest.fixture
def explorer(browser: Any, listening: Listening) -> Iterator[Opener]:
    """Return a function that opens the page on a text; nothing on it may have failed."""
    contexts, complaints = list[Any](), list[str]()

    def opened(
        model: str = MODELS[0],
        text: str | None = TEXT,
        fragment: str = "",
        lang: str = "en",
        width: int = 1440,
        **more: Any,
    ) -> Page:
        viewport = {"width": width, "height": 900 if width > 400 else 844}
        contexts.append(browser.new_context(viewport=viewport, **more))
        shown = contexts[-1].new_page()
        shown.on("pageerror", lambda error: complaints.append(str(error)))
        shown.goto(f"{listening.root}/?token={TOKEN}&lang={lang}{fragment}")
        shown.locator(".run").first.wait_for(state="attached")
        if model != MODELS[0]:
            shown.locator("header select").select_option(model)
            expect(shown.locator(".run h2").first).to_contain_text(model, use_inner_text=False)
        if text is not None:
            typed(shown, text)
        settled(shown)
        return shown

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


def typed(shown: Page, text: str) -> None:
    """Run a text, and wait until it is what ran."""
    box = shown.locator("textarea").first
    box.fill(text)
    box.press("Control+Enter")
    for _ in range(200):
        if shown.evaluate("document.querySelector('.status').innerText") and not shown.locator(".go.new").count():
            return
        shown.wait_for_timeout(50)
    raise AssertionError("the text never ran")


def settled(shown: Page) -> None:
    """Wait until nothing is computed any more; functions to wait for are forbidden by the page's security policy."""
    still = 0
    for _ in range(600):
        still = 0 if shown.evaluate(WORKING) else still + 1
        if still > 3:
            return
        shown.wait_for_timeout(50)


def keys(shown: Page, *pressed: str) -> None:
    for key in pressed:
        shown.keyboard.press(key)
    settled(shown)


def told(shown: Page) -> list[tuple[str, str]]:
    """The numbers of the sentences, in order: their names, and how they read."""
    spans = shown.locator("#tour .told .number").evaluate_all(
        "all => all.map(one => [one.className.match(/of-(\\w+)/)[1], one.innerText])"
    )
    return [(name, words) for name, words in spans]


def number(words: str) -> tuple[float, float]:
    """A number as it reads, and half a unit of its last digit, as shares if it is in percent."""
    plain = words.replace("−", "-").replace(",", "").replace("+", "").removesuffix(" %")
    digits, _, exponent = plain.partition("e")
    places = len(digits.partition(".")[2])
    unit = 0.5 * 10.0 ** (int(exponent or 0) - places)
    scale = 100 if words.endswith("%") else 1
    return float(plain) / scale, 1.02 * unit / scale


def compared(shown: Page, found: Found, chapter: int) -> int:
    """Compare every number that a chapter shows with the library's; return how many."""
    numbers = found.numbers(chapter) | {"cold": 0.5}
    for name, words in told(shown):
        real = abs(numbers[name]) if name in ("drop", "rest") and chapter == 8 else numbers[name]
        if words.startswith("<"):
            assert real < 1e-5
            continue
        value, near = number(words)
        assert value == pytest.approx(real, abs=near + 2e-4 * abs(real)), (chapter, name, words)
    # no digit stands in a sentence but in a number, a token or the name of a head
    bare = shown.locator("#tour .told").evaluate(
        "told => { const copy = told.cloneNode(true);"
        " copy.querySelectorAll('.number, .token, .mono').forEach(one => one.remove()); return copy.textContent; }"
    )
    assert not re.search(r"\d", bare), bare
    return len(told(shown))


@pytest.mark.parametrize("model", MODELS)
def test_keys_lead_through_eight_chapters_whose_numbers_are_those_of_the_library(
    explorer: Opener, listening: Listening, model: str
) -> None:
    shown, found = explorer(model), Found(listening.model(model), TEXT)
    shown.locator("#view").focus()
    keys(shown, "l")
    seen = 0
    for chapter in range(1, 9):
        expect(shown.locator("#tour [role=status]")).to_contain_text(f"Chapter {chapter} of 8")
        assert shown.locator("#tour .told p").count() == 3 and shown.locator("#tour .formula").inner_text()
        assert shown.evaluate("location.hash").startswith(f"#learn/{chapter}/1.") or chapter == 1
        seen += compared(shown, found, chapter)
        if chapter < 8:
            keys(shown, "n" if chapter % 2 else "ArrowRight")
            shown.wait_for_timeout(300)
    assert seen > 50
    # the last one has made run B, without the head that it is about
    label, _, _ = shown.locator("#tour .told .mono").first.inner_text().partition(".")
    expect(shown.locator(".changes")).to_contain_text(f"{label}.z")
    keys(shown, "p", "ArrowLeft")
    expect(shown.locator("#tour [role=status]")).to_contain_text("Chapter 6 of 8")
    keys(shown, "Escape")
    expect(shown.locator("#tour")).to_have_count(0)
    assert shown.evaluate("document.activeElement.id") == "view"


def test_a_text_that_repeats_nothing_is_told_so_and_one_that_does_is_offered(
    explorer: Opener, listening: Listening
) -> None:
    for model in MODELS:
        shown, found = explorer(model, ONCE, lang="en"), Found(listening.model(model), ONCE)
        shown.locator("#view").focus()
        keys(shown, "l")
        for chapter in range(1, 9):
            shown.locator(".chapters a").nth(chapter - 1).click()
            settled(shown)
            _ = compared(shown, found, chapter)
            if chapter in (1, 2, 6):
                expect(shown.locator("#tour .told")).to_contain_text("No token of this text")
        shown.locator(".chapters a").nth(5).click()
        settled(shown)
        shown.get_by_role("button", name="Run the text twice over").click()
        expect(shown.locator("#tour .told")).to_contain_text("followed the same token")
        settled(shown)
        assert compared(shown, Found(listening.model(model), f"{ONCE} {ONCE}"), 6) > 5
        assert (
            shown.locator("#head-title").inner_text().startswith(shown.locator("#tour .told .mono").first.inner_text())
        )


def test_a_link_leads_to_the_chapter_the_text_and_the_place(explorer: Opener, listening: Listening) -> None:
    shown = explorer("hybrid-4l", ONCE)
    shown.get_by_role("link", name="Learn").click()
    shown.locator(".chapters a").nth(2).click()
    settled(shown)
    shown.wait_for_timeout(500)
    shown.locator("#view").focus()
    keys(shown, ",")
    shown.wait_for_timeout(500)
    address = shown.evaluate("location.hash")
    assert address.startswith("#learn/3/1.")
    before = [shown.locator(part).inner_text() for part in ("#tour .told", ".pair", "#head-title")]
    other = explorer(text=None, fragment=address)
    other.locator("#head-title").wait_for()
    settled(other)
    assert [other.locator(part).inner_text() for part in ("#tour .told", ".pair", "#head-title")] == before
    assert other.locator("textarea").first.input_value() == ONCE
    # and one that `glassformer serve` was told the parts of
    told = Opened(ONCE, head="L0H1", query=3, key=1).fragment(MODELS[0], listening.model(MODELS[0]))
    third = explorer(text=None, fragment=told)
    expect(third.locator("#head-title")).to_contain_text("L0H1")
    settled(third)
    assert third.locator("textarea").first.input_value() == ONCE
    assert re.search(r"^3 .*→ *1 ", third.locator(".pair").inner_text())
    # a chapter alone is about what the page begins with
    fresh = explorer(text=None, fragment="#learn/8")
    expect(fresh.locator("#tour [role=status]")).to_contain_text("Chapter 8 of 8")
    fresh.locator(".changes").wait_for()
    # and, on a page that has a run, about that one
    typed(fresh, TEXT)
    fresh.evaluate("location.hash = '#learn/1'")
    expect(fresh.locator("#tour [role=status]")).to_contain_text("Chapter 1 of 8")
    assert fresh.locator("textarea").first.input_value() == TEXT


def test_another_text_is_told_of_and_shown_where_the_chapter_is_about(explorer: Opener, listening: Listening) -> None:
    shown = explorer()
    shown.locator("#view").focus()
    keys(shown, "l", "n", "n")
    typed(shown, ONCE)
    settled(shown)
    found = Found(listening.model("attn-only-2l"), ONCE)
    assert compared(shown, found, 3) > 5
    label, query, key = found.sharpest()
    assert shown.locator("#head-title").inner_text().startswith(label)
    assert re.findall(r"\b\d+\b", shown.locator(".pair").inner_text())[0] == str(query)
    shown.locator("#tour").focus()
    keys(shown, "Escape")
    # single letters can be turned off
    keys(shown, "?")
    shown.get_by_label("no keys of one letter").check()
    keys(shown, "Escape")
    shown.locator("#view").focus()
    keys(shown, "l")
    expect(shown.locator("#tour")).to_have_count(0)
    assert key < query


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_every_chapter_is_accessible_covers_no_picture_and_fits(
    explorer: Opener, lang: str, scheme: str, width: int
) -> None:
    shown, wrong = explorer("hybrid-4l", lang=lang, width=width, color_scheme=scheme), dict[str, Any]()
    shown.locator("a[href='#learn/1']").click()
    for chapter in range(1, 9):
        shown.locator(".chapters a").nth(chapter - 1).click()
        settled(shown)
        if report := accessibility_report(shown):
            wrong[f"{chapter}"] = report
        if shown.evaluate("document.documentElement.scrollWidth > innerWidth"):
            wrong[f"{chapter} overflows"] = shown.evaluate("document.documentElement.scrollWidth")
        tour, view = shown.locator("#tour").bounding_box(), shown.locator("#view").bounding_box()
        assert tour is not None and view is not None
        if width == 1440 and tour["x"] < view["x"] + view["width"]:
            wrong[f"{chapter} covers"] = (tour, view)
        if width == 390 and tour["height"] > 844 / 2:
            wrong[f"{chapter} is tall"] = tour
        words = shown.locator("#tour .told").inner_text()
        if any("一" <= character <= "鿿" for character in words) != (lang == "zh"):
            wrong[f"{chapter} speaks"] = words
    assert wrong == {}


@pytest.mark.parametrize("tab", [0, 6])
def test_a_shorter_text_of_another_model_is_shown_where_a_longer_one_stood(explorer: Opener, tab: int) -> None:
    shown = explorer("hybrid-4l", LONG)
    shown.locator("#view").focus()
    keys(shown, "2")
    shown.locator(".side .tabs > button").nth(tab).click()
    settled(shown)
    shown.locator("header select").select_option("attn-only-2l")
    typed(shown, "def add(x")
    settled(shown)
    expect(shown.locator(".run h2").first).to_contain_text("attn-only-2l")
    shown.locator("canvas.map").wait_for()
