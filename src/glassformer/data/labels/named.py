"""Labelled text by name: what `--label python.kind` stands for, with as many documents as are asked for.

python.kind, python.text, …         files of Python: the standard library, or what is given
zh-en.part, zh-en.role, …           sentences of the Chinese-English grammar
copies.seen, copies.back            random tokens, repeated
senses.sense-of-model, …            sentences in which homographs are decided by the word before
pronouns.it-means                   a thing that is given and handed on as "it"
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from glassformer.arguments import Count, checked
from glassformer.data.grammar import ZhEnConfig
from glassformer.data.labels.copies import copy_labels
from glassformer.data.labels.labelled import LabelledDocument, LabelledText
from glassformer.data.labels.meanings import pronoun_labels, sense_labels
from glassformer.data.labels.python_code import python_labels
from glassformer.data.labels.zh_en import Language, zh_en_labels
from glassformer.data.tasks import Repeat, Senses
from glassformer.data.text.sources import STANDARD_LIBRARY, Document, read_source
from glassformer.data.tokenizer import Tokenizer
from glassformer.errors import DataError, nearest


class Asked(NamedTuple):
    """How much labelled text is made, and of what.

    Args:
        n: Documents.
        seed: Of what is drawn.
        length: Tokens of a document, at most.
        data: Files, folders or globs of Python.
        language: Side of the Chinese-English grammar.
    """

    n: int
    seed: int
    length: int
    data: tuple[str, ...]
    language: Language


@checked
def labelled_text(
    source: str,
    tokenizer: Tokenizer,
    n: Count = 64,
    *,
    seed: int = 0,
    length: Count = 256,
    data: Sequence[str] = (STANDARD_LIBRARY,),
    language: Language = "zh",
) -> LabelledText:
    """Documents of one of the sources of labels.

    Args:
        source: One of `LABEL_SOURCES`: python, zh-en, copies, senses, pronouns.
        tokenizer: Splits them.
        n: How many documents, at most: of Python there may be fewer files.
        seed: Of what is drawn; the sentences of zh-en are always the first of those held out.
        length: Tokens of a document, at most; what follows is cut off.
        data: Of python, where the files come from, as `read_source` takes it. What is no Python is left out.
        language: Of zh-en, which side.

    Raises:
        DataError: No such source, or no file is Python.
    """
    check_source(source)
    found = LABEL_SOURCES[source](tokenizer, Asked(n, seed, length, tuple(data), language))
    return LabelledText(found).cut(length)


def check_source(source: str) -> None:
    """Raise `DataError` unless labels of this name are made."""
    if source not in LABEL_SOURCES:
        known = ", ".join(LABEL_SOURCES)
        raise DataError(f'no labels "{source}".{nearest(source, LABEL_SOURCES)} There are labels of: {known}.')


def split_label(label: str) -> tuple[str, str]:
    """Return the source and the property of a label, `senses.sense-of-model`.

    Raises:
        DataError: It has no point, or its source is none.
    """
    source, point, name = label.partition(".")
    check_source(source)
    if not (point and name):
        raise DataError(f'a label is a source and a property, as python.kind; found "{label}".')
    return source, name.replace("-", " ")


def _python(tokenizer: Tokenizer, asked: Asked) -> list[LabelledDocument]:
    files = [document for source in asked.data for document in read_source(source) if document.text.strip()]
    Random(asked.seed).shuffle(files)
    found: list[LabelledDocument] = []
    for file in files:
        found += _if_python(file, tokenizer)
        if len(found) == asked.n:
            break
    if not found:
        raise DataError(f"{', '.join(asked.data)}: none of {len(files):,} files is Python that this Python can parse.")
    return found


def _if_python(file: Document, tokenizer: Tokenizer) -> LabelledText:
    try:
        return python_labels([file], tokenizer)
    except DataError:
        return LabelledText()


def _zh_en(tokenizer: Tokenizer, asked: Asked) -> LabelledText:
    return zh_en_labels(ZhEnConfig().build().pairs("heldout", asked.n), tokenizer, asked.language)


def _copies(tokenizer: Tokenizer, asked: Asked) -> LabelledText:
    longest = max(2, min(asked.length // 2, 60))
    drawn = Repeat(asked.n, asked.length, asked.seed, unit_min=max(2, longest // 3), unit_max=longest)
    return copy_labels(drawn.build(tokenizer).batch(0).tokens)


def _senses(tokenizer: Tokenizer, asked: Asked) -> LabelledText:
    data = Senses(batch_size=asked.n, seed=asked.seed).build()
    return sense_labels([data.tokenizer.decode(row) for row in data.batch(0).tokens.tolist()], tokenizer)


def _pronouns(tokenizer: Tokenizer, asked: Asked) -> LabelledText:
    return pronoun_labels(asked.n, tokenizer, seed=asked.seed)


LABEL_SOURCES: dict[str, Callable[[Tokenizer, Asked], Sequence[LabelledDocument]]] = {
    "python": _python,
    "zh-en": _zh_en,
    "copies": _copies,
    "senses": _senses,
    "pronouns": _pronouns,
}
