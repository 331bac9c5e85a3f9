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

Whoever trains on templates (`TemplateText`) and asks about them keeps the two apart. Of each template are held out some
frames, some of the words that decide the answer, and an eighth of the combinations of those that are not.

Source: Wang et al. 2022 (indirect objects), Hanna et al. 2023 (greater-than), Linzen et al. 2016 (agreement), Olsson et
al. 2022 (induction); frames and words are our own.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from random import Random
from string import Formatter
from typing import Any, Literal, NamedTuple, get_args

from glassformer.config import require
from glassformer.data.batch import Split, check_split, hash64, is_heldout
from glassformer.data.pairs import _frames as known
from glassformer.data.pairs._frames import Drawn
from glassformer.data.pairs.prompt_pairs import Pair, Pairs, Span
from glassformer.data.tokenizer import Tokenizer
from glassformer.errors import DataError

New = Literal["words", "combination", "frame"]

_HELDOUT = 1 / 8  # of the combinations of words; and how often words, or a frame, that are held out are drawn


def indirect_objects(
    n: int = 32,
    *,
    seed: int = 0,
    tokenizer: Tokenizer | None = None,
    split: Split | None = None,
    new: New | Collection[New] | None = None,
) -> Pairs:
    """Who is given something: the one of two names that does not give. The corrupt prompt lets the other one give.

    Either name may stand first. Roles: `indirect_object`, `first_subject`, `subject` (where the prompts differ).

    Args:
        n: How many pairs, all different.
        seed: Of the words.
        tokenizer: Keep only pairs that fit it.
        split: Only what `TemplateText` trains on ("train"), or only what it never shows ("heldout"); either by default.
        new: What exactly is held out, one or several: "words" (all those that decide, here both names, are never asked
            about in training), "combination" (each is, together they are not), "frame"; none of them for ().

    Raises:
        DataError: There are not that many that fit.
        ConfigError: Nothing of that kind is held out.
    """
    return _collect("indirect_objects", n, seed, tokenizer, split, new)


def greater_than(
    n: int = 32,
    *,
    seed: int = 0,
    tokenizer: Tokenizer | None = None,
    split: Split | None = None,
    new: New | Collection[New] | None = None,
) -> Pairs:
    """When something ended: not before it began. The answer is a later year and the wrong answer an earlier one.

    In the corrupt prompt the beginning lies before both, so that neither is wrong. Nothing lasts longer than 24 years:
    the answer hangs on the beginning, and not on late years being likelier whatever was read. Only for tokenizers that
    split a year in the middle. Roles: `event`, `century`, `year`, `again`; arguments and errors as in
    `indirect_objects`.
    """
    return _collect("greater_than", n, seed, tokenizer, split, new)


def subject_verb_agreement(
    n: int = 32,
    *,
    seed: int = 0,
    tokenizer: Tokenizer | None = None,
    split: Split | None = None,
    new: New | Collection[New] | None = None,
) -> Pairs:
    """A verb agrees with its subject, whatever noun stands between. The corrupt subject has the other number.

    Roles: `subject`, `attractor`; arguments and errors as in `indirect_objects`.
    """
    return _collect("subject_verb_agreement", n, seed, tokenizer, split, new)


def repeated_arguments(
    n: int = 32,
    *,
    seed: int = 0,
    tokenizer: Tokenizer | None = None,
    split: Split | None = None,
    new: New | Collection[New] | None = None,
) -> Pairs:
    """Python that names its arguments again: after the first one, the second follows. Induction on natural code.

    The corrupt prompt has another second argument. Roles: `first`, `second`, `again`; arguments and errors as in
    `indirect_objects`.
    """
    return _collect("repeated_arguments", n, seed, tokenizer, split, new)


def colours_of_things(
    n: int = 32,
    *,
    seed: int = 0,
    tokenizer: Tokenizer | None = None,
    split: Split | None = None,
    new: New | Collection[New] | None = None,
) -> Pairs:
    """Which of two colours a thing has. The corrupt prompt asks for the other thing.

    Roles: `one`, `colour`, `other`, `second`, `asked`; arguments and errors as in `indirect_objects`.
    """
    return _collect("colours_of_things", n, seed, tokenizer, split, new)


def word_senses(
    n: int = 32,
    *,
    seed: int = 0,
    tokenizer: Tokenizer | None = None,
    split: Split | None = None,
    new: New | Collection[New] | None = None,
) -> Pairs:
    """What a word of two meanings does where it is. In the corrupt prompt it is where it has its other meaning.

    Roles: `place`, `noun`; arguments and errors as in `indirect_objects`.
    """
    return _collect("word_senses", n, seed, tokenizer, split, new)


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
    for name in TEMPLATES:
        random = Random(hash64(name, seed))
        misfits = Pairs(tuple(draw(name, random).pair for _ in range(draws)), name).misfits(tokenizer)
        found.append(TemplateFit(name, 1 - len(misfits) / draws, misfits[0].why if misfits else ""))
    return tuple(found)


