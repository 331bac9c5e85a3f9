"""Saving and loading models: safetensors and JSON, never a pickle."""

from glassformer.checkpoints.folder import folder_of, load, save, shipped

__all__ = ["folder_of", "load", "save", "shipped"]
