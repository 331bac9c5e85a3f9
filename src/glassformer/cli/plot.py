"""`glassformer plot`: draw a run's metrics."""

from collections.abc import Mapping
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
    from glassformer.zoo.card import said_of_synthetic

    folder = checkpoints.folder_of(run) if run in checkpoints.shipped() else Path(run)
    metrics = read_metrics(folder)
    name = folder.resolve().name
    out = out or Path(f"{name}.png")
    made_up = _made_up(run, folder)
    curves.save(curves.curves(metrics, name, said_of_synthetic(made_up) if made_up else ""), out)
    say(out)


def _made_up(run: str, folder: Path) -> Mapping[str, float]:
    """Return what of each training batch was made up: as the card of a shipped model says, or the recipe of a run."""
    from glassformer.files import MOST_JSON, read_text
    from glassformer.training import TrainConfig
    from glassformer.zoo import card

    if run in checkpoints.shipped():
        return card(run).synthetic
    recipe = folder / "config.json"
    return TrainConfig.from_json(read_text(recipe, MOST_JSON)).data.synthetic() if recipe.is_file() else {}