@dataclasses.dataclass(frozen=True)
class DrawnPair:
    """A pair as a template drew it.

    Args:
        pair: The pair.
        new: What of it training never holds; nothing if it may be trained on.
        more: Prompts that go on from the clean one with its answer, each with its own answer.
    """

    pair: Pair
    new: frozenset[New]
    more: tuple[tuple[str, str], ...] = ()

    @property
    def split(self) -> Split:
        """Where it belongs: "heldout" if anything is new."""
        return "heldout" if self.new else "train"


class Template(NamedTuple):
    """A template: what draws a pair, told whether words and frame are new; the words that decide, and the frames."""

    pair: Callable[[Random, bool, bool], DrawnPair]
    words: Drawn[Any]
    frames: Drawn[str]

    @property
    def kept(self) -> tuple[New, ...]:
        """What of it is held out."""
        return tuple(kind for kind in get_args(New) if kind != "words" or self.words.new)


def draw(name: str, random: Random, split: Split | None = None, new: frozenset[New] | None = None) -> DrawnPair:
    """Draw a pair of a template: of either split or of one, or one of which exactly that much is held out.

    Args:
        name: The template.
        random: What draws.
        split: "train", "heldout", or either.
        new: What is held out.
    """
    template = TEMPLATES[name]

    def turn(kind: New) -> bool:
        if new is not None or split == "train":
            return kind in (new or ())
        return kind in template.kept and random.random() < _HELDOUT

    while True:
        drawn = template.pair(random, turn("words"), turn("frame"))
        if split in (None, drawn.split) and new in (None, drawn.new):
            return drawn


def _collect(
    name: str,
    n: int,
    seed: int,
    tokenizer: Tokenizer | None,
    split: Split | None,
    new: New | Collection[New] | None,
) -> Pairs:
    if split is not None:
        check_split(split)
    wanted = _wanted(name, split, new)
    random, found = Random(hash64(name, seed)), dict[tuple[object, ...], Pair]()
    draws, why = 200 + 100 * n, "every other was drawn before"
    for _ in range(draws):
        if len(found) >= n:
            break
        pair = draw(name, random, split, wanted).pair
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


def _wanted(name: str, split: Split | None, new: New | Collection[New] | None) -> frozenset[New] | None:
    """Return what exactly is to be held out, None for anything."""
    if new is None:
        return None
    wanted: frozenset[New] = frozenset((new,) if isinstance(new, str) else new)
    kept = TEMPLATES[name].kept
    require(
        wanted <= set(kept),
        f"{name}: new={new!r}, and what it holds out is {', '.join(kept)}; () is what training holds.",
    )
    require(
        not wanted >= {"words", "combination"},
        f"{name}: new={new!r}: words that are held out have no combinations of training to differ from. Ask for one.",
    )
    require(
        split is None or (split == "heldout") == bool(wanted),
        f"{name}: split={split!r} has no pairs with new={new!r}. Leave split out.",
    )
    return wanted


def _indirect_object(random: Random, words: bool, frame: bool) -> DrawnPair:
    receiver, giver = random.sample(known.NAMES.pool(words), 2)
    filled, roles = _passed(random, receiver, giver)
    pair = _filled(
        known.PASSING.choice(random, frame), filled, {"subject": receiver}, (f" {receiver}", f" {giver}"),
        roles | {"subject": "subject"},
    )  # fmt: skip
    handed = [(receiver, giver), (giver, receiver)][: random.randrange(3)]
    more = [(random.choice(known.HANDING_ON).format(subject=one), f" {other}") for one, other in handed]
    for _ in range(random.randrange(5)):
        called, calling = random.sample(known.NICKNAMES, 2)
        told, _ = _fill(known.PASSING.choice(random, frame), _passed(random, called, calling)[0])
        more.append((told, f" {called}"))
    return DrawnPair(pair, _new(words, frame, {receiver, giver}), tuple(more))


