"""`glassformer parity`: a published checkpoint, ours against the reference implementation."""

from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.table import Table
from rich.text import Text

from glassformer.cli.options import ComputeDevice
from glassformer.cli.output import finish
from glassformer.cli.progress import progress
from glassformer.files import check_writable, json_text
from glassformer.words import spoken, spoken_each


def parity(
    model: Annotated[str, tyro.conf.Positional],
    /,
    dtype: Literal["float32", "float64"] = "float32",
    text: str | None = None,
    length: int = 12,
    steps: int = 8,
    tolerance: float | None = None,
    patterns: bool = True,
    seed: int = 0,
    revision: str | None = None,
    json: Path | None = None,
    *,
    compute: ComputeDevice,
) -> None:
    """Compare a checkpoint as it is loaded here with the transformers library: every layer, and where they part.

    Both run on the same rows: of one length, padded right, padded left, and on greedy tokens from a cache. Errors are
    largest differences relative to the root mean square of the reference. In float64 rounding is all but gone, so that
    what remains is a fault; it takes twice the memory.

    Exit codes: 0 they agree, 1 a site is beyond the tolerance, 2 bad input.

    Examples:
        glassformer parity my-llama
        glassformer parity my-llama --dtype float64 --text "The quick brown fox"
        glassformer parity EleutherAI/pythia-70m --json parity.json

    Args:
        model: A folder with config.json and safetensors, or a hub id.
        dtype: Both run in.
        text: Run this text; random token ids by default. A window or a scaled rotation shows only beyond its length.
        length: Random tokens per row.
        steps: Greedy tokens from a cache.
        tolerance: Largest error that counts as equal. By default 1e-9 in float64; in float32 1e-4, or four times what
            rounding alone does at a site, where large channels leave fewer digits.
        patterns: Leave out patterns, which the library's eager attention has, and run its fused attention, which is
            another formula in a few models (Falcon with ALiBi).
        seed: Of the random tokens.
        revision: Of a hub model: branch, tag or commit.
        json: Write all errors to this file.
    """
    import torch

    from glassformer import checkpoints
    from glassformer.checkpoints.comparison.reference import library

    if json is not None:
        check_writable(json)
    library().utils.logging.disable_progress_bar()
    with progress("parity") as report:
        found = checkpoints.parity(
            model, dtype=getattr(torch, dtype), text=text, length=length, steps=steps, tolerance=tolerance,
            patterns=patterns, seed=seed, revision=revision, device=compute.device, report=report,
        )  # fmt: skip
    shown = [_layers(model, found), _logits(found), *map(str, found.notes), _verdict(found)]
    finish(shown, JSON=(json, lambda: json_text({"model": model} | found.to_dict(), indent=1)))
    if found.first is not None:
        raise SystemExit(1)


def _layers(model: str, found: Any) -> Table:
    """Return the largest error of each kind of site in each layer."""
    from glassformer.trace import Site

    worst: dict[tuple[str, str], Any] = {}
    for difference in found.differences:
        if difference.site == "logits":
            continue
        at = Site.named(difference.site)
        kind = ".".join(filter(None, (at.part, at.quantity)))
        cell = (difference.site, "") if at.layer is None else (f"{at.stack} {at.layer}".strip(), kind)
        # a nan that came first would stay below every number
        several = [difference, *([worst[cell]] if cell in worst else [])]
        worst[cell] = max(several, key=lambda d: float("inf") if d.error != d.error else d.error)
    kinds = list(dict.fromkeys(kind for _, kind in worst if kind))
    title = spoken(
        "{model} as {family} against {reference}, {dtype}: largest errors",
        model=model, family=found.family, reference=found.reference, dtype=found.dtype,
    )  # fmt: skip
    # one word a line: seven kinds fit an ordinary terminal
    table = Table(spoken("layer"), *(kind.replace(".", "\n") for kind in kinds), title=title)
    table.columns[0].no_wrap = True
    for row in dict.fromkeys(row for row, _ in worst):
        cells = [worst.get((row, kind)) for kind in kinds]
        if (row, "") in worst:
            cells[0] = worst[row, ""]
        table.add_row(row, *(_cell(difference, found) for difference in cells))
    return table


def _logits(found: Any) -> Table:
    table = Table(*spoken_each("logits, rows", "error"))
    for difference in found.differences:
        if difference.site == "logits":
            table.add_row(difference.rows, _cell(difference, found))
    return table


def _cell(difference: Any, found: Any) -> Text:
    if difference is None:
        return Text("")
    return Text(f"{difference.error:.1e}", style="" if found.allows(difference) else "bold red")


def _verdict(found: Any) -> str:
    first = found.first
    if first is None:
        worst = found.worst
        return spoken(
            "equal: largest error {error:.1e} at {site}, {allowed:.2g} allowed.",
            error=worst.error, site=worst.site, allowed=found.allowed(worst),
        )  # fmt: skip
    theirs = spoken(' (theirs: "{site}")', site=first.theirs) if first.theirs else ""
    return spoken(
        'first site that diverges: "{site}"{theirs}, rows {rows}: error {error:.1e}, {allowed:.2g} allowed.',
        site=first.site, theirs=theirs, rows=first.rows, error=first.error, allowed=found.allowed(first),
    )  # fmt: skip
