"""Prompt pairs in files: CSV, TSV or JSONL with the columns `clean`, `corrupt`, `answer` and `wrong`.

Every character counts, spaces at either end included: " Mary" and "Mary" are different tokens. JSONL also holds prompts
of token ids, and the roles of words as `"roles": {"subject": [4, 8]}`; CSV and TSV hold the four texts.
"""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from glassformer import files
from glassformer.arguments import checked
from glassformer.data.pairs.prompt_pairs import Pair, Pairs
from glassformer.data.text.sources import read_text
from glassformer.errors import DataError, nearest
from glassformer.files import json_text

FIELDS = ("clean", "corrupt", "answer", "wrong")
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_JSON = (".jsonl", ".ndjson")


@checked
def read_pairs(path: str | Path, *, columns: Mapping[str, str] | None = None) -> Pairs:
    """Read pairs from a file.

    Args:
        path: A `.csv`, `.tsv` or `.jsonl` file. Further columns are ignored.
        columns: What a field is called in the file, for those called otherwise: `{"clean": "prompt"}`.

    Raises:
        DataError: The file cannot be read or holds no pair, or a line is broken or lacks something; it is named.
        TextError: The file is not UTF-8.
    """
    path = Path(path)
    unknown = [name for name in columns or {} if name not in FIELDS]
    if unknown:
        raise DataError(f'no field "{unknown[0]}" of a pair.{nearest(unknown[0], FIELDS)} Fields: {", ".join(FIELDS)}.')
    names = {field: (columns or {}).get(field, field) for field in FIELDS}
    if path.suffix not in (*_SEPARATORS, *_JSON):
        raise DataError(
            f'pairs are read from .csv, .tsv or .jsonl, and "{path}" is none of them. Rename or convert it.'
        )
    # spreadsheets put a byte order mark in front
    text = read_text(path).removeprefix("\ufeff")
    records = _json_records(text, path) if path.suffix in _JSON else _table_records(text, path, names)
    pairs = tuple(_pair(record, names, f'"{path}" line {line}') for line, record in records)
    if not pairs:
        raise DataError(f'"{path}" holds no pairs.')
    return Pairs(pairs, path.stem)


@checked
def write_pairs(path: str | Path, pairs: Iterable[Pair]) -> Path:
    """Write pairs to a `.csv`, `.tsv` or `.jsonl` file, whole or not at all; tables hold no roles.

    Raises:
        DataError: The file has another ending, or token ids are to go into a table.
        SaveError: It cannot be written.
    """
    path = Path(path)
    if path.suffix in _JSON:
        return files.write(path, "".join(json_text(_record(pair), ascii_only=False) + "\n" for pair in pairs))
    if path.suffix not in _SEPARATORS:
        raise DataError(f'pairs are written to .csv, .tsv or .jsonl, and "{path}" is none of them.')
    content = io.StringIO(newline="")
    # quoted throughout: the writer leaves a lone carriage return bare, which the reader takes for the end of a line
    writer = csv.writer(content, delimiter=_SEPARATORS[path.suffix], lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow(FIELDS)
    for pair in pairs:
        values = [getattr(pair, field) for field in FIELDS]
        if not all(isinstance(value, str) for value in values):
            raise DataError(f'a table holds text only, and a pair has token ids: write a .jsonl instead of "{path}".')
        writer.writerow(values)
    return files.write(path, content.getvalue())


def _record(pair: Pair) -> dict[str, Any]:
    record = {field: getattr(pair, field) for field in FIELDS}
    return record | ({"roles": dict(pair.roles)} if pair.roles else {})


def _json_records(text: str, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    # by newline alone: JSON leaves other line separators inside strings as they are
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f'"{path}" line {number} is not JSON ({error}).') from error
        if not isinstance(record, dict):
            raise DataError(f'"{path}" line {number} is no object: expected {{"clean": …, "corrupt": …, …}}.')
        yield number, record


def _table_records(text: str, path: Path, names: Mapping[str, str]) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_SEPARATORS[path.suffix], strict=True)
    header: list[str] | None = None
    line = 1
    try:
        for row in reader:
            if not row:
                pass
            elif header is None:
                header = _header(row, path, names)
            elif len(row) != len(header):
                raise DataError(
                    f'"{path}" line {line} has {len(row)} fields and the header {len(header)} ({", ".join(header)}). '
                    "A text with a comma, quote or line break goes in double quotes, with quotes doubled."
                )
            else:
                yield line, {name: value for name, value in zip(header, row) if name in names.values()}
            # of the next record: one may span several lines
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f'"{path}" line {line} is broken ({error}).') from error


def _header(row: list[str], path: Path, names: Mapping[str, str]) -> list[str]:
    for field, name in names.items():
        if name not in row:
            raise DataError(
                f'"{path}" has no column "{name}".{nearest(name, row)} Columns: {", ".join(row)}. '
                f'Rename it, or say what "{field}" is called there: --columns {field}=… of a command, '
                f'columns={{"{field}": …}} in Python.'
            )
    return row


def _pair(record: Mapping[str, Any], names: Mapping[str, str], where: str) -> Pair:
    values = {}
    for field, name in names.items():
        if name not in record:
            raise DataError(f'{where} lacks "{name}".{nearest(name, record)} Found: {", ".join(record) or "nothing"}.')
        value = record[name]
        if field in ("clean", "corrupt") and isinstance(value, list) and all(map(_is_id, value)):
            value = tuple(value)
        elif not isinstance(value, str) and not (field in ("answer", "wrong") and _is_id(value)):
            expected = "a list of token ids" if field in ("clean", "corrupt") else "a token id"
            raise DataError(f'{where}: "{name}" is {json_text(value)}; expected text or {expected}.')
        values[field] = value
    roles = record.get("roles") or {}
    if not isinstance(roles, dict) or not all(map(_is_span, roles.values())):
        raise DataError(f'{where}: "roles" is {json_text(roles)}; expected {{"subject": [first, behind the last]}}.')
    try:
        return Pair(**values, roles={role: (span[0], span[1]) for role, span in roles.items()})
    except DataError as error:
        raise DataError(f"{where}: {error}") from error


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_span(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_id, value))