def _passed(random: Random, receiver: str, giver: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return what fills a frame in which something is passed on, and the roles of its two names, in any order."""
    roles = [(receiver, "indirect_object"), (giver, "first_subject")]
    random.shuffle(roles)
    (one, first), (other, second) = roles
    drawn = {"place": random.choice(known.PLACES), "thing": random.choice(known.THINGS)}
    return {"one": one, "other": other, "subject": giver} | drawn, {"one": first, "other": second}


def _greater_than(random: Random, words: bool, frame: bool) -> DrawnPair:
    year = known.STARTS.choice(random, words)
    answer = year + random.randint(1, min(known.LONGEST, 98 - year))
    wrong = year - random.randint(1, 8)
    before = wrong - random.randint(1, min(known.LONGEST, wrong - 1))
    century, event = str(random.randint(11, 18)), random.choice(known.EVENTS)
    filled = {"event": event, "century": century, "year": f"{year:02}", "again": century}
    pair = _filled(
        known.SPANNING.choice(random, frame), filled, {"year": f"{before:02}"}, (f"{answer:02}", f"{wrong:02}"),
        {slot: slot for slot in filled},
    )  # fmt: skip
    return DrawnPair(pair, _new(words, frame, {event, f"{century}{year:02}"}))


def _agreement(random: Random, words: bool, frame: bool) -> DrawnPair:
    subject, attractor = random.sample(known.NOUNS.pool(words), 2)
    number = random.randrange(2)
    verb = random.choice(known.VERBS)
    filled = {"subject": subject[number], "attractor": random.choice(attractor)}
    pair = _filled(
        known.AGREEING.choice(random, frame), filled, {"subject": subject[1 - number]},
        (verb[number], verb[1 - number]), {slot: slot for slot in filled},
    )  # fmt: skip
    return DrawnPair(pair, _new(words, frame, {subject[0], verb[0]}))


def _repeated_argument(random: Random, words: bool, frame: bool) -> DrawnPair:
    first, second, third = random.sample(known.ARGUMENTS.pool(words), 3)
    function, called = random.sample(known.FUNCTIONS, 2)
    filled = {"function": function, "called": called, "first": first, "second": second, "again": first}
    pair = _filled(
        known.CALLING.choice(random, frame), filled, {"second": third}, (f" {second}", f" {third}"),
        {slot: slot for slot in ("first", "second", "again")},
    )  # fmt: skip
    return DrawnPair(pair, _new(words, frame, {first, second}))


def _colour_of_thing(random: Random, words: bool, frame: bool) -> DrawnPair:
    things, colours = random.sample(known.OBJECTS.pool(words), 2), random.sample(known.COLOURS, 2)
    # both are new together or neither is: what is told of one thing, training asks of either
    kinds = [_new(words, frame, {*told}) for told in zip(things, colours, strict=True)]
    if kinds[0] != kinds[1]:
        return _colour_of_thing(random, words, frame)
    which = random.randrange(2)
    told = {"one": things[0], "colour": colours[0], "other": things[1], "second": colours[1]}
    filled = told | {"asked": things[which]}
    pair = _filled(
        known.COLOURING.choice(random, frame), filled, {"asked": things[1 - which]},
        (f" {colours[which]}", f" {colours[1 - which]}"), {slot: slot for slot in filled},
    )  # fmt: skip
    asked = [random.randrange(2) for _ in range(random.randrange(4))]
    more = tuple((random.choice(known.ASKING).format(asked=things[i]), f" {colours[i]}") for i in asked)
    return DrawnPair(pair, kinds[0], more)


def _word_sense(random: Random, words: bool, frame: bool) -> DrawnPair:
    # what a place says of a noun must have been read: only sentences can be new
    senses = known.SENSES.choice(random, words)
    (noun, does), often = senses, random.choice(known.OFTEN)
    answer, wrong = random.sample([*does], 2)
    place, elsewhere = random.choice([*zip(does[answer], does[wrong], strict=True)])
    filled, roles = {"place": place, "noun": noun, "often": often}, {"place": "place", "noun": "noun"}
    pair = _filled(known.SENSING.choice(random, frame), filled, {"place": elsewhere}, (answer, wrong), roles)
    return DrawnPair(pair, _new(words, frame, {place, noun, often}))


TEMPLATES: dict[str, Template] = {
    "indirect_objects": Template(_indirect_object, known.NAMES, known.PASSING),
    "greater_than": Template(_greater_than, known.STARTS, known.SPANNING),
    "subject_verb_agreement": Template(_agreement, known.NOUNS, known.AGREEING),
    "repeated_arguments": Template(_repeated_argument, known.ARGUMENTS, known.CALLING),
    "colours_of_things": Template(_colour_of_thing, known.OBJECTS, known.COLOURING),
    "word_senses": Template(_word_sense, known.SENSES, known.SENSING),
}


def heldout_words(names: Iterable[str]) -> list[str]:
    """Return the words of these templates that training never asks about, as they are written in a sentence.

    Args:
        names: The templates.
    """
    found = [TEMPLATES[name].words.new for name in names]
    return [str(form) for new in found for word in new for form in (word if isinstance(word, tuple) else (word,))]


def _new(words: bool, frame: bool, decided: Set[str]) -> frozenset[New]:
    """Return what is new of a pair; `decided` decide its answer, and in whatever order are one combination."""
    combination = not words and is_heldout(_HELDOUT, "combination", *sorted(decided))
    found: dict[New, bool] = {"words": words, "combination": combination, "frame": frame}
    return frozenset(kind for kind, new in found.items() if new)


def _filled(
    frame: str,
    words: Mapping[str, str],
    changed: Mapping[str, str],
    answers: tuple[str, str],
    roles: Mapping[str, str],
) -> Pair:
    """Fill a frame with words, and once more with some of them changed; slots named in `roles` become roles."""
    clean, spans = _fill(frame, words)
    corrupt, _ = _fill(frame, {**words, **changed})
    return Pair(clean, corrupt, *answers, {role: spans[slot] for slot, role in roles.items()})


def _fill(frame: str, words: Mapping[str, str]) -> tuple[str, dict[str, Span]]:
    text, spans = "", {}
    for literal, slot, _, _ in Formatter().parse(frame):
        text += literal
        if slot is not None:
            spans[slot] = (len(text), len(text) + len(words[slot]))
            text += words[slot]
    return text, spans
