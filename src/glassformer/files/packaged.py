"""The models that come with the package: their names and folders, which take no PyTorch to be listed."""

from importlib.resources import files as resources
from pathlib import Path

CONFIG = "config.json"  # what makes a folder a model's


def shipped() -> list[str]:
    """The names of the models that come with the package."""
    zoo = resources("glassformer") / "zoo"
    return sorted(entry.name for entry in zoo.iterdir() if (entry / CONFIG).is_file()) if zoo.is_dir() else []


def shipped_folder(name: str) -> Path:
    """Return the folder of a model that comes with the package."""
    return Path(str(resources("glassformer") / "zoo" / name))
