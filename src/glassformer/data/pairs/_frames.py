"""Frames and words of the templates: of each kind, those that training is drawn from and those that it never holds.

What is new as a word is a common one of technical English (files, functions, Euler, boxes), which no frame of training
holds, in whatever place: it has to be known from elsewhere what it is. What is new as a frame has another beginning and
another verb than all frames of training.
"""

from collections.abc import Iterable, Sequence
from itertools import product
from random import Random
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Drawn(NamedTuple, Generic[T]):
    """What a template draws from: `shown` in training, `new` only where something new is asked about."""

    shown: Sequence[T]
    new: Sequence[T] = ()

    def pool(self, new: bool) -> Sequence[T]:
        return self.new if new else self.shown

    def choice(self, random: Random, new: bool) -> T:
        return random.choice(self.pool(new))


def _words(text: str) -> list[str]:
    return text.split()


def _phrases(text: str) -> list[str]:
    return [phrase.strip() for phrase in text.split("|")]


def _joined(*parts: Iterable[str]) -> list[str]:
    """Return every way to take one of each part, one behind the other."""
    return list(map("".join, product(*parts)))


NAMES = Drawn(
    _words(
        "Mary John Tom James Anna Peter Lucy Paul Kate Emma Sarah Jack Alice Simon Laura Martin Helen Robert "
        "Julia Daniel Ruth Adam Jane Henry David Bob George Charles Clara Grace Legendre Bessel Gauss Taylor "
        "Jordan Jacobi Hilbert Hermite Newton Pauli Cauchy Pascal Poisson Wigner Kronecker Dijkstra Hadamard "
        "Smith Jones Google Microsoft Intel Apple Meta Mistral Cohen Knuth Lucas Risch Kaiser Dirichlet "
        "Lambert Stirling Bell Young Michael William Thomas Susan Karen Lisa Emily Amanda Rebecca Angela "
        "Kevin Brian Steven Edward Ronald Jason Eric Stephen Frank Scott Benjamin Samuel Alexander Patrick "
        "Dennis Jerry Walter Arthur Carl Roger Keith Ralph Louis Philip Ernest Martha Diana Rose Julie Alan "
        "Oliver Felix Max Nina Olga Ivan Carlos Maria Luis Ahmed Chen Wei Priya Ravi Aisha Omar Yuki Hans "
        "Greta Lars Ingrid Pierre Claire Marco Elena Sofia Paolo Nadia Boris"
    ),
    _words("Euler Fourier Laplace Chebyshev Riemann Bernoulli"),
)
PLACES = _words("market station library garden office beach school park museum harbour kitchen theatre")
THINGS = _words(
    "letter book ticket key basket ring map lamp coat drink flower camera list picture report code card note"
)
PASSING = Drawn(
    _joined(
        (
            "When {one} and {other} went to the {place}",
            "After {one} and {other} met at the {place}",
            "While {one} and {other} were waiting in the {place}",
            "At the {place} {one} and {other} had a talk",
            "Yesterday {one} saw {other} near the {place}",
            "As soon as {one} and {other} came back from the {place}",
            "Since {one} and {other} often visit the {place}",
            "{one} and {other} had lunch by the {place}",
            "{one} was with {other} in the {place}",
            "Both {one} and {other} came to the {place}",
            "During the winter {one} and {other} worked at the {place}",
            "Before {one} and {other} reached the {place}",
            "Because {one} and {other} lived near the {place}",
            "Once {one} and {other} had seen the {place}",
            "{one} called {other} from the {place}",
            "{one} and {other} were friends from the {place}",
            "On the way to the {place} {one} talked to {other}",
            "Last week {one} visited {other} at the {place}",
            "Whenever {one} and {other} sat in the {place}",
            "Although {one} and {other} did not like the {place}",
            "As {one} and {other} walked through the {place}",
            "Today {one} and {other} work in the {place}",
            "If {one} and {other} meet at the {place}",
            "In the morning {one} drove {other} to the {place}",
            "{one} wrote to {other} about the {place}",
            "{one} thinks that {other} is at the {place}",
            "The friends {one} and {other} ran to the {place}",
            "Not far from the {place} {one} waited for {other}",
        ),
        (
            ", ",
            ", and ",
            ", then ",
            ", where ",
            ". ",
            ". Then ",
            ". Later ",
            ", but ",
            "; ",
            " and then ",
            " before ",
            ". In the end ",
            ". So ",
            ". There ",
            ", so that ",
        ),
        (
            "{subject} gave a {thing} to",
            "{subject} handed the {thing} to",
            "{subject} showed a {thing} to",
            "{subject} offered the {thing} to",
            "{subject} brought a {thing} to",
            "{subject} sold the {thing} to",
            "{subject} returned a {thing} to",
            "{subject} passed the {thing} on to",
            "{subject} threw the {thing} to",
            "{subject} mailed a {thing} to",
            "{subject} read the {thing} to",
            "{subject} described a {thing} to",
            "{subject} explained the {thing} to",
            "{subject} took the {thing} to",
            "{subject} wrote a {thing} to",
            "{subject} carried the {thing} over to",
            "{subject} presented a {thing} to",
            "{subject} delivered the {thing} to",
            "{subject} pointed the {thing} out to",
            "{subject} promised a {thing} to",
            "{subject} made a {thing} for",
            "{subject} bought the {thing} for",
            "{subject} kept a {thing} for",
        ),
    ),
    _joined(
        ("Then {one} and {other} left the {place}", "In the evening {one} found {other} at the {place}"),
        (", and ", ". After a while "),
        ("{subject} sent the {thing} to", "{subject} lent a {thing} to"),
    ),
)

