"""The explorer as people find it: what a first visit shows, and whether everybody can read and reach all of it."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

import glassformer as gf
from pages import accessibility_report
from served import TOKEN, Listening

pytestmark = pytest.mark.browser

MODELS = ("gpt-4l", "attn-only-2l", "zh-en")
Opener = Callable[..., Page]


@pytest.fixture(scope="module")
def listening() -> Iterator[Listening]:
    server = Listening({name: lambda name=name: gf.load(name) for name in MODELS})
    _ = server.model("gpt-4l")
    yield server
    server.stop()


@pytest.fixture
def explorer(browser: Any, listening: Listening) -> Iterator[Opener]:
    """Return a function that opens the page and waits for the run it begins with; nothing on it may have failed."""
    contexts, complaints = list[Any](), list[str]()

    def opened(model: str = "gpt-4l", lang: str = "en", width: int = 1440, **context: Any) -> Page:
        viewport = {"width": width, "height": 900 if width > 400 else 844}
        contexts.append(browser.new_context(viewport=viewport, has_touch=width <= 400, **context))
        shown = contexts[-1].new_page()
        shown.on("pageerror", lambda error: complaints.append(str(error)))
        shown.goto(f"{listening.root}/?token={TOKEN}&lang={lang}")
        shown.locator(".run").first.wait_for(state="attached")
        if model != "gpt-4l":
            shown.locator("header select").select_option(model)
            expect(shown.locator(".run h2").first).to_contain_text(model, use_inner_text=False)
        settled(shown)
        return shown

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


WORKING = (
    "() => document.querySelector('.stale, [aria-busy=true]') || /computing…|running…/.test(document.body.innerText)"
)


def settled(shown: Page) -> None:
    """Wait until nothing is computed any more; functions to wait for are forbidden by the page's security policy."""
    for _ in range(600):
        if not shown.evaluate(WORKING):
            break
        shown.wait_for_timeout(50)
    shown.wait_for_timeout(100)


def press(shown: Page, *keys: str) -> None:
    shown.locator("#view").focus()
    for key in keys:
        shown.keyboard.press(key)
    settled(shown)


def views(shown: Page) -> Iterator[str]:
    """Go from view to view, through all of them, then through those of what differs; yield the name of each."""
    tabs = shown.locator("#view .tabs > button")
    cells = shown.locator(".maphead select")
    for value in "pattern", "direct", "general induction":
        cells.select_option(value)
        settled(shown)
        yield f"map of {value}"
    for i in range(1, 5):
        tabs.nth(i).click()
        settled(shown)
        if i == 3:
            shown.locator(".sweep button").first.click()
            shown.locator(".sweep canvas.map").click()
            settled(shown)
        yield f"model {i}"
    press(shown, "2")
    for i in range(10):
        shown.locator(".side .tabs > button").nth(i).click()
        settled(shown)
        yield f"head {i}"
    for choice, of in enumerate(["dots", "keys"]):
        shown.locator(".patternpanel .choices select").nth(choice).select_option(of)
    yield "dots, keys as rows"
    shown.locator("canvas.map").press("i")
    press(shown, "3")
    yield "position"
    tabs.nth(1).click()
    shown.locator(".writing").press("Space")
    shown.locator("table.drawing").wait_for()
    yield "text that goes on"
    tabs.nth(2).click()
    shown.locator(".cloud canvas").wait_for()
    settled(shown)
    yield "geometry"
    tabs.nth(3).click()
    shown.locator(".mixtures").wait_for()
    settled(shown)
    yield "mixture"
    for i, name in enumerate(["memories", "features", "backward"], 4):
        tabs.nth(i).click()
        settled(shown)
        yield name
    press(shown, "x", "d", "1")
    shown.locator(".changes").wait_for(state="attached")
    tabs.nth(0).click()
    cells.select_option("pattern")
    settled(shown)
    yield "map of the difference"
    press(shown, "2")
    for stage in shown.locator(".stages .group button").all():
        stage.click()
        settled(shown)
        yield f"difference of {stage.inner_text()}"
    press(shown, "3")
    tabs.nth(0).click()
    settled(shown)
    yield "position of the difference"
    for i, panel in enumerate(["runs", "numbers"]):
        if (button := shown.locator(".levels .narrow-only").nth(i)).is_visible():
            button.click()
            yield panel
    press(shown, "?")
    yield "help"
    shown.keyboard.press("Escape")


