"""Where a command's results go besides the terminal: a JSON document and a page."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.cli.console import say
from glassformer.cli.options import Output
from glassformer.cli.tokens_read import TokensRead
from glassformer.config import require
from glassformer.files import check_writable, json_text, write
from glassformer.words import spoken

if TYPE_CHECKING:
    from glassformer.models import ModelLike


def check(output: Output, **others: Path | None) -> None:
    """Refuse, before anything is run, files that cannot be written or that would take each other's place.

    Args:
        output: Where documents go.
        others: Further files by the option that names them.

    Raises:
        ConfigError: Two of them are one file.
        SaveError: One cannot be written.
    """
    flags: dict[Path, str] = {}
    for option, path in {"html": output.html, "json": output.json, **others}.items():
        if path is None:
            continue
        flag, place = f"--{option.replace('_', '-')}", path.absolute()
        require(place not in flags, f'{flags.get(place)} and {flag} would both write "{path}".')
        flags[place] = flag
        check_writable(path)


def deliver(
    command: str,
    model: "ModelLike",
    given: Mapping[str, Any],
    results: Sequence[Any],
    output: Output,
    read: TokensRead | None = None,
) -> None:
    """Write what was asked for, whole, and say where.

    Args:
        command: Which one it was.
        model: What it was about.
        given: What was asked, as JSON data.
        results: What was found.
        output: Where to.
        read: What the model read.
    """
    if output.html is None and output.json is None:
        return
    head = _head(command, model, given, read)

    def text() -> str:
        from glassformer.render.page.results import shared

        entries = [result.to_dict() for result in results]
        document = head | shared(head, entries) | {"results": entries}
        return json_text(document, ascii_only=False)

    def page() -> str:
        from glassformer.render.page import results_page

        return results_page(results, head)

    write_documents(output, text, page)


def write_documents(output: Output, text: Callable[[], str], page: Callable[[], str]) -> None:
    """Write what was asked for, whole, and say where.

    Args:
        output: Where to.
        text: Gives the JSON.
        page: Gives the page.
    """
    if output.json is not None:
        say(spoken("JSON: {path}", path=write(output.json, text()).absolute()))
    if output.html is not None:
        say(spoken("page: {path}", path=write(output.html, page()).absolute()))


def _head(command: str, model: "ModelLike", given: Mapping[str, Any], read: TokensRead | None) -> dict[str, Any]:
    """Return what a command's document says before its results: see docs/results-json.md."""
    import dataclasses

    from glassformer.analysis.reports._model_facts import model_facts
    from glassformer.render.page.results import FORMAT, VERSION

    facts = dataclasses.asdict(model_facts(model))
    head = {"format": FORMAT, "version": VERSION, "command": command, "model": facts}
    head["given"] = {name: value for name, value in given.items() if value is not None}
    if read is None:
        return head
    return head | {"reading": read.to_dict(), "notes": [note.to_dict() for note in read.notes]}
