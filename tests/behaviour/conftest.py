"""A browser, and pages opened in it from disk."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
# the functions of `glassformer.render.page` that draw them: a conftest must not import the package before its checks
PAGES = {"glassformer.explanation": "explanation_page", "glassformer.circuits": "circuits_page"}


@pytest.fixture(scope="module")
def browser(chromium: Path) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """Return a function that opens the page of a document, of results and what heads them, or what a function writes.

    Afterwards, no page may have complained or asked for anything.
    """
    from glassformer.render import page as pages

    contexts: list[Any] = []
    complaints: list[str] = []
    requests: list[str] = []
    addresses: list[str] = []

    def open_page(shown: Any, head: Any = None, *, scheme: Any = "light", width: int = 1280) -> Any:
        path = tmp_path / f"{len(addresses)}.html"
        if callable(shown):
            shown(path)
        else:
            document = isinstance(shown, dict)
            drawn = getattr(pages, PAGES[shown["format"]])(shown) if document else pages.results_page(shown, head)
            path.write_text(drawn, encoding="utf-8")
        size = {"width": width, "height": 900}
        context = browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce")
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("request", lambda request: requests.append(request.url))
        addresses.append(path.as_uri())
        tab.goto(path.as_uri())
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    assert requests == addresses
