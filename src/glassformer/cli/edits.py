"""Edits as a command line spells them: parts that are set to zero, and vectors that are added."""

import re
from collections.abc import Sequence
from typing import Any

from glassformer.config import require
from glassformer.errors import CheckpointError, nearest
from glassformer.files import reason, tensors_in

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
        # a type of few bits may lack room for the product
        vector = _vector(spelled["file"], spelled["name"]).double() * _factor(spelled["factor"])
        require(bool(vector.isfinite().all()), f"--steer: {words!r} holds NaN or infinite numbers.")
        found.append(Add(spelled["site"], vector))
    return found


def _factor(words: str | None) -> float:
    try:
        return 1.0 if words is None else float(words)
    except ValueError:
        require(False, f"--steer: what follows * is a factor, a number; found {words!r}.")
        raise


def _vector(path: str, name: str | None) -> Any:
    """Return a tensor of a file; the only one if none is named."""
    from safetensors import SafetensorError

    try:
        with tensors_in(path) as file:
            names = list(file.keys())
            if name in names or (name is None and len(names) == 1):
                found = file.get_tensor(name or names[0])
                require(not found.is_complex(), f'--steer: "{name or names[0]}" of "{path}" holds complex numbers.')
                return found
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f'cannot read a vector from "{path}": {reason(error)}.') from error
    if not names:
        raise CheckpointError(f'"{path}" holds no tensors.')
    known = f"It holds {', '.join(names[:8])}{', …' if len(names) > 8 else ''}."
    if name is None:
        raise CheckpointError(f'"{path}" holds {len(names)} tensors: say which, {path}:NAME. {known}')
    raise CheckpointError(f'"{path}" holds no tensor "{name}".{nearest(name, names)} {known}')
