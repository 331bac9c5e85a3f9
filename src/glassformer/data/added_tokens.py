"""Tokens that were added to a vocabulary, as the files beside it name them.

tokenizer_config.json lists them under `added_tokens_decoder`; older folders have added_tokens.json, and
special_tokens_map.json for the special ones. A special token named in one of them is added where it is missing, behind
all others, as in transformers.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import tokenizers
from tokenizers import AddedToken

from glassformer.errors import CheckpointError

CONFIG_FILE, MAP_FILE, ADDED_FILE = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
LISTED, SEVERAL = "added_tokens_decoder", ("extra_special_tokens", "additional_special_tokens")
# in the order in which those that are missing are added
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")

Said = Mapping[str, Mapping[str, Any]]


class Added(NamedTuple):
    """A token that was added, and its id where a file says one."""

    token: AddedToken
    id: int | None


def specials_said(said: Said) -> dict[str, Any]:
    """What files say of special tokens by role: special_tokens_map.json counts where nothing lists added tokens."""
    ours, mapped = said[CONFIG_FILE], said[MAP_FILE]
    return {**mapped, **ours} if LISTED in ours else {**ours, **mapped}


def name_of(value: Any) -> str | None:
    """The name of a token that is given as text, or as an object with its `content`; None for what names none."""
    name = value.get("content") if isinstance(value, Mapping) else value
    # half of a pair of surrogates names nothing
    named = isinstance(name, str) and name and not any("\ud800" <= c <= "\udfff" for c in name)
    return name if named else None


def added_tokens(said: Said, defaults: Mapping[str, str]) -> list[Added]:
    """Tokens to add to a vocabulary, in order; those in it already may be among them.

    Args:
        said: What each file says, by its name.
        defaults: Special tokens by role that are meant where no file names them.

    Raises:
        CheckpointError: A file lists something that is no token.
    """
    specials = [*_specials({**defaults, **specials_said(said)})]
    named = {token.content for token in specials}
    listed = sorted(_listed(said, named), key=lambda one: one.id or 0)
    known = {one.token.content for one in listed}
    rest = {token.content: token for token in reversed(specials) if token.content not in known}
    return [*listed, *(Added(token, None) for token in reversed(rest.values()))]


def add(inner: tokenizers.Tokenizer, wanted: Iterable[Added], room: int | None = None) -> tuple[bool, str]:
    """Add tokens to a tokenizer; return whether it changed, and what is wrong with their ids, if anything is.

    Args:
        inner: The tokenizer.
        wanted: The tokens; those that have no id of their own are left out where there is no room.
        room: How many tokens the model has vectors for, if that is known.
    """
    there = {token.content: token for token in inner.get_added_tokens_decoder().values()}
    missing = [one for one in wanted if _is_missing(one, there)]
    for token, id in missing:
        if (
            id is not None
            or room is None
            or inner.token_to_id(token.content) is not None
            or inner.get_vocab_size() < room
        ):
            inner.add_tokens([token])
        if id is not None and (found := inner.token_to_id(token.content)) != id:
            return True, f'"{token.content}" is said to be token {id}, and behind the vocabulary it is token {found}'
    return bool(missing), ""


def _is_missing(wanted: Added, there: Mapping[str, AddedToken]) -> bool:
    found = there.get(wanted.token.content)
    # flags that are listed count, not those of a token that is only named
    return found is None or (wanted.id is not None and found.__getstate__() != wanted.token.__getstate__())


def _listed(said: Said, named: set[str]) -> Iterator[Added]:
    listed = said[CONFIG_FILE].get(LISTED)
    if listed is not None:
        for id, value in _pairs(listed, LISTED):
            yield Added(_token(value, special=False), _id(id, LISTED))
        return
    for name, id in _pairs(said[ADDED_FILE], ADDED_FILE):
        special = name in named
        yield Added(AddedToken(name, normalized=not special, special=special), _id(id, ADDED_FILE))


def _specials(said: Mapping[str, Any]) -> Iterator[AddedToken]:
    for key in (*NAMED, *(key for key in said if key.endswith("_token") and key not in NAMED)):
        if name_of(said.get(key)) is not None:
            yield _token(said[key], special=True)
    several = next((said[key] for key in SEVERAL if said.get(key)), [])
    several = [*several.values()] if isinstance(several, Mapping) else several
    for value in several if isinstance(several, list) else [several]:
        yield _token(value, special=True)


def _token(value: Any, special: bool) -> AddedToken:
    """Return the token that is given by its name, or as an object with flags; one in a role is `special`."""
    name = name_of(value)
    if name is None:
        raise CheckpointError(f"a token is given as {value!r}: a name, or an object with its content, belongs there.")
    flags = {flag: value[flag] for flag in _FLAGS if isinstance(value, Mapping) and isinstance(value.get(flag), bool)}
    return AddedToken(name, **flags | ({"special": True} if special else {}))


def _pairs(value: Any, where: str) -> Iterable[tuple[Any, Any]]:
    if not isinstance(value, Mapping):
        raise CheckpointError(f'"{where}" is a {type(value).__name__} where an object belongs.')
    return value.items()


def _id(value: Any, where: str) -> int:
    try:
        return int(value)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f'"{where}" gives a token the id {value!r}, which is no number.') from error
