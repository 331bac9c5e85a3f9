"""Tokenizers: text to token ids and back, with a readable form of every single token.

One class wraps a `tokenizers.Tokenizer`; four functions build one: byte-level BPE, bytes, words, or symbols; any
tokenizer.json loads, and `published` reads one with the files that lie beside it.

Specials are found by name (`<bos>`, `<eos>`, `<pad>`, `<unk>` and what well-known files call them), or by what
published files say. Text does not turn into a special token unless asked: a document that happens to contain "<bos>"
cannot forge a document boundary. (transformers does turn it into one, unless told `split_special_tokens=True`. A
Unigram model, as of T5, has no such boundary: its specials are pieces like others, found in a text by their names.)
"""

import contextlib
import copy
import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, Self

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, processors, trainers

from glassformer import files
from glassformer.arguments import Count, checked
from glassformer.config import Config
from glassformer.data.chat_template import ChatTemplate
from glassformer.data.marks import Marks, check_known, lost_words, mark_notes, marks
from glassformer.errors import CheckpointError, ConfigError, TextError, outside_vocabulary
from glassformer.files import json_text
from glassformer.files.reading import MOST_TOKENIZER, read_text, reason
from glassformer.provenance import Note
from glassformer.words import sentence

FILE_NAME = "tokenizer.json"
NAMED = 8  # names that a note lists
WORD_SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>")
NAMES = {
    "bos": ("<bos>", "<s>", "<|begin_of_text|>", "<|endoftext|>"),
    "eos": ("<eos>", "</s>", "<|end_of_text|>", "<|endoftext|>"),
    "pad": ("<pad>", "[PAD]"),
    "unk": ("<unk>", "[UNK]"),
    "mask": ("<mask>", "[MASK]"),
}
_WORDS = pre_tokenizers.ByteLevel(add_prefix_space=False)
_CHINESE = r"[\x{3000}-\x{303F}\x{3400}-\x{9FFF}\x{FF00}-\x{FFEF}]"


Reading = Literal["prompt", "opening", "source", "target"]
# special tokens around a text: as made or published, always, never, or only those whose names it holds
Specials = bool | Literal["in-text"] | None


@dataclass(frozen=True)
class Roles(Config):
    """Special tokens by what they are for, as ids.

    Args:
        bos: Opens a text.
        eos: Ends one.
        pad: Fills rows up.
        unk: Stands for what is not in the vocabulary.
        stops: Where generation ends.
        begin: Put in front of a text.
        end: Put behind it.
        mask: Stands where a masked language model is asked for a token.
    """

    bos: int | None = None
    eos: int | None = None
    pad: int | None = None
    unk: int | None = None
    stops: tuple[int, ...] = ()
    begin: tuple[int, ...] = ()
    end: tuple[int, ...] = ()
    mask: int | None = None


