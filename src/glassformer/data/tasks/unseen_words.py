"""Words that were never seen in training: only the row itself can tell how they go on.

A language of random words of fixed length over an alphabet. Each row uses a few of them, all with different first
letters, over and over in random order. Some words never occur in training, or even some letters; held-out rows are half
made of those. Once a word has occurred in a row, its first letter determines the rest.
"""

import dataclasses
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from glassformer.arguments import Count, Kinds, Natural
from glassformer.config import require
from glassformer.data.batch import Split, generator
from glassformer.data.tasks.task import Alphabet, Rows, TaskConfig, check_shape


class Lexicon(NamedTuple):
    """The words of a language as ids of letters, and which of them are withheld from training."""

    words: Int[Tensor, "word letter"]
    withheld: Bool[Tensor, " word"]


class Marks(NamedTuple):
    """What each target of a row is; `next_token` axes: `batch pos`."""

    letter: Int[Tensor, "batch pos"]  # its place in its word, from 0
    occurrence: Int[Tensor, "batch pos"]  # how often its word has occurred, from 1
    withheld: Bool[Tensor, "batch pos"]  # whether its word was withheld from training


@dataclasses.dataclass(frozen=True)
class UnseenWords(TaskConfig, kind="unseen_words"):
    """Rows of recurring words; a share of the language is withheld from training.

    What counts are the letters of words that occurred in the row before, their first letters aside: all determined.

    Args:
        letters: Letters per word.
        alphabet: Different letters.
        words: Size of the language.
        withheld: How many of the words never occur in training.
        new_letters: How many letters never occur in training either; then every withheld word ends with one of them.
        per_row: Different words in a row.
    """

    batch_size: int = 16
    length: int = 96
    seed: int = 0
    letters: Count = 2
    alphabet: Kinds = 32
    words: Kinds = 1024
    withheld: Count = 256
    new_letters: Natural = 0
    per_row: Count = 16

    def __post_init__(self) -> None:
        check_shape(self, least=2 * self.letters)
        known = self.alphabet - self.new_letters
        require(self.letters >= 2, f"unseen_words: letters={self.letters}; a word of one letter determines nothing.")
        require(1 <= self.withheld < self.words, f"unseen_words: withheld={self.withheld} of words={self.words}.")
        require(known > self.per_row > 1, f"unseen_words: per_row={self.per_row} needs more than that many letters.")
        room = known**self.letters
        require(
            self.words <= room <= 2**24 and self.new_letters >= 0,
            f"unseen_words: {known} letters make {room} words of {self.letters}; words={self.words} must be no more.",
        )

    def symbols(self) -> list[str]:
        return ["<bos>", *(f"t{i}" for i in range(1, self.alphabet + 1))]

    def lexicon(self) -> Lexicon:
        """The language; it depends on the seed alone."""
        known = self.alphabet - self.new_letters
        random = generator(self.seed, "lexicon", 0)
        codes = torch.randperm(known**self.letters, generator=random)[: self.words]
        words = torch.stack([codes // known**i % known + 1 for i in range(self.letters)], 1)
        withheld = torch.arange(self.words) < self.withheld
        if self.new_letters:
            new = torch.randint(known + 1, self.alphabet + 1, (self.words,), generator=random)
            words[:, -1] = torch.where(withheld, new, words[:, -1])
        return Lexicon(words, withheld)

    def rows(self, alphabet: Alphabet, split: Split, random: torch.Generator) -> Rows:
        lexicon = self.lexicon()
        known, new = (
            _by_first(lexicon.words, chosen, self.alphabet) for chosen in (~lexicon.withheld, lexicon.withheld)
        )
        mixed = split == "heldout"
        usable = (known.number > 0) & (new.number > 0) if mixed else known.number > 0
        draw = torch.rand(self.batch_size, self.alphabet + 1, generator=random).masked_fill(~usable, -1)
        require(int(usable.sum()) >= self.per_row, "unseen_words: too few first letters; use more words.")
        first = draw.topk(self.per_row).indices
        pick = torch.rand(first.shape, generator=random)
        vocabulary = known.choose(first, pick)
        if mixed:
            vocabulary[:, ::2] = new.choose(first, pick)[:, ::2]
        slots = -(-self.length // self.letters)
        order = torch.randint(self.per_row, (self.batch_size, slots), generator=random)
        body = lexicon.words[vocabulary.gather(1, order)].flatten(1)[:, : self.length]
        assert alphabet.bos is not None, "this task brings a <bos>"
        sequence = torch.cat((torch.full((self.batch_size, 1), alphabet.bos), body), 1)
        marks = self.marks(sequence)
        return Rows(sequence, (marks.letter > 0) & (marks.occurrence > 1))

    def marks(self, sequence: Int[Tensor, "batch width"]) -> Marks:
        """Kind of each target of a row: of every token after the first."""
        lexicon, length = self.lexicon(), sequence.shape[1] - 1
        slots = length // self.letters
        body = sequence[:, 1 : 1 + slots * self.letters].unflatten(1, (slots, self.letters))
        same = (body[:, :, None] == body[:, None]).all(-1)
        occurrence = (same & torch.ones(slots, slots).tril().bool()).sum(-1)
        base = (self.alphabet + 1) ** torch.arange(self.letters)
        withheld = torch.isin((body * base).sum(-1), (lexicon.words[lexicon.withheld] * base).sum(-1))
        place = torch.arange(self.letters).repeat(slots).expand(len(sequence), -1)
        found = [place, *(x.repeat_interleave(self.letters, 1) for x in (occurrence, withheld))]
        # a word cut off at the end of the row counts as the first letter of one
        return Marks(*(torch.nn.functional.pad(x, (0, length - x.shape[1])) for x in found))


class _Words(NamedTuple):
    """Some words by their first letter, padded: `table[letter, i]` is an index in the lexicon for i < `number`."""

    table: Int[Tensor, "letter i"]
    number: Int[Tensor, " letter"]

    def choose(self, first: Int[Tensor, "row n"], pick: Tensor) -> Int[Tensor, "row n"]:
        """Return a word for each first letter; `pick`, from 0 to 1, says which."""
        return self.table[first, (pick * self.number[first]).long()]


def _by_first(words: Int[Tensor, "word letter"], chosen: Bool[Tensor, " word"], alphabet: int) -> _Words:
    groups = [(chosen & (words[:, 0] == letter)).nonzero()[:, 0] for letter in range(alphabet + 1)]
    return _Words(
        torch.nn.utils.rnn.pad_sequence(groups, batch_first=True), torch.tensor([len(group) for group in groups])
    )
