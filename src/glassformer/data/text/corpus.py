"""Natural text: documents cut into rows, with document ids so that documents need not see each other.

The stream of a split is its documents in order, `<bos>` before each. A row predicts `length` consecutive tokens of it.
With `crop="cut"` rows are the consecutive cuts of the stream in a fresh order every epoch, so each token is a target
once per epoch; with `crop="random"` a row starts at any offset.

In memory, a split is one array of token ids. With `streaming=True` the corpus is read again every epoch, and a batch
costs what it takes to read that far: in order it is cheap, a jump backwards starts again from the first document.
"""

import dataclasses
import hashlib
import platform
import warnings
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import islice
from typing import Any, Literal, Self

import numpy as np
import torch

from glassformer.arguments import Count, Kinds
from glassformer.config import require
from glassformer.data.batch import SPLITS, Batch, DataConfig, Split, check_split, generator, next_token_batch
from glassformer.data.text.overlap import NEAR_COPY, RUN, Runs, near_copies
from glassformer.data.text.sources import STANDARD_LIBRARY, Document, LeftOut, read_source
from glassformer.data.tokenizer import Tokenizer, train_bpe
from glassformer.errors import DataError


@dataclasses.dataclass(frozen=True)
class TextConfig(DataConfig, kind="text"):
    """Text from files or from a named corpus.

    Args:
        sources: Files, folders, globs, "-", "datasets:NAME", "python-stdlib" or "python-package:NAME==VERSION".
        text_field: The field that holds the text, in JSONL and datasets.
        heldout: Share of documents that are held out, chosen by hash.
        crop: How rows are taken from the stream of tokens.
        begin: Share of rows that begin where a document does, of those that are taken at random.
        row_bos: Put `<bos>` in the place of every row's first input, also in the middle of a document.
        vocab_size: Of the byte-level BPE that is trained when no tokenizer is given.
        apart_from: Text whose held-out documents stay new: training documents here lose every run of 13 tokens that
            those have too, and what is left of them are documents of their own.
        distinct: Leave out training documents of whose runs of 13 tokens at least half occurred in those before.
        streaming: Read the corpus again every epoch rather than keep it in memory.
        shuffle_buffer: Rows to shuffle among when streaming; 1 keeps the order of the corpus.
    """

    batch_size: int = 16
    length: int = 256
    seed: int = 0
    sources: tuple[str, ...] = (STANDARD_LIBRARY,)
    text_field: str = "text"
    heldout: float = 0.05
    crop: Literal["random", "cut"] = "random"
    begin: float = 0.0
    row_bos: bool = False
    vocab_size: Kinds = 1024
    apart_from: "TextConfig | None" = None
    distinct: bool = False
    streaming: bool = False
    shuffle_buffer: Count = 1024

    def __post_init__(self) -> None:
        require(self.batch_size >= 1 and self.length >= 1, "batch_size and length must be at least 1.")
        require(0 <= self.heldout < 1, f"heldout={self.heldout} is not in [0, 1).")
        require(0 <= self.begin <= 1, f"begin={self.begin} is not in [0, 1].")
        require(
            self.begin == 0 or (self.crop == "random" and not self.streaming),
            'begin is of rows taken at random: crop="random", in memory.',
        )
        require(len(self.sources) > 0, f'sources is empty. Name a file, a folder or "{STANDARD_LIBRARY}".')
        require(self.shuffle_buffer >= 1, "shuffle_buffer must be at least 1.")
        require(
            not (self.streaming and (self.apart_from or self.distinct)),
            "apart_from and distinct compare documents in memory: not streaming.",
        )
        require(not (self.streaming and "-" in self.sources), 'standard input ("-") can be read once: not streaming.')

    def build(self, tokenizer: Tokenizer | None = None) -> "TextData | StreamedText":
        return StreamedText(self, tokenizer) if self.streaming else TextData(self, tokenizer)

    def read(self, left_out: LeftOut | None = None) -> Iterator[Document]:
        """Yield the documents that hold any text; what folders hold besides is counted, see `read_source`."""
        for source in self.sources:
            yield from self.read_one(source, left_out)

    def read_one(self, source: str, left_out: LeftOut | None = None) -> Iterator[Document]:
        """Yield the documents of one source that hold any text."""
        documents = read_source(source, self.text_field, left_out)
        yield from (document for document in documents if document.text.strip())

    def check(self) -> None:
        for source in self.sources:
            read_source(source, self.text_field)
        if self.apart_from is not None:
            self.apart_from.check()

    def origins(self) -> tuple[str, ...]:
        return self.sources

    def synthetic(self) -> dict[str, float]:
        return {}

    def on_text(self, sources: tuple[str, ...]) -> Self:
        apart_from = None if self.apart_from is None else self.apart_from.on_text(sources)
        return self.replace(sources=sources, apart_from=apart_from)

    def texts(self) -> Iterator[str]:
        documents = self.streamed("train") if self.streaming else self.documents()["train"]
        yield from (document.text for document in documents)

    def documents(self) -> dict[Split, list[Document]]:
        """The documents of each split, in memory."""
        return split_documents(list(self.read()), self.heldout)

    def streamed(self, split: Split) -> Iterator[Document]:
        """Yield the documents of a split one by one, which goes by a document's own hash alone."""
        held_out = split == "heldout"
        return (d for d in self.read() if (d.hash() < self.heldout * 2**64) == held_out)