def test_a_first_visit_shows_a_run_says_what_it_is_and_everybody_can_read_it(explorer: Opener) -> None:
    shown = explorer()
    assert shown.locator("textarea").first.input_value().startswith("class Point")
    expect(shown.locator("#view .gloss")).to_contain_text("Choose a square")
    expect(shown.locator("h1")).to_have_count(1)
    # all 32 heads are in sight at once
    box, last = shown.locator("#view").bounding_box(), shown.locator("[data-label=L0H7]").bounding_box()
    assert box is not None and last is not None
    assert last["y"] + last["height"] < box["y"] + box["height"] and last["width"] > 60
    assert accessibility_report(shown) == ""


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("model", "lang"), [("gpt-4l", "en"), ("zh-en", "zh")])
def test_every_view_is_accessible_and_fits_the_screen(
    explorer: Opener, model: str, lang: str, scheme: str, width: int
) -> None:
    shown = explorer(model, lang, width, color_scheme=scheme)
    wrong: dict[str, Any] = {}
    for view in views(shown):
        if report := accessibility_report(shown):
            wrong[view] = report
        if shown.evaluate("document.documentElement.scrollWidth > innerWidth"):
            wrong[f"{view} overflows"] = shown.evaluate("document.documentElement.scrollWidth")
        if shown.locator("h1").count() != 1:
            wrong[f"{view} has no title"] = shown.locator("h1").count()
    assert wrong == {}, json.dumps(wrong, indent=1, ensure_ascii=False)[:4000]


CONTRAST = """button => {
    const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
    const linear = x => x <= 10 ? x / 255 / 12.92 : ((x / 255 + 0.055) / 1.055) ** 2.4;
    const light = colour => {
        const [r, g, b] = numbers(colour).map(linear);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    let behind = button;
    while (numbers(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
    const [ink, paper] = [light(getComputedStyle(button).color), light(getComputedStyle(behind).backgroundColor)];
    return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
}"""


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_is_pressed_can_be_read_under_the_pointer(explorer: Opener, scheme: str) -> None:
    shown, told = explorer(color_scheme=scheme), set[str]()
    for view in views(shown):
        if view == "help":
            break
        for button in shown.locator("button[aria-pressed=true]:visible").all():
            if not button.inner_text().strip():
                continue
            button.hover()
            if button.evaluate(CONTRAST) < 4.5:
                told.add(f"{view}: {button.inner_text()}")
    assert told == set()


@pytest.mark.full
def test_a_phone_has_room_for_what_is_looked_at_and_targets_for_fingers(explorer: Opener) -> None:
    shown = explorer(width=390)
    heights = [shown.locator(part).bounding_box() for part in ("header", ".tokens")]
    assert sum(box["height"] for box in heights if box is not None) < 844 / 4
    small = shown.locator("button:visible, select:visible, textarea:visible").evaluate_all(
        "all => all.filter(one => !one.matches('.quiet, .link, .sort') && one.getBoundingClientRect().height < 43.5)"
        ".map(one => one.outerHTML.slice(0, 120))"
    )
    assert small == []
    for name, part in {"Runs": ".ledger", "Numbers": ".inspector", "Model": ".headmap"}.items():
        shown.get_by_role("button", name=name, exact=True).tap()
        seen = [one for one in (".ledger", ".inspector", ".headmap") if shown.locator(one).is_visible()]
        assert seen == [part]


OUTLINE = """() => {
    const {outlineStyle, outlineWidth} = getComputedStyle(document.activeElement);
    return outlineStyle === 'none' ? 0 : parseFloat(outlineWidth);
}"""


