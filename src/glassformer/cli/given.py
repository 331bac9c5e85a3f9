"""What a command's arguments stand for: a model, a preset, a text."""

import sys
from pathlib import Path
from typing import Any

from glassformer import checkpoints
from glassformer.errors import TextError, UnknownModel, nearest
from glassformer.models import PRESETS, ModelConfig, preset


def config_of(name: str) -> ModelConfig:
    """Return the config of a preset, a shipped model or a folder.

    Raises:
        UnknownModel: None of them; the message lists the names there are.
    """
    return preset(name) if name in PRESETS else model_of(name).config


def model_of(name: str) -> Any:
    """Return a model with weights; raises `UnknownModel` for a preset, which has none, and for unknown names."""
    if name in PRESETS:
        raise UnknownModel(
            f'"{name}" is a preset: a shape without trained weights, for the commands params and sites.\n'
            f"    Models with weights: {_names(checkpoints.shipped())}; or give a folder."
        )
    known = [*checkpoints.shipped(), *PRESETS]
    if name not in known and not Path(name).exists():
        raise UnknownModel(
            f'no model "{name}".{nearest(name, known)} Shipped: {_names(checkpoints.shipped())}. '
            f"Presets: {_names(PRESETS)}. Or give a folder."
        )
    return checkpoints.load(name)


def text_of(given: str) -> str:
    """Return the text itself, or standard input for `-`; raises `TextError` if that is not UTF-8."""
    if given != "-":
        return given
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise TextError(
            f"standard input is not UTF-8 (byte {error.start}: {error.reason}). "
            "Convert it first: iconv -f latin1 -t utf-8."
        ) from error


def _names(names: Any) -> str:
    return ", ".join(names) or "none"
