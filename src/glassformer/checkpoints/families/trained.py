"""How long the rows were that a published model was trained on, as far as its config says."""

from collections.abc import Iterator
from typing import Any

from glassformer.attention import DynamicScaling, LinearScaling, Rope, YarnScaling
from glassformer.checkpoints.families.family import Family
from glassformer.checkpoints.families.fields import Fields

# what files call their longest context; ours stands first: conversions write it where the others say something else,
# and null where they say something and nothing is known
FIELD = "trained_length"
NAMES = (
    FIELD, "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx", "block_size",
    "context_length",
)  # fmt: skip


def trained_length(family: Family, fields: Fields, config: Any) -> int | None:
    """The longest rows of training, in tokens; None if the file says nothing of a length.

    Scalings of rotary positions that stretch a finished model (linear, dynamic, YaRN) leave the length it was trained
    on as it was before; those that models are trained on with (Llama 3's, LongRoPE, and YaRN in families that say so)
    reach the whole context. Windows are no limit: what lies behind one is read through the layers above it.

    Args:
        family: Of the model.
        fields: Its config as published.
        config: Ours of it.
    """
    if fields.says(FIELD):
        return max(1, fields.whole(FIELD)) if FIELD in fields else None
    if not any(name in fields and name not in family.no_lengths for name in NAMES):
        return None
    if family.trained_with_scaling:
        return config.max_len
    return min([config.max_len, *(_before(positions.scaling, config.max_len) for positions in _rotary(config))])


def _rotary(config: Any) -> Iterator[Rope]:
    for blocks in vars(config).values():
        for block in blocks if isinstance(blocks, tuple) else ():
            for part in getattr(block, "parts", ()):
                if isinstance(positions := getattr(part, "positions", None), Rope):
                    yield positions


def _before(scaling: Any, longest: int) -> int:
    """Return the length that a scaling stretched; the longest context where it is part of the training."""
    if isinstance(scaling, LinearScaling):
        return round(longest / scaling.factor)
    return scaling.original_length if isinstance(scaling, DynamicScaling | YarnScaling) else longest
