"""Edits as a command line spells them: parts that are set to zero, and vectors that are added."""

import re
from collections.abc import Sequence
from typing import Any

from glassformer.config import require
from glassformer.errors import CheckpointError, nearest

STEER = re.compile(r"(?P<site>[^=]+)=(?P<file>[^:]+?)(?::(?P<name>[^*]+))?(?:\*(?P<factor>[^*]+))?")


def edits_of(ablate: Sequence[str], steer: Sequence[str]) -> list[Any]:
    """Return the edits that options ask for.

    Args:
        ablate: Heads (`L1H6`, all that it writes), or names and globs of sites.
        steer: `SITE=FILE:NAME*FACTOR`, a vector of a safetensors file; the factor is 1 by default, and the name may be
            left out where the file holds one tensor.

    Raises:
        ConfigError: A vector is not spelled like that.
        CheckpointError: It cannot be read.
    """
    from glassformer.trace import Add, HeadAddress, Scale

    found: list[Any] = []
    for name in ablate:
        head = HeadAddress.parse(name)
        found.append(Scale(f"{name}.z" if head is not None and not head.quantity else name, 0.0))
    for words in steer:
        spelled = STEER.fullmatch(words)
        require(
            spelled is not None,
            f"--steer takes SITE=FILE:NAME*FACTOR, blocks.1.resid_post=vectors.safetensors:joy*4; found {words!r}.",
        )
        assert spelled is not None, "required above"
        found.append(Add(spelled["site"], _vector(spelled["file"], spelled["name"]) * _factor(spelled["factor"])))
    return found


def _factor(words: str | None) -> float:
    try:
        return 1.0 if words is None else float(words)
    except ValueError:
        require(False, f"--steer: what follows * is a factor, a number; found {words!r}.")
        raise


def _vector(path: str, name: str | None) -> Any:
    """Return a tensor of a file; the only one if none is named."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:  # type: ignore[no-untyped-call]
            names = list(file.keys())
            if name in names or (name is None and len(names) == 1):
                return file.get_tensor(name or names[0])
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f'cannot read a vector from "{path}": {error}.') from error
    known = f"It holds {', '.join(names[:8])}{', …' if len(names) > 8 else ''}."
    if name is None:
        raise CheckpointError(f'"{path}" holds {len(names)} tensors: say which, {path}:NAME. {known}')
    raise CheckpointError(f'"{path}" holds no tensor "{name}".{nearest(name, names)} {known}')
