"""Build the page of every study whose report ships, and let the page of claims link to them.

A page is what `glassformer study report NAME --html FILE` writes: claims with their verdicts, every measure by seed.
"""

import re
from pathlib import Path

from sphinx.application import Sphinx

from glassformer.render.page import study_page
from glassformer.study import names, shipped

FOLDER = "studies"


def linked(source: str) -> str:
    """Return the page of claims with a link to its page below the title of every study."""
    # a page that is built beside those made of sources is known to no source: the link is plain HTML
    link = rf'## \1\n\n<a href="{FOLDER}/\1.html">As a page, with every measure by seed</a>'
    return re.sub(rf"^## ({'|'.join(map(re.escape, written()))})$", link, source, flags=re.MULTILINE)


def written() -> list[str]:
    """Return the names of the studies that have a page."""
    return [name for name in names() if shipped(name) is not None]


def write_pages(folder: Path) -> None:
    """Write the page of every study into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in written():
        report = shipped(name)
        assert report is not None, "those have a page that have a report"
        (folder / f"{name}.html").write_text(study_page(report), encoding="utf-8")


def read(app: Sphinx, page: str, content: list[str]) -> None:
    if page == "claims" and app.builder.format == "html":
        content[0] = linked(content[0])


def built(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        write_pages(Path(app.outdir) / FOLDER)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", read)
    # before what looks at everything that was built
    app.connect("build-finished", built, priority=400)
    return {"parallel_read_safe": True}
