"""`glassformer plot`: draw a run's metrics."""

from pathlib import Path
from typing import Annotated

import tyro

from glassformer import checkpoints
from glassformer.cli.console import say


def plot(run: Annotated[str, tyro.conf.Positional], out: Path | None = None) -> None:
    """Draw losses, in-context learning, the best heads and loss by position over training.

    Examples:
        glassformer plot runs/attn-only-2l
        glassformer plot attn-only-2l --out phase-change.svg

    Args:
        run: A run folder, or a shipped model (its training metrics ship with it).
        out: Picture to write (.png, .svg, .pdf); NAME.png by default.
    """
    from glassformer.render import curves
    from glassformer.training import read_metrics

    folder = checkpoints.folder_of(run) if run in checkpoints.shipped() else Path(run)
    metrics = read_metrics(folder)
    name = folder.resolve().name
    out = out or Path(f"{name}.png")
    curves.save(curves.curves(metrics, name), out)
    say(out)
