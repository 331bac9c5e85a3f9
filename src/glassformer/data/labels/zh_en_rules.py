"""Rules of the Chinese-English grammar, by which its sentences are taken apart again; words are those of its lexicon.

Parts of speech are spelled small, phrases in capitals. The rules take more than the grammar writes, which does no harm:
what it writes has one reading by them.
"""

from collections.abc import Iterable

from glassformer.data.grammar import lexicon
from glassformer.data.grammar.lexicon import Verb
from glassformer.data.labels.phrase_rules import Rules

VERBS: tuple[Verb, ...] = (
    *lexicon.TRANSITIVE, *lexicon.STATES, *lexicon.ABOUT_PEOPLE, *lexicon.INTRANSITIVE, lexicon.GO,
)  # fmt: skip
_DETERMINERS = ("the", "this", "that", "these", "those")
_ARTICLES = (*_DETERMINERS, "a", "an", "no")
_PREPOSITIONS = ("at", "in", "on", "under")
_NUMBERS = lexicon.NUMERALS


def _lower(words: Iterable[str]) -> frozenset[str]:
    return frozenset(word.lower() for word in words if word)


def _times(side: int) -> frozenset[str]:
    return _lower(pair[side] for pairs in lexicon.TIMES.values() for pair in pairs)


def verb_forms(verb: Verb) -> list[str]:
    """Return the English forms of a verb, without the particle."""
    return verb.forms.partition(" +")[0].split()


def _english_words() -> dict[str, frozenset[str]]:
    possessives = _lower(english for _, english in lexicon.POSSESSIVES)
    known = {*_DETERMINERS, *possessives}
    people = [phrase.en.split() for phrase in lexicon.PEOPLE]
    places = [english.split() for table in (lexicon.PLACES, lexicon.SURFACES) for _, english in table]
    goals = [english.split() for _, english in lexicon.DESTINATIONS]
    named = [" ".join(words) for words in (*people, *goals) if words[0] not in known]
    nouns = [words[-1] for words in (*people, *goals) if words[0] in known]
    nouns += [form for one in lexicon.NOUNS if not one.of for form in (one.one, one.many)]
    nouns += [one.of for one in lexicon.NOUNS if one.of] + [form for _, *forms in lexicon.PROFESSIONS for form in forms]
    return {
        "pronoun": _lower(form for one in lexicon.PRONOUNS for form in (one.en, one.object)) | {"who", "what"},
        "name": _lower((*named, *(words[-1] for words in places if words[-1][0].isupper()))),
        "noun": _lower((*nouns, *(words[-1] for words in places if words[-1][0].islower()))),
        "measure": _lower(form for one in lexicon.NOUNS if one.of for form in (one.one, one.many)),
        "adjective": _lower(one.en for one in (*lexicon.ADJECTIVES, *lexicon.FEELINGS)),
        "comparative": _lower(one.comparative for one in (*lexicon.ADJECTIVES, *lexicon.FEELINGS)),
        "determiner": frozenset(_ARTICLES),
        "possessive": possessives,
        "numeral": _lower(english for _, english in _NUMBERS),
        "quantifier": frozenset(("some", "many", "a lot of")),
        "preposition": frozenset(_PREPOSITIONS),
        "of": frozenset(("of",)),
        "than": frozenset(("than",)),
        "there": frozenset(("there",)),
        "copula": frozenset(("am", "is", "are")),
        "auxiliary": frozenset(("do", "does", "did", "have", "has", "will", "can", "cannot", "am", "is", "are")),
        "modal": frozenset(("want", "wants", "like", "likes")),
        "to": frozenset(("to",)),
        "particle": frozenset(one.forms.partition(" +")[2] for one in VERBS) - {""},
        "verb": _lower(form for one in VERBS for form in verb_forms(one)),
        "adverb": frozenset(("not", "never", "ever", "often")),
        "degree": frozenset(("very", "too")),
        "time": _times(1),
    }


