"""Tokenizers as published: a folder's tokenizer.json, and what the files beside it say of its special tokens.

Which specials are put around a text is what the post-processor of tokenizer.json does. Which token opens a text, ends
it, fills rows or stands for unknown words is said by tokenizer_config.json and special_tokens_map.json, else, as ids,
by generation_config.json and config.json; where all are silent, by the names in use. "null" is an answer too: none.
Tokens that these files add are added (`added_tokens`).

Folders without tokenizer.json but with vocab.json and merges.txt of a byte-level BPE get the tokenizer that their class
makes of these (`byte_level_classes`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import processors

from glassformer.data.added_tokens import (
    ADDED_FILE,
    CONFIG_FILE,
    MAP_FILE,
    Said,
    add,
    added_tokens,
    name_of,
    specials_said,
)
from glassformer.data.byte_level_classes import ByteLevelClass, class_of
from glassformer.data.chat_template import FIELD, FILE as TEMPLATE, ChatTemplate, chat_template
from glassformer.data.tokenizer import FILE_NAME, NAMES, Roles, Tokenizer, byte_alphabet
from glassformer.errors import CheckpointError
from glassformer.files.reading import MOST_JSON, MOST_TOKENIZER, read_object, read_text, reason

BY_NAME = (CONFIG_FILE, MAP_FILE, ADDED_FILE)
BY_ID = ("generation_config.json", "config.json")
VOCABULARY, MERGES = "vocab.json", "merges.txt"
# what tokenizers of other libraries are stored in
OTHERS = (
    "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "source.spm", "vocab.txt", "tekken.json",
    "tokenizer.bin", VOCABULARY, MERGES,
)  # fmt: skip


def published(folder: str | Path) -> Tokenizer | None:
    """The tokenizer of a folder as it was published, or None if there is none that can be read.

    Raises:
        CheckpointError: A file is there and broken.
    """
    found = _found(Path(folder))
    return found if isinstance(found, Tokenizer) else None


def lack_of_tokenizer(folder: str | Path) -> str:
    """Reason why a folder gives no tokenizer, and what would help."""
    folder = Path(folder)
    found, why = [name for name in OTHERS if (folder / name).is_file()], _found(folder)
    way = (
        f'Where transformers is installed, AutoTokenizer.from_pretrained("{folder}").save_pretrained("{folder}") '
        "writes one."
    )
    if isinstance(why, str) and why:
        return f'"{folder}": {why}. {way}'
    if not found:
        return (
            f'"{folder}" holds no {FILE_NAME}, nor another tokenizer; copy it there from where the model was published.'
        )
    return f'"{folder}" holds no {FILE_NAME}; found {", ".join(found)}, which cannot be read here. {way}'


def _found(folder: Path) -> Tokenizer | str:
    """Return a folder's tokenizer, or why its files give none; empty if there are no files of a kind that is read."""
    said = {name: read_object(folder / name, MOST_TOKENIZER) for name in (*BY_NAME, *BY_ID)}
    defaults: Mapping[str, str] = {}
    try:
        if (folder / FILE_NAME).exists():
            told = Tokenizer.load(folder).to_json()
            inner = tokenizers.Tokenizer.from_str(told)
            changed, wrong = add(inner, added_tokens(said, defaults), _room(said))
            text = None if changed else told
        elif _is_byte_level(folder):
            kind = class_of(said)
            if isinstance(kind, str):
                return kind
            inner = _from_merges(folder, kind, bool(said[CONFIG_FILE].get("add_prefix_space")))
            defaults = {role: name for role, name in kind.specials.items() if inner.token_to_id(name) is not None}
            _, wrong = add(inner, added_tokens(said, defaults), _room(said))
            lacking = _put_around(inner, kind.asked_around(said[CONFIG_FILE]), {**defaults, **specials_said(said)})
            text, wrong = None, wrong or lacking
        else:
            return ""
    except CheckpointError as error:
        raise CheckpointError(f'"{folder}": {error}') from error
    if wrong:
        return wrong
    made = Tokenizer(inner, _roles(Tokenizer(inner), said, defaults), text)
    made.chat = _chat(folder, said, {**defaults, **specials_said(said)})
    return made


