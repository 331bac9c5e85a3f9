"""Rotary positions as published configs describe them, in the old layout and the new."""

from typing import Any

from glassformer.attention import Llama3Scaling, Rope
from glassformer.checkpoints.families.fields import Fields
from glassformer.errors import CheckpointError


def rope(fields: Fields, kind: str | None = None, base: float = 10000.0, **more: Any) -> Rope:
    """Return the rotary positions of a config.

    `rope_parameters` holds base and scaling together, one entry for each kind of layer if they differ; older files have
    `rope_theta` and `rope_scaling`.

    Args:
        fields: The config.
        kind: Which kind of layer, where they differ (`full_attention`, `sliding_attention`).
        base: Where the file gives none.
        more: Other arguments of `Rope`.
    """
    found = fields.get("rope_parameters", None)
    if isinstance(found, dict) and kind is not None and isinstance(found.get(kind), dict):
        found = found[kind]
    if not isinstance(found, dict):
        old = fields.get("rope_scaling", None)
        found = {"rope_theta": fields.number("rope_theta", base), **(old if isinstance(old, dict) else {})}
    own = Fields(found, fields.where)
    kinds = own.get("rope_type", own.get("type", "default"))
    base = own.number("rope_theta", fields.number("rope_theta", base))
    return Rope(base, scaling=_scaling(str(kinds), own), **more)


def _scaling(kind: str, own: Fields) -> Llama3Scaling | None:
    if kind == "default":
        return None
    if kind == "llama3":
        return Llama3Scaling(
            own.number("factor"), own.number("low_freq_factor"), own.number("high_freq_factor"),
            own.whole("original_max_position_embeddings"),
        )  # fmt: skip
    raise CheckpointError(f'"{own.where}": rope scaling "{kind}" is not known; default and llama3 are.')
