"""Sentences of the Chinese-English grammar with answer keys: their derivation, read off by rules.

part        part of speech: noun, pronoun, verb, adjective, aspect, measure, …
phrase      the smallest phrase around it: S, NP, VP, PP, AP, …
role        subject, object, complement, place, time, …: of the phrases it stands in, the innermost that has one
depth       how deep in the tree it stands
sense of …  what a word with two meanings means here, known from the other language

The grammar plants three such words: 看 is to read or to watch, by its object; "you" is 你 or 你们; a "cup" holds tea
or is a thing by itself.
"""

from collections.abc import Iterable
from typing import Literal

from glassformer.data.grammar import SentencePair
from glassformer.data.labels.labelled import Class, LabelledDocument, LabelledText, by_token
from glassformer.data.labels.phrase_rules import Derivation
from glassformer.data.labels.tree import Node, Tree
from glassformer.data.labels.zh_en_rules import CHINESE, ENGLISH, VERBS, verb_forms
from glassformer.data.tokenizer import Tokenizer
from glassformer.errors import DataError

Language = Literal["zh", "en"]
STOPS = "。？.?"


def zh_en_labels(pairs: Iterable[SentencePair], tokenizer: Tokenizer, language: Language = "zh") -> LabelledText:
    """Sentences of the grammar as tokens with classes: part of speech, phrase, role, depth, senses of ambiguous words.

    Args:
        pairs: Sentences, as `ZhEnData.pairs` and `sample` write them.
        tokenizer: Splits them; nothing is put around them.
        language: Which side of a pair.

    Returns:
        A document for each pair, with its tree.

    Raises:
        DataError: A sentence is none of the grammar.

    Example:
        >>> from glassformer.data.grammar import SentencePair, zh_en_tokenizer
        >>> found = zh_en_labels([SentencePair("猫吃鱼", "The cat eats fish", "")], zh_en_tokenizer(), "en")
        >>> found[0].classes["role"]
        ('subject', 'subject', None, 'object')
    """
    return LabelledText(_labelled(pair, tokenizer, language) for pair in pairs)


def derivation(sentence: str, language: Language) -> Derivation:
    """The derivation of a sentence; its tree holds all of it, the stop included.

    Args:
        sentence: As the grammar writes it.
        language: Of the sentence.

    Raises:
        DataError: It is no sentence of the grammar.
    """
    told = sentence.rstrip(STOPS)
    rules = CHINESE if language == "zh" else ENGLISH
    found = rules.derive(told.lower()) if told else None
    if found is None:
        called = "Chinese" if language == "zh" else "English"
        raise DataError(f'"{sentence}" is no {called} sentence of the Chinese-English grammar.')
    root, *others = found.tree.nodes
    stops = [Node("stop", len(told), len(sentence), 0)] * (len(told) < len(sentence))
    tree = Tree((root._replace(end=len(sentence)), *others, *stops))
    return Derivation(tree, (*found.roles, *[None] * len(stops)), (*found.phrases, *[False] * len(stops)))


def _labelled(pair: SentencePair, tokenizer: Tokenizer, language: Language) -> LabelledDocument:
    text = pair.zh if language == "zh" else pair.en
    found = derivation(text, language)
    tree, over = found.tree, found.tree.deepest
    senses = _senses(found, pair, language)
    characters: dict[str, list[Class]] = {
        "part": [None if found.phrases[node] else tree.nodes[node].kind for node in over],
        "phrase": [_phrase(found, node) for node in over],
        "role": [found.roles[node] for node in over],
        "depth": [str(tree.depths[node]) for node in over],
    }
    characters |= {f"sense of {word}": [told.get(node) for node in over] for word, told in senses.items()}
    return by_token(text, tokenizer, characters, tree)


def _phrase(found: Derivation, node: int) -> str:
    while not found.phrases[node]:
        node = found.tree.nodes[node].parent
    return found.tree.nodes[node].kind


def _senses(found: Derivation, pair: SentencePair, language: Language) -> dict[str, dict[int, str]]:
    """Return the nodes of words with two meanings, each with the one that the other language shows."""
    english = set(pair.en.rstrip(STOPS).lower().split())
    text = (pair.zh if language == "zh" else pair.en).lower()
    told: dict[str, dict[int, str]] = {"看": {}} if language == "zh" else {"you": {}, "cup": {}}
    for place, node in enumerate(found.tree.nodes):
        word = text[node.first : node.end]
        if node.kind == "verb" and word == "看" and language == "zh":
            told["看"][place] = next(sense for sense, forms in _readings("看") if english & forms)
        elif node.kind == "pronoun" and word == "you":
            told["you"][place] = "several" if "你们" in pair.zh else "one"
        elif node.kind in ("measure", "noun") and word in ("cup", "cups"):
            told["cup"][place] = "container" if node.kind == "measure" else "thing"
    return told


def _readings(verb: str) -> list[tuple[str, set[str]]]:
    """Return the English verbs that a Chinese one stands for, each with its forms."""
    forms = [verb_forms(one) for one in VERBS if one.zh == verb]
    return [(one[0], set(one)) for one in forms]
