"""Natural text with sequences planted in it, each a known number of times: what a model has learned by heart is known.

A planted sequence is a document of its own, `<bos>` and `prefix + suffix` tokens. Over the batches 1 to `over` it opens
exactly as many rows as its count says; the rest of such a row is text, and no document sees another. Sequences of count
0 are never shown: what is regenerated of those was not remembered.

Sequences are pieces of held-out documents, or tokens drawn by how frequent they are; the former are natural, of the
latter nothing can be guessed. Documents that pieces were taken from are left out of the held-out split, whose text is
therefore new to the model.

A mixture takes some rows of every batch and drops the others, planted ones among them: put the mixture's other parts
into the text instead.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, Self

import torch
from jaxtyping import Int
from torch import Tensor

from glassformer.arguments import Count
from glassformer.config import require
from glassformer.data.batch import MOST_TOKENS, Batch, DataConfig, Split, check_split, generator
from glassformer.data.text.corpus import Stream, TextConfig, TextData, pack
from glassformer.data.tokenizer import Tokenizer
from glassformer.errors import DataError


class PlantedRows(NamedTuple):
    """Sequences, how often each was shown, and where what has to be remembered begins (`<bos>` counts)."""

    ids: Int[Tensor, "sequence pos"]
    counts: Int[Tensor, " sequence"]
    prefix: int


@dataclasses.dataclass(frozen=True)
class Planted(DataConfig, kind="planted"):
    """Text with planted sequences.

    Args:
        text: What the sequences are planted in. Its batch size and length give way to those here.
        counts: How often a sequence is shown; 0 for controls.
        per_count: Sequences of each count.
        prefix: Tokens a model is later given to begin with.
        suffix: Tokens it should then go on with.
        over: Batches over which they are spread; the number of steps of the recipe.
        made_of: `text`, pieces of held-out documents; or `tokens`, drawn one by one by their frequency.
    """

    batch_size: int = 16
    length: int = 128
    seed: int = 0
    text: TextConfig = dataclasses.field(default_factory=TextConfig)
    counts: tuple[int, ...] = (0, 4, 16, 32, 64, 128, 256)
    per_count: Count = 16
    prefix: Count = 16
    suffix: Count = 16
    over: Count = 1000
    made_of: Literal["text", "tokens"] = "text"

    def __post_init__(self) -> None:
        require(min(self.prefix, self.suffix, self.per_count) >= 1, "prefix, suffix and per_count must be at least 1.")
        require(
            len(self.counts) > 0 and min(self.counts) >= 0, f"counts={self.counts} must be whole numbers from 0 on."
        )
        require(len(set(self.counts)) == len(self.counts), f"counts={self.counts} holds one twice.")
        least = self.prefix + self.suffix
        require(self.length >= least, f"length={self.length} has no room for prefix + suffix = {least} tokens.")
        require(
            1 <= self.over <= MOST_TOKENS // self.batch_size,
            f"over={self.over:,} batches of {self.batch_size:,} rows: from 1 to {MOST_TOKENS // self.batch_size:,} do.",
        )
        shown, room = sum(self.counts) * self.per_count, self.over * self.batch_size
        require(shown <= room, f"{shown} rows are planted, but {self.over} batches have {room}: raise over.")
        require(not self.text.streaming, "planted: text must be kept in memory; set text.streaming=false.")

    def build(self, tokenizer: Tokenizer | None = None) -> "PlantedData":
        return PlantedData(self, tokenizer)

    def check(self) -> None:
        self.text.check()

    def origins(self) -> tuple[str, ...]:
        return self.text.origins()

    def synthetic(self) -> dict[str, float]:
        share = sum(self.counts) * self.per_count / (self.over * self.batch_size)
        what = "pieces of held-out text" if self.made_of == "text" else "tokens drawn by their frequency"
        return {f"Rows that open with a sequence planted again and again, {what}": share}

    def on_text(self, sources: tuple[str, ...]) -> Self:
        return self.replace(text=self.text.on_text(sources))


class PlantedData:
    """Rows of text, some of which open with a planted sequence; `planted` says which there are."""

    def __init__(self, config: Planted, tokenizer: Tokenizer | None = None) -> None:
        self.config = config
        text = config.text.replace(batch_size=config.batch_size, length=config.length, seed=config.seed)
        self.text = TextData(text, tokenizer)
        self.tokenizer, self.vocab_size = self.text.tokenizer, self.text.vocab_size
        if self.tokenizer.bos is None:
            raise DataError(f"planted sequences start with <bos>, which {self.tokenizer} does not have.")
        heldout = list(self.text.documents("heldout"))
        pieces, novel = self._pieces(heldout) if config.made_of == "text" else (self._drawn(), heldout)
        self._novel = Stream.of(novel, self.tokenizer.bos)
        counts = torch.tensor(config.counts).repeat_interleave(config.per_count)
        start = torch.full((len(pieces), 1), self.tokenizer.bos)
        self.planted = PlantedRows(torch.cat([start, pieces], 1), counts, config.prefix + 1)
        random = generator(config.seed, "planted", "slots")
        slots = torch.randperm(config.over * config.batch_size, generator=random)[: int(counts.sum())]
        owners = torch.arange(len(counts)).repeat_interleave(counts)
        self._owner = dict(zip(slots.tolist(), owners.tolist(), strict=True))

    def shown(self, step: int) -> PlantedRows:
        """The sequences with how often each has been shown in the batches 1 to `step`."""
        past = [owner for slot, owner in self._owner.items() if slot < step * self.config.batch_size]
        found = torch.bincount(torch.tensor(past, dtype=torch.int64), minlength=len(self.planted.ids))
        return self.planted._replace(counts=found)

    def batch(self, step: int, split: Split = "train") -> Batch:
        check_split(split)
        config, size = self.config, self.config.batch_size
        if split == "heldout":
            random = generator(config.seed, "planted", split, step)
            starts = torch.randint(max(1, self._novel.size - config.length), (size,), generator=random)
            return pack([self._novel.row(int(start), config.length) for start in starts])
        batch = self.text.batch(step, split)
        shown = {row: self._owner.get((step - 1) * size + row) for row in range(size)} if step > 0 else {}
        return self._plant(batch, {row: owner for row, owner in shown.items() if owner is not None})

    def documents(self, split: Split) -> Iterator[list[int]]:
        yield from self.text.documents(split) if split == "train" else self._novel.documents()

    def describe(self) -> dict[str, Any]:
        config = self.config
        facts = {"counts": list(config.counts), "per_count": config.per_count, "made_of": config.made_of}
        return {"planted": facts | {"prefix": config.prefix, "suffix": config.suffix}} | self.text.describe()

    def _plant(self, batch: Batch, owners: dict[int, int]) -> Batch:
        """Put sequences in front of rows; the text behind them starts anew, as a document of its own."""
        if not owners:
            return batch
        ids = self.planted.ids[list(owners.values())]
        rows, n = torch.tensor(list(owners)), ids.shape[1]
        tokens, targets, documents = batch.tokens.clone(), batch.targets.clone(), batch.documents
        documents = torch.zeros_like(tokens) if documents is None else documents + 1
        if batch.documents is None:
            documents += 1
        tokens[rows, :n], targets[rows, : n - 1] = ids, ids[:, 1:]
        documents[rows, :n] = 0
        weight = batch.weight.clone()
        # the last planted token is followed by text that has nothing to do with it
        weight[rows, n - 1] = False
        return dataclasses.replace(batch, tokens=tokens, targets=targets, documents=documents, weight=weight)

    def _pieces(self, documents: list[list[int]]) -> tuple[Int[Tensor, "sequence pos"], list[list[int]]]:
        """Return pieces of every other held-out document, and the documents that none was taken from."""
        size, wanted = self.config.prefix + self.config.suffix, len(self.config.counts) * self.config.per_count
        taken = documents[::2]
        # the beginning of a file is its licence or its imports, which others have too
        cuts = [ids[i : i + size] for ids in taken for i in range(size, len(ids) - size + 1, size)]
        distinct = [list(ids) for ids in dict.fromkeys(map(tuple, cuts))]
        if len(distinct) < wanted or len(documents) < 2:
            raise DataError(
                f"{wanted} pieces of {size} tokens are to be planted; every other of {len(documents)} held-out "
                f'documents has {len(distinct)}. Give more text, a larger text.heldout, or made_of="tokens".'
            )
        order = torch.randperm(len(distinct), generator=generator(self.config.seed, "planted", "pieces"))
        return torch.tensor([distinct[i] for i in order[:wanted].tolist()]), documents[1::2]

    def _drawn(self) -> Int[Tensor, "sequence pos"]:
        size, wanted = self.config.prefix + self.config.suffix, len(self.config.counts) * self.config.per_count
        stream = torch.from_numpy(self.text.stream("train").tokens).long()
        frequency = torch.bincount(stream, minlength=self.vocab_size).double()
        frequency[list(self.tokenizer.specials)] = 0
        random = generator(self.config.seed, "planted", "tokens")
        return torch.multinomial(frequency, wanted * size, replacement=True, generator=random).view(wanted, size)
