"""Rotary positions as published configs describe them, in the old layout and the new."""

from collections.abc import Mapping
from typing import Any

from glassformer.attention import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    Rope,
    RopeScaling,
    YarnScaling,
    yarn_amplitude,
)
from glassformer.checkpoints.families.fields import Fields
from glassformer.errors import CheckpointError

SCALINGS = ("default", "dynamic", "linear", "llama3", "longrope", "yarn")


def rope(
    fields: Fields,
    kind: str | None = None,
    base: float = 10000.0,
    aliases: Mapping[str, str] | None = None,
    **more: Any,
) -> Rope:
    """Return the rotary positions of a config.

    `rope_parameters` holds base and scaling together, one entry for each kind of layer if they differ; older files have
    `rope_theta` and `rope_scaling`. A `rope_scaling` beside `rope_parameters` has to say the same.

    Args:
        fields: The config.
        kind: Which kind of layer, where they differ (`full_attention`, `sliding_attention`).
        base: Where the file gives none.
        aliases: Other names of scalings in files of this family.
        more: Other arguments of `Rope`.

    Raises:
        CheckpointError: The two layouts stand there and differ, one of them is no object, or a scaling is not known.
    """
    own = _described(fields, kind, base)
    if fields.get("rope_parameters", {}) and fields.get("rope_scaling", {}):
        older = _described(fields.replaced(rope_parameters=None), None, base)
        if (differs := _differing(own.data, older.data)) is not None:
            raise CheckpointError(
                f'"{fields.where}": rope_scaling={fields.get("rope_scaling")!r} stands beside rope_parameters='
                f"{fields.get('rope_parameters')!r}, and they differ in {differs}. Keep one of them: the scaling goes "
                "into rope_parameters, beside its rope_theta."
            )
    named = str(own.get("rope_type", own.get("type", "default")))
    scaling = _scaling((aliases or {}).get(named, named), own, fields)
    return Rope(own.number("rope_theta", fields.number("rope_theta", base)), scaling=scaling, **more)


def score_growth(fields: Fields) -> float:
    """Return what scores are multiplied by for the sake of a longer text (`mscale_all_dim`), beside what turns.

    The factor stands for one on queries and keys, so scores have its square.
    """
    own = _described(fields, None, 10000.0)
    weight = own.number("mscale_all_dim", 0.0)
    if not weight or own.get("rope_type", own.get("type", "default")) == "default":
        return 1.0
    return yarn_amplitude(own.number("factor"), weight) ** 2


def longest(fields: Fields, positions: object, default: int) -> int:
    """Return the longest context that a config means.

    Where it gives the length trained on, that is as many times longer as the scaling of rotary positions makes it.

    Args:
        fields: The config.
        positions: Its positions.
        default: Where the file gives none.
    """
    length = fields.whole("max_position_embeddings", default)
    scaling = positions.scaling if isinstance(positions, Rope) else None
    trained = length if isinstance(scaling, LinearScaling) else getattr(scaling, "original_length", None)
    return round(length * getattr(scaling, "factor", 1.0)) if trained == length else length


