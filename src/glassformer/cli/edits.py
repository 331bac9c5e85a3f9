"""Edits as a command line spells them: parts set to zero, vectors that are added, features that are set or scaled."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glassformer.config import require
from glassformer.errors import CheckpointError, nearest
from glassformer.files import reason, tensors_in

STEER = re.compile(r"(?P<site>[^=]+)=(?P<file>[^:]+?)(?::(?P<name>[^*]+))?(?:\*(?P<factor>[^*]+))?")
FEATURE = re.compile(r"(?P<feature>\d+)(?P<how>[=*])(?P<number>.+)")


def edits_of(ablate: Sequence[str], steer: Sequence[str], since: int | None = None) -> list[Any]:
    """Return the edits that options ask for.

    Args:
        ablate: Heads (`L1H6`, all that it writes), or names and globs of sites.
        steer: `SITE=FILE:NAME*FACTOR`, a vector of a safetensors file; the factor is 1 by default, and the name may be
            left out where the file holds one tensor.
        since: The position from which vectors are added; all by default.

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
        found.append(Add(spelled["site"], vector, at=_behind(since)))
    return found


def steered(model: Any, dictionary: Path | None, features: Sequence[str], since: int | None) -> tuple[Any, list[Any]]:
    """Return a model with the features of a dictionary as sites, and the edits of some of them.

    Args:
        model: A model; as it is, where no dictionary is named.
        dictionary: Folder of a dictionary of one of its sites.
        features: `FEATURE=ACTIVATION` sets one, `FEATURE*FACTOR` scales it.
        since: The position from which they are edited; all by default.

    Raises:
        ConfigError: A feature is not spelled like that, or is none of the dictionary's.
        CheckpointError: The dictionary cannot be read, or is of another model.
    """
    require((dictionary is None) == (not features), "--features are of --dictionary FOLDER: give both.")
    if dictionary is None:
        return model, []
    from glassformer.analysis.dictionaries import attach, load_dictionary
    from glassformer.trace import At, Scale, Set

    known = load_dictionary(dictionary)
    split, count, found = attach(model, known), known.config.n_features, list[Any]()
    for words in features:
        spelled = FEATURE.fullmatch(words)
        require(spelled is not None, f"--features takes FEATURE=ACTIVATION or FEATURE*FACTOR, 17=5; found {words!r}.")
        assert spelled is not None, "required above"
        feature, number = int(spelled["feature"]), _number("--features", spelled["how"], spelled["number"])
        require(math.isfinite(number), f"--features: an activation and a factor are finite; found {words!r}.")
        require(feature < count, f"--features: this dictionary has features 0 to {count - 1}; found {feature}.")
        at = At(feature=feature) if since is None else At(feature=feature, pos=slice(since, None))
        found.append((Set if spelled["how"] == "=" else Scale)(f"{known.facts['site']}.features", number, at=at))
    return split, found


def _behind(since: int | None) -> Any:
    """Return the address of all positions from one on."""
    from glassformer.trace import At

    return At() if since is None else At(pos=slice(since, None))


def _factor(words: str | None) -> float:
    return 1.0 if words is None else _number("--steer", "*", words)


def _number(option: str, sign: str, words: str) -> float:
    """Return the number behind a sign; raises `ConfigError` if there is none."""
    what = "a factor" if sign == "*" else "an activation"
    try:
        return float(words)
    except ValueError:
        require(False, f"{option}: what follows {sign} is {what}, a number; found {words!r}.")
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
