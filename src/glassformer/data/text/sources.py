"""Where texts come from: files, folders, globs, standard input, JSONL, the `datasets` library, the standard library.

A *source* is a string; reading it yields documents in a fixed order, one at a time, so a corpus need not fit in memory.
"""

import dataclasses
import glob
import io
import json
import os
import sys
import sysconfig
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from glassformer.data.batch import hash64
from glassformer.errors import DataError, MissingExtra, TextError, nearest

STANDARD_LIBRARY = "python-stdlib"
_NOT_SHIPPED = {"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "__pycache__"}


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
        """Return the 64-bit hash that the split compares with the held-out share."""
        return hash64("document", self.text if self.key is None else self.key)


def read_source(source: str, text_field: str = "text") -> Iterator[Document]:
    """Yield the documents of a source.

    Args:
        source: `python-stdlib`, `-` for standard input, `datasets:NAME[:CONFIG]`, a file, a folder (every file below
            it, hidden ones excepted) or a glob. A `.jsonl` file holds one document per line, any other file is one.
        text_field: The field that holds the text, in JSONL and datasets.

    Raises:
        DataError: Nothing of that name, or a JSONL line without the field.
        TextError: A file is not UTF-8.
        MissingExtra: `datasets:` without the library.
    """
    if source == STANDARD_LIBRARY:
        yield from python_stdlib()
    elif source == "-":
        yield Document("-", _decoded(sys.stdin.buffer.read(), "standard input"))
    elif source.startswith("datasets:"):
        yield from _dataset(source, text_field)
    else:
        for path in _paths(source):
            yield from _file(path, text_field)


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


def _paths(source: str) -> list[Path]:
    if os.path.isdir(source):
        found = [p for p in Path(source).rglob("*") if not any(n.startswith(".") for n in p.relative_to(source).parts)]
    elif os.path.exists(source):
        found = [Path(source)]
    else:
        found = [Path(p) for p in glob.glob(source, recursive=True)]
    files = sorted(p for p in found if p.is_file())
    if not files:
        folder = os.path.dirname(source) or "."
        if os.path.isdir(source):
            raise DataError(f'the folder "{source}" holds no files, hidden ones left aside.')
        siblings = [STANDARD_LIBRARY, *(os.listdir(folder) if os.path.isdir(folder) else [])]
        raise DataError(
            f'no file "{source}".{nearest(os.path.basename(source), siblings)} A source is a file, a folder, a glob, '
            f'"-" for standard input, "datasets:NAME" or "{STANDARD_LIBRARY}".'
        )
    return files


def _file(path: Path, text_field: str) -> Iterator[Document]:
    if path.suffix != ".jsonl":
        yield Document(str(path), _decoded(_bytes(path), str(path)))
        return
    with path.open("rb") as lines:
        start = 0
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield Document(
                    f"{path}:{number}", _json_text(_decoded(line, str(path), start), path, number, text_field)
                )
            start += len(line)


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


def _dataset(source: str, text_field: str) -> Iterator[Document]:
    try:
        from datasets import load_dataset  # type: ignore[import-not-found]
    except ImportError as error:
        raise MissingExtra(f'"{source}" needs the datasets library: pip install "glassformer[datasets]".') from error
    name, *config = source.removeprefix("datasets:").split(":", 1)
    for number, record in enumerate(load_dataset(name, *config, split="train", streaming=True)):
        yield Document(f"{source}:{number}", _text_of(record, text_field, f'"{source}" row {number}'))


def read_text(path: Path) -> str:
    """Return the content of a UTF-8 file; raises `DataError` if it cannot be read, `TextError` if it is not UTF-8."""
    return _decoded(_bytes(path), str(path))


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
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
