"""Labels of the Chinese-English grammar against what the grammar decided when it wrote the sentence."""

from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

import pytest

from glassformer.data.grammar import SentencePair, lexicon, sentences, zh_en_tokenizer
from glassformer.data.labels import LabelledDocument, zh_en_labels
from glassformer.data.labels.zh_en import Language
from glassformer.data.labels.zh_en_rules import CHINESE, ENGLISH, verb_forms
from glassformer.errors import DataError

TOKENIZER = zh_en_tokenizer()
LANGUAGES: tuple[Language, ...] = ("zh", "en")


class Decided(NamedTuple):
    """A sentence, and what the grammar drew for it; the object of clauses alone."""

    pair: SentencePair
    subject: Any
    verb: Any
    objects: tuple[str, str] | None


@pytest.fixture(scope="module")
def decided() -> list[Decided]:
    return [*_written(250)]


def _written(n: int) -> Iterator[Decided]:
    """Write sentences and listen to what the grammar decides on the way."""
    heard: dict[str, Any] = {}
    clause, verb, be = sentences._clause, sentences._verb, sentences._be

    def hear_clause(random, one, mood, zh, en, **more):
        heard["objects"] = (zh, en)
        return clause(random, one, mood, zh, en, **more)

    def hear_verb(one, mood, place=""):
        heard.update(subject=mood.subject, verb=one)
        return verb(one, mood, place)

    def hear_be(mood):
        heard["subject"] = mood.subject
        return be(mood)

    random, patch = Random(5), pytest.MonkeyPatch()
    with patch.context() as changed:
        changed.setattr(sentences, "_clause", hear_clause)
        changed.setattr(sentences, "_verb", hear_verb)
        changed.setattr(sentences, "_be", hear_be)
        for _ in range(n):
            heard.clear()
            yield Decided(sentences.sample(random), heard.get("subject"), heard.get("verb"), heard.get("objects"))


def labelled(pair: SentencePair, language: Language) -> LabelledDocument:
    (found,) = zh_en_labels([pair], TOKENIZER, language)
    return found


def said(document: LabelledDocument, name: str, value: str) -> str:
    """Return the text of the tokens of a class, in their order."""
    held = [document.text[slice(*span)] for span, one in zip(document.spans, document.classes[name]) if one == value]
    return " ".join(held).lower()


@pytest.mark.parametrize("language", LANGUAGES)
def test_subject_verb_and_object_are_what_the_grammar_drew(decided, language):
    chinese, seen = language == "zh", 0
    for one in decided:
        document = labelled(one.pair, language)
        if one.subject is not None:
            expected = " ".join(one.subject.zh) if chinese else one.subject.en.lower()
            assert said(document, "role", "subject") == expected, one.pair
        if one.objects is not None:
            what = one.pair.en.lower().startswith("what ")
            expected = " ".join(one.objects[0]) if chinese else ("what" if what else one.objects[1].lower())
            assert said(document, "role", "object") == expected, one.pair
            seen += bool(expected)
        if one.verb is not None:
            verbs = said(document, "part", "verb")
            assert verbs.replace(" ", "") == one.verb.zh if chinese else verbs in verb_forms(one.verb), one.pair
    assert seen > 130


@pytest.mark.parametrize("language", LANGUAGES)
def test_places_and_times_are_those_of_the_lexicon(decided, language):
    side = LANGUAGES.index(language)
    tables = {"place": (lexicon.PLACES, lexicon.SURFACES), "time": lexicon.TIMES.values()}
    for one in decided[::3]:
        document = labelled(one.pair, language)
        for role, tables_of in tables.items():
            known = {row[side].lower() for table in tables_of for row in table}
            held = said(document, "role", role)
            found = held.replace(" ", "") if side == 0 else held
            assert not found or found.removeprefix("在" if role == "place" else "") in known
            assert bool(found) == bool(said(labelled(one.pair, LANGUAGES[1 - side]), "role", role)), one.pair


@pytest.mark.parametrize(("language", "rules"), [("zh", CHINESE), ("en", ENGLISH)])
def test_a_sentence_has_one_reading_and_its_words_make_it_up(decided, language, rules):
    for one in decided[::4]:
        document = labelled(one.pair, language)
        text = document.text.rstrip("。？.?").lower()
        assert len({(found.tree.nodes, found.roles) for found in rules.readings(text)}) == 1, text
        assert document.tree is not None
        nodes = document.tree.nodes
        parents = {node.parent for node in nodes}
        leaves = [node for place, node in enumerate(nodes) if place not in parents]
        spelled = "".join(document.text[node.first : node.end] for node in leaves)
        assert spelled == document.text.replace(" ", "") or [n.end for n in leaves[:-1]] == [
            n.first - (language == "en" and document.text[n.first - 1] == " ") for n in leaves[1:]
        ]
        assert all(nodes[n.parent].first <= n.first < n.end <= nodes[n.parent].end for n in nodes[1:])


@pytest.mark.parametrize("language", LANGUAGES)
def test_phrase_and_depth_are_those_of_the_smallest_node_around_a_token(decided, language):
    for one in decided[::8]:
        document = labelled(one.pair, language)
        assert document.tree is not None
        nodes = document.tree.nodes
        for token, (first, end) in enumerate(document.spans):
            around = [place for place, node in enumerate(nodes) if node.first <= first and end <= node.end]
            assert document.classes["depth"][token] == str(len(around) - 1) == str(document.depths[token])
            phrases = [nodes[place].kind for place in around if nodes[place].kind.isupper()]
            assert document.classes["phrase"][token] == phrases[-1]
            assert document.classes["part"][token] == nodes[around[-1]].kind
        spans = {(p.first, p.end) for p in document.phrases}
        assert len(document.phrases) == len(nodes) and (0, len(document.ids)) in spans


def test_a_word_of_two_meanings_has_the_one_that_the_grammar_meant():
    seen = set()
    films = [form for noun in lexicon.NOUNS if "film" in noun.tags.split() for form in (noun.zh,)]
    for one in _written(900):
        if not any(word in f"{one.pair.zh} {one.pair.en.lower()}" for word in ("看", "you", "cup")):
            continue
        chinese, english = (labelled(one.pair, language) for language in LANGUAGES)
        sense = {*chinese.classes["sense of 看"]} - {None}
        if one.verb is not None and one.verb.zh == "看" and one.objects is not None:
            assert sense == {"watch" if any(film in one.objects[0] for film in films) else "read"}
        else:
            assert not sense
        if one.subject is not None and one.subject.en == "you":
            assert {*english.classes["sense of you"]} - {None} == {"several" if one.subject.zh == "你们" else "one"}
        cups = {*english.classes["sense of cup"]} - {None}
        assert cups == {kind for kind, zh in (("container", "杯"), ("thing", "杯子")) if "cup" in one.pair.en
                        and (zh in one.pair.zh.replace("杯子", "" if zh == "杯" else "杯子"))}  # fmt: skip
        seen |= sense | {*english.classes["sense of you"]} | cups
    assert seen >= {"read", "watch", "one", "several", "container", "thing"}


@pytest.mark.parametrize(
    ("text", "language"), [("猫猫猫", "zh"), ("", "zh"), ("The cat the dog", "en"), ("。", "zh"), ("Colourless", "en")]
)
def test_what_the_grammar_does_not_write_is_refused(text, language):
    with pytest.raises(DataError, match="sentence of the Chinese-English grammar"):
        zh_en_labels([SentencePair(text, text, "")], TOKENIZER, language)
