"""Saving and loading models: safetensors and JSON, never a pickle."""

from glassformer.checkpoints.folder import load, save, shipped

__all__ = ["load", "save", "shipped"]