class Tokenizer:
    """Text to token ids and back.

    Args:
        inner: What does the work.
        published: What published files say of its specials; without them they go by their names, and `<bos>` alone is
            put in front of a prompt.
        text: The tokenizer.json it comes from, which `to_json` then gives back as it was.

    `allows_unknown` says whether a model may be given a text of which more than half is outside the vocabulary, or is
    single bytes of characters that it learnt no token for. `chat` is the chat template that came with it, if one did.
    """

    def __init__(self, inner: tokenizers.Tokenizer, published: Roles | None = None, text: str | None = None) -> None:
        # files may ask for rows cut or filled to one length, which is for whoever makes batches
        inner.no_truncation()
        inner.no_padding()
        self._inner, self._text, self.published = inner, text, published
        self._adds: bool | None = None
        self._specials_in_text = False
        self.allows_unknown = False
        self.chat: ChatTemplate | None = None

    @checked
    def encode(self, text: str) -> list[int]:
        """The token ids of a text, nothing put around it; raises `TextError` if it has none."""
        return self.encode_batch([text])[0]

    @checked
    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """The token ids of many texts; faster than one by one."""
        self._inner.encode_special_tokens = not self._specials_in_text
        try:
            for text in texts:
                text.encode()  # tokenizers 0.20.1 and older read it as three U+FFFD
            encoded = self._inner.encode_batch_fast(texts, add_special_tokens=False)
        except UnicodeEncodeError as error:
            raise TextError("a text holds a lone surrogate, which has no bytes. Replace or drop it.") from error
        except Exception as error:  # the library raises bare Exception
            raise TextError(f"a text holds words outside the vocabulary, and there is no <unk> ({error}).") from error
        return [item.ids for item in encoded]

    def read(self, text: str, *, allow_unknown: bool = False, model: str = "", behind: int = 0) -> list[int]:
        """The token ids of a text that a model is to read, nothing put around it.

        Args:
            text: The text.
            allow_unknown: Take one of which more than half is outside the vocabulary, or unlearnt bytes.
            model: The model's name; where it knows too little, a shipped one that fits is named.
            behind: How many tokens stand before it, from where places of unknown words are counted.

        Raises:
            TextError: More than half of it is unknown or unlearnt bytes, and neither `allow_unknown` nor
                `allows_unknown` is set.
        """
        ids = self.encode(text)
        if not (allow_unknown or self.allows_unknown):
            check_known(self, text, ids, model, _in_folder, behind)
        return ids

    def notes(
        self, rows: Iterable[Sequence[int]], side: str = "text", model: str = "", texts: Mapping[int, str] | None = None
    ) -> tuple[Note, ...]:
        """Notes on texts: ids that are no words of the vocabulary, of all texts together.

        Args:
            rows: The texts.
            side: What they are called.
            model: As for `read`.
            texts: What rows were read from, by the row, as far as it is known.
        """
        rows = list(rows)
        ids = [id for row in rows for id in row]
        found = marks(self, ids, self.tokens(ids))
        found = dataclasses.replace(found, lost=lost_words(self, rows, texts or {}))
        return self.notes_on(found, side, model)

    def notes_on(self, marked: Marks, side: str = "text", model: str = "") -> tuple[Note, ...]:
        """Return what must be known of tokens that are no words of the vocabulary, as `notes` does."""
        return mark_notes(marked, side, model, _in_folder)

    def adding(self, specials: Specials, in_text: bool = False) -> Self:
        """A tokenizer that differs in what it does about special tokens.

        Args:
            specials: Put them around a text: as made or published (None), never (False), or always (True): the
                beginning token then, where none would be added. With "in-text" none are put around it, and names in
                it stand for tokens, as with `in_text`.
            in_text: Names of specials in a text stand for the tokens, as in transformers; a conversation that brings
                its own marks needs that.
        """
        found = copy.copy(self)
        found._adds = False if specials == "in-text" else specials
        found._specials_in_text = in_text or specials == "in-text"
        return found

    def allowing_unknown(self) -> Self:
        """A tokenizer with which a model reads texts of which it knows less than half: see `allows_unknown`."""
        found = copy.copy(self)
        found.allows_unknown = True
        return found

    def naming(self, special: int | None, text: str) -> Self:
        """The tokenizer to read a text with that may name a special token: if so, names stand for tokens."""
        if special not in self.specials or self.specials[special] not in text:
            return self
        found = copy.copy(self)
        found._specials_in_text = True
        return found

    def names_spelled(self, texts: Iterable[str]) -> list[str]:
        """Names of special tokens that texts hold and that are read as letters.

        Args:
            texts: The texts.
        """
        held = {name: text for text in texts for name in self.specials.values() if name and name in text}
        # pieces of a Unigram are found by their names, and are the tokens
        return [name for name, text in held.items() if self._inner.token_to_id(name) not in self.encode(text)]

    def notes_on_names(self, texts: Iterable[str], side: str = "text") -> tuple[Note, ...]:
        """Note on names of special tokens that texts hold and that are read as letters: one, or none.

        Args:
            texts: The texts.
            side: What they are called.
        """
        names = self.names_spelled(texts)
        if not names:
            return ()
        listed = " ".join(names[:NAMED]) + (" …" if len(names) > NAMED else "")
        seen = sentence(
            "The {side} holds the name of a special token, {names}, which was read as letters."
            if len(names) == 1
            else "The {side} holds names of special tokens, {names}, which were read as letters.",
            side=sentence(side),
            names=listed,
        )
        return (Note(seen, "", sentence('To mean the tokens: specials="in-text"; --specials in-text.')),)

    def around(self, reading: Reading = "prompt") -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The special tokens put in front of a text and behind it.

        Args:
            reading: What the text is: a `prompt`; the `opening` of a text that goes on, behind which nothing is put;
                the `source` of an encoder-decoder; or what its decoder has read so far, its `target`, behind the token
                that decoders start from, which is the model's.

        Raises:
            TextError: Specials are to be added and the tokenizer has none to open a text with.
        """
        roles = self.roles
        begin, end = roles.begin, roles.end
        if self.published is None and reading in ("source", "target"):
            begin = end = ()
        if self._adds is False:
            begin = end = ()
        elif self._adds and not begin and not end and reading != "target":
            if roles.bos is None:
                raise TextError(f"{self} has no beginning token to put in front of a text: leave specials as they are.")
            begin = (roles.bos,)
        return begin, end if reading in ("prompt", "source") else ()

    def said(self, reading: Reading = "prompt", first: tuple[int, ...] = ()) -> str:
        """Special tokens, and others before them, that are put around a text, in words; empty if none are."""
        around = self.around(reading)
        # a model's start token may be one that the tokenizer does not have
        ids = ((*first, *around[0]), around[1])
        begin, end = (" ".join(self.token(i) if i < self.vocab_size else f"<{i}>" for i in side) for side in ids)
        sides = {"source": sentence("source"), "target": sentence("target")}
        whole = sides.get(reading, sentence("text"))
        if begin and end:
            return sentence(
                "The tokenizer added {begin} in front of the {text} and {end} behind it.",
                begin=begin, text=whole, end=end,
            )  # fmt: skip
        if begin:
            return sentence("The tokenizer added {begin} in front of the {text}.", begin=begin, text=whole)
        return sentence("The tokenizer added {end} behind the {text}.", end=end, text=whole) if end else ""

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Span of each token of a text, as (first character, character behind the last).

        Tokens that are parts of one character share it.
        """
        # raises what encoding raises
        self.encode(text)
        return self._inner.encode(text, add_special_tokens=False).offsets

    @checked
    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids; specials leave no trace, broken UTF-8 becomes U+FFFD."""
        checked = [self._checked(i) for i in ids]
        # the library takes letters of added tokens for bytes, where other tokens are spelled in bytes
        apart = self._added if self._is_byte_level else {}
        runs = groupby(checked, key=lambda i: i in apart)
        return "".join(
            "".join(apart[i] for i in run if i not in self.specials)
            if added
            else self._inner.decode(list(run), skip_special_tokens=True)
            for added, run in runs
        )

    def token(self, id: int) -> str:
        """Readable text of one token: its spaces are spaces, bytes that are no UTF-8 are `<0xHH>`."""
        text = self._inner.id_to_token(self._checked(id))
        if text is None or id in self.specials:
            return text or f"<{id}>"
        if self._is_byte_level and id in self._added:
            return text
        if self._is_byte_level and all(c in _BYTE_OF for c in text):
            escaped = bytes(_BYTE_OF[c] for c in text).decode("utf-8", "surrogateescape")
            return re.sub("[\udc80-\udcff]", lambda m: f"<0x{ord(m[0]) - 0xDC00:02X}>", escaped)
        return text.replace("\u2581", " ")

    def bytes_of(self, id: int) -> bytes:
        """The bytes of the text that a token stands for; none for specials, and for ids it does not have."""
        text = self._inner.id_to_token(id) if 0 <= id < self.vocab_size and id not in self.specials else ""
        if not text:
            return b""
        if self._is_byte_level and id in self._added:
            return text.encode("utf-8", "replace")
        if self._is_byte_level and all(c in _BYTE_OF for c in text):
            return bytes(_BYTE_OF[c] for c in text)
        # what vocabularies of words fall back to
        byte = re.fullmatch("<0x([0-9A-F]{2})>", text)
        return bytes([int(byte[1], 16)]) if byte else text.replace("\u2581", " ").encode("utf-8", "replace")

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Readable text of each token."""
        return [self.token(i) for i in ids]

    @cached_property
    def vocab_size(self) -> int:
        return max(self._inner.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @cached_property
    def is_bytes(self) -> bool:
        """Whether it is bytes by design: none of its tokens is longer than a byte, but for those added by hand."""
        return all(len(self.bytes_of(id)) <= 1 for id in range(self.vocab_size) if id not in self._added)

    @cached_property
    def specials(self) -> dict[int, str]:
        """Special tokens by id."""
        return {id: t.content for id, t in self._inner.get_added_tokens_decoder().items() if t.special}

    @cached_property
    def _added(self) -> dict[int, str]:
        """Tokens that were added to the vocabulary, specials among them, by id: they are spelled as they are."""
        return {id: token.content for id, token in self._inner.get_added_tokens_decoder().items()}

    @cached_property
    def roles(self) -> Roles:
        """Special tokens by what they are for."""
        if self.published is not None:
            return self.published
        bos, eos, pad, unk, mask = (self.named(role) for role in NAMES)
        stops, begin = (() if id is None else (id,) for id in (eos, bos))
        return Roles(bos, eos, pad, unk, stops, begin=begin, mask=mask)

    @property
    def bos(self) -> int | None:
        return self.roles.bos

    @property
    def eos(self) -> int | None:
        return self.roles.eos

    @property
    def pad(self) -> int | None:
        return self.roles.pad

    @property
    def unk(self) -> int | None:
        return self.roles.unk

    def require(self, role: str) -> int:
        """Return the id of the special in this role (`bos`, `eos`, `pad`, `unk`); raises `TextError` if it has none."""
        found = getattr(self.roles, role)
        if found is None:
            raise TextError(f"{self} has no special token in the role of {role}.")
        return found

    def named(self, role: str) -> int | None:
        """The id of the special that well-known files call by this role (`bos`, `eos`, `pad`, `unk`, `mask`)."""
        ids = (self._inner.token_to_id(name) for name in NAMES[role])
        return next((id for id in ids if id is not None), None)

    def continuing(self, text: str) -> list[int]:
        """The ids of a text that goes on from another one.

        Models of whole words with a sign for the space in front of them put that sign in front of every text, also of
        one that begins with a space or within a word; there, the token that is shown as this text is meant.
        """
        ids = self.encode(text)
        if self.tokens(ids) == [text] or text not in self._by_text:
            return ids
        return [self._by_text[text]]

    @cached_property
    def _by_text(self) -> dict[str, int]:
        ids = sorted(self._inner.get_vocab(with_added_tokens=True).values(), reverse=True)
        return {self.token(id): id for id in ids if id not in self.specials}

    def id(self, name: str) -> int | None:
        """The id of a token by its name in tokenizer.json, None if there is none."""
        try:
            return self._inner.token_to_id(name)
        except UnicodeEncodeError:  # half of a pair of surrogates names nothing
            return None

    def post_processed(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The specials that the post-processor of tokenizer.json puts in front of a text and behind it."""
        found = self._inner.encode(self._some_text())
        own = [i for i, added in enumerate(found.special_tokens_mask) if not added]
        return tuple(found.ids[: own[0]]), tuple(found.ids[own[-1] + 1 :])

    def to_json(self) -> str:
        """The content of its tokenizer.json."""
        return self._inner.to_str() if self._text is None else self._text

    def with_post_processor(self) -> str:
        """A tokenizer.json whose post-processor puts the same specials around a prompt, for other libraries."""
        begin, end = ([(self.token(id), id) for id in ids] for ids in self.around())
        if self.published is not None or not (begin or end):
            return self.to_json()
        inner = tokenizers.Tokenizer.from_str(self.to_json())
        template = " ".join([*(name for name, _ in begin), "$A", *(name for name, _ in end)])
        inner.post_processor = processors.TemplateProcessing(template, special_tokens=[*begin, *end])
        return inner.to_str()

    def save(self, folder: str | Path) -> Path:
        """Write `tokenizer.json` into the folder, whole or not at all; raises `SaveError`."""
        return files.write(Path(folder) / FILE_NAME, self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Read a tokenizer.json, or the one in a folder; raises `CheckpointError` if it is missing or broken."""
        path = Path(path)
        if path.is_dir():
            path = path / FILE_NAME
        try:
            return cls.from_json(read_text(path, MOST_TOKENIZER))
        except (OSError, UnicodeDecodeError, CheckpointError) as error:
            raise CheckpointError(f'cannot read the tokenizer "{path}": {reason(error)}') from error

    @classmethod
    def from_json(cls, text: str, published: Roles | None = None) -> "Tokenizer":
        """Inverse of `to_json`; raises `CheckpointError`."""
        try:
            inner = tokenizers.Tokenizer.from_str(text)
            # the library reads some texts that are no JSON, and others would not read what we hand on
            json.loads(text)
            return cls(inner, published, text)
        except Exception as error:  # the library raises bare Exception
            raise CheckpointError(f"not a tokenizer.json of the tokenizers library ({error}).") from error

    def __repr__(self) -> str:
        return f"Tokenizer({self._inner.model.__class__.__name__}, vocab_size={self.vocab_size})"

    def _some_text(self) -> str:
        """Return a text that has a token: one letter will do, but for vocabularies without that letter."""
        for text in ("a", *self._inner.get_vocab()):
            with contextlib.suppress(TextError):
                if self.encode(text):
                    return text
        raise CheckpointError(f"{self} encodes none of its own tokens.")

    def _checked(self, id: int) -> int:
        if not 0 <= id < self.vocab_size:
            raise outside_vocabulary(id, self.vocab_size)
        return int(id)

    @cached_property
    def _is_byte_level(self) -> bool:
        decoder: Any = self._inner.decoder
        return decoder is not None and b'"ByteLevel"' in decoder.__getstate__()


def _in_folder(folder: Path) -> Tokenizer | None:
    """Return the tokenizer that lies in a folder, if there is one."""
    return Tokenizer.load(folder) if (folder / FILE_NAME).is_file() else None


@checked
def train_bpe(
    texts: Iterable[str], vocab_size: Count, specials: Iterable[str] = ("<bos>",), *, digit_pairs: bool = False
) -> Tokenizer:
    """Train a byte-level BPE: every text can be encoded, and the same texts give the same tokenizer.

    Args:
        texts: What to learn the merges from; read once, so a generator will do.
        vocab_size: Specials, the 256 bytes and the merges together.
        specials: Names of special tokens, which get the first ids.
        digit_pairs: Read numbers two digits at a time from the left, each pair one token, of which there are a hundred,
            however rare; otherwise numbers are merged as words are.

    Raises:
        ConfigError: There is no room for the bytes, the specials and the pairs.
    """
    specials = list(specials)
    pairs = [f"{number:02}" for number in range(100)] if digit_pairs else []
    if vocab_size < 256 + len(specials) + len(pairs):
        raise ConfigError(
            f"vocab_size={vocab_size} is too small for byte-level BPE: 256 bytes and {len(specials)} specials"
            f"{' and 100 pairs of digits' if pairs else ''} need at least {256 + len(specials) + len(pairs)}."
        )
    inner = tokenizers.Tokenizer(models.BPE())
    # single digits while learning, so that no merge is of digits but those that are added
    inner.pre_tokenizer = _words_and_numbers("[0-9]") if pairs else _WORDS
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(pairs),
        special_tokens=specials,
        initial_alphabet=sorted(_BYTE_OF),
        show_progress=False,
    )
    inner.train_from_iterator(texts, trainer)
    if pairs:
        inner.pre_tokenizer = _words_and_numbers("[0-9]{1,2}")
    return Tokenizer(_with_merges(inner, pairs))


def _words_and_numbers(number: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(number), "isolated"), _WORDS])


