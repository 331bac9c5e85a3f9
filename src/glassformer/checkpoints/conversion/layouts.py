"""Our config as another layout says it: the one it came from, or the first whose reading of it is the same model.

Same is meant as in mathematics: a bias that is zero, a gain that is one and a matrix stored twice change nothing, and
neither does what matters in training alone (dropout, how weights were drawn).
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from glassformer.attention import Attention, Rope
from glassformer.checkpoints.checkpoint import Checkpoint
from glassformer.checkpoints.families import (
    FAMILIES,
    HOOKED_ENCODER,
    LLAMA_PARAMS,
    NANOGPT,
    PER_HEAD,
    TRANSFORMER_LENS,
    Family,
    Fields,
)
from glassformer.errors import CheckpointError, ConfigError
from glassformer.models import BlockConfig, DecoderConfig, Mlp

LAYOUTS: Mapping[str, tuple[Family, ...]] = {
    "huggingface": tuple(family for family in FAMILIES if family.model_types),
    "transformer-lens": (TRANSFORMER_LENS, HOOKED_ENCODER),
    "per-head": (PER_HEAD,),
    "nanogpt": (NANOGPT,),
    "llama2c": (LLAMA_PARAMS,),
}
SHOWN = 3
# what may be there or not: as zeros, as ones, as a second copy; whether it is that is seen in the numbers
FREE = ("bias", "unembed_bias", "gain", "tied")


def expressed(checkpoint: Checkpoint, to: str) -> tuple[Family, dict[str, Any]]:
    """Return a family of a layout, and its config of this model.

    Args:
        checkpoint: The model; one that came from the layout goes back as it was.
        to: A key of `LAYOUTS`.

    Raises:
        CheckpointError: The layout has no place for a part of the model; the message names it.
    """
    config, origin = checkpoint.config, checkpoint.origin
    tried: list[tuple[Family, list[str]]] = []
    # where it came from is where it goes back, whatever else would do
    for family in sorted(LAYOUTS[to], key=lambda family: origin is None or family.name != origin.family):
        plain = _plain(config, family)
        try:
            if origin is not None and family.name == origin.family:
                theirs = origin.config
            elif family.express is not None and _is_expressible(config, family):
                theirs = family.express(plain)
            else:
                continue
            made = family.translate(Fields(theirs, family.config_name))
        except AttributeError:
            # it reads fields that parts of its own kinds have, and these are of others
            continue
        except (CheckpointError, ConfigError) as error:
            tried.append((family, [str(error)]))
            continue
        differences = list(_differences(plain.to_dict(), _plain(made, family).to_dict()))
        if not differences:
            return family, theirs
        tried.append((family, differences))
    raise CheckpointError(_refusal(checkpoint, to, tried))


def _is_expressible(config: Any, family: Family) -> bool:
    """Whether a family's way to say a config applies: decoders of attention and an MLP, or of any parts."""
    if not isinstance(config, DecoderConfig) or not config.layers:
        return False
    usual = all([type(part) for part in layer.parts] == [Attention, Mlp] for layer in config.layers)
    return usual or (family.bare and all(isinstance(layer.parts[0], Attention) for layer in config.layers))


def _plain(config: Any, family: Family) -> Any:
    """Return a config with its defaults written out, and what does not change the model as it is by default."""
    changes: dict[str, Any] = {"init": "gpt"} if hasattr(config, "init") else {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, tuple) and value and isinstance(value[0], BlockConfig):
            changes[field.name] = tuple(_plain_block(block, config, family) for block in value)
    return config.replace(**changes)


def _plain_block(block: BlockConfig, config: Any, family: Family) -> BlockConfig:
    return block.replace(parts=tuple(_plain_part(part, config, family) for part in block.parts), dropout=0.0)


def _plain_part(part: Any, config: Any, family: Family) -> Any:
    if isinstance(part, Mlp):
        return part.replace(d_mlp=part.d_mlp or 4 * config.d_model)
    if not isinstance(part, Attention):
        return part
    dims, positions = part.dims(config.d_model, config.max_len), part.positions
    if family.any_pairing and isinstance(positions, Rope) and positions.fraction == 1:
        positions = positions.replace(pairing="half")
    return part.replace(
        n_kv_heads=dims.n_kv_heads, d_head=dims.d_head, d_value=dims.d_value, positions=positions
    )  # fmt: skip


def _differences(ours: Any, theirs: Any, path: str = "") -> Iterator[str]:
    """Yield where two configs differ in what the model computes."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        if ours.get("kind") != theirs.get("kind"):
            yield f"{path}: {ours.get('kind')} here, {theirs.get('kind')} there"
            return
        for name in ours | theirs:
            yield from _differences(ours.get(name), theirs.get(name), f"{path}.{name}".lstrip("."))
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for i, pair in enumerate(zip(ours, theirs)):
            yield from _differences(*pair, f"{path}[{i}]")
    elif ours != theirs and not (
        path.rpartition(".")[2] in FREE and isinstance(ours, bool) and isinstance(theirs, bool)
    ):
        shown = [f"{len(value)} parts" if isinstance(value, list) else str(value) for value in (ours, theirs)]
        yield f"{path}: {shown[0]} here, {shown[1]} there"


def _refusal(checkpoint: Checkpoint, to: str, tried: list[tuple[Family, list[str]]]) -> str:
    start = f'"{checkpoint.folder}" has no place in the layout "{to}"'
    if not tried:
        known = ", ".join(family.name for family in LAYOUTS[to] if family.express is not None)
        kind = str(checkpoint.config.kind).replace("_", "-")
        return (
            f"{start}: of models that were made here it takes decoders whose blocks are attention and an MLP (as "
            f'{known}), and this {kind} is none. "glassformer" has a place for every model.'
        )
    family, differences = min(tried, key=lambda pair: len(pair[1]))
    more = f" (and {len(differences) - SHOWN} more)" if len(differences) > SHOWN else ""
    return f"{start}. Closest is {family.name}, where\n    " + "\n    ".join(differences[:SHOWN]) + more
