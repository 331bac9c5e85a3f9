"""What a run says of itself as it goes: metrics.jsonl, one line per measured step, and samples.txt."""

import json
import re
from pathlib import Path
from typing import Any

from glassformer import files
from glassformer.arguments import checked
from glassformer.errors import RunFolderError
from glassformer.files import json_text

METRICS, SAMPLES = "metrics.jsonl", "samples.txt"


def log_metrics(folder: Path, metrics: dict[str, Any]) -> None:
    """Append one line to metrics.jsonl; numbers that are not finite become null, which JSON has."""
    _append(folder / METRICS, json_text(metrics) + "\n")


def log_sample(folder: Path, step: int, text: str) -> None:
    """Append a text to samples.txt."""
    _append(folder / SAMPLES, f"=== step {step}\n{text}\n\n")


def forget_after(folder: Path, step: int) -> None:
    """Drop what was logged after a step: a run that goes on from there says it again."""
    for name, until in ((METRICS, _lines_until), (SAMPLES, _samples_until)):
        path = folder / name
        if path.exists():
            try:
                said = files.read(path, files.MOST_METRICS).decode("utf-8", errors="replace")
            except OSError as error:
                raise RunFolderError(
                    f'cannot read "{path}": {files.reason(error)}. Move it away, and the run goes on without it.'
                ) from error
            files.write(path, until(said, step))


@checked
def read_metrics(folder: str | Path) -> list[dict[str, Any]]:
    """The lines of a run's (or a shipped model's) metrics.jsonl.

    Raises:
        RunFolderError: There is none, or it is damaged.
    """
    path = Path(folder) / METRICS
    try:
        lines = [json.loads(line) for line in files.read_text(path, files.MOST_METRICS).splitlines()]
    except OSError as error:
        raise RunFolderError(
            f'"{folder}" holds no {METRICS} ({error.strerror or error}). Give the folder of a run.'
        ) from error
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f'"{path}" is damaged ({error}). Resuming the run drops what was cut off.') from error
    if not all(isinstance(line, dict) and _counts(line.get("step")) and _counts(line.get("tokens")) for line in lines):
        raise RunFolderError(f'"{path}" is damaged: a line lacks "step" or "tokens".')
    return lines


def _counts(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _append(path: Path, text: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise files.refused(path, error) from error


def _lines_until(text: str, step: int) -> str:
    lines: list[str] = []
    for line in text.splitlines():
        try:
            if json.loads(line)["step"] <= step:
                lines.append(f"{line}\n")
        except (ValueError, KeyError, TypeError, RecursionError):
            break  # the line a kill cut off
    return "".join(lines)


def _samples_until(text: str, step: int) -> str:
    # no step has more digits; a header that names none belongs to the sample before it
    parts = re.split(r"^(?==== step [0-9]{1,18}$)", text, flags=re.MULTILINE)
    first, *samples = parts
    return first + "".join(part for part in samples if int(part.split(maxsplit=3)[2]) <= step)