def _with_merges(inner: tokenizers.Tokenizer, pairs: list[str]) -> tokenizers.Tokenizer:
    """Return a BPE that has pairs of characters as tokens, too, merged after all else."""
    told = json.loads(inner.to_str())
    vocabulary, merges = told["model"]["vocab"], told["model"]["merges"]
    for pair in pairs:
        vocabulary[pair] = len(vocabulary)
        merges.append([*pair])
    return tokenizers.Tokenizer.from_str(json_text(told))


def bytes_tokenizer(specials: Iterable[str] = ("<bos>",)) -> Tokenizer:
    """The tokenizer whose token ids are byte values; specials follow from 256 on."""
    inner = tokenizers.Tokenizer(models.BPE(vocab={c: b for c, b in _BYTE_OF.items()}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(list(specials))
    return Tokenizer(inner)


def with_mask(tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer that has a mask token: the one given if it has, else one with `<mask>` behind all its tokens."""
    if tokenizer.roles.mask is not None:
        return tokenizer
    inner = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    inner.add_special_tokens([NAMES["mask"][0]])
    found = Tokenizer(inner)
    published = tokenizer.published
    return found if published is None else Tokenizer(inner, dataclasses.replace(published, mask=found.named("mask")))


@checked
def word_tokenizer(texts: Iterable[str], specials: Iterable[str] = WORD_SPECIALS) -> Tokenizer:
    """Build a vocabulary of whole words, and of single Chinese characters.

    Words are runs of letters and digits; punctuation stands alone. Decoding joins words with spaces, and Chinese
    characters without. Words outside the vocabulary become `<unk>`, if that is among the specials.

    Args:
        texts: Texts or single words; ids follow the order of first appearance, after the specials.
        specials: Names of special tokens, which get the first ids.
    """
    specials = list(specials)
    splitter = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_CHINESE), behavior="isolated"), pre_tokenizers.Whitespace()]
    )
    words = dict.fromkeys(word for text in texts for word, _ in splitter.pre_tokenize_str(text))
    vocab = {word: id for id, word in enumerate([*specials, *(w for w in words if w not in specials)])}
    unknown = "<unk>" if "<unk>" in specials else None
    inner = tokenizers.Tokenizer(models.WordLevel(vocab, **({"unk_token": unknown} if unknown else {})))
    inner.pre_tokenizer = splitter
    chinese = decoders.Replace(Regex(f"^ (?={_CHINESE})"), "")
    inner.decoder = decoders.Sequence([decoders.WordPiece(prefix="##", cleanup=True), chinese])
    inner.add_special_tokens(specials)
    return Tokenizer(inner)


def symbol_tokenizer(symbols: list[str], specials: Iterable[str] = ("<bos>", "<eos>")) -> Tokenizer:
    """Give each symbol its place in the list as id: for synthetic tasks. Texts are symbols with spaces between."""
    inner = tokenizers.Tokenizer(models.WordLevel({symbol: id for id, symbol in enumerate(symbols)}))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.add_special_tokens([name for name in specials if name in symbols])
    return Tokenizer(inner)


def label_tokenizer(labels: Sequence[str]) -> Tokenizer:
    """Give each label its place in the list as id: for classes, whose names may hold spaces. A text is one label."""
    return Tokenizer(tokenizers.Tokenizer(models.WordLevel({label: id for id, label in enumerate(labels)})))


def byte_alphabet() -> dict[str, int]:
    """Return the printable character that byte-level models write for each byte.

    Source: Radford et al. 2019 (GPT-2): printable bytes stand for themselves, the others move up past U+0100.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(hidden)}


_BYTE_OF = byte_alphabet()
