"""`glassformer plot`: draw a run's metrics, or compare those of several."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.table import Table

from glassformer import checkpoints
from glassformer.cli.console import Console, say
from glassformer.files.packaged import CONFIG
from glassformer.words import spoken

if TYPE_CHECKING:
    from glassformer.models import ModelConfig
    from glassformer.training import TrainConfig


def plot(
    run: Annotated[str, tyro.conf.Positional],
    others: Annotated[tuple[str, ...], tyro.conf.Positional] = (),
    /,
    out: Path | None = None,
) -> None:
    """Draw losses, in-context learning, the best heads and loss by position over training; or compare several runs.

    Of several runs it prints a table and draws their losses into one chart.

    Examples:
        glassformer plot runs/attn-only-2l
        glassformer plot attn-only-2l --out phase-change.svg
        glassformer plot attn-only-2l gpt-4l --out losses.png

    Args:
        run: A run folder, a shipped model (its training metrics ship with it), or a copy of one's folder.
        others: Further ones to compare it with.
        out: Picture to write (.png, .svg, .pdf); NAME.png by default.
    """
    from glassformer.render import curves
    from glassformer.training import read_metrics
    from glassformer.zoo.card import said_of_synthetic

    folders = [checkpoints.folder_of(one) if one in checkpoints.shipped() else Path(one) for one in (run, *others)]
    metrics = [read_metrics(folder) for folder in folders]
    names = [folder.resolve().name for folder in folders]
    out = out or Path(f"{'-'.join(names)}.png")
    if others:
        # folders of one name are told apart by their paths
        names = [name if names.count(name) == 1 else str(folder) for name, folder in zip(names, folders)]
        picture = curves.compared(dict(zip(names, metrics, strict=True)))
        curves.save(picture, out)
        configs = [_config(folder) for folder in folders]
        Console().print(_table(names, metrics, configs))
        if len({None if config is None else config.n_outputs for config in configs}) > 1:
            say(spoken("Vocabularies differ in size: losses per token of different tokens do not compare."))
    else:
        made_up = _made_up(folders[0])
        curves.save(curves.curves(metrics[0], names[0], said_of_synthetic(made_up) if made_up else ""), out)
    say(out)


def _table(names: list[str], metrics: list[list[dict[str, Any]]], configs: "list[ModelConfig | None]") -> Table:
    """Return what runs came to and what they cost, side by side; nothing where a run did not say it."""
    from glassformer.models.accounting import account, state_bytes

    rows: dict[str, list[str]] = {}
    for lines, config in zip(metrics, configs):
        last = {name: value for line in lines for name, value in line.items()}
        seconds = last.get("seconds")
        said = {
            spoken("parameters"): None if config is None else f"{account(config).total:,}",
            spoken("steps"): f"{last['step']:,}",
            spoken("tokens"): f"{last['tokens']:,}",
            spoken("held-out loss (nats per token)"): _number(last.get("heldout_loss")),
            spoken("training loss (nats per token)"): _number(last.get("loss")),
            spoken("tokens per second"): f"{last['tokens'] / seconds:,.0f}" if seconds else None,
            spoken("bytes of state for a text as long as the context"): (
                None if config is None else f"{state_bytes(config, config.max_len):,}"
            ),
        }
        for name, value in said.items():
            rows.setdefault(name, []).append(value or "")
    table = Table("", *names)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, values in rows.items():
        table.add_row(name, *values)
    return table


def _number(value: Any) -> str | None:
    return f"{value:.4g}" if isinstance(value, int | float) else None


def _config(folder: Path) -> "ModelConfig | None":
    """Return the config of a run's model, or of the model in a folder, if there is one."""
    from glassformer.cli.configs import config_of

    recipe = _recipe(folder)
    if recipe is not None:
        return recipe.model
    return config_of(str(folder)) if (folder / CONFIG).is_file() else None


def _made_up(folder: Path) -> Mapping[str, float]:
    """Return what of each training batch was made up: as the recipe of a run says, or the card beside a model."""
    from glassformer.zoo.card import CARD, card_in

    recipe = _recipe(folder)
    if recipe is not None:
        return recipe.data.synthetic()
    return card_in(folder).synthetic if (folder / CARD).is_file() else {}


def _recipe(folder: Path) -> "TrainConfig | None":
    """Return the recipe of a run; None where the config is that of a model, with digests of its files, or missing."""
    from glassformer.files import MOST_JSON, read_object, read_text
    from glassformer.training import TrainConfig

    said = read_object(folder / CONFIG)
    return TrainConfig.from_json(read_text(folder / CONFIG, MOST_JSON)) if said and "sha256" not in said else None
