"""A small grammar that writes Chinese sentences together with their English translation.

Aspect markers carry the tense (了 past, 过 perfect, 正在 progressive, 会 future), numerals need measure words, English
needs articles, plurals, agreement and inversion. Each Chinese sentence has exactly one translation, by these rules: a
bare noun before a verb is the one at hand (猫吃鱼, the cat eats fish), after it plural or mass (养猫, keep cats), but
for people, who are at hand in both places (老师, the teacher); no marker is the simple present; 我的书 is one book, 你
and 你们 are both "you".
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from random import Random
from typing import NamedTuple, TypeVar

from glassformer.data.grammar import lexicon
from glassformer.data.grammar.lexicon import Adjective, Noun, NounPhrase, Person, Verb

T = TypeVar("T")


class SentencePair(NamedTuple):
    """A sentence in both languages, and the English without punctuation: what the held-out split goes by."""

    zh: str
    en: str
    key: str


class Object(NamedTuple):
    """A noun phrase after a verb. `counted` ones (two apples) do not go with negation."""

    zh: str
    en: str
    counted: bool
    plural: bool
    definite: bool


class Mood(NamedTuple):
    """Who is said to do it, in which aspect, and whether it is denied or asked."""

    aspect: str
    negative: bool
    question: bool
    subject: NounPhrase

    @property
    def inverted(self) -> bool:
        """Whether English puts the auxiliary first and Chinese adds 吗: questions, but not those that ask who."""
        return self.question and self.subject is not _WHO


class Aspect(NamedTuple):
    """Chinese before the verb, after it, and before it when negated (None: the verb's own negation)."""

    before: str
    after: str
    negated: str | None


ASPECTS = {
    "past": Aspect("", "了", "没"),
    "perfect": Aspect("", "过", "没"),
    "progressive": Aspect("正在", "", "没在"),
    "future": Aspect("会", "", "不会"),
    "want": Aspect("想", "", "不想"),
    "can": Aspect("能", "", "不能"),
    "habitual": Aspect("", "", None),
    "often": Aspect("经常", "", "不经常"),
    "like": Aspect("喜欢", "", "不喜欢"),
}
_SMALL_WORDS = [
    "一",
    "的",
    "了",
    "吗",
    "在",
    "比",
    "是",
    "不",
    "没",
    "有",
    "很",
    "多",
    "非常",
    "太",
    "些",
    "什么",
    "。",
    "？",
    ".",
    "?",
    "a",
    "an",
    "the",
    "some",
    "many",
    "a",
    "lot",
    "of",
    "no",
    "not",
    "never",
    "ever",
    "cannot",
    "there",
    "very",
    "too",
    "than",
    "often",
    "to",
    "want",
    "wants",
    "What",
    "There",
    "Do",
    "Does",
    "Did",
    "Am",
    "Is",
    "Are",
    "Have",
    "Has",
    "Will",
    "Can",
    "do",
    "does",
    "did",
    "am",
    "is",
    "are",
    "have",
    "has",
    "will",
    "can",
    "what",
]
_VOWELS = tuple("aeiou")
_AM: dict[Person, str] = {"1s": "am", "2": "are", "3s": "is", "3p": "are"}
_THIS = (("这", "this"), ("那", "that"))
_THESE = (("这", "these"), ("那", "those"))
_WHO = NounPhrase("谁", "who", "3s")


def sample(random: Random) -> SentencePair:
    """Write one sentence. Statements end in a full stop or in nothing; questions in ？, or in Chinese in nothing."""
    family = _pick(random, _FAMILIES)
    zh, en, question = family(random)
    key = _capitalised(en)
    if question:
        return SentencePair(zh + _pick(random, ("？", "")), key + "?", key)
    stop = _pick(random, ("", "。"))
    return SentencePair(zh + stop, key + "." * len(stop), key)


def words() -> Iterator[str]:
    """Yield every word of both languages, some of them together: what a tokenizer must know."""
    for phrase in (*lexicon.PRONOUNS, *lexicon.PEOPLE, _WHO):
        yield from (phrase.zh, phrase.en, _capitalised(phrase.en), phrase.object)
    for noun in lexicon.NOUNS:
        yield from (noun.zh, noun.measure, noun.one, noun.many, noun.of or "")
    for adjective in (*lexicon.ADJECTIVES, *lexicon.FEELINGS):
        yield from (adjective.zh, adjective.en, adjective.comparative)
    verbs = (*lexicon.TRANSITIVE, *lexicon.STATES, *lexicon.ABOUT_PEOPLE, *lexicon.INTRANSITIVE, lexicon.GO)
    for verb in verbs:
        yield from (verb.zh, verb.forms.replace("+", ""))
    tables = (lexicon.DESTINATIONS, lexicon.PLACES, lexicon.SURFACES, lexicon.NUMERALS, lexicon.POSSESSIVES)
    for table in (lexicon.PROFESSIONS, *tables, *lexicon.TIMES.values(), ASPECTS.values(), _THIS, _THESE):
        for row in table:
            yield from (text for text in row if text)
    # of these, only possessives and demonstratives begin a sentence
    yield from (_capitalised(english) for _, english in (*lexicon.POSSESSIVES, *_THIS, *_THESE))
    yield from _SMALL_WORDS


Sentence = tuple[str, str, bool]  # Chinese, English, whether it asks; both without punctuation


def _action(random: Random) -> Sentence:
    verb = _pick(random, lexicon.TRANSITIVE)
    mood = _mood(random, verb)
    thing = _pick(random, _things(verb.tags, mood.aspect, mood.negative))
    return _clause(random, verb, mood, thing.zh, thing.en)


def _state(random: Random) -> Sentence:
    verb = _pick(random, lexicon.STATES)
    mood = _polarity(random, animals=verb.animals)
    things = [o for o in objects(verb.tags) if not (mood.negative and o.counted)]
    if verb.zh == "有":
        things = [o for o in things if not o.definite]
    elif verb.zh == "喜欢":
        things = [o for o in things if not o.counted]
    thing = _pick(random, things)
    zh, en = _verb(verb, mood)
    return f"{mood.subject.zh}{zh}{thing.zh}" + "吗" * mood.inverted, f"{en} {thing.en}", mood.question


def _helping(random: Random) -> Sentence:
    verb = _pick(random, lexicon.ABOUT_PEOPLE)
    mood = _mood(random, verb)
    others = [p for p in lexicon.PRONOUNS + lexicon.PEOPLE if p.object != mood.subject.object]
    other = _pick(random, others)
    return _clause(random, verb, mood, other.zh, other.object)


def _motion(random: Random) -> Sentence:
    zh, en = _pick(random, lexicon.DESTINATIONS)
    return _clause(random, lexicon.GO, _mood(random, lexicon.GO), zh, en, places=False)


def _activity(random: Random) -> Sentence:
    # an intransitive verb takes its 了 at the end of the sentence, which is the same place
    verb = _pick(random, lexicon.INTRANSITIVE)
    return _clause(random, verb, _mood(random, verb), "", "")


def _what(random: Random) -> Sentence:
    # 看 would be ambiguous: what is read is not what is watched
    verb = _pick(random, [v for v in lexicon.TRANSITIVE if v.zh != "看"])
    aspect = _pick(random, [a for a in _aspects(verb) if a != "perfect"])
    mood = Mood(aspect, False, True, _subject(random, verb.animals))
    zh, en, _ = _clause(random, verb, mood, "什么", "")
    return zh.removesuffix("吗"), f"what {en}", True


def _profession(random: Random) -> Sentence:
    mood = _polarity(random)
    subject = mood.subject
    zh, one, many = _pick(random, lexicon.PROFESSIONS)
    plural = subject.zh == "你们" or subject.person == "3p"
    measure = "" if plural or mood.negative else _pick(random, ("", "一个"))
    zh = f"{subject.zh}{'不' * mood.negative}是{measure}{zh}" + "吗" * mood.inverted
    return zh, f"{_be(mood)} {many if plural else _article(one)}", mood.question


def _quality(random: Random) -> Sentence:
    if random.random() < 0.4:
        mood = _polarity(random, animals=True)
        adjective = _pick(random, lexicon.FEELINGS)
    else:
        noun, adjective = _pick(random, _qualities())
        mood = _plain(random, _pick(random, [_bare(noun), *_subjects(noun)]))
    if mood.subject is _WHO:
        zh, degree = "很" + adjective.zh, ""
    elif mood.negative or mood.question:
        zh, degree = "不" * mood.negative + adjective.zh, ""
    else:
        marker, degree = _pick(random, (("很", ""), ("非常", "very "), ("太", "too ")))
        zh = marker + adjective.zh + "了" * (marker == "太")
    return mood.subject.zh + zh + "吗" * mood.inverted, f"{_be(mood)} {degree}{adjective.en}", mood.question


def _comparison(random: Random) -> Sentence:
    if random.random() < 0.5:
        things = lexicon.PRONOUNS + lexicon.PEOPLE
        adjective = _pick(random, lexicon.FEELINGS)
    else:
        noun, adjective = _pick(random, _qualities())
        things = _subjects(noun)
    first = _pick(random, things)
    second = _pick(random, [thing for thing in things if thing.en != first.en])
    mood = Mood("habitual", False, _pick(random, (False, False, True)), first)
    english = f"{_be(mood)} {adjective.comparative} than {second.object}"
    return f"{first.zh}比{second.zh}{adjective.zh}" + "吗" * mood.question, english, mood.question


def _existence(random: Random) -> Sentence:
    where, english_where = _pick(random, lexicon.SURFACES)
    tags = "animal" if "公园" in where else "item reading drink fruit"
    mood = _plain(random, _WHO)
    thing = _pick(random, [o for o in objects(tags) if not o.definite and not (mood.negative and o.counted)])
    be = "are" if thing.plural else "is"
    opening = f"{be} there" if mood.question else f"there {be}" + " no" * mood.negative
    zh = f"{where}{'没' * mood.negative}有{thing.zh}" + "吗" * mood.question
    return zh, f"{opening} {thing.en} {english_where}", mood.question


_FAMILIES: tuple[Callable[[Random], Sentence], ...] = (
    *(_action,) * 8,
    *(_state,) * 2,
    *(_helping,) * 2,
    _motion,
    _activity,
    _what,
    _profession,
    _quality,
    _comparison,
    _existence,
)


def _clause(random: Random, verb: Verb, mood: Mood, zh_object: str, en_object: str, *, places: bool = True) -> Sentence:
    zh_time, en_time = _pick(random, (("", ""), *lexicon.TIMES[mood.aspect]))
    zh_place, en_place = "", ""
    # 正在 and 在 would meet; and a place after 喜欢 would change what is liked
    if places and mood.aspect not in ("progressive", "like") and random.random() < 0.3:
        zh_place, en_place = _pick(random, lexicon.PLACES)
        zh_place = "在" + zh_place
    zh_verb, en_verb = _verb(verb, mood, zh_place)
    opening = mood.subject.zh + zh_time
    if zh_time and mood.subject is not _WHO and random.random() < 0.3:
        opening = zh_time + mood.subject.zh
    zh = f"{opening}{zh_verb}{zh_object}" + "吗" * mood.inverted
    return zh, " ".join(filter(None, (en_verb, en_object, en_place, en_time))), mood.question


def _verb(verb: Verb, mood: Mood, zh_place: str = "") -> tuple[str, str]:
    """Return the Chinese verb with its markers, and the English subject and verb in their order."""
    marks, perfect = ASPECTS[mood.aspect], mood.aspect == "perfect"
    before, after = marks.before, marks.after
    if mood.negative:
        before = verb.negation if marks.negated is None else marks.negated
        after = after if perfect else ""
    auxiliary, rest = _english(verb, mood)
    if perfect and (mood.negative or mood.inverted):
        rest = ("never " if mood.negative else "ever ") + rest
    elif mood.negative:
        auxiliary = "cannot" if auxiliary == "can" else f"{auxiliary} not"
    order = (auxiliary, mood.subject.en, rest) if mood.inverted else (mood.subject.en, auxiliary, rest)
    return before + zh_place + verb.zh + after, " ".join(filter(None, order))


def _english(verb: Verb, mood: Mood) -> tuple[str, str]:
    """Return auxiliary (or nothing) and main verb."""
    forms, _, particle = verb.forms.partition(" +")
    base, third, past, participle, present = (f"{form} {particle}".strip() for form in forms.split())
    person, supported = mood.subject.person, mood.negative or mood.inverted
    do = "does" if person == "3s" else "do"
    simple = {"habitual": (base, third), "often": (f"often {base}", f"often {third}")}
    simple |= {name: (f"{name} to {base}", f"{name}s to {base}") for name in ("want", "like")}
    if mood.aspect in simple:
        plain, inflected = simple[mood.aspect]
        return (do, plain) if supported else ("", inflected if person == "3s" else plain)
    return {
        "past": ("did", base) if supported else ("", past),
        "perfect": ("has" if person == "3s" else "have", participle),
        "progressive": (_AM[person], present),
        "future": ("will", base),
        "can": ("can", base),
    }[mood.aspect]


def _be(mood: Mood) -> str:
    am = _AM[mood.subject.person]
    order = (am, mood.subject.en) if mood.inverted else (mood.subject.en, am)
    return " ".join(order) + " not" * mood.negative


def _mood(random: Random, verb: Verb) -> Mood:
    # the past is the commonest, as in stories
    aspect = "past" if random.random() < 0.3 else _pick(random, _aspects(verb))
    return _polarity(random, aspect, animals=verb.animals)


def _polarity(random: Random, aspect: str = "habitual", *, animals: bool = False) -> Mood:
    mood = _plain(random, _subject(random, animals), aspect)
    return mood._replace(subject=_WHO) if mood.question and random.random() < 0.2 else mood


def _subject(random: Random, animals: bool) -> NounPhrase:
    if animals and random.random() < 0.3:
        return _pick(random, _animals())
    return _pick(random, lexicon.PRONOUNS * 2 + lexicon.PEOPLE)


def _plain(random: Random, subject: NounPhrase, aspect: str = "habitual") -> Mood:
    negative, question = _pick(random, ((False, False),) * 5 + ((True, False),) * 2 + ((False, True),) * 2)
    return Mood(aspect, negative, question, subject)


def _aspects(verb: Verb) -> list[str]:
    return [name for name in ASPECTS if name not in verb.without.split()]


@cache
def _things(tags: str, aspect: str, negative: bool) -> tuple[Object, ...]:
    """Return the objects that go with an aspect: no "did not eat two apples", no "often eats this apple"."""
    habit = aspect in ("habitual", "often", "like")
    counted = not negative and aspect not in ("perfect", "often", "like")
    return tuple(o for o in objects(tags) if (counted if o.counted else not (o.definite and habit)))


@cache
def objects(tags: str) -> tuple[Object, ...]:
    """Return every noun phrase about things that carry one of the tags."""
    found = [noun for noun in lexicon.NOUNS if _shares(noun.tags, tags)]
    return tuple(o for noun in found for adjective in (None, *_adjectives(noun)) for o in _phrases(noun, adjective))


def _phrases(noun: Noun, adjective: Adjective | None) -> list[Object]:
    zh, quality = _qualified(noun, adjective)
    if noun.of:
        one, many, bare = f"{noun.one} of {quality}{noun.of}", f"{noun.many} of {quality}{noun.of}", quality + noun.of
        lots = "a lot of"
    else:
        one, many, bare = quality + noun.one, quality + noun.many, quality + noun.many
        lots = "many"
    mass = noun.of is not None and not noun.of.endswith("s")
    some = [
        Object(f"一{noun.measure}{zh}", _article(one), True, False, False),
        *(Object(f"{n}{noun.measure}{zh}", f"{word} {many}", True, True, False) for n, word in lexicon.NUMERALS),
        Object(f"很多{zh}", f"{lots} {bare}", True, not mass, False),
        Object(f"一些{zh}", f"some {bare}", True, not mass, False),
        Object(zh, bare, False, not mass, False),
    ]
    these = [Object(f"{d}{noun.measure}{zh}", f"{word} {one}", False, False, True) for d, word in _THIS]
    if not noun.of:
        these += [Object(f"{d}些{zh}", f"{word} {many}", False, True, True) for d, word in _THESE]
    return some + these + _owned(noun, adjective, lexicon.POSSESSIVES)


def _owned(noun: Noun, adjective: Adjective | None, owners: Iterable[tuple[str, str]]) -> list[Object]:
    """Return the one thing, or the mass, that is somebody's."""
    zh, quality = _qualified(noun, adjective)
    plural = noun.of is not None and noun.of.endswith("s")
    return [Object(p + zh, f"{word} {quality}{noun.of or noun.one}", False, plural, True) for p, word in owners]


def _qualified(noun: Noun, adjective: Adjective | None) -> tuple[str, str]:
    """Return the noun with its adjective in Chinese, and the adjective in English, a space behind it."""
    if adjective is None:
        return noun.zh, ""
    return adjective.zh + "的" * adjective.linked + noun.zh, f"{adjective.en} "


def _subjects(noun: Noun) -> list[NounPhrase]:
    return [_as_subject(o) for o in _phrases(noun, None) if o.definite]


def _bare(noun: Noun, adjective: Adjective | None = None) -> NounPhrase:
    """Return the noun as it stands before a verb with nothing to say which one: 猫, the cat."""
    (found,) = _owned(noun, adjective, [("", "the")])
    return _as_subject(found)


def _as_subject(found: Object) -> NounPhrase:
    return NounPhrase(found.zh, found.en, "3p" if found.plural else "3s")


@cache
def _animals() -> tuple[NounPhrase, ...]:
    """Return what animals are called before a verb; as often by a bare noun as not."""
    nouns = [noun for noun in lexicon.NOUNS if _shares(noun.tags, "animal")]
    bare = [_bare(noun, adjective) for noun in nouns for adjective in (None, *_adjectives(noun))]
    return (*bare * 3, *(subject for noun in nouns for subject in _subjects(noun)))


@cache
def _qualities() -> list[tuple[Noun, Adjective]]:
    return [(noun, adjective) for noun in lexicon.NOUNS for adjective in _adjectives(noun)]


def _adjectives(noun: Noun) -> list[Adjective]:
    return [adjective for adjective in lexicon.ADJECTIVES if _shares(adjective.tags, noun.tags)]


def _shares(first: str, second: str) -> bool:
    return not set(first.split()).isdisjoint(second.split())


def _capitalised(text: str) -> str:
    return text[0].upper() + text[1:]


def _article(noun: str) -> str:
    return f"{'an' if noun.startswith(_VOWELS) else 'a'} {noun}"


def _pick(random: Random, options: Sequence[T]) -> T:
    # Random.choice may change between Python versions; random() is promised not to
    return options[int(random.random() * len(options))]
