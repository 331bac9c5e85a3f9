"""Which text a command reads where it needs many rows of it."""

from pathlib import Path
from typing import Any


def source_of(loaded: Any, model: str | None, run: Path | None, data: tuple[str, ...]) -> Any:
    """Return where text comes from: what was named, else what the run or the recipe holds out, else Python's own."""
    from glassformer.analysis.learning import read_history
    from glassformer.data import DataConfig, TextConfig
    from glassformer.training.recipes import RECIPES, recipe

    length = min(256, loaded.config.max_len)
    if data:
        # in consecutive cuts: no more rows than there is text for
        return TextConfig(length=length, sources=data, heldout=0.0, crop="cut")
    if run is not None:
        history = read_history(run).config
        return DataConfig.from_dict(history.get("evaluate") or history["data"])
    if model in RECIPES:
        known = recipe(model)
        return known.evaluate or known.data
    return TextConfig(length=length)