class TextData:
    """Text in memory.

    `n_bytes[split]` and `n_tokens[split]` (specials not counted) turn nats per token into bits per byte:
    `loss * n_tokens / n_bytes / log(2)`.
    """

    def __init__(self, config: TextConfig, tokenizer: Tokenizer | None = None) -> None:
        config.check()
        self.config = config
        self.left_out = LeftOut()
        by_source = {source: list(config.read_one(source, self.left_out)) for source in config.sources}
        documents = [document for source in config.sources for document in by_source[source]]
        if self.left_out:
            warnings.warn(f"text from {_quoted(config.sources)}: left out {self.left_out}.", stacklevel=4)
        if not documents:
            raise DataError(f"no usable text in {_quoted(config.sources)}: every file is empty.")
        self.split = split_documents(documents, config.heldout)
        if tokenizer is None:
            tokenizer = train_bpe((d.text for d in self.split["train"]), config.vocab_size)
        self.tokenizer, self.vocab_size = tokenizer, tokenizer.vocab_size
        self._digest = digest(documents)
        self._by_source = {source: _facts(found) for source, found in by_source.items()}
        self.n_bytes = {name: sum(len(d.text.encode()) for d in part) for name, part in self.split.items()}
        train, self._cleaning = _cleaned(list(encoded(self.split["train"], tokenizer)), config, tokenizer)
        self._streams: dict[str, Stream] = {
            "train": Stream.joined(train, tokenizer.bos),
            "heldout": Stream.joined(encoded(self.split["heldout"], tokenizer), tokenizer.bos),
        }
        self.n_tokens = {name: stream.n_tokens for name, stream in self._streams.items()}

    def batch(self, step: int, split: Split = "train") -> Batch:
        stream, config = self.stream(split), self.config
        if config.crop == "random":
            random, size = generator(config.seed, split, step), (config.batch_size,)
            starts = torch.randint(max(1, stream.size - config.length), size, generator=random)
            if config.begin > 0:
                begun = torch.from_numpy(stream.begun)
                begun = begun[torch.randint(len(begun), size, generator=random)]
                starts = torch.where(torch.rand(size, generator=random) < config.begin, begun, starts)
        else:
            starts = self._cuts(stream, split, step)
        rows = [stream.row(int(start), config.length) for start in starts]
        return pack(rows, self.tokenizer.bos if config.row_bos else None, stream.bos)

    def stream(self, split: Split) -> "Stream":
        """The tokens of a split; raises `DataError` if it holds none."""
        check_split(split)
        if self._streams[split].size < 2:
            raise DataError(
                f'the "{split}" split of {_quoted(self.config.sources)} is empty: {self.describe()["documents"]} '
                f"documents in all, heldout={self.config.heldout}. Give more documents or another share."
            )
        return self._streams[split]

    def epoch_steps(self, split: Split = "train") -> int:
        """Steps of an epoch: how many batches cover the split once, rounded up."""
        return -(-self.stream(split).cuts(self.config.length) // self.config.batch_size)

    def documents(self, split: Split) -> Iterator[list[int]]:
        yield from self.stream(split).documents()

    def describe(self) -> dict[str, Any]:
        """Description of the corpus, as a model card records it; the digest covers every name and text, in order."""
        return {
            "sources": list(self.config.sources),
            "python": platform.python_version(),
            "documents": sum(map(len, self.split.values())),
            "bytes": sum(self.n_bytes.values()),
            **({"left_out": dict(self.left_out)} if self.left_out else {}),
            "sha256": self._digest,
            **({"by_source": self._by_source} if len(self._by_source) > 1 else {}),
            **self._cleaning,
            "vocab_size": self.vocab_size,
            "splits": {
                name: {"documents": len(part), "bytes": self.n_bytes[name], "tokens": self.n_tokens[name]}
                for name, part in self.split.items()
            },
        }

    def _cuts(self, stream: "Stream", split: Split, step: int) -> list[int]:
        cuts, size = stream.cuts(self.config.length), self.config.batch_size
        rows = range(step * size, (step + 1) * size)
        orders = {
            epoch: torch.randperm(cuts, generator=generator(self.config.seed, split, "epoch", epoch))
            for epoch in {row // cuts for row in rows}
        }
        return [int(orders[row // cuts][row % cuts]) * self.config.length for row in rows]


class StreamedText:
    """Text that does not fit in memory: the same rows as `crop="cut"`, shuffled within a buffer."""

    def __init__(self, config: TextConfig, tokenizer: Tokenizer | None = None) -> None:
        config.check()
        self.config = config
        if tokenizer is None:
            # merges are learned from the beginning of the corpus: all of it would not fit in memory
            tokenizer = train_bpe(islice(config.texts(), 1000), config.vocab_size)
        self.tokenizer, self.vocab_size = tokenizer, tokenizer.vocab_size
        self._position: dict[str, tuple[int, Iterator[Row]]] = {}

    def batch(self, step: int, split: Split = "train") -> Batch:
        check_split(split)
        size = self.config.batch_size
        at, rows = self._position.get(split, (0, self._rows(split)))
        if at > step:
            at, rows = 0, self._rows(split)
        for _ in islice(rows, (step - at) * size):
            pass
        taken = list(islice(rows, size))
        self._position[split] = (step + 1, rows)
        return pack(taken, self.tokenizer.bos if self.config.row_bos else None)

    def documents(self, split: Split) -> Iterator[list[int]]:
        check_split(split)
        yield from (self.tokenizer.encode(document.text) for document in self.config.streamed(split))

    def describe(self) -> dict[str, Any]:
        return {
            "sources": list(self.config.sources),
            "python": platform.python_version(),
            "streaming": True,
            "vocab_size": self.vocab_size,
        }

    def _rows(self, split: Split) -> Iterator["Row"]:
        random = generator(self.config.seed, split, "shuffle")
        buffer: list[Row] = []
        while True:
            found = False
            for row in _cut(self.documents(split), self.tokenizer.bos, self.config.length):
                found = True
                buffer.append(row)
                if len(buffer) >= self.config.shuffle_buffer:
                    yield buffer.pop(int(torch.randint(len(buffer), (), generator=random)))
            if not found:
                raise DataError(f'the "{split}" split of {_quoted(self.config.sources)} is empty.')


@dataclasses.dataclass(frozen=True)
class Row:
    """`length + 1` consecutive tokens of a stream, their documents, and how many are real."""

    tokens: np.ndarray
    documents: np.ndarray
    size: int


@dataclasses.dataclass(frozen=True, eq=False)
class Stream:
    """Token ids of many documents in one array; `starts` says where each begins, with `bos` unless it lost that."""

    tokens: np.ndarray
    starts: np.ndarray
    bos: int | None

    @classmethod
    def of(cls, documents: Iterable[list[int]], bos: int | None) -> "Stream":
        """Build one from documents without specials."""
        head = [] if bos is None else [bos]
        return cls.joined((np.array(head + ids, dtype=np.int32) for ids in documents), bos)

    @classmethod
    def joined(cls, documents: Iterable[np.ndarray], bos: int | None) -> "Stream":
        """Build one from documents that already begin with `bos`, and pieces that do not."""
        arrays = list(documents)
        starts = np.cumsum([0, *map(len, arrays)])[:-1]
        return cls(np.concatenate([*arrays, np.empty(0, np.int32)]), starts, bos)

    @property
    def size(self) -> int:
        return len(self.tokens)

    @property
    def n_tokens(self) -> int:
        """How many tokens there are, `bos` not counted."""
        return self.size - (0 if self.bos is None else int((self.tokens == self.bos).sum()))

    @cached_property
    def begun(self) -> np.ndarray:
        """Where documents begin that have not lost their beginning; all of them if none has `bos`."""
        starts = self.starts[self.starts < self.size]
        whole = starts if self.bos is None else starts[self.tokens[starts] == self.bos]
        return whole if len(whole) else starts

    def cuts(self, length: int) -> int:
        """Return how many rows cover every token but the first as a target."""
        return -(-(self.size - 1) // length)

    def row(self, start: int, length: int) -> Row:
        tokens = self.tokens[start : start + length + 1]
        # a document may be empty, so several may start at one place: counting from the right takes the last
        documents = np.searchsorted(self.starts, np.arange(start, start + len(tokens)), side="right")
        return _padded(tokens, documents, length)

    def documents(self) -> Iterator[list[int]]:
        """Yield the token ids of each document, without `<bos>`."""
        for start, stop in zip(self.starts, [*self.starts[1:], self.size], strict=True):
            ids = self.tokens[start:stop].tolist()
            yield ids[1:] if self.bos is not None and ids[:1] == [self.bos] else ids


def pack(rows: list[Row], row_bos: int | None = None, bos: int | None = None) -> Batch:
    """Build a batch from rows of a stream.

    Document ids count from 0 in each row; there are none if every row is one document. Past the end of the stream a row
    is filled with a document of its own, whose targets do not count. With `row_bos` that token stands in the place of
    each row's first input; targets stay the same. With `bos`, the last token of a document has that for a
    target or none that counts: what stood before a cut does not predict what stands behind it.
    """
    tokens = torch.from_numpy(np.stack([row.tokens for row in rows]).astype(np.int64))
    documents = torch.from_numpy(np.stack([row.documents for row in rows]).astype(np.int64))
    sizes = torch.tensor([row.size for row in rows])
    weight = torch.arange(1, tokens.shape[1])[None, :] < sizes[:, None]
    if bos is not None:
        weight &= (documents[:, 1:] == documents[:, :-1]) | (tokens[:, 1:] == bos)
    ids = (documents - documents[:, :1])[:, :-1].contiguous()
    batch = next_token_batch(tokens, weight, documents=ids if bool(ids.any()) else None)
    if row_bos is not None:
        batch.tokens[:, 0] = row_bos
    return batch


def split_documents(documents: list[Document], heldout: float) -> dict[Split, list[Document]]:
    """Divide documents by hash into "train" and "heldout".

    Of two documents or more, each side gets at least one (unless `heldout` is 0): the one with the most extreme hash.
    """
    hashes = [document.hash() for document in documents]
    threshold = heldout * 2**64
    if heldout > 0 and len(set(hashes)) > 1:
        threshold = min(max(threshold, min(hashes) + 1), max(hashes))
    train = [d for d, h in zip(documents, hashes, strict=True) if h >= threshold]
    held_out = [d for d, h in zip(documents, hashes, strict=True) if h < threshold]
    if not train:
        train, held_out = held_out, train
    return dict(zip(SPLITS, (train, held_out), strict=True))


def encoded(documents: list[Document], tokenizer: Tokenizer) -> Iterator[np.ndarray]:
    """Yield the token ids of each document, `bos` before them."""
    head = [] if tokenizer.bos is None else [tokenizer.bos]
    # arrays after every few documents: lists of Python integers take ten times the room
    for i in range(0, len(documents), 256):
        for ids in tokenizer.encode_batch([document.text for document in documents[i : i + 256]]):
            yield np.array(head + ids, dtype=np.int32)


def _cleaned(
    documents: list[np.ndarray], config: TextConfig, tokenizer: Tokenizer
) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Return training documents, or what is left of them, and the counts of what went."""
    facts: dict[str, Any] = {}
    if config.distinct:
        copies = near_copies(documents)
        tokens = sum(len(ids) for ids, copy in zip(documents, copies, strict=True) if copy)
        documents = [ids for ids, copy in zip(documents, copies, strict=True) if not copy]
        facts["near_copies"] = {"documents": sum(copies), "tokens": tokens, "at_least": NEAR_COPY}
    if config.apart_from is not None:
        heldout = config.apart_from.documents()["heldout"]
        runs = Runs(ids[tokenizer.bos is not None :] for ids in encoded(heldout, tokenizer))
        pieces = [runs.outside(ids) for ids in documents]
        begin = [len(runs.begin(ids)) for ids in documents]
        before, after = sum(map(len, documents)), sum(len(piece) for found in pieces for piece in found)
        facts["overlap"] = {
            "with": f"{len(heldout)} held-out documents of {_quoted(config.apart_from.sources)}",
            "heldout_sha256": digest(heldout),
            "run": RUN,
            "runs": sum(begin),
            "documents": sum(count > 0 for count in begin),
            "tokens_cut": before - after,
            "left": 0,
        }
        documents = [piece for found in pieces for piece in found]
        facts["overlap"]["left"] = sum(len(runs.begin(ids)) for ids in documents)
    return documents, facts


def _facts(documents: list[Document]) -> dict[str, Any]:
    """Return what a card says of the documents of one source."""
    size = sum(len(document.text.encode()) for document in documents)
    return {"documents": len(documents), "megabytes": round(size / 1e6, 2), "sha256": digest(documents)}


def digest(documents: Iterable[Document]) -> str:
    """Return the SHA-256 over names and texts, in order."""
    state = hashlib.sha256()
    for document in documents:
        for part in (document.name, document.text):
            state.update(part.encode("utf-8", "surrogatepass") + b"\0")
    return state.hexdigest()


def _cut(documents: Iterable[list[int]], bos: int | None, length: int) -> Iterator[Row]:
    tokens, owners, number = np.empty(0, np.int64), np.empty(0, np.int64), 0
    for number, ids in enumerate(documents, 1):
        ids = ids if bos is None else [bos, *ids]
        tokens = np.concatenate([tokens, np.array(ids, np.int64)])
        owners = np.concatenate([owners, np.full(len(ids), number)])
        whole = (len(tokens) - 1) // length
        for k in range(whole):
            window = slice(k * length, (k + 1) * length + 1)
            yield _padded(tokens[window], owners[window], length)
        # the last token of a row is the first input of the next
        tokens, owners = tokens[whole * length :], owners[whole * length :]
    if len(tokens) > 1:
        yield _padded(tokens, owners, length)


def _padded(tokens: np.ndarray, documents: np.ndarray, length: int) -> Row:
    size, missing = len(tokens), length + 1 - len(tokens)
    if missing:
        tokens = np.concatenate([tokens, np.repeat(tokens[-1:], missing)])
        documents = np.concatenate([documents, np.repeat(documents[-1:] + 1, missing)])
    return Row(tokens, documents, size)


def _quoted(sources: Iterable[str]) -> str:
    return ", ".join(f'"{source}"' for source in sources)
