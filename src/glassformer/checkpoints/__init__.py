"""Saving and loading models: safetensors and JSON, never a pickle."""

from glassformer.checkpoints.folder import folder_of, load, save, sha256, shipped
from glassformer.checkpoints.shards import AttentionReader, save_shards
from glassformer.checkpoints.spec import Spec, disagreement, foreign

__all__ = [
    "AttentionReader",
    "Spec",
    "disagreement",
    "folder_of",
    "foreign",
    "load",
    "save",
    "save_shards",
    "sha256",
    "shipped",
]
