"""Tokenizers as published: a folder's tokenizer.json, and what the files beside it say of its special tokens.

Which specials are put around a text is what the post-processor of tokenizer.json does. Which token opens a text, ends
it, fills rows or stands for unknown words is said by tokenizer_config.json, else special_tokens_map.json, else, as ids,
generation_config.json and config.json; where all are silent, by the names in use. "null" is an answer too: none.

Folders without tokenizer.json but with vocab.json and merges.txt of a byte-level BPE get the tokenizer made of these;
as there is no post-processor, `add_bos_token` and `add_eos_token` of tokenizer_config.json say what is put around.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from glassformer.data.tokenizer import FILE_NAME, NAMES, Roles, Tokenizer, byte_alphabet
from glassformer.errors import CheckpointError
from glassformer.files.reading import MOST_TOKENIZER, read_json, read_text, reason

BY_NAME = ("tokenizer_config.json", "special_tokens_map.json")
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
    folder = Path(folder)
    said = {name: _object(folder / name) for name in (*BY_NAME, *BY_ID)}
    if (folder / FILE_NAME).exists():
        plain = Tokenizer.load(folder)
    elif _is_byte_level(folder):
        plain = _from_merges(folder, said)
    else:
        return None
    return Tokenizer.from_json(plain.to_json(), _roles(plain, said))


def lack_of_tokenizer(folder: str | Path) -> str:
    """Reason why a folder gives no tokenizer, and what would help."""
    folder = Path(folder)
    found = [name for name in OTHERS if (folder / name).is_file()]
    if not found:
        return (
            f'"{folder}" holds no {FILE_NAME}, nor another tokenizer; copy it there from where the model was published.'
        )
    return (
        f'"{folder}" holds no {FILE_NAME}; found {", ".join(found)}, which cannot be read here. Where transformers is '
        f'installed, AutoTokenizer.from_pretrained("{folder}").save_pretrained("{folder}") writes one.'
    )


def _roles(plain: Tokenizer, said: Mapping[str, Mapping[str, Any]]) -> Roles:
    bos, eos, pad, unk, mask = (_role(plain, said, role) for role in NAMES)
    ends = [_ids(plain, said[name].get("eos_token_id")) for name in BY_ID if "eos_token_id" in said[name]]
    stops = dict.fromkeys(() if eos is None else (eos,)) | dict.fromkeys(ends[0] if ends else ())
    begin, end = plain.post_processed()
    return Roles(bos=bos, eos=eos, pad=pad, unk=unk, stops=tuple(stops), begin=begin, end=end, mask=mask)


def _role(plain: Tokenizer, said: Mapping[str, Mapping[str, Any]], role: str) -> int | None:
    for name in BY_NAME:
        if f"{role}_token" in said[name]:
            value = said[name][f"{role}_token"]
            text = value.get("content") if isinstance(value, dict) else value
            return plain.id(text) if isinstance(text, str) else None
    for name in BY_ID:
        if ids := _ids(plain, said[name].get(f"{role}_token_id")):
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
    return all(byte in _object(folder / VOCABULARY) for byte in byte_alphabet())


def _from_merges(folder: Path, said: Mapping[str, Mapping[str, Any]]) -> Tokenizer:
    """Return the BPE over bytes of two files, with the pieces of words that GPT-2 has.

    Source: Radford et al. 2019 (GPT-2).
    """
    try:
        vocabulary = {str(word): int(id) for word, id in _object(folder / VOCABULARY).items()}
        lines = read_text(folder / MERGES, MOST_TOKENIZER).splitlines()
        pairs = [line.split(" ") for line in lines if line and not line.startswith("#version")]
        inner = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[(a, b) for a, b in pairs]))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f'"{folder}": {VOCABULARY} and {MERGES} make no BPE ({error}).') from error
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    specials = [name for names in NAMES.values() for name in names if name in vocabulary]
    inner.add_special_tokens(list(dict.fromkeys(specials)))
    plain = Tokenizer(inner)
    added = [_role(plain, said, role) if said[BY_NAME[0]].get(f"add_{role}_token") else None for role in ("bos", "eos")]
    begin, end = ([(str(inner.id_to_token(id)), id)] if id is not None else [] for id in added)
    template = " ".join([*(name for name, _ in begin), "$A", *(name for name, _ in end)])
    inner.post_processor = processors.TemplateProcessing(template, special_tokens=[*begin, *end])
    return plain


def _object(path: Path) -> Mapping[str, Any]:
    """Return the JSON object in a file, an empty one if there is no file."""
    if not path.exists():
        return {}
    try:
        found = read_json(path, MOST_TOKENIZER)
    except OSError as error:
        raise CheckpointError(f'cannot read "{path}": {reason(error)}.') from error
    except ValueError as error:
        raise CheckpointError(f'"{path}" is not valid JSON ({error}).') from error
    if not isinstance(found, dict):
        raise CheckpointError(f'"{path}" holds a {type(found).__name__} where an object belongs.')
    return found