def turned_share(fields: Fields, default: float = 1.0) -> float:
    """Return the share of each head that turns (`partial_rotary_factor`).

    Raises:
        CheckpointError: It leaves a coordinate without a partner.
    """
    own = _described(fields, None, 10000.0)
    share = own.number("partial_rotary_factor", fields.number("partial_rotary_factor", default))
    d_head = fields.whole("head_dim", fields.whole("hidden_size") // fields.whole("num_attention_heads"))
    # a share that was a quotient must not lose a coordinate to rounding
    turned = int(d_head * share + 1e-6)
    if turned % 2:
        raise CheckpointError(
            f'"{fields.where}": a share of {share:g} turns {turned} of the {d_head} coordinates of a head; rotary '
            "positions turn pairs, so it must be an even number."
        )
    return share


def rope_parameters(positions: Rope) -> dict[str, Any]:
    """Return rotary positions as `rope_parameters`: the inverse of `rope`.

    Raises:
        CheckpointError: The pairing is one that such files cannot say.
    """
    if positions.pairing != "half":
        raise CheckpointError(
            f'rope: pairing "{positions.pairing}" has no name in rope_parameters, which stands for "half".'
        )
    found: dict[str, Any] = {"rope_type": "default", "rope_theta": positions.base}
    if positions.fraction != 1.0:
        found["partial_rotary_factor"] = positions.fraction
    return found | _scaling_parameters(positions.scaling)


def _described(fields: Fields, kind: str | None, base: float) -> Fields:
    """Return what a config says of rotary positions, in either layout."""
    found, old = (fields.get(name, {}) for name in ("rope_parameters", "rope_scaling"))
    for name, value in (("rope_parameters", found), ("rope_scaling", old)):
        if not isinstance(value, dict):
            raise fields.wrong(name, value, "an object, or null")
    if any(isinstance(value, dict) for value in found.values()):
        if kind is None:
            raise fields.wrong("rope_parameters", found, "one description: all layers of this family share it")
        found = found.get(kind) or {}
    return Fields(found or {"rope_theta": fields.number("rope_theta", base), **old}, fields.where)


def _differing(new: Mapping[str, Any], old: Mapping[str, Any]) -> str | None:
    """Return the first field in which two descriptions of rotary positions differ; None if they are the same."""
    one, other = (
        {"rope_type": said.get("type", "default")} | {k: v for k, v in said.items() if k != "type" and v is not None}
        for said in (new, old)
    )
    # the share that turns may stand outside
    names = [name for name in {**one, **other} if name != "partial_rotary_factor"]
    return next((name for name in names if one.get(name) != other.get(name)), None)


def _scaling(kind: str, own: Fields, fields: Fields) -> RopeScaling | None:
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(own.number("factor"))
    if kind == "dynamic":
        return DynamicScaling(own.number("factor"), fields.whole("max_position_embeddings"))
    if kind not in ("llama3", "yarn", "longrope"):
        raise CheckpointError(f'"{own.where}": rope scaling "{kind}" is not known. Known: {", ".join(SCALINGS)}.')
    # the model's own field comes before that of the scaling
    within = own.whole("original_max_position_embeddings", fields.whole("max_position_embeddings", 0))
    original = fields.whole("original_max_position_embeddings", within)
    if kind == "llama3":
        bounds = own.number("low_freq_factor"), own.number("high_freq_factor")
        return Llama3Scaling(own.number("factor"), *bounds, original)
    longer = fields.whole("max_position_embeddings", original) / original if original else 1.0
    factor = own.number("factor", longer)
    attention_factor = own.number("attention_factor") if "attention_factor" in own else None
    if kind == "longrope":
        short, long = (tuple(float(x) for x in own.get(f"{name}_factor")) for name in ("short", "long"))
        return LongScaling(short, long, original, max(factor, 1.0), attention_factor)
    weights = [own.number(name, 0.0) for name in ("mscale", "mscale_all_dim")]
    if attention_factor is None and all(weights):
        attention_factor = yarn_amplitude(factor, weights[0]) / yarn_amplitude(factor, weights[1])
    fast, slow = own.number("beta_fast", 32.0), own.number("beta_slow", 1.0)
    return YarnScaling(factor, original, attention_factor, fast, slow, own.flag("truncate", True))


def _scaling_parameters(scaling: RopeScaling | None) -> dict[str, Any]:
    if scaling is None:
        return {}
    found: dict[str, Any] = {"rope_type": scaling.kind}
    if isinstance(scaling, LinearScaling | DynamicScaling):
        return found | {"factor": scaling.factor}
    if isinstance(scaling, Llama3Scaling):
        return found | {
            "factor": scaling.factor, "low_freq_factor": scaling.low, "high_freq_factor": scaling.high,
            "original_max_position_embeddings": scaling.original_length,
        }  # fmt: skip
    assert isinstance(scaling, YarnScaling | LongScaling), "every scaling is described here"
    found |= {"factor": scaling.factor, "original_max_position_embeddings": scaling.original_length}
    # without, it is worked out from the factor in the same way
    found |= {} if scaling.attention_factor is None else {"attention_factor": scaling.attention_factor}
    if isinstance(scaling, LongScaling):
        return found | {"short_factor": list(scaling.short), "long_factor": list(scaling.long)}
    return found | {"beta_fast": scaling.fast, "beta_slow": scaling.slow, "truncate": scaling.truncate}
