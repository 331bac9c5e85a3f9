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
    wait_for_frame(shown)


def wait_for_frame(shown: Page) -> None:
    """Wait until a whole frame has passed: the browser lays out, and a map learns its room and is drawn, in a frame."""
    shown.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def accessibility_report(shown: Page, part: str | None = None) -> str:
    results = Axe().run(shown, context=part)
    # what lies in a tree of its own is said tree by tree
    for node in (node for violation in results.response["violations"] for node in violation["nodes"]):
        node["target"] = [target if isinstance(target, str) else " >>> ".join(target) for target in node["target"]]
    return results.generate_report() if results.violations_count else ""
