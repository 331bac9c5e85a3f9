"""Several kinds of data in one batch, row by row."""

import dataclasses
import heapq
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Any, Self

import torch
from torch import Tensor

from glassformer.config import require
from glassformer.data.batch import Batch, Data, DataConfig, Split, check_split, generator, hash64, vocabularies_of
from glassformer.data.tokenizer import Tokenizer, symbol_tokenizer, train_bpe
from glassformer.errors import DataError


@dataclasses.dataclass(frozen=True)
class MixtureConfig(DataConfig, kind="mixture"):
    """Rows of each batch come from several parts.

    Args:
        parts: What to mix. Their batch size and length give way to the mixture's; their seeds are combined with it.
        shares: Share of rows per part, summing to one. Where a share is no whole number of rows, the count varies from
            step to step so that it is right on average.
        vocab_size: Of a byte-level BPE that is learned from the text of all parts, as much of each as its share says;
            without one the tokenizer is that of the first part, or of all symbols if every part brings its own.
        digit_pairs: Whether that BPE reads numbers two digits at a time, see `train_bpe`.
    """

    parts: tuple[DataConfig, ...]
    shares: tuple[float, ...]
    batch_size: int = 16
    length: int = 256
    seed: int = 0
    vocab_size: int | None = None
    digit_pairs: bool = False

    def __post_init__(self) -> None:
        require(self.batch_size >= 1 and self.length >= 1, "batch_size and length must be at least 1.")
        require(len(self.parts) > 0, "parts is empty.")
        require(len(self.parts) == len(self.shares), f"{len(self.parts)} parts but {len(self.shares)} shares.")
        require(min(self.shares) >= 0, f"shares={self.shares} has a negative share.")
        require(self.vocab_size is not None or not self.digit_pairs, "digit_pairs is of a BPE: give vocab_size, too.")
        require(abs(sum(self.shares) - 1) < 1e-6, f"shares={self.shares} sum to {sum(self.shares):g}, not to 1.")

    def build(self, tokenizer: Tokenizer | None = None) -> "MixtureData":
        return MixtureData(self, tokenizer)

    def symbols(self) -> list[str] | None:
        brought = [part.symbols() for part in self.parts]
        together = dict.fromkeys(symbol for symbols in brought for symbol in symbols or ())
        return None if None in brought else list(together)

    def check(self) -> None:
        for part in self.parts:
            part.check()

    def origins(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(origin for part in self.parts for origin in part.origins()))

    def synthetic(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for part, share in zip(self.parts, self.shares, strict=True):
            for about, inside in part.synthetic().items():
                found[about] = found.get(about, 0.0) + share * inside
        return found

    def on_text(self, sources: tuple[str, ...]) -> Self:
        return self.replace(parts=tuple(part.on_text(sources) for part in self.parts))

    def texts(self) -> Iterator[str]:
        """Yield text of the parts by turns, so that each has its share of the characters, until one has no more.

        Parts without text have no turn.
        """
        parts = enumerate(zip(self.shares, self.parts, strict=True))
        turns = [(0.0, index, share, part.texts()) for index, (share, part) in parts if share]
        while turns:
            characters, index, share, texts = heapq.heappop(turns)
            text = next(texts, None)
            if text is not None:
                yield text
                heapq.heappush(turns, (characters + len(text) / share, index, share, texts))
            elif characters:
                return


class MixtureData:
    """The parts, built with one tokenizer: the one given, or learned from all, or what the first part builds."""

    def __init__(self, config: MixtureConfig, tokenizer: Tokenizer | None = None) -> None:
        # before minutes go into parts that come first
        config.check()
        self.config = config
        self.parts: list[Data] = []
        if tokenizer is None and config.vocab_size is not None:
            tokenizer = train_bpe(config.texts(), config.vocab_size, digit_pairs=config.digit_pairs)
        elif tokenizer is None and (symbols := config.symbols()) is not None:
            tokenizer = symbol_tokenizer(symbols)
        for index, part in enumerate(config.parts):
            seed = hash64(config.seed, index, part.seed) >> 33
            changed = part.replace(batch_size=config.batch_size, length=config.length, seed=seed)
            self.parts.append(changed.build(tokenizer))
            tokenizer = self.parts[-1].tokenizer
        if any(one is not part.tokenizer for part in self.parts for one in vocabularies_of(part).values()):
            raise DataError("a mixture holds one vocabulary; a part of this one has targets or sources of another.")
        assert tokenizer is not None
        self.tokenizer, self.vocab_size = tokenizer, tokenizer.vocab_size

    def counts(self, step: int, split: Split = "train") -> list[int]:
        """Return how many rows of a batch come from each part."""
        # one random offset for all boundaries: counts are within one of the exact share and right on average
        offset = float(
            torch.rand((), generator=generator(self.config.seed, split, step, "shares"), dtype=torch.float64)
        )
        shares = accumulate(self.config.shares)
        size = self.config.batch_size
        bounds = [0, *(min(size, int(share * size + offset)) for share in shares)]
        bounds[-1] = size
        return [high - low for low, high in pairwise(bounds)]

    def batch(self, step: int, split: Split = "train") -> Batch:
        check_split(split)
        counts = self.counts(step, split)
        return join([part.batch(step, split).rows(n) for part, n in zip(self.parts, counts, strict=True) if n])

    def documents(self, split: Split) -> Iterator[list[int]]:
        for part in self.parts:
            yield from part.documents(split)

    def describe(self) -> dict[str, Any]:
        parts = zip(self.config.shares, self.parts, strict=True)
        return {"parts": [{"share": share} | part.describe() for share, part in parts]}


def join(batches: list[Batch]) -> Batch:
    """Stack batches of equal length; document ids and lengths that some lack are filled in."""
    if len({(batch.source is None, batch.tokens.shape[1]) for batch in batches}) > 1:
        raise DataError("a mixture cannot hold both decoder and encoder-decoder data, nor rows of unequal length.")
    names = dict.fromkeys(name for batch in batches for name in batch.tensors())
    return Batch(**{name: torch.cat([_field(batch, name) for batch in batches]) for name in names})


def _field(batch: Batch, name: str) -> Tensor:
    value = getattr(batch, name)
    if value is not None:
        return value
    if name == "documents":
        return torch.zeros_like(batch.tokens)
    return torch.full((len(batch.tokens),), batch.tokens.shape[1])
