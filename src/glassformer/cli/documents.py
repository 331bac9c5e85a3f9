"""Where a command's results go besides the terminal: a JSON document and a page."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glassformer.cli.reading import Reading
from glassformer.config import require
from glassformer.files import check_writable, write
from glassformer.labelled import Result

VERSION = 1


def check(html: Path | None, json: Path | None, *others: Path | None) -> None:
    """Refuse, before anything is run, files that cannot be written or that would take each other's place.

    Raises:
        ConfigError: Two of them are one file.
        SaveError: One cannot be written.
    """
    named = [path for path in (html, json, *others) if path is not None]
    same = next((path for i, path in enumerate(named) if path.absolute() in [p.absolute() for p in named[:i]]), None)
    require(same is None, f'two options would both write "{same}".')
    for path in named:
        check_writable(path)


def deliver(
    command: str,
    model: Any,
    given: Mapping[str, Any],
    results: Sequence[Result],
    html: Path | None,
    json: Path | None,
    reading: Reading | None = None,
) -> None:
    """Write what was asked for, whole, and say where.

    Args:
        command: Which one it was.
        model: What it was about.
        given: What was asked, as JSON data.
        results: What was found.
        html: File of the page.
        json: File of the document.
        reading: What the model read.
    """
    if html is None and json is None:
        return
    document = payload(command, model, given, results, reading)
    if json is not None:
        print(f"JSON: {write(json, _text(document)).absolute()}")
    if html is not None:
        from glassformer.render.page import results_page

        print(f"page: {write(html, results_page(document)).absolute()}")


def payload(
    command: str, model: Any, given: Mapping[str, Any], results: Sequence[Result], reading: Reading | None = None
) -> dict[str, Any]:
    """Return the document of a command: see docs/results-json.md."""
    import dataclasses

    from glassformer.analysis.reports._explain import model_facts

    facts = dataclasses.asdict(model_facts(model))
    head = {"format": "glassformer.results", "version": VERSION, "command": command, "model": facts}
    asked = {name: value for name, value in given.items() if value is not None}
    read = {} if reading is None else {"reading": reading.to_dict()}
    return head | {"given": asked} | read | {"results": [result.to_dict() for result in results]}


def _text(document: Mapping[str, Any]) -> str:
    return json.dumps(document, ensure_ascii=False, allow_nan=False)
