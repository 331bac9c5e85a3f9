"""The models that come with the package, and their dictionaries: names and folders, which take no PyTorch to be listed.

zoo/gpt-4l/                                       "gpt-4l"
zoo/gpt-4l/dictionaries/blocks.2.resid_post/      "gpt-4l/blocks.2.resid_post"
"""

from importlib.resources import files as resources
from pathlib import Path

CONFIG = "config.json"  # what makes a folder a model's
DICTIONARY = "cfg.json"  # what makes a folder a dictionary's
DICTIONARIES = "dictionaries"


def shipped() -> list[str]:
    """The names of the models that come with the package."""
    zoo = resources("glassformer") / "zoo"
    return sorted(entry.name for entry in zoo.iterdir() if (entry / CONFIG).is_file()) if zoo.is_dir() else []


def shipped_folder(name: str) -> Path:
    """Return the folder of a model that comes with the package."""
    return Path(str(resources("glassformer") / "zoo" / name))


def shipped_dictionaries() -> list[str]:
    """The names of the dictionaries that come with the package, `MODEL/SITE`."""
    folders = {name: shipped_folder(name) / DICTIONARIES for name in shipped()}
    return [
        f"{name}/{entry.name}"
        for name, folder in folders.items()
        if folder.is_dir()
        for entry in sorted(folder.iterdir())
        if (entry / DICTIONARY).is_file()
    ]


def shipped_dictionary(name: str) -> Path:
    """Return the folder of a dictionary that comes with the package."""
    model, _, site = name.partition("/")
    return shipped_folder(model) / DICTIONARIES / site
