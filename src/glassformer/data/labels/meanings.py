"""Meanings that are planted in text: senses of homographs, and what a pronoun stands for.

a fashion model walks .                                          the model is of the sense fashion
…, John gave a lamp to Mary. Later Mary showed it to John.       it means the lamp
"""

import re
from collections.abc import Iterable
from random import Random

from glassformer.arguments import Count, checked
from glassformer.data.batch import Split, check_split, hash64
from glassformer.data.labels.labelled import Class, LabelledText, by_token
from glassformer.data.pairs.templates import draw
from glassformer.data.tasks.senses import ARTICLES, COLOURS, CREATURES, HOMOGRAPHS, STOP, TEXTURES
from glassformer.data.tokenizer import Tokenizer
from glassformer.errors import DataError

# what a creature is of, or a homograph means, is said by these words before it
_DECIDING = {*TEXTURES, *(domain for senses in HOMOGRAPHS.values() for domain in senses)}
_KNOWN = {*ARTICLES, *COLOURS, *CREATURES, *TEXTURES.values(), *HOMOGRAPHS, *_DECIDING, STOP}
_KNOWN |= {verb for senses in HOMOGRAPHS.values() for verb in senses.values()}


def sense_labels(texts: Iterable[str], tokenizer: Tokenizer) -> LabelledText:
    """Sentences of `Senses` with the sense of each noun: `sense of model` and its like, and `sense of creatures`.

    Args:
        texts: Sentences, words apart, as that task's tokenizer decodes its rows; the last may be cut off.
        tokenizer: Splits them.

    Raises:
        DataError: A word is none of that language.
    """
    return LabelledText(by_token(text, tokenizer, _senses(text)) for text in texts)


def _senses(text: str) -> dict[str, list[Class]]:
    found: dict[str, list[Class]] = {f"sense of {noun}": [None] * len(text) for noun in (*HOMOGRAPHS, "creatures")}
    decided: str | None = None
    for word in re.finditer(r"\S+", text):
        if word[0] not in _KNOWN:
            raise DataError(f'"{word[0]}", at character {word.start()}, is no word of the sentences of Senses().')
        if word[0] == STOP:
            decided = None
        decided = word[0] if word[0] in _DECIDING else decided
        if word[0] in HOMOGRAPHS or word[0] in CREATURES:
            name = f"sense of {word[0] if word[0] in HOMOGRAPHS else 'creatures'}"
            found[name][word.start() : word.end()] = [decided] * len(word[0])
    return found


@checked
def pronoun_labels(n: Count, tokenizer: Tokenizer, *, seed: int = 0, split: Split | None = None) -> LabelledText:
    """Texts in which a thing is given and handed on as "it", with what it means: the property `it means`.

    They are those that the template `indirect_objects` writes into `TemplateText`, two sentences and more. The thing
    itself has the same class, and stands before.

    Args:
        n: How many texts.
        tokenizer: Splits them.
        seed: Of the words.
        split: As for `indirect_objects`.
    """
    if split is not None:
        check_split(split)
    random, found = Random(hash64("pronoun_labels", seed)), []
    while len(found) < n:
        drawn = draw("indirect_objects", random, split)
        first = f"{drawn.pair.clean}{drawn.pair.answer}."
        text = first + "".join(f" {prompt}{answer}." for prompt, answer in drawn.more)
        pronouns = [word.span() for word in re.finditer(r"\bit\b", text) if word.start() > len(first)]
        if pronouns:
            begin, end = _given(first)
            told: list[Class] = [None] * len(text)
            for start, stop in ((begin, end), *pronouns):
                told[start:stop] = [text[begin:end]] * (stop - start)
            found.append(by_token(text, tokenizer, {"it means": told}))
    return LabelledText(found)


def _given(sentence: str) -> tuple[int, int]:
    """Return where the thing given stands: behind the last article of the sentence."""
    thing = re.search(r".*\b(?:a|the) (\w+)", sentence)
    assert thing is not None, "what is given has an article"
    return thing.span(1)