ENGLISH = Rules(
    phrases={
        "S": (
            "NP:subject VP",
            "auxiliary NP:subject VP",
            "copula NP:subject PRED",
            "NP:object auxiliary NP:subject VP",
            "there copula NP:existent PP:place",
            "copula there NP:existent PP:place",
        ),
        "VP": (
            "copula adverb? PRED",
            "auxiliary? adverb? adverb? VG NP:object? PP:place? TP:time?",
        ),
        "VG": ("modal to verb particle?", "verb particle?"),
        "PRED": ("AP:complement than NP:standard", "degree? AP:complement", "NP:complement"),
        "AP": ("comparative", "adjective"),
        "NP": (
            "pronoun",
            "name",
            "determiner? possessive? numeral? quantifier? measure of adjective? noun",
            "determiner? possessive? numeral? quantifier? adjective? noun",
        ),
        "PP": ("preposition NP",),
        "TP": ("time",),
    },
    words=_english_words(),
    spaced=True,
)


def _chinese_words() -> dict[str, frozenset[str]]:
    pronouns = [one.zh for one in lexicon.PRONOUNS]
    possessives = [zh for zh, _ in lexicon.POSSESSIVES]
    begins = sorted((*possessives, "这个", "那个", "那些", *pronouns), key=len, reverse=True)
    people = [(next((b for b in begins if one.zh.startswith(b)), ""), one) for one in lexicon.PEOPLE]
    named = [one.zh for _, one in people if one.en[0].isupper()]
    places = [zh for zh, _ in (*lexicon.PLACES, *lexicon.SURFACES)]
    cities = [zh for zh, english in lexicon.DESTINATIONS if english[0].isupper()]
    nouns = [one.zh.removeprefix(begin) for begin, one in people if one.zh not in named]
    nouns += [one.zh for one in lexicon.NOUNS] + [zh for zh, *_ in lexicon.PROFESSIONS]
    nouns += [zh for zh, _ in lexicon.DESTINATIONS if zh not in cities]
    return {
        "pronoun": frozenset((*pronouns, "谁", "什么")),
        "name": frozenset((*named, *cities)),
        "noun": frozenset(nouns),
        "location": frozenset(places),
        "possessive": frozenset(possessives),
        "determiner": frozenset("这那"),
        "numeral": frozenset((*(zh for zh, _ in _NUMBERS), "一")),
        "measure": frozenset((*(one.measure for one in lexicon.NOUNS), "些", "个")),
        "quantifier": frozenset(("很多",)),
        "adjective": frozenset(one.zh for one in (*lexicon.ADJECTIVES, *lexicon.FEELINGS)),
        "的": frozenset("的"),
        "negation": frozenset("不没"),
        "aspect": frozenset(("正在", "在", "会", "想", "能", "经常", "喜欢", "了", "过")),
        "preposition": frozenset("在"),
        "verb": frozenset(one.zh for one in VERBS),
        "copula": frozenset("是"),
        "than": frozenset("比"),
        "degree": frozenset(("很", "非常", "太")),
        "time": _times(0),
        "question": frozenset("吗"),
    }


CHINESE = Rules(
    phrases={
        "S": (
            "TP:time? NP:subject VP question?",
            "NP:subject TP:time VP question?",
            "LP:place negation? verb NP:existent question?",
        ),
        "VP": (
            "than NP:standard AP:complement",
            "negation? copula NP:complement",
            "negation? aspect? PP:place? verb aspect? NP:object?",
            "negation? degree? AP:complement aspect?",
        ),
        "AP": ("adjective",),
        "NP": (
            "pronoun noun",
            "pronoun",
            "name",
            "possessive? determiner? numeral? measure? quantifier? adjective? 的? noun",
        ),
        "PP": ("preposition LP",),
        "LP": ("location",),
        "TP": ("time",),
    },
    words=_chinese_words(),
    spaced=False,
)
