"""How a command ends: its results as a JSON document and a page where that was asked for, then on the terminal."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

from glassformer.cli.console import Console, say
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
    model: "ModelLike | None",
    given: Mapping[str, Any],
    results: Sequence[Any],
    output: Output,
    read: TokensRead | None = None,
    *,
    shown: Iterable[RenderableType],
    picture: tuple[Path | None, Callable[[], bytes]] | None = None,
) -> None:
    """Write results where that was asked for, then print them.

    Args:
        command: Which one it was.
        model: What it was about; None where no model was opened.
        given: What was asked, as JSON data.
        results: What was found.
        output: Where documents go.
        read: What the model read.
        shown: What is printed, as for `finish`.
        picture: Where a picture goes, if anywhere, and what gives its content.
    """

    @cache
    def head() -> dict[str, Any]:
        denied = any(getattr(result, "denied", False) for result in results)
        return _head(command, model, given, read, denied)

    def text() -> str:
        from glassformer.render.page.results import shared

        entries = [result.to_dict() for result in results]
        document = head() | shared(head(), entries) | {"results": entries}
        return json_text(document, ascii_only=False)

    def page() -> str:
        from glassformer.render.page import results_page

        return results_page(results, head())

    from glassformer.render.terminal.tables import refusals

    shown = [*refusals(results), *shown]
    pictures = {} if picture is None else {"picture": picture}
    finish(shown, JSON=(output.json, text), page=(output.html, page), **pictures)


def finish(shown: Iterable[RenderableType], **documents: tuple[Path | None, Callable[[], str | bytes]]) -> None:
    """Write documents, whole; then print what was found, and where they are.

    In this order, since who reads what is printed may have seen enough before its end.

    Args:
        shown: What is printed: tables and the like for a rich console, and texts as they are.
        documents: Where each goes, if anywhere, and what gives its content; by what it is called.
    """
    written = [(name, write(path, content())) for name, (path, content) in documents.items() if path is not None]
    console = Console()
    for part in shown:
        if isinstance(part, str):
            say(part)
        else:
            console.print(part)
    for name, path in written:
        say(
            spoken(
                "page: {path}" if name == "page" else "picture: {path}" if name == "picture" else "JSON: {path}",
                path=path.absolute(),
            )
        )


def _head(
    command: str, model: "ModelLike | None", given: Mapping[str, Any], read: TokensRead | None, denied: bool
) -> dict[str, Any]:
    """Return what a command's document says before its results: see docs/results-json.md."""
    import dataclasses

    from glassformer.analysis.reports.model_facts import model_facts
    from glassformer.render.page.results import FORMAT, VERSION

    head: dict[str, Any] = {"format": FORMAT, "version": VERSION, "command": command}
    if denied:
        head["denied"] = True
    if model is not None:
        head["model"] = dataclasses.asdict(model_facts(model))
    head["given"] = {name: value for name, value in given.items() if value is not None}
    if read is None:
        return head
    return head | {"reading": read.to_dict(), "notes": [note.to_dict() for note in read.notes]}
