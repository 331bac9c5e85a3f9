"""Pages in `zh/` say that they are Chinese, and their lines are joined: a line's end is no space between characters."""

import re
from typing import Any

from sphinx.application import Sphinx

FOLDER = "zh/"
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
# between characters; and behind punctuation, which holds a space, unless a list or a fence begins there
END = re.compile(
    r"(?<=[\u4e00-\u9fff])\n *(?=[\u4e00-\u9fff“（《])|(?<=[，。；：、！？”）》])\n *(?=[\w“（《*`\[{])(?!```|\d+\.)"
)


def joined(source: str) -> str:
    """Return a page in Markdown whose paragraphs have no line's end where Chinese has no space."""
    parts = FENCED.split(source)
    return "".join(part if i % 2 else END.sub("", part) for i, part in enumerate(parts))


def read(app: Sphinx, page: str, content: list[str]) -> None:
    if page.startswith(FOLDER):
        content[0] = joined(content[0])


def tell_language(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Let browsers choose fonts and breaks of Chinese, and screen readers its voice."""
    if page.startswith(FOLDER):
        context["language"] = "zh-CN"


def setup(app: Sphinx) -> dict[str, bool]:
    # behind what runs pages, whose errors name lines
    app.connect("source-read", read, priority=600)
    app.connect("html-page-context", tell_language)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
