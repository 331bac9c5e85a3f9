"""Saving and loading models: safetensors and JSON, never a pickle."""

from glassformer.checkpoints.folder import folder_of, load, save, sha256, shipped
from glassformer.checkpoints.parity import Parity, parity
from glassformer.checkpoints.shards import AttentionReader, save_shards

__all__ = ["AttentionReader", "Parity", "folder_of", "load", "parity", "save", "save_shards", "sha256", "shipped"]
