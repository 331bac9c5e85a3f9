"""A browser, and pages opened in it from disk."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
# the functions of `glassformer.render.page` that draw them: a conftest must not import the package before its checks
PAGES = {
    "glassformer.explanation": "page",
    "glassformer.circuits": "circuits_page",
    "glassformer.results": "results_page",
}


@pytest.fixture(scope="module")
def browser(chromium: Path) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """Return a function that opens a document's page; afterwards, no page may have complained or asked for anything."""
    from glassformer.render import page

    contexts: list[Any] = []
    complaints: list[str] = []
    requests: list[str] = []
    addresses: list[str] = []

    def open_page(payload: dict[str, Any], *, scheme: Any = "light", width: int = 1280) -> Any:
        path = tmp_path / f"{len(addresses)}.html"
        path.write_text(getattr(page, PAGES[payload["format"]])(payload), encoding="utf-8")
        size = {"width": width, "height": 900}
        context = browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce")
        contexts.append(context)
        shown = context.new_page()
        shown.on("console", lambda message: complaints.append(message.text))
        shown.on("pageerror", lambda error: complaints.append(str(error)))
        shown.on("request", lambda request: requests.append(request.url))
        addresses.append(path.as_uri())
        shown.goto(path.as_uri())
        return shown

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    assert requests == addresses
