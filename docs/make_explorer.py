"""Make the pictures of the explorer's pages: `python docs/make_explorer.py`.

Serves three shipped models, walks through the journeys that the pages tell of, and photographs what is seen. Run it
again whenever the page or a shipped model changes.
"""

import subprocess
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

from make_pictures import ARGUMENTS, chromium
from PIL import Image
from playwright.sync_api import Page, sync_playwright

FOLDER = Path(__file__).resolve().parent / "images" / "explorer"
MODELS = ("attn-only-2l", "gpt-4l", "zh-en")
TOKEN = "of-these-pictures"
COLOURS = 256  # of a picture: as many as its format has


def go_to(shown: Page, *names: str) -> None:
    """Go to heads and tokens by name, as the key g does."""
    for name in names:
        shown.locator("#view").focus()
        shown.keyboard.press("g")
        shown.keyboard.insert_text(name)
        shown.keyboard.press("Enter")
    shown.locator("#view").evaluate("view => view.blur()")


def key(shown: Page, token: int) -> None:
    """Choose the key that is looked at."""
    shown.locator(".tokenchip").nth(token).click(modifiers=["Shift"])


def keys(shown: Page, *pressed: str) -> None:
    shown.locator("#view").focus()
    for one in pressed:
        shown.keyboard.press(one)
    shown.locator("#view").evaluate("view => view.blur()")


def a_head(shown: Page) -> None:
    go_to(shown, "L1H6")
    key(shown, 5)


def an_ablation(shown: Page) -> None:
    go_to(shown, "L1H6")
    keys(shown, "x", "d", "1")
    shown.locator(".changes").wait_for()
    shown.locator(".maphead select").select_option("direct")


def a_position(shown: Page) -> None:
    shown.locator("header select").select_option("gpt-4l")
    shown.locator(".run h2", has_text="gpt-4l").wait_for()
    keys(shown, "3")
    shown.locator(".aim select").nth(1).select_option(index=2)


def two_texts(shown: Page) -> None:
    shown.get_by_role("button", name="Compare with another").click()
    text = shown.get_by_label("text of B")
    text.fill(text.input_value().replace("Buffer", "Loader"))
    shown.get_by_role("button", name="Compare", exact=True).click()
    shown.locator(".run").nth(1).wait_for()
    shown.locator(".tabs button", has_text="Sweeps").click()
    shown.locator(".sweep select").first.select_option("patch_positions")
    shown.locator(".sweep button", has_text="Start").click()
    shown.get_by_text("38 of 38 changes").wait_for()


def a_translation(shown: Page) -> None:
    shown.locator("header select").select_option("zh-en")
    shown.locator(".run h2", has_text="zh-en").wait_for()
    go_to(shown, "L1X3", "an")
    key(shown, 6)


PICTURES: dict[str, Callable[[Page], None]] = {
    "map": lambda shown: None,
    "head": a_head,
    "ablation": an_ablation,
    "position": a_position,
    "texts": two_texts,
    "translation": a_translation,
}


def photograph(shown: Page, picture: Path) -> None:
    """Save what is seen once nothing is computed any more, in few colours."""
    shown.mouse.move(0, 0)
    for _ in range(200):
        if not shown.evaluate(
            "document.querySelector('.stale') || /computing…|running…/.test(document.body.innerText)"
        ):
            break
        shown.wait_for_timeout(50)
    shown.wait_for_timeout(300)
    with Image.open(BytesIO(shown.screenshot())) as drawn:
        drawn.convert("RGB").quantize(COLOURS, kmeans=2, dither=Image.Dither.NONE).save(picture, optimize=True)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    program = "import sys; from glassformer.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "serve", *MODELS, "--token", TOKEN, "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        address = next(line.split()[1] for line in server.stdout if line.startswith("open "))
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
            for name, walk in PICTURES.items():
                shown = browser.new_page(viewport={"width": 1440, "height": 860}, color_scheme="light")
                shown.goto(address)
                shown.locator(".run").wait_for()
                walk(shown)
                photograph(shown, FOLDER / f"{name}.png")
                shown.close()
            browser.close()
    finally:
        server.terminate()


if __name__ == "__main__":
    main()
