"""What every command does with a family's checkpoint: it works, or a typed error says why not.

    outcomes(folder)      {"explain": "works", "generate": "ConfigError", ...}

A command works when its exit code is 0; it may still say that one analysis is not defined for the model, and those are
named: "works without: composition". Numbers that have to agree with each other are compared on the way.
"""

import contextlib
import io
import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from glassformer.checkpoints import config_of
from glassformer.cli import main
from glassformer.data import word_tokenizer
from glassformer.models import DecoderConfig, EncoderDecoderConfig

WORKS = "works"
TEXT = "the cat sat on the"
WORDS = "the cat sat on a mat and his dog ran to you"
COMMANDS = {
    "params": "params {folder}",
    "generate": "generate {folder} {text} --max-new-tokens 4",
    "explain": "explain {folder} {text} --json {json}",
    "lens": "lens {folder} {text} --json {json}",
    "patch": "patch {folder} --clean {text} --corrupt {other} --answer mat --wrong dog --json {json}",
    "circuits": "circuits {folder} --data {data} --rows 2 --json {json}",
}
# an encoder-decoder is told what its decoder has read
READ = " --target {target}"
# exact only without MLPs, which no published family is; said by every one of them
EVERYWHERE = {"term importance"}


def with_tokenizer(folder: Path) -> Path:
    """Give a tiny checkpoint a tokenizer of a few words, and return its folder."""
    word_tokenizer([WORDS]).save(folder)
    return folder


def outcomes(folder: Path) -> dict[str, str]:
    """Return what each command made of a checkpoint with a tokenizer, see `with_tokenizer`."""
    kind = type(config_of(folder))
    with tempfile.TemporaryDirectory() as scratch:
        return {verb: _outcome(verb, line, folder, Path(scratch), kind) for verb, line in COMMANDS.items()}


def in_words(found: Mapping[str, str]) -> str:
    """Return what of the outcomes of commands does not work, as the page of families says it."""
    parts: list[str] = []
    for verb, outcome in found.items():
        if outcome.startswith(WORKS):
            lacking = outcome.removeprefix(WORKS).removeprefix(" without: ")
            parts += [f"`{verb}` without {lacking}"] if lacking else []
        else:
            page = "".join(f"-{c.lower()}" if c.isupper() else c for c in outcome).lstrip("-")
            parts.append(f"`{verb}`: [`{outcome}`](errors/{page}.md)")
    if not parts:
        return "all"
    return "; ".join(["all", *parts] if all("without" in part for part in parts) else parts)


def _outcome(verb: str, line: str, folder: Path, scratch: Path, kind: type) -> str:
    document, data = scratch / f"{verb}.json", scratch / "text.txt"
    data.write_text("the cat sat on the mat and his dog ran to the mat\n" * 60, encoding="utf-8")
    places = {"folder": folder, "text": TEXT, "other": "the dog sat on the", "json": document, "data": data}
    if kind is not DecoderConfig:
        # losses on text are of next tokens
        line = line.replace(" --data {data} --rows 2", "")
    if kind is EncoderDecoderConfig and verb == "patch":
        line, places["target"] = line + READ, "a cat"
    arguments = [word.format(**places) for word in line.split()]
    code, error = _run(arguments)
    if code == 0:
        lacking = sorted(_checked(document) - EVERYWHERE) if document.exists() else []
        return f"{WORKS} without: {', '.join(lacking)}" if lacking else WORKS
    assert code == 2, f"{arguments}: exit code {code}\n{error}"
    assert "Traceback" not in error, error
    # asked again for the class of the error, which ends a traceback
    _, told = _run([*arguments, "--debug"])
    return re.findall(r"^glassformer\.errors\.(\w+):", told, re.MULTILINE)[-1]


def _run(arguments: list[str]) -> tuple[int, str]:
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        code = main(arguments)
    return code, error.getvalue()


def _checked(document: Path) -> set[str]:
    """Return which analyses a document says are not available, after a look at sums that have to agree."""
    found = json.loads(document.read_text(encoding="utf-8"))
    if "attribution" in found and found["attribution"] is not None:
        split = found["attribution"]
        assert abs(split["sum"] - split["total"]) <= 1e-4 * max(1.0, abs(split["total"])), "parts do not add up"
    return {entry["analysis"] for entry in found.get("unavailable", [])}
