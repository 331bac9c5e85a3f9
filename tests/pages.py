"""What tests of pages share: hostile tokens, how a page is opened, whether everybody can read it."""

from collections.abc import Callable

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

NASTY = [
    "</script>",
    "<!--<script>",
    "<img src=x onerror=window.ran=1>",
    "&amp;",
    "'\"`",
    "",
    "\n\t ",
    "\u2028",
    "\u202e",
]

Opener = Callable[..., Page]


OPENED = """() => {
    document.querySelectorAll('details:not([open])').forEach(details => { details.open = true; });
    return !document.querySelector('details:not([open]), details > .waiting');
}"""


def open_everything(shown: Page) -> None:
    """Open all that folds, also what is drawn only when something else is opened, and wait until it is drawn."""
    shown.wait_for_function(OPENED)


def accessibility_report(shown: Page, part: str | None = None) -> str:
    results = Axe().run(shown, context=part)
    return results.generate_report() if results.violations_count else ""
