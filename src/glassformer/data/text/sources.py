"""Where texts come from: files, folders, globs, standard input, JSONL, the `datasets` library, the standard library,
installed packages, and the English in any of those that hold Python.

A *source* is a string; reading it yields documents in a fixed order, one at a time, so a corpus need not fit in memory.
"""

import dataclasses
import errno
import functools
import glob
import io
import json
import os
import sys
import sysconfig
import tokenize
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, PackagePath, distribution
from itertools import tee
from pathlib import Path
from typing import Any

from glassformer.data.batch import hash64
from glassformer.data.text.constructors import constructors
from glassformer.data.text.prose import distinct, paragraphs
from glassformer.errors import DataError, MissingExtra, TextError, nearest
from glassformer.files import opened

STANDARD_LIBRARY = "python-stdlib"
PACKAGE = "python-package:"
PROSE = "prose:"
CONSTRUCTORS = "constructors:"
_NOT_SHIPPED = {"test", "tests", "testing", "idlelib", "lib2to3", "site-packages", "dist-packages", "__pycache__"}


@dataclasses.dataclass(frozen=True)
class Document:
    """One text.

    Args:
        name: Where it came from.
        text: Its content.
        key: What decides between training and held-out; None for the content. Equal keys fall on the same side.
    """

    name: str
    text: str
    key: str | None = None

    def hash(self) -> int:
        """The 64-bit hash that the split compares with the held-out share."""
        return hash64("document", self.text if self.key is None else self.key)


class LeftOut(Counter[str]):
    """How many files of folders and globs were left out, by reason; `first` is one of each."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[str, str] = {}

    def note(self, path: str | Path, reason: str) -> None:
        """Count a file that gave no text."""
        self[reason] += 1
        self.first.setdefault(reason, str(path))

    def add(self, other: "LeftOut") -> None:
        """Count what another one counted."""
        self.update(other)
        self.first = other.first | self.first

    def __str__(self) -> str:
        return ", ".join(f'{n} {reason} (first: "{self.first[reason]}")' for reason, n in self.items())


def read_source(source: str, text_field: str = "text", left_out: LeftOut | None = None) -> Iterator[Document]:
    """The documents of a source one by one.

    What is not there is refused at once; nothing is read before the first document is asked for.

    What is named must be readable text. What merely lies in a folder, or falls under a glob, is left out if it is not:
    no UTF-8, not to be read, no regular file, empty.

    Args:
        source: `python-stdlib`, `python-package:NAME==VERSION` for an installed package, `-` for standard input,
            `datasets:NAME[:CONFIG]`, a file, a folder (every file below it, hidden ones excepted) or a glob. A `.jsonl`
            file holds one document per line, any other file is one. `prose:` before any of them gives the docstrings,
            comments and help texts of its Python, a document per file, each paragraph once; `constructors:`
            its classes that mostly take over their arguments.
        text_field: The field that holds the text, in JSONL and datasets.
        left_out: Counts what was left out; without one, a warning says it.

    Raises:
        DataError: Nothing of that name, a folder or glob without text, a package that is not installed at that version,
            or a JSONL line without the field.
        TextError: A file that was named is not UTF-8.
        MissingExtra: `datasets:` without the library.
    """
    taken = next((prefix for prefix in _PARTS if source.startswith(prefix)), None)
    if taken is not None:
        inner = read_source(source.removeprefix(taken), text_field, left_out)
        return _part_of_code(source, taken, inner, left_out)
    if source == STANDARD_LIBRARY:
        return python_stdlib()
    if source.startswith(PACKAGE):
        return _package(source, _python_of(source), left_out)
    if source == "-":
        return _standard_input()
    if source.startswith("datasets:"):
        return _dataset(source, _datasets(source), text_field)
    if os.path.isdir(source):
        return _many(source, None, text_field, left_out)
    if os.path.exists(source):
        return _file(_named(source), text_field)
    return _many(source, _matching(source), text_field, left_out)


def python_stdlib() -> Iterator[Document]:
    """Yield the source files of the running Python's standard library, sorted by name.

    Tests, idlelib, lib2to3 and installed packages are left out. The split goes by name, so that a file stays on its
    side when another Python version changes it.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = ((p.relative_to(root), p) for p in root.rglob("*.py"))
    for name, path in sorted((n.as_posix(), p) for n, p in paths if not _NOT_SHIPPED.intersection(n.parts)):
        data = _bytes(path)
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        yield Document(name, data.decode(encoding), key=name)


def _standard_input() -> Iterator[Document]:
    try:
        if sys.stdin is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        read = sys.stdin.buffer.read()
    except OSError as error:
        raise DataError(
            f"standard input cannot be read: {error.strerror or error}. Name a file or a folder, or pipe the text in."
        ) from error
    yield Document("-", _decoded(read, "standard input"))


