"""The config that a command's model stands for."""

from typing import TYPE_CHECKING

from glassformer import checkpoints
from glassformer.cli.arguments import check_known

if TYPE_CHECKING:
    from glassformer.models import ModelConfig
    from glassformer.provenance import ModelNote


def config_of(name: str) -> "ModelConfig":
    """The config of a preset, a shipped model, a folder or a hub model; weights are not read.

    Raises:
        UnknownModel: None of them; the message lists the names there are.
    """
    from glassformer.models import PRESETS, preset

    if name in PRESETS:
        return preset(name)
    check_known(name)
    return checkpoints.config_of(name)


def notes_of(name: str) -> "tuple[ModelNote, ...]":
    """What must be known of the weights of a command's model, as far as it is seen without them; a preset has none."""
    from glassformer.models import PRESETS

    return () if name in PRESETS else checkpoints.notes_of(name)
