"""Templates that write prompt pairs: known questions, each with words drawn by seed from lists of its own.

indirect_objects        When Mary and John went to the market, John gave a lamp to        Mary, not John
greater_than            The siege lasted from the year 1732 to the year 17                58, not 17
subject_verb_agreement  The keys beside the lamp                                          are, not is
repeated_arguments      def read(path, mode):\\n    return open(path,                      mode, not size
colours_of_things       The lamp is green and the coat is red. The colour of the coat is  red, not green
word_senses             They say that often in the garden the mole                        digs, not spies
induction               … A B … A, as token ids of any vocabulary                         B, not C

With a tokenizer, only pairs that fit it are kept: every answer one token, both prompts of one length. `templates_for`
says which templates a tokenizer has words for.

Whoever trains on templates (`TemplateText`) and asks about them keeps the two apart: of each, one frame and an eighth
of the combinations of words that decide the answer are held out.

Source: Wang et al. 2022 (indirect objects), Hanna et al. 2023 (greater-than), Linzen et al. 2016 (agreement), Olsson et
al. 2022 (induction); frames and words are our own.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence, Set
from random import Random
from string import Formatter

from glassformer.config import require
from glassformer.data.batch import Split, check_split, hash64, is_heldout
from glassformer.data.pairs.prompt_pairs import Pair, Pairs, Span
from glassformer.data.tokenizer import Tokenizer
from glassformer.errors import DataError

_HELDOUT = 1 / 8  # of the combinations of words, and how often the frame that is held out is drawn


def _words(text: str) -> list[str]:
    return text.split()


def _phrases(text: str) -> list[str]:
    return text.split(", ")


_NAMES = _words(
    "Mary John Tom James Anna Peter Lucy Paul Kate David Emma Mark Sarah Jack Alice Simon Laura Martin Helen Robert "
    "Julia Daniel Ruth Adam Jane Henry"
)
_PLACES = _words("market station library garden office beach school park museum harbour kitchen theatre")
_THINGS = _words("letter book ticket key basket ring map lamp coat drink flower camera")
_MEETING = [
    "When {one} and {other} went to the {place}",
    "After {one} and {other} met at the {place}",
    "While {one} and {other} were waiting in the {place}",
    "At the {place} {one} and {other} had a talk",
    "Yesterday {one} saw {other} near the {place}",
    "As soon as {one} and {other} came back from the {place}",
    "Since {one} and {other} often visit the {place}",
    "{one} and {other} had lunch by the {place}",
]
_GIVING = [
    "{subject} gave a {thing} to",
    "{subject} handed the {thing} to",
    "{subject} showed a {thing} to",
    "{subject} offered the {thing} to",
    "{subject} brought a {thing} to",
    "{subject} sold the {thing} to",
    "{subject} returned a {thing} to",
    "{subject} passed the {thing} on to",
]
_PASSING = [
    *(
        f"{met}{then}{given}"
        for met in _MEETING
        for then in (", ", ", and ", ", then ", ", where ")
        for given in _GIVING
    ),
    "Then {one} and {other} left the {place}, and {subject} sent the {thing} to",
]
_EVENTS = _words("war siege drought trial voyage strike reign exhibition expedition dispute construction journey")
_SPANNING = [
    "The {event} that began in the year {century}{year} went on until the year {again}",
    "The {event} lasted from the year {century}{year} to the year {again}",
    "Of the {event} we know that it started in the year {century}{year} and stopped in the year {again}",
    "There was a {event} from the year {century}{year} until the year {again}",
    "The {event} began in the year {century}{year} and ended in the year {again}",
]
_REGULAR = _words("key book lamp chair letter window teacher doctor farmer horse boat picture")
_NOUNS = [*((noun, noun + "s") for noun in _REGULAR), ("child", "children"), ("woman", "women"), ("man", "men")]
_VERBS = [(" is", " are"), (" was", " were"), (" has", " have")]
_BESIDE = _phrases(
    "beside, near, behind, in front of, with, under, across from, not far from, above, below, by, close to, far from, "
    "on top of, around, without, opposite, to the left of, at the side of, like, that we saw behind, that we put near, "
    "that came with, which we found under, known from, bought for"
)
_OPENING = _phrases(
    "The, They say that the, In the end the, Today the, I think that the, At last the, It seems that the, We know that "
    "the, Now the, Perhaps the"
)
_AGREEING = [
    *(f"{opening} {{subject}} {beside} the {{attractor}}" for opening in _OPENING for beside in _BESIDE),
    "The {subject} next to the {attractor}",
]
_COLOURS = _words("red green blue black white brown grey yellow")
_OBJECTS = _words("lamp coat door book chair cup car boat hat box wall ball")
_COLOURING = [
    *(
        f"{told}{asked} the {{asked}} is"
        for told in (
            "The {one} is {colour} and the {other} is {second}",
            "There is a {colour} {one} and a {second} {other}",
            "We have a {colour} {one}, and a {other} that is {second}",
            "The {one} was painted {colour}, the {other} was painted {second}",
        )
        for asked in (". The colour of", ". We know that", ", and so", ". Now")
    ),
    "I saw that the {one} was {colour} and the {other} was {second}, so the {asked} is",
]
# noun -> what it does -> places where it is the one that does so
_SENSES = {
    "model": {
        " poses": _words("studio boutique gallery salon workshop"),
        " predicts": _words("laboratory computer notebook program server"),
    },
    "mole": {
        " digs": _words("garden meadow field orchard park"),
        " spies": _words("embassy ministry agency army palace"),
    },
    "bat": {" flies": _words("cave forest night attic tower"), " breaks": _words("stadium match game school club")},
    "crane": {" nests": _words("marsh lake swamp river valley"), " lifts": _words("harbour factory yard dock port")},
}
_OFTEN = _words("now today often again sometimes tonight")
_SENSING = [
    *(
        f"{opening} {placed}"
        for opening in ("They say that", "We know that", "It seems that", "I think that")
        for placed in (
            "in the {place} {often} the {noun}",
            "{often} in the {place} the {noun}",
            "the {noun} of the {place} {often}",
            "{often} the {noun} in the {place}",
        )
    ),
    "It is known that in the {place} the {noun} {often}",
]
_ARGUMENTS = _words(
    "name value key path data file line text index result item size start end mode type msg args obj code func cls "
    "node prefix pattern string number count default parent other left right first last"
)
_FUNCTIONS = _words("read write get set open check load run call add find test parse send make copy close update")
_CALLING = [
    "def {function}({first}, {second}):\n    return {called}({again},",
    "{function}({first}, {second})\n{called}({again},",
]


def indirect_objects(
    n: int = 32, *, seed: int = 0, tokenizer: Tokenizer | None = None, split: Split | None = None
) -> Pairs:
    """Who is given something: the one of two names that does not give. The corrupt prompt lets the other one give.

    Either name may stand first. Roles: `indirect_object`, `first_subject`, `subject` (where the prompts differ).

    Args:
        n: How many pairs, all different.
        seed: Of the words.
        tokenizer: Keep only pairs that fit it.
        split: Only what `TemplateText` trains on ("train"), or only what it never shows ("heldout"); either by default.

    Raises:
        DataError: There are not that many that fit.
    """
    return _collect("indirect_objects", n, seed, tokenizer, split)


def greater_than(
    n: int = 32, *, seed: int = 0, tokenizer: Tokenizer | None = None, split: Split | None = None
) -> Pairs:
    """When something ended: not before it began. The answer is a later year and the wrong answer an earlier one.

    In the corrupt prompt the beginning lies before both, so that neither is wrong. Only for tokenizers that split a
    year in the middle. Roles: `event`, `century`, `year`, `again`; arguments and errors as in `indirect_objects`.
    """
    return _collect("greater_than", n, seed, tokenizer, split)


def subject_verb_agreement(
    n: int = 32, *, seed: int = 0, tokenizer: Tokenizer | None = None, split: Split | None = None
) -> Pairs:
    """A verb agrees with its subject, whatever noun stands between. The corrupt subject has the other number.

    Roles: `subject`, `attractor`; arguments and errors as in `indirect_objects`.
    """
    return _collect("subject_verb_agreement", n, seed, tokenizer, split)


def repeated_arguments(
    n: int = 32, *, seed: int = 0, tokenizer: Tokenizer | None = None, split: Split | None = None
) -> Pairs:
    """Python that names its arguments again: after the first one, the second follows. Induction on natural code.

    The corrupt prompt has another second argument. Roles: `first`, `second`, `again`; arguments and errors as in
    `indirect_objects`.
    """
    return _collect("repeated_arguments", n, seed, tokenizer, split)


def colours_of_things(
    n: int = 32, *, seed: int = 0, tokenizer: Tokenizer | None = None, split: Split | None = None
) -> Pairs:
    """Which of two colours a thing has. The corrupt prompt asks for the other thing.

    Roles: `one`, `colour`, `other`, `second`, `asked`; arguments and errors as in `indirect_objects`.
    """
    return _collect("colours_of_things", n, seed, tokenizer, split)


def word_senses(n: int = 32, *, seed: int = 0, tokenizer: Tokenizer | None = None, split: Split | None = None) -> Pairs:
    """What a word of two meanings does where it is. In the corrupt prompt it is where it has its other meaning.

    Roles: `place`, `noun`; arguments and errors as in `indirect_objects`.
    """
    return _collect("word_senses", n, seed, tokenizer, split)


def induction(
    vocabulary: Tokenizer | Sequence[int] | int, n: int = 32, *, seed: int = 0, unit: int = 16, again: int = 8
) -> Pairs:
    """Different random tokens, and the first of them once more: the next is what followed before.

    The corrupt prompt has another token in that place. Roles: `match` (the first copy of the last token), `source`
    (what followed it, which is the answer), `last`.

    Args:
        vocabulary: What to draw from: a tokenizer, whose specials are left out, and which opens prompts as it opens
            texts; ids; or how many ids there are.
        n: How many pairs.
        seed: Of the tokens.
        unit: Tokens before the repetition.
        again: Tokens of it, of which the last is to be continued.

    Raises:
        ConfigError: `again` is not between 1 and `unit - 1`, or there are too few tokens.
    """
    require(1 <= again < unit, f"induction: again={again} must be at least 1 and less than unit={unit}.")
    bos: tuple[int, ...] = ()
    if isinstance(vocabulary, Tokenizer):
        bos, _ = vocabulary.around("opening")
        ids = [id for id in range(vocabulary.vocab_size) if id not in vocabulary.specials]
    else:
        ids = list(range(vocabulary) if isinstance(vocabulary, int) else dict.fromkeys(vocabulary))
    require(len(ids) > unit, f"induction: unit={unit} different tokens and a wrong one, of {len(ids)} there are.")
    random, pairs = Random(hash64("induction", seed)), []
    for _ in range(n):
        *drawn, wrong = random.sample(ids, unit + 1)
        changed = [*drawn[:again], wrong, *drawn[again + 1 :]]
        clean, corrupt = ((*bos, *row, *drawn[:again]) for row in (drawn, changed))
        source = len(bos) + again
        roles = {"match": (source - 1, source), "source": (source, source + 1), "last": (len(clean) - 1, len(clean))}
        pairs.append(Pair(clean, corrupt, drawn[again], wrong, roles))
    return Pairs(tuple(pairs), "induction")


@dataclasses.dataclass(frozen=True)
class TemplateFit:
    """How a template goes with a tokenizer.

    Args:
        template: Its name.
        share: Of pairs drawn from it that fit; 0 to 1.
        why: What is wrong with the first that does not; empty if all fit.
    """

    template: str
    share: float
    why: str

    @property
    def fits(self) -> bool:
        """Whether there are pairs to be had."""
        return self.share > 0


def templates_for(tokenizer: Tokenizer, *, draws: int = 200, seed: int = 0) -> tuple[TemplateFit, ...]:
    """Say of every text template whether its pairs fit a tokenizer; `induction` fits any.

    Args:
        tokenizer: A tokenizer.
        draws: Pairs drawn from each template.
        seed: Of the words.
    """
    found = []
    for name, draw in TEMPLATES.items():
        random = Random(hash64(name, seed))
        misfits = Pairs(tuple(draw(random).pair for _ in range(draws)), name).misfits(tokenizer)
        found.append(TemplateFit(name, 1 - len(misfits) / draws, misfits[0].why if misfits else ""))
    return tuple(found)


def _collect(name: str, n: int, seed: int, tokenizer: Tokenizer | None, split: Split | None) -> Pairs:
    if split is not None:
        check_split(split)
    random, found = Random(hash64(name, seed)), dict[tuple[object, ...], Pair]()
    draws, why = 200 + 100 * n, "every other was drawn before"
    for _ in range(draws):
        if len(found) >= n:
            break
        drawn = TEMPLATES[name](random)
        if split is not None and drawn.split != split:
            continue
        pair = drawn.pair
        misfits = Pairs((pair,)).misfits(tokenizer) if tokenizer is not None else []
        if misfits:
            why = misfits[0].why
        else:
            found.setdefault((pair.clean, pair.corrupt, pair.answer, pair.wrong), pair)
    if len(found) < n:
        raise DataError(
            f"{name}: {n} pairs were asked for, and of {draws} drawn {len(found)} different ones fit. "
            f"One that does not: {why}\n"
            "    templates_for(tokenizer) says which templates fit; induction(tokenizer) fits any."
        )
    return Pairs(tuple(found.values()), name)


@dataclasses.dataclass(frozen=True)
class DrawnPair:
    """A pair as a template drew it.

    Args:
        pair: The pair.
        split: Where it belongs: "heldout" if its frame or the combination of words that decides its answer is.
    """

    pair: Pair
    split: Split


def _indirect_object(random: Random) -> DrawnPair:
    receiver, giver = random.sample(_NAMES, 2)
    one, other = random.sample([receiver, giver], 2)
    words = {"one": one, "other": other, "place": random.choice(_PLACES), "thing": random.choice(_THINGS)}
    roles = {"one": "indirect_object", "other": "first_subject"}
    if one == giver:
        roles = {"one": "first_subject", "other": "indirect_object"}
    roles |= {"subject": "subject"}
    answers = f" {receiver}", f" {giver}"
    changed = {"subject": receiver}
    return _drawn(random, _PASSING, words | {"subject": giver}, changed, answers, roles, {receiver, giver})


def _greater_than(random: Random) -> DrawnPair:
    before, wrong, year, answer = sorted(random.sample(range(2, 99), 4))
    century = str(random.randint(11, 18))
    words = {"event": random.choice(_EVENTS), "century": century, "year": f"{year:02}", "again": century}
    answers = f"{answer:02}", f"{wrong:02}"
    changed, decided = {"year": f"{before:02}"}, {words["event"], f"{century}{year:02}"}
    return _drawn(random, _SPANNING, words, changed, answers, {slot: slot for slot in words}, decided)


def _agreement(random: Random) -> DrawnPair:
    subject, attractor = random.sample(_NOUNS, 2)
    number = random.randrange(2)
    verb = random.choice(_VERBS)
    words = {"subject": subject[number], "attractor": random.choice(attractor)}
    answers = verb[number], verb[1 - number]
    changed, decided = {"subject": subject[1 - number]}, {subject[0], verb[0]}
    return _drawn(random, _AGREEING, words, changed, answers, {slot: slot for slot in words}, decided)


def _repeated_argument(random: Random) -> DrawnPair:
    first, second, third = random.sample(_ARGUMENTS, 3)
    function, called = random.sample(_FUNCTIONS, 2)
    words = {"function": function, "called": called, "first": first, "second": second, "again": first}
    roles = {slot: slot for slot in ("first", "second", "again")}
    answers = f" {second}", f" {third}"
    return _drawn(random, _CALLING, words, {"second": third}, answers, roles, {first, second})


def _colour_of_thing(random: Random) -> DrawnPair:
    things, colours = random.sample(_OBJECTS, 2), random.sample(_COLOURS, 2)
    which = random.randrange(2)
    words = {"one": things[0], "colour": colours[0], "other": things[1], "second": colours[1], "asked": things[which]}
    answers = f" {colours[which]}", f" {colours[1 - which]}"
    changed, decided = {"asked": things[1 - which]}, {things[which], colours[which]}
    return _drawn(random, _COLOURING, words, changed, answers, {slot: slot for slot in words}, decided)


def _word_sense(random: Random) -> DrawnPair:
    noun, often = random.choice([*_SENSES]), random.choice(_OFTEN)
    answer, wrong = random.sample([*_SENSES[noun]], 2)
    place, elsewhere = random.choice([*zip(_SENSES[noun][answer], _SENSES[noun][wrong], strict=True)])
    words, roles = {"place": place, "noun": noun, "often": often}, {"place": "place", "noun": "noun"}
    # what a place says of a noun must have been read: only sentences can be new
    decided = {place, noun, often}
    return _drawn(random, _SENSING, words, {"place": elsewhere}, (answer, wrong), roles, decided)


TEMPLATES: dict[str, Callable[[Random], DrawnPair]] = {
    "indirect_objects": _indirect_object,
    "greater_than": _greater_than,
    "subject_verb_agreement": _agreement,
    "repeated_arguments": _repeated_argument,
    "colours_of_things": _colour_of_thing,
    "word_senses": _word_sense,
}


def _drawn(
    random: Random,
    frames: Sequence[str],
    words: Mapping[str, str],
    changed: Mapping[str, str],
    answers: tuple[str, str],
    roles: Mapping[str, str],
    decided: Set[str],
) -> DrawnPair:
    """Fill a frame with words, and once more with some of them changed; slots named in `roles` become roles.

    `decided` are the words that decide the answer: in whatever order they stand, they are one combination.
    """
    *known, last = frames
    frame = last if random.random() < _HELDOUT else random.choice(known)
    clean, spans = _fill(frame, words)
    corrupt, _ = _fill(frame, {**words, **changed})
    pair = Pair(clean, corrupt, *answers, {role: spans[slot] for slot, role in roles.items()})
    new = frame == last or is_heldout(_HELDOUT, "combination", *sorted(decided))
    return DrawnPair(pair, "heldout" if new else "train")


def _fill(frame: str, words: Mapping[str, str]) -> tuple[str, dict[str, Span]]:
    text, spans = "", {}
    for literal, slot, _, _ in Formatter().parse(frame):
        text += literal
        if slot is not None:
            spans[slot] = (len(text), len(text) + len(words[slot]))
            text += words[slot]
    return text, spans
