"""Words that mean what their neighbours make of them: adjectives before nouns, and homographs.

    a fluffy blue creature purrs .      the texture decides the verb, the colour decides nothing
    a fashion model walks .             the domain decides which model it is
    a language model predicts .

Sentences follow each other in random order. The verb is determined by the noun together with one earlier word, so a
model has to bring that word's meaning to the noun; which word it is, is known.
"""

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.data.batch import Split
from glassformer.data.tasks.task import Alphabet, Rows, TaskConfig, check_shape

ARTICLES = ("a", "the")
COLOURS = ("blue", "red", "green")
CREATURES = ("creature", "animal", "pet")
# texture -> what such a creature does
TEXTURES = {"fluffy": "purrs", "scaly": "hisses", "slimy": "oozes"}
# homograph -> domain -> what it does in that sense
HOMOGRAPHS = {
    "model": {"fashion": "walks", "language": "predicts"},
    "bank": {"river": "floods", "savings": "lends"},
    "bat": {"cricket": "swings", "fruit": "flies"},
}
STOP = "."


class Phrase(NamedTuple):
    """A sentence, the place of its noun, that of the word which decides what the noun means, and the verb's.

    Places count words from 0; the verb follows the noun.
    """

    words: tuple[str, ...]
    noun: int
    decided_by: int

    @property
    def verb(self) -> int:
        return self.noun + 1


def phrases() -> list[Phrase]:
    """Every sentence of the grammar."""
    found = []
    for article in ARTICLES:
        for texture, verb in TEXTURES.items():
            for creature in CREATURES:
                found.append(Phrase((article, texture, creature, verb, STOP), 2, 1))
                for colour in COLOURS:
                    # adjectives come in either order, so that distance does not tell which of them decides
                    found.append(Phrase((article, texture, colour, creature, verb, STOP), 3, 1))
                    found.append(Phrase((article, colour, texture, creature, verb, STOP), 3, 2))
        for homograph, senses in HOMOGRAPHS.items():
            for domain, verb in senses.items():
                found.append(Phrase((article, domain, homograph, verb, STOP), 2, 1))
    return found


def sense_symbols() -> list[str]:
    """Return the grammar's vocabulary, `<bos>` first."""
    groups = [ARTICLES, COLOURS, TEXTURES, CREATURES, TEXTURES.values(), HOMOGRAPHS]
    words = [word for group in groups for word in group]
    for senses in HOMOGRAPHS.values():
        words += [*senses, *senses.values()]
    return ["<bos>", *words, STOP]


@dataclasses.dataclass(frozen=True)
class Senses(TaskConfig, kind="senses"):
    """Sentences in which a noun's meaning comes from one earlier word.

    Half of all sentences have homographs. What counts are the verbs, all of them determined.
    """

    batch_size: int = 32
    length: int = 48
    seed: int = 0

    def __post_init__(self) -> None:
        check_shape(self, least=6)

    def symbols(self) -> list[str]:
        return sense_symbols()

    def rows(self, alphabet: Alphabet, split: Split, random: torch.Generator) -> Rows:
        ids = {word: i for i, word in enumerate(self.symbols())}
        every = phrases()
        kinds = [[p for p in every if (p.words[p.noun] in HOMOGRAPHS) == wanted] for wanted in (False, True)]
        assert alphabet.bos is not None, "this task brings a <bos>"
        sequences: list[Tensor] = []
        weights: list[Tensor] = []
        for _ in range(self.batch_size):
            words, counts = [alphabet.bos], [False]
            while len(words) < self.length + 1:
                of_kind = kinds[int(torch.randint(2, (), generator=random))]
                phrase = of_kind[int(torch.randint(len(of_kind), (), generator=random))]
                words += [ids[word] for word in phrase.words]
                counts += [place == phrase.verb for place in range(len(phrase.words))]
            sequences.append(torch.tensor(words[: self.length + 1]))
            weights.append(torch.tensor(counts[1 : self.length + 1]))
        return Rows(torch.stack(sequences), torch.stack(weights))
