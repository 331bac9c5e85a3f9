"""Saving and loading models, ours and published ones: safetensors and JSON, never a pickle."""

from glassformer.checkpoints.comparison import Parity, parity
from glassformer.checkpoints.conversion import LAYOUTS, convert
from glassformer.checkpoints.foreign_modules import Spec, disagreement, foreign
from glassformer.checkpoints.hub import is_id
from glassformer.checkpoints.loading import config_of, load, open_folder
from glassformer.checkpoints.names import folder_of, require_no_slip, shipped
from glassformer.checkpoints.own import save, sha256
from glassformer.checkpoints.shards import AttentionReader, save_shards

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
    "require_no_slip",
    "save",
    "save_shards",
    "sha256",
    "shipped",
]
