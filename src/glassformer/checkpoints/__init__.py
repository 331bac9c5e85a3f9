"""Saving and loading models, ours and published ones: safetensors and JSON, never a pickle."""

from glassformer.checkpoints.comparison import Parity, parity
from glassformer.checkpoints.convert import convert
from glassformer.checkpoints.expressed import LAYOUTS
from glassformer.checkpoints.folder import config_of, folder_of, load, open_folder, save, sha256, shipped
from glassformer.checkpoints.hub import is_id
from glassformer.checkpoints.shards import AttentionReader, save_shards
from glassformer.checkpoints.spec import Spec, disagreement, foreign

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
    "open_folder",
    "parity",
    "save",
    "save_shards",
    "sha256",
    "shipped",
]
