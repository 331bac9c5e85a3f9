"""How the rotary positions of a GGUF file are stretched, in the words of a published config.

What reads such files takes the base and leaves the stretching out: fields `ARCH.rope.scaling.*`, and tensors of factors
that the angle of each pair is divided by (`rope_freqs`, Llama 3's, or `rope_factors_short` and `_long`).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glassformer.errors import CheckpointError

# the kinds of stretching, and what their fields are called in a published config
_FIELDS = {
    "linear": {"factor": "factor"},
    "yarn": {
        "factor": "factor", "original_context_length": "original_max_position_embeddings",
        "yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow", "attn_factor": "attention_factor",
        "yarn_attn_factor": "attention_factor",
    },
    "longrope": {"original_context_length": "original_max_position_embeddings", "attn_factor": "attention_factor"},
}  # fmt: skip
_WITHOUT_EFFECT = ("type", "finetuned")


def with_positions(said: Mapping[str, Any], headers: Sequence[Any], path: Path) -> dict[str, Any]:
    """Return a config that says how positions are stretched.

    Args:
        said: The config without.
        headers: What the files say and hold, the first file's first.
        path: The first file, for messages.

    Raises:
        CheckpointError: They are stretched in a way that is not known.
    """
    start = f"{headers[0].fields['general.architecture'].contents()}.rope.scaling."
    fields = {
        name.removeprefix(start): field.contents()
        for name, field in headers[0].fields.items()
        if name.startswith(start)
    }
    factors = {
        tensor.name.removesuffix(".weight"): [float(factor) for factor in tensor.data]
        for header in headers
        for tensor in header.tensors
        if tensor.name.startswith("rope_f")
    }
    stretched = _stretched(said, fields, factors, path)
    if not stretched:
        return dict(said)
    now = said.get("rope_parameters") or {}
    if any(isinstance(value, dict) for value in now.values()):
        # windows see no further than training did
        return {**said, "rope_parameters": {**now, "full_attention": {**now.get("full_attention", {}), **stretched}}}
    base = {"rope_theta": said["rope_theta"]} if "rope_theta" in said else {}
    return {**said, "rope_parameters": {**base, **now, **stretched}, "rope_scaling": None}


def _stretched(
    said: Mapping[str, Any], fields: Mapping[str, Any], factors: Mapping[str, list[float]], path: Path
) -> dict[str, Any]:
    kind = "longrope" if factors else fields.get("type", "none")
    if kind == "none":
        return {}
    known = _FIELDS.get(kind, {})
    unknown = [name for name in fields if name not in known and name not in _WITHOUT_EFFECT]
    if unknown or not known or (factors and fields.get("type", "none") not in ("none", "longrope")):
        told = ", ".join(f"{name}={value}" for name, value in fields.items())
        raise CheckpointError(
            f'"{path}" stretches its rotary positions in a way that is not known here ({told}'
            f"{', ' if factors and told else ''}{', '.join(factors)}). Take the checkpoint that it was made from."
        )
    found: dict[str, Any] = {"rope_type": kind} | {
        known[name]: value for name, value in fields.items() if name in known
    }
    if kind == "longrope":
        one = factors.get("rope_freqs", [])
        found |= {
            "short_factor": factors.get("rope_factors_short", one),
            "long_factor": factors.get("rope_factors_long", one),
            "original_max_position_embeddings": found.get(
                "original_max_position_embeddings", said.get("max_position_embeddings")
            ),
        }
        # the factors alone say what is computed: nothing else grows
        found |= {"factor": 1.0, "attention_factor": 1.0} if one else {}
    return found
