"""Fail the build when a page would fetch anything from another host; links that a reader may follow are fine."""

import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import SphinxError

FETCHED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed)\b[^>]*\b(?:src|srcset)=["']?(?:https?:)?//"""
    r"""|<link\b(?![^>]*\brel=["']?(?:canonical|license|author))[^>]*\bhref=["']?(?:https?:)?//"""
    r"""|url\(\s*["']?(?:https?:)?//"""
    r"""|@import\s+["'](?:https?:)?//"""
)


def refuse_other_hosts(app: Sphinx, error: Exception | None) -> None:
    """Search what was built for anything a browser would request from another host."""
    if error is not None or app.builder.format != "html":
        return
    pages = [path for path in Path(app.outdir).rglob("*") if path.suffix in {".html", ".css"}]
    hits = [f"{path}: {hit.group()}" for path in pages for hit in FETCHED.finditer(path.read_text(encoding="utf-8"))]
    if hits:
        raise SphinxError("the built site would ask another host:\n" + "\n".join(hits))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("build-finished", refuse_other_hosts)
    return {"parallel_read_safe": True}
