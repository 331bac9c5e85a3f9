"""Chinese to English: sentence pairs of the grammar, as batches for an encoder-decoder."""

import dataclasses
from collections.abc import Iterator
from random import Random
from typing import Any

import torch
from torch import Tensor

from glassformer.config import require
from glassformer.data.batch import Batch, DataConfig, Split, check_split, hash64, is_heldout
from glassformer.data.grammar import sentences
from glassformer.data.grammar.sentences import SentencePair
from glassformer.data.tokenizer import Tokenizer, word_tokenizer
from glassformer.errors import DataError


@dataclasses.dataclass(frozen=True)
class ZhEnConfig(DataConfig, kind="zh-en"):
    """Sentence pairs from the Chinese-English grammar.

    Args:
        length: No sentence is longer, in tokens with `<bos>`; batches are as long as their longest sentence.
        heldout: Share of the English sentences (punctuation aside) that training never sees, chosen by hash.
    """

    batch_size: int = 64
    length: int = 26
    seed: int = 0
    heldout: float = 0.1

    def __post_init__(self) -> None:
        require(self.batch_size >= 1, "batch_size must be at least 1.")
        require(self.length >= 20, f"length={self.length} is too short: the longest sentences need 20.")
        require(0 < self.heldout < 1, f"heldout={self.heldout} is not in (0, 1).")

    def build(self, tokenizer: Tokenizer | None = None) -> "ZhEnData":
        return ZhEnData(self, tokenizer)


class ZhEnData:
    """Pairs drawn from the grammar.

    The source is the Chinese by character, without specials; the decoder reads `<bos>` and the English by word, and
    predicts the English and `<eos>`.
    """

    def __init__(self, config: ZhEnConfig, tokenizer: Tokenizer | None = None) -> None:
        self.config = config
        self.tokenizer = tokenizer or zh_en_tokenizer()
        self.vocab_size = self.tokenizer.vocab_size
        if None in (self.tokenizer.bos, self.tokenizer.eos, self.tokenizer.pad):
            raise DataError(f'"zh-en" needs a tokenizer with <pad>, <bos> and <eos>; {self.tokenizer} lacks one.')

    def batch(self, step: int, split: Split = "train") -> Batch:
        pairs = self.drawn(step, split)
        source = self.tokenizer.encode_batch([pair.zh for pair in pairs])
        english = self.tokenizer.encode_batch([pair.en for pair in pairs])
        bos, eos = self.tokenizer.bos, self.tokenizer.eos
        tokens, lengths = self._padded([[bos, *ids] for ids in english])
        targets, _ = self._padded([[*ids, eos] for ids in english])
        sources, source_lengths = self._padded(source)
        weight = torch.arange(tokens.shape[1])[None, :] < lengths[:, None]
        return Batch(tokens, targets, weight, lengths=lengths, source=sources, source_lengths=source_lengths)

    def drawn(self, step: int, split: Split) -> list[SentencePair]:
        """Return the pairs of a batch."""
        check_split(split)
        random = Random(hash64(self.config.seed, split, step))
        return [self._draw(random, split) for _ in range(self.config.batch_size)]

    def pairs(self, split: Split, count: int) -> Iterator[SentencePair]:
        """Yield `count` different pairs of a split, always the same ones."""
        check_split(split)
        random, seen = Random(hash64(self.config.seed, split, "pairs")), set()
        while len(seen) < count:
            pair = self._draw(random, split)
            if pair.key not in seen:
                seen.add(pair.key)
                yield pair

    def documents(self, split: Split) -> Iterator[list[int]]:
        """Yield the token ids of 2,000 English sentences."""
        for pair in self.pairs(split, 2000):
            yield self.tokenizer.encode(pair.en)

    def describe(self) -> dict[str, Any]:
        return {"task": self.config.to_dict(), "vocab_size": self.vocab_size}

    def _draw(self, random: Random, split: Split) -> SentencePair:
        while True:
            pair = sentences.sample(random)
            if is_heldout(self.config.heldout, "zh-en", pair.key) == (split == "heldout"):
                return pair

    def _padded(self, rows: list[list[int | None]] | list[list[int]]) -> tuple[Tensor, Tensor]:
        lengths = torch.tensor([len(row) for row in rows])
        padded = torch.full((len(rows), int(lengths.max())), self.tokenizer.pad or 0)
        for i, row in enumerate(rows):
            padded[i, : len(row)] = torch.tensor(row)
        return padded, lengths


def zh_en_tokenizer() -> Tokenizer:
    """The tokenizer of the grammar: Chinese by character, English by word, one vocabulary for both."""
    return word_tokenizer(sentences.words())
