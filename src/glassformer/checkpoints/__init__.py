"""Saving and loading models: safetensors and JSON, never a pickle."""

from glassformer.checkpoints.folder import folder_of, load, save, sha256, shipped

__all__ = ["folder_of", "load", "save", "sha256", "shipped"]