# what may follow: who has it hands it on to the other one
HANDING_ON = (
    "Then {subject} gave it back to",
    "Later {subject} showed it to",
    "So {subject} returned it to",
    "At last {subject} sold it to",
    "Then {subject} took it to",
    "In the end {subject} passed it on to",
    "Next day {subject} brought it to",
)

EVENTS = _words("war siege drought trial voyage strike reign exhibition expedition dispute construction journey")
# how a year ends that something begins in
_NEW_STARTS = (13, 19, 23, 28, 34, 37, 42, 48, 56, 61, 75, 80)
STARTS = Drawn([year for year in range(10, 91) if year not in _NEW_STARTS], _NEW_STARTS)
LONGEST = 24  # years that something lasts
SPANNING = Drawn(
    [
        *_joined(
            ("The {event} that began in ", "The {event} that started in ", "A {event} which they had begun in "),
            ("the year {century}{year} ", "{century}{year} "),
            ("went on until ", "lasted until ", "was over in ", "came to an end in "),
            ("the year {again}",),
        ),
        *_joined(
            (
                "The {event} lasted from ",
                "There was a {event} from ",
                "They had a {event} from ",
                "Of the {event} from ",
            ),
            ("the year {century}{year} ", "{century}{year} "),
            ("to the year {again}", "until the year {again}", "up to the year {again}"),
        ),
        "Of the {event} we know that it started in the year {century}{year} and stopped in the year {again}",
    ],
    [
        "The {event} began in the year {century}{year} and ended in the year {again}",
        "Between the year {century}{year}, when the {event} broke out, and the year {again}",
    ],
)

_REGULAR = Drawn(
    _words(
        "key book lamp chair letter window teacher doctor farmer horse boat picture value list argument node graph "
        "array tensor model layer token path result string number element item line row label field method feature "
        "event request option command character term factor root point step block user weight version package section "
        "thread buffer frame example state test dimension pattern position sample unit word polynomial equation pair "
        "record interval header device warning"
    ),
    _words("file function object parameter image column message module group symbol task rule operation variable"),
)
NOUNS = Drawn(
    [*((noun, noun + "s") for noun in _REGULAR.shown), ("child", "children"), ("woman", "women"), ("man", "men")],
    [(noun, noun + "s") for noun in _REGULAR.new],
)
VERBS = [(" is", " are"), (" was", " were"), (" has", " have")]
AGREEING = Drawn(
    _joined(
        _phrases(
            "The | They say that the | In the end the | Today the | I think that the | At last the | It seems that the "
            "| We know that the | Now the | Perhaps the"
        ),
        (" {subject} ",),
        _phrases(
            "beside | near | behind | in front of | with | under | across from | not far from | above | below | by | "
            "close to | far from | on top of | around | without | opposite | to the left of | at the side of | like | "
            "that we saw behind | that we put near | that came with | which we found under | known from | bought for"
        ),
        (" the {attractor}",),
    ),
    _joined(("The", "As you see, the"), (" {subject} ",), ("next to", "inside", "made for"), (" the {attractor}",)),
)