def tab_until(shown: Page, selector: str, key: str = "Tab") -> None:
    """Press Tab until something has the focus; wherever the focus is meanwhile, one sees it."""
    for _ in range(120):
        shown.keyboard.press(key)
        assert shown.evaluate(OUTLINE) >= 2, shown.evaluate("document.activeElement.outerHTML.slice(0, 200)")
        if shown.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"Tab never leads to {selector}")


@pytest.mark.full
def test_a_whole_journey_by_keyboard(explorer: Opener) -> None:
    shown = explorer(permissions=["clipboard-read", "clipboard-write"])
    # a model, by the first letters of its name, and a text
    shown.locator("body").evaluate("body => { body.tabIndex = -1; body.focus(); body.removeAttribute('tabindex'); }")
    tab_until(shown, "header select")
    shown.keyboard.type("attn")
    expect(shown.locator(".run h2").first).to_contain_text("attn-only-2l")
    tab_until(shown, "textarea")
    shown.keyboard.press("Control+A")
    shown.keyboard.insert_text("import os, sys, os, s")
    shown.keyboard.press("Control+Enter")
    expect(shown.locator(".run .small").first).to_contain_text("import os")
    # into the view, and to the head that does most of one thing
    tab_until(shown, "#view *")
    shown.keyboard.press("/")
    tab_until(shown, "th:nth-child(5) button.sort")
    assert shown.locator("thead tr").nth(1).locator("th").nth(4).inner_text().startswith("induction")
    shown.keyboard.press("Enter")
    settled(shown)
    tab_until(shown, "tbody button.link")
    head = shown.evaluate("document.activeElement.innerText")
    told = shown.locator("tbody td:nth-child(5)").all_inner_texts()
    scores = [float(cell.replace("−", "-")) for cell in told]
    assert scores == sorted(scores, reverse=True) and re.fullmatch(r"L\dH\d", head)
    shown.keyboard.press("Enter")
    expect(shown.locator("#head-title")).to_contain_text(head)
    # off with it; what differs; the address of that
    tab_until(shown, "#view *")
    shown.keyboard.press("x")
    shown.locator(".changes").wait_for()
    shown.keyboard.press("d")
    expect(shown.get_by_role("button", name="B − A")).to_have_attribute("aria-pressed", "true")
    settled(shown)
    shown.wait_for_timeout(600)
    tab_until(shown, "header .tools button:nth-child(3)", "Shift+Tab")
    shown.keyboard.press("Enter")
    address = shown.evaluate("navigator.clipboard.readText()")
    assert address == shown.url
    shown.goto("about:blank")
    shown.goto(address)
    expect(shown.locator(".changes")).to_contain_text(f"{head}.z is zero")
    expect(shown.locator("#head-title")).to_contain_text(head)


@pytest.mark.full
def test_the_way_past_the_controls_keeps_what_is_seen(explorer: Opener) -> None:
    shown = explorer()
    press(shown, "x")
    shown.locator(".changes").wait_for()
    shown.locator("a.skip").press("Enter")
    assert shown.evaluate("document.activeElement.id") == "view"
    shown.wait_for_timeout(300)
    expect(shown.locator(".changes")).to_be_visible()


@pytest.mark.full
def test_who_wants_no_motion_and_who_chose_colours_gets_that(explorer: Opener) -> None:
    shown = explorer(reduced_motion="reduce", forced_colors="active")
    moving = "all => all.filter(one => parseFloat(getComputedStyle(one).transitionDuration) > 0).length"
    assert shown.locator("*").evaluate_all(moving) == 0
    assert shown.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == "auto"
    # what is masked is hatched, as no colour says so any more; what is chosen has an outline
    assert "gradient" in shown.locator(".minis").first.evaluate("one => getComputedStyle(one).backgroundImage")
    for chosen in ".headcell > .here", ".tokenchip.query":
        assert shown.locator(chosen).evaluate("one => getComputedStyle(one).outlineStyle") == "solid"
