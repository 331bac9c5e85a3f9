"""Make the README's picture: `python docs/make_pictures.py [ARGUMENTS OF glassformer explain]`.

Explains a text, by default the built-in example of the default model, and photographs its page with the sections in
between left out. Run it again whenever the page or the shipped model changes.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from shutil import which

from playwright.sync_api import sync_playwright

PICTURE = Path(__file__).resolve().parent / "images" / "explain.png"
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
# what the page opens with, the attribution by layer and by token, the two most telling heads, and every pattern
LEFT_OUT = """
nav, footer, .of, #pipeline, #translation, #next, #lens, #words, .head:nth-child(n + 3), #attribution .card,
#attribution details, #heads > .card, #heads > .later, #heads > .later ~ * { display: none !important; }
.frame { display: block !important; padding: 0 2rem 1.5rem !important; }
.gloss { max-width: none !important; }
"""


def explain(page: Path, arguments: list[str]) -> None:
    """Write the page of an explanation."""
    program = "import sys; from glassformer.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "explain", "--html", str(page), *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def chromium() -> str:
    """Return where the browser is; exit where there is none."""
    found = next((path for path in map(which, ("chromium", "chromium-browser", "google-chrome")) if path), None)
    return found or sys.exit("no chromium on PATH: install it (apt-get install chromium) and try again")


def photograph(page: Path, picture: Path) -> None:
    """Save the page as a PNG, at one and a half times the resolution of a plain screen."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        shown = browser.new_page(viewport={"width": 1120, "height": 800}, device_scale_factor=1.5, color_scheme="light")
        shown.goto(page.as_uri())
        shown.add_style_tag(content=LEFT_OUT)
        shown.screenshot(path=picture, full_page=True)
        browser.close()


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "explain.html")
        explain(page, sys.argv[1:])
        photograph(page, PICTURE)
    print(PICTURE)
