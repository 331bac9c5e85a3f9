"""A model of images in the explorer: its image, the weights of heads on it, and its links, in a real browser."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from playwright.sync_api import Page, expect

import glassformer as gf
from explanations import of_images
from glassformer.cli.images import served_images
from glassformer.data import Shapes
from pages import accessibility_report
from patch_pictures import drawn, shows
from served import TOKEN, Listening

pytestmark = pytest.mark.browser

NAMES = ["shapes:0", "shapes:3"]
Opener = Callable[..., Page]


@pytest.fixture(scope="module")
def listening() -> Iterator[Listening]:
    models = {"vision": of_images(), "attn-only-1l": gf.load("attn-only-1l")}
    server = Listening(
        {name: lambda name=name: models[name] for name in models},
        images=lambda model, source: served_images(model, source, NAMES),
    )
    yield server
    server.stop()


@pytest.fixture
def explorer(browser: Any, listening: Listening) -> Iterator[Opener]:
    """Return a function that opens the page and waits for the run it begins with; nothing on it may have failed."""
    contexts, complaints = list[Any](), list[str]()

    def opened(fragment: str = "", width: int = 1440, **context: Any) -> Page:
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, **context))
        shown = contexts[-1].new_page()
        shown.on("pageerror", lambda error: complaints.append(str(error)))
        shown.goto(f"{listening.root}/?token={TOKEN}{fragment}")
        shown.locator(".run").first.wait_for(state="attached")
        return shown

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


def at_level(shown: Page, level: int) -> None:
    shown.locator("#view").focus()
    shown.keyboard.press(str(level))


def pixels(name: str) -> torch.Tensor:
    return Shapes().build().batch(0, "heldout").tokens[int(name.rpartition(":")[2])]


def on_page(shown: Page, weights: torch.Tensor) -> None:
    """Raise unless the picture beside the image has, sooner or later, the colours of these weights."""
    picture = shown.locator(".patternpanel .patches canvas").nth(1)
    for _ in range(40):
        if picture.count() and shows(picture, {"grid": [4, 4, 1]}, weights.tolist(), 1.0):
            return
        shown.wait_for_timeout(100)
    raise AssertionError("no picture of these weights")


def test_a_head_shows_the_image_and_the_weights_of_the_chosen_patch_over_its_grid(
    explorer: Opener, listening: Listening
) -> None:
    shown, model = explorer(), listening.model("vision")
    assert shown.locator(".tokenchip").all_inner_texts()[:3] == ["class", "1,1", "1,2"]
    assert shown.locator("textarea").count() == 0
    at_level(shown, 2)
    head = shown.locator("#head-title").inner_text().split()[0]
    rows = {name: gf.run(model, pixels(name), read=[f"{head}.pattern"])[f"{head}.pattern"].values[0] for name in NAMES}
    on_page(shown, rows["shapes:0"][0])
    image = shown.locator(".patternpanel .patches canvas").first
    first, values = drawn(image), (255 * pixels("shapes:0")[0]).round()
    zoom = len(first) // 16
    # the middle of a pixel: lines between patches lie on their edges
    assert (first[zoom // 2 :: zoom, zoom // 2 :: zoom, 0] == values.numpy()).all()
    image.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        shown.keyboard.press(key)
    expect(shown.locator(".patternpanel .token.chip, .patternpanel .chip").first).to_have_text("2,2")
    on_page(shown, rows["shapes:0"][6])
    shown.locator(".imagechoice select").first.select_option("shapes:3")
    expect(shown.locator(".run .small").first).to_have_text("shapes:3")
    on_page(shown, rows["shapes:3"][6])


@pytest.mark.full
def test_a_link_brings_the_image_and_a_model_of_texts_its_text_box(explorer: Opener) -> None:
    shown = explorer()
    shown.locator(".imagechoice select").first.select_option("shapes:3")
    expect(shown.locator(".run .small").first).to_have_text("shapes:3")
    # the address follows a quarter of a second behind
    shown.wait_for_timeout(1000)
    again = explorer(shown.evaluate("location.hash"))
    expect(again.locator(".run .small").first).to_have_text("shapes:3")
    expect(again.locator(".imagechoice select").first).to_have_value("shapes:3")
    again.locator("header select").first.select_option("attn-only-1l")
    expect(again.locator("header textarea")).to_be_visible()
    expect(again.locator(".run h2").first).to_contain_text("attn-only-1l")
    again.locator("header select").first.select_option("vision")
    expect(again.locator(".run .small").first).to_have_text("shapes:0")


@pytest.mark.full
def test_another_image_is_run_b_and_the_picture_shows_the_difference(explorer: Opener, listening: Listening) -> None:
    shown = explorer()
    shown.get_by_role("button", name="Compare with another image or model").click()
    shown.locator("form.other .imagechoice select").select_option("shapes:3")
    shown.get_by_role("button", name="Compare", exact=True).click()
    expect(shown.locator(".run")).to_have_count(2)
    expect(shown.locator(".run").nth(1)).to_contain_text("shapes:3")
    at_level(shown, 2)
    shown.keyboard.press("d")
    head = shown.locator("#head-title").inner_text().split()[0]
    own, other = (
        gf.run(listening.model("vision"), pixels(name), read=[f"{head}.pattern"])[f"{head}.pattern"].values[0, 0]
        for name in NAMES
    )
    less = other - own
    picture = shown.locator(".patternpanel .patches canvas").nth(1)
    for _ in range(40):
        if shows(picture, {"grid": [4, 4, 1]}, less.tolist(), float(less.abs().max()), signed=True):
            return
        shown.wait_for_timeout(100)
    raise AssertionError("no picture of the difference")


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_everybody_can_read_the_views_of_an_image_and_nothing_scrolls_sideways(
    explorer: Opener, width: int, scheme: str
) -> None:
    shown = explorer(width=width, color_scheme=scheme)
    for level in (1, 2, 3):
        at_level(shown, level)
        if level == 2:
            shown.locator(".patternpanel .patches canvas").nth(1).wait_for()
        assert accessibility_report(shown) == ""
        assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth")