def _python_of(source: str) -> list[PackagePath]:
    """Return the Python files of an installed package, sorted by name; tests are left out."""
    name, pinned, version = source.removeprefix(PACKAGE).partition("==")
    if not (name and pinned and version):
        raise DataError(f'"{source}" does not say which version. A package is named as "{PACKAGE}NAME==VERSION".')
    try:
        installed = distribution(name)
    except PackageNotFoundError as error:
        raise DataError(f'"{source}": {name} is not installed. Run: pip install "{name}=={version}".') from error
    # what follows a plus tells builds of one version apart
    if installed.version.partition("+")[0] != version:
        raise DataError(
            f'"{source}": {name} {installed.version} is installed, which is other text. Run: pip install '
            f'"{name}=={version}", or name the version that is there.'
        )
    python = (file for file in installed.files or () if file.suffix == ".py")
    files = [file for file in python if not _NOT_SHIPPED.intersection(file.parts)]
    if not files:
        raise DataError(f'"{source}": the installed {name} lists no Python files.')
    return sorted(files, key=lambda file: file.as_posix())


def _package(source: str, files: Iterable[PackagePath], left_out: LeftOut | None) -> Iterator[Document]:
    """Yield the files of a package; what is not UTF-8 is left out."""
    noted = LeftOut() if left_out is None else left_out
    for file in files:
        path = Path(str(file.locate()))
        text = _text(_bytes(path), path, 0, noted)
        if text is not None:
            yield Document(file.as_posix(), text, key=file.as_posix())
    if left_out is None and noted:
        warnings.warn(f'"{source}": left out {noted}.', stacklevel=2)


def _part_of_code(source: str, taken: str, python: Iterator[Document], left_out: LeftOut | None) -> Iterator[Document]:
    """Yield a part of a source's Python; the split goes by the Python, as it does where that is read itself."""
    inner = source.removeprefix(taken)
    if inner == STANDARD_LIBRARY or inner.startswith(PACKAGE):
        documents, noted = _installed_part(source, taken)
        if left_out is not None:
            left_out.add(noted)
        yield from documents
    else:
        yield from _PARTS[taken](source, python)


@functools.cache
def _installed_part(source: str, taken: str) -> tuple[tuple[Document, ...], LeftOut]:
    """Return a part of what is installed, read once: parsing takes minutes, and a mixture reads it four times."""
    noted = LeftOut()
    return tuple(_PARTS[taken](source, read_source(source.removeprefix(taken), left_out=noted))), noted


def _english(source: str, found: Iterator[Document]) -> Iterator[Document]:
    documents, ours = tee(found)
    texts = ("\n\n".join(texts) for texts in distinct(paragraphs(code.text) for code in ours))
    yield from _replaced(documents, texts, f'"{source}": no docstrings or comments in English, or no Python.')


def _constructors(source: str, found: Iterator[Document]) -> Iterator[Document]:
    documents, ours = tee(found)
    texts = (constructors(code.text) for code in ours)
    yield from _replaced(documents, texts, f'"{source}": no constructors that take over their arguments, or no Python.')


def _replaced(documents: Iterator[Document], texts: Iterator[str], if_none: str) -> Iterator[Document]:
    """Yield documents with another text each, those left out that have none."""
    any_text = False
    for document, text in zip(documents, texts, strict=True):
        if text:
            any_text = True
            key = document.text if document.key is None else document.key
            yield Document(document.name, text, key=key)
    if not any_text:
        raise DataError(if_none)


_PARTS = {PROSE: _english, CONSTRUCTORS: _constructors}


def _named(source: str) -> Path:
    path = Path(source)
    if not path.is_file():
        raise DataError(f'"{source}" is no regular file. Write what it gives to a file, or pipe it in and name "-".')
    return path


def _many(
    source: str, matching: Sequence[Path] | None, text_field: str, left_out: LeftOut | None
) -> Iterator[Document]:
    """Yield what is text of the files that match a glob, or of a folder, in order."""
    noted = LeftOut() if left_out is None else left_out
    before, found = noted.total(), False
    for path in sorted(_below(Path(source), noted) if matching is None else matching):
        for document in _file(path, text_field, noted):
            found = True
            yield document
    if not found:
        if noted.total() > before:
            raise DataError(f'no usable text in "{source}": {noted} left out.')
        raise DataError(f'the folder "{source}" holds no files, hidden ones left aside.')
    if left_out is None and noted:
        warnings.warn(f'"{source}": left out {noted}.', stacklevel=2)