COLOURS = _words("red green blue black white brown grey yellow orange purple pink")
OBJECTS = Drawn(
    _words(
        "lamp coat door book chair cup car boat hat wall ball flower house shirt bag bird horse creature letter key "
        "ring basket label button circle page block frame cell field picture"
    ),
    _words("table tree bar box square plane"),
)
COLOURING = Drawn(
    _joined(
        (
            "The {one} is {colour} and the {other} is {second}",
            "There is a {colour} {one} and a {second} {other}",
            "We have a {colour} {one}, and a {other} that is {second}",
            "The {one} was painted {colour}, the {other} was painted {second}",
            "They bought a small {colour} {one}, and an old {second} {other}",
            "Her {one} is {colour} and her {other} is {second}",
            "In the room stood a {colour} {one} and a {second} {other}",
            "A {colour} {one} lay next to a {second} {other}",
            "He has the {colour} {one} and the big {second} {other}",
            "You painted the {one} {colour} and the {other} {second}",
            "Between the {colour} {one} and the {second} {other} there was nothing",
            "My {one} became {colour}, while my {other} became {second}",
        ),
        (
            ". The colour of the ",
            ". We know that the ",
            ", and so the ",
            ". Now the ",
            ". The ",
            "; the ",
            ". Then the ",
            ". Of course the ",
            ", which means that the ",
        ),
        ("{asked} is",),
    ),
    _joined(
        (
            "I saw that the {one} was {colour} and the {other} was {second}",
            "Look at the fluffy {colour} {one} and at the {second} {other}",
        ),
        (", so the {asked} is", ". What was its colour? The {asked} is"),
    ),
)
# what else is asked of the same things
ASKING = ("The {asked} is", "And the {asked} is", "The colour of the {asked} is", "So the {asked} is")

# noun -> what it does -> places where it is the one that does so
SENSES = Drawn(
    [
        (
            "model",
            {
                " poses": _words("studio boutique gallery salon workshop"),
                " predicts": _words("laboratory computer notebook program server"),
            },
        ),
        (
            "mole",
            {
                " digs": _words("garden meadow field orchard park"),
                " spies": _words("embassy ministry agency army palace"),
            },
        ),
        (
            "bat",
            {
                " flies": _words("cave forest night attic tower"),
                " breaks": _words("stadium match game school club"),
            },
        ),
        (
            "crane",
            {
                " nests": _words("marsh lake swamp river valley"),
                " lifts": _words("harbour factory yard dock port"),
            },
        ),
    ]
)
OFTEN = _words("now today often again sometimes tonight")
SENSING = Drawn(
    _joined(
        ("They say that ", "We know that ", "It seems that ", "I think that "),
        (
            "in the {place} {often} the {noun}",
            "{often} in the {place} the {noun}",
            "the {noun} of the {place} {often}",
            "{often} the {noun} in the {place}",
        ),
    ),
    ["It is known that in the {place} the {noun} {often}"],
)

# by what else somebody may be called in a sentence: whoever is given something is to be read, and not one of a list
_CALLED = dict.fromkeys((*_REGULAR.shown, *OBJECTS.shown, *PLACES, *EVENTS, *COLOURS))
NICKNAMES = [*_CALLED, *(word.capitalize() for word in _CALLED)]

ARGUMENTS = Drawn(
    _words(
        "name value key path data line text index result item start end mode type msg args obj code cls node prefix "
        "pattern string number default parent other left first last"
    ),
    _words("file size func count right"),
)
FUNCTIONS = _words("read write get set open check load run call add find test parse send make copy close update")
CALLING = Drawn(
    ["def {function}({first}, {second}):\n    return {called}({again},"],
    ["{function}({first}, {second})\n{called}({again},"],
)
