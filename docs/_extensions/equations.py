"""Docstrings set equations and code sketches off by indentation; this shows them as written instead of reflowed."""

from sphinx.application import Sphinx


def indented_paragraphs_are_literal(
    app: Sphinx, what: str, name: str, subject: object, options: object, lines: list[str]
) -> None:
    """Put `::` before an indented paragraph after a flush one; sections like `Args:` have no blank line between."""
    shown: list[str] = []
    flush = False  # whether the last paragraph started at the margin and is no list item or directive
    for before, line in zip(["", *lines], lines):
        if line.strip() and not before.strip():
            if line.startswith("    ") and flush:
                shown += ["::", ""]
            flush = not line.startswith((" ", "- ", "* ", ".. ")) and not line.rstrip().endswith(":")
        shown.append(line)
    lines[:] = shown


def setup(app: Sphinx) -> dict[str, bool]:
    # before napoleon (priority 500) turns sections into indented fields
    app.connect("autodoc-process-docstring", indented_paragraphs_are_literal, priority=400)
    return {"parallel_read_safe": True}