def _chat(folder: Path, said: Said, specials: Mapping[str, Any]) -> ChatTemplate | None:
    """Return the chat template of a folder, if it has one."""
    names = {role: name for role, value in specials.items() if role.endswith("_token") and (name := name_of(value))}
    path = folder / TEMPLATE
    try:
        file = read_text(path, MOST_JSON) if path.exists() else None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f'cannot read "{path}": {reason(error)}.') from error
    return chat_template(said[CONFIG_FILE].get(FIELD), file, names)


def _room(said: Said) -> int | None:
    """Return how many tokens the model has vectors for, if its config says so."""
    size = said["config.json"].get("vocab_size")
    return size if type(size) is int else None


def _roles(plain: Tokenizer, said: Said, defaults: Mapping[str, str]) -> Roles:
    names = {**defaults, **specials_said(said)}
    bos, eos, pad, unk, mask = (_role(plain, said, names, role) for role in NAMES)
    ends = [_ids(plain, said[name].get("eos_token_id")) for name in BY_ID if "eos_token_id" in said[name]]
    stops = dict.fromkeys(() if eos is None else (eos,)) | dict.fromkeys(ends[0] if ends else ())
    begin, end = plain.post_processed()
    return Roles(bos=bos, eos=eos, pad=pad, unk=unk, stops=tuple(stops), begin=begin, end=end, mask=mask)


def _role(plain: Tokenizer, said: Said, names: Mapping[str, Any], role: str) -> int | None:
    if f"{role}_token" in names:
        name = name_of(names[f"{role}_token"])
        return None if name is None else plain.id(name)
    for file in BY_ID:
        if ids := _ids(plain, said[file].get(f"{role}_token_id")):
            return ids[0]
    return plain.named(role)


def _ids(plain: Tokenizer, value: Any) -> list[int]:
    """Return ids given as one number or several, without those the vocabulary does not have."""
    given = value if isinstance(value, list) else [value]
    return [id for id in given if type(id) is int and 0 <= id < plain.vocab_size]


def _is_byte_level(folder: Path) -> bool:
    """Whether vocab.json and merges.txt are there, of words made of bytes: other BPEs need what they do not say."""
    if not (folder / VOCABULARY).exists() or not (folder / MERGES).exists():
        return False
    return all(byte in read_object(folder / VOCABULARY, MOST_TOKENIZER) for byte in byte_alphabet())


def _from_merges(folder: Path, kind: ByteLevelClass, space: bool) -> tokenizers.Tokenizer:
    """Return the BPE over bytes that a class makes of two files."""
    try:
        vocabulary = {str(word): int(id) for word, id in read_object(folder / VOCABULARY, MOST_TOKENIZER).items()}
        lines = read_text(folder / MERGES, MOST_TOKENIZER).splitlines()
        pairs = [line.split(" ") for line in lines if line and not line.startswith("#version")]
        return kind.build(vocabulary, [(a, b) for a, b in pairs], space)
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{VOCABULARY} and {MERGES} make no BPE ({error}).") from error


def _put_around(inner: tokenizers.Tokenizer, roles: tuple[str | None, str | None], names: Mapping[str, Any]) -> str:
    """Let the tokens of two roles be put in front of a text and behind it; return which is lacking, if one is."""
    around: list[list[tuple[str, int]]] = []
    for role in roles:
        name = None if role is None else name_of(names.get(f"{role}_token"))
        id = None if name is None else inner.token_to_id(name)
        if name is not None and id is None:
            return f"its texts get {name} put around them, which the vocabulary does not hold"
        around.append([] if name is None or id is None else [(name, id)])
    begin, end = around
    template = [*(name for name, _ in begin), "$A", *(name for name, _ in end)]
    inner.post_processor = processors.TemplateProcessing(template, special_tokens=[*begin, *end])
    return ""