def _below(folder: Path, left_out: LeftOut) -> list[Path]:
    """Return every file below a folder, hidden ones excepted; links to folders are not followed."""
    found: list[Path] = []

    def unreadable(error: OSError) -> None:
        left_out.note(error.filename, "unreadable")

    for place, folders, names in os.walk(folder, onerror=unreadable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(place, name) for name in names if not name.startswith(".")]
    return found


def _matching(pattern: str) -> list[Path]:
    paths = [Path(path) for path in glob.glob(pattern, recursive=True) if not os.path.isdir(path)]
    if not paths:
        folder = os.path.dirname(pattern) or "."
        siblings = [STANDARD_LIBRARY, *(os.listdir(folder) if os.path.isdir(folder) else [])]
        raise DataError(
            f'no file "{pattern}".{nearest(os.path.basename(pattern), siblings)} A source is a file, a folder, a glob, '
            f'"-" for standard input, "datasets:NAME", "{PACKAGE}NAME==VERSION", "{STANDARD_LIBRARY}", or "{PROSE}" or '
            f'"{CONSTRUCTORS}" before one.'
        )
    return paths


def _file(path: Path, text_field: str, left_out: LeftOut | None = None) -> Iterator[Document]:
    """Yield the documents of a file; what is no text is counted if there is where to, and raised otherwise."""
    if left_out is None:
        yield from _documents(path, text_field)
        return
    if not path.is_file():
        left_out.note(path, "not regular files")
        return
    before, found = left_out.total(), False
    for document in _documents(path, text_field, left_out):
        if document.text.strip():
            found = True
            yield document
    if not found and left_out.total() == before:
        left_out.note(path, "empty")


def _documents(path: Path, text_field: str, left_out: LeftOut | None = None) -> Iterator[Document]:
    try:
        with path.open("rb") as file:
            pieces = enumerate(file, 1) if path.suffix == ".jsonl" else [(0, file.read())]
            start = 0
            for number, data in pieces:
                text = _text(data, path, start, left_out)
                start += len(data)
                if not number and text is not None:
                    yield Document(str(path), text)
                elif text and text.strip():
                    yield Document(f"{path}:{number}", _json_text(text, path, number, text_field))
    except OSError as error:
        if left_out is None:
            raise DataError(f'cannot read "{path}": {error.strerror or error}.') from error
        left_out.note(path, "unreadable")


def _text(data: bytes, path: Path, start: int, left_out: LeftOut | None) -> str | None:
    """Return what bytes of a file say, or None if they are left out."""
    try:
        return _decoded(data, str(path), start)
    except TextError:
        if left_out is None:
            raise
        left_out.note(path, "not UTF-8")
        return None


def _json_text(line: str, path: Path, number: int, text_field: str) -> str:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise DataError(f'"{path}" line {number} is not JSON ({error}).') from error
    return _text_of(record, text_field, f'"{path}" line {number}')


def _text_of(record: Any, text_field: str, where: str) -> str:
    fields = [str(name) for name in record] if isinstance(record, dict) else []
    if text_field not in fields or not isinstance(record[text_field], str):
        raise DataError(
            f'{where} has no text in field "{text_field}".{nearest(text_field, fields)} '
            f"Fields: {', '.join(fields) or 'none'}. Set text_field."
        )
    return record[text_field]


def _datasets(source: str) -> Any:
    """Return the `datasets` module; raises `MissingExtra` if it is not installed."""
    try:
        import datasets  # type: ignore[import-not-found]
    except ImportError as error:
        raise MissingExtra(f'"{source}" needs the datasets library: pip install "glassformer[datasets]".') from error
    return datasets


def _dataset(source: str, datasets: Any, text_field: str) -> Iterator[Document]:
    name, *config = source.removeprefix("datasets:").split(":", 1)
    for number, record in enumerate(datasets.load_dataset(name, *config, split="train", streaming=True)):
        yield Document(f"{source}:{number}", _text_of(record, text_field, f'"{source}" row {number}'))


def read_text(path: Path) -> str:
    """The content of a UTF-8 file; raises `DataError` if it cannot be read, `TextError` if it is not UTF-8."""
    return _decoded(_bytes(path), str(path))


def _bytes(path: Path) -> bytes:
    try:
        with opened(path) as file:
            return file.read()
    except OSError as error:
        raise DataError(f'cannot read "{path}": {error.strerror or error}.') from error


def _decoded(data: bytes, name: str, start: int = 0) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TextError(
            f'"{name}" is not UTF-8: byte 0x{data[error.start]:02X} at offset {start + error.start}. Convert it first '
            f"(iconv -f LATIN1 -t UTF-8), or name the text files alone with a glob such as 'folder/**/*.txt'."
        ) from error
