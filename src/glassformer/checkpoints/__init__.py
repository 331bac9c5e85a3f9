"""Saving and loading models, ours and published ones: safetensors and JSON, never a pickle."""

from typing import TYPE_CHECKING

from glassformer.files.packaged import shipped
from glassformer.lazy import lazily

if TYPE_CHECKING:
    from glassformer.checkpoints.comparison import Parity, parity
    from glassformer.checkpoints.conversion import LAYOUTS, convert
    from glassformer.checkpoints.foreign_modules import Spec, disagreement, foreign
    from glassformer.checkpoints.hub import is_id
    from glassformer.checkpoints.loading import config_of, load, notes_of, open_folder
    from glassformer.checkpoints.names import folder_of, require_no_slip
    from glassformer.checkpoints.own import save, sha256
    from glassformer.checkpoints.shards import AttentionReader, save_shards
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "comparison": ("Parity", "parity"),
            "conversion": ("LAYOUTS", "convert"),
            "foreign_modules": ("Spec", "disagreement", "foreign"),
            "hub": ("is_id",),
            "loading": ("config_of", "load", "notes_of", "open_folder"),
            "names": ("folder_of", "require_no_slip"),
            "own": ("save", "sha256"),
            "shards": ("AttentionReader", "save_shards"),
        },
    )

__all__ = [
    "LAYOUTS",
    "AttentionReader",
    "Parity",
    "Spec",
    "config_of",
    "convert",
    "disagreement",
    "folder_of",
    "foreign",
    "is_id",
    "load",
    "notes_of",
    "open_folder",
    "parity",
    "require_no_slip",
    "save",
    "save_shards",
    "sha256",
    "shipped",
]
