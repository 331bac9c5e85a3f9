"""Whether a model goes on with `b` behind `self.a = a` and `self.b =`: copying that no bigram and no habit explains.

Names are words that Python has, paired as it hardly pairs them, and words that it hardly has. What training text holds
is left out, so that an answer is no memory.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import islice

from glassformer.data import Data
from glassformer.models import ModelLike, Sampling, generate
from glassformer.zoo.sentences import MeasuredFigures
from glassformer.zoo.shares import said_of_interval

N_ASSIGNMENTS = 200
NAMES = """
    handler version offset parent frame user key thread port pattern level node message root buffer option child url
    size package token state left mode group text index process format link header count context item socket command
    date method string flags name value path data line source target filename module prefix suffix encoding timeout
    parser writer reader stream locale width height depth limit label title status
"""
WORDS = """
    wick lantern berth crane acre fence spout kettle bow violin stamp parcel gravel quarry oar rudder pollen nectar
    hinge shutter saddle bridle mortar gable yeast flour anvil bellows spool needle petal stamen awning canopy piston
    crankshaft walnut almond glacier moraine turnip cabbage thimble button candle ladle saucer teapot chimney hearth
    ember cinder broom dustpan apron sleeve collar mitten scarf boot lace heel puddle brook meadow hedge orchard barn
    stable manger plough harvest sickle barley oat rye millet sheaf mill loaf crust pastry almanac quill parchment
    inkwell ledger sonnet ballad flute trumpet drum cello piano choir anthem lullaby cradle rattle puppet marble kite
    swing sandbox picnic hammock tent campfire compass mast sail hull keel harbor pier gull heron otter beaver badger
    hedgehog squirrel acorn maple willow birch cedar moss fern ivy thistle clover daisy tulip orchid lily bouquet vase
    mirror carpet curtain pillow blanket mattress attic cellar pantry cupboard drawer shelf stool bench table sofa
    pebble boulder cliff canyon valley ridge summit ravine waterfall lagoon reef coral oyster pearl walrus whale seal
    penguin falcon sparrow robin raven owl feather nest beak talon hoof mane antler fleece wool linen velvet satin
    ribbon brooch bracelet necklace amber jade ruby topaz sapphire copper bronze pewter tin zinc mercury sulfur cobalt
    nickel chalk slate clay brick plaster shingle rafter beam plank chisel mallet pliers wrench hacksaw trowel spade
    rake hoe wheelbarrow bucket hose sprinkler greenhouse trellis vine grape raisin plum cherry apricot peach melon
    lemon ginger nutmeg clove cinnamon saffron vinegar mustard pickle
"""
LINES = "self.{0} = {0}\nself.{1} ="
IN_A_CLASS = "class Thing:\n    def __init__(self, {0}, {1}):\n        self.{0} = {0}\n        self.{1} ="


def assignments(model: ModelLike, trained: Data) -> MeasuredFigures:
    """Return of how many texts `self.a = a`, `self.b =` the second line is completed with `b`."""
    text = "\n".join(map(model.require_tokenizer().decode, trained.documents("train")))
    pairs, words = pairs_beside(text), words_beside(text)
    asked = {
        "self_assignments": (LINES, pairs, "two lines, `self.a = a` and `self.b =`, that do not follow each other"),
        "self_assignments_of_new_words": (LINES, words, "the same with words that are nowhere assigned so"),
        "self_assignments_in_a_class": (IN_A_CLASS, words, "the same within `def __init__(self, a, b)`"),
    }
    figures: dict[str, float] = {}
    notes = []
    for name, (form, unseen, about) in asked.items():
        said = [_completed(model, form.format(*pair)) for pair in unseen]
        missed = [f"{second} -> {found}" for found, (_, second) in zip(said, unseen) if found != second]
        right = len(unseen) - len(missed)
        figures[name] = right / max(len(unseen), 1)
        notes.append(
            f"{name}: share of {len(unseen)} texts completed greedily; {about} in training text; "
            f"{said_of_interval(right, len(unseen))}. Missed: {', '.join(missed) or 'none'}"
        )
    return MeasuredFigures(figures, notes)


def pairs_beside(text: str) -> list[tuple[str, str]]:
    """Return pairs of names that do not stand in assignments that follow each other in a text."""
    seen = set(re.findall(r"self\.(\w+) = \1(?=\s+self\.(\w+) =)", text))
    return list(islice((pair for pair in _paired(NAMES.split()) if pair not in seen), N_ASSIGNMENTS))


def words_beside(text: str) -> list[tuple[str, str]]:
    """Return pairs of words that a text assigns nowhere, each word first in one pair and second in one."""
    seen = set(re.findall(r"self\.(\w+) = \1", text))
    words = [word for word in WORDS.split() if word not in seen][:N_ASSIGNMENTS]
    return list(islice(_paired(words), len(words)))


def _paired(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield every word with the next one, then with the one behind that, and so on."""
    for apart in range(1, len(words)):
        yield from zip(words, [*words[apart:], *words[:apart]])


def _completed(model: ModelLike, prompt: str) -> str:
    """Return the rest of the line that greedy decoding writes."""
    return continued(model, prompt, 8).split("\n")[0].strip()


def continued(model: ModelLike, prompt: str, n: int = 24) -> str:
    """Return what greedy decoding writes behind a prompt."""
    tokenizer = model.require_tokenizer()
    ids = [tokenizer.require("bos"), *tokenizer.encode(prompt)]
    made = generate(model, [ids], Sampling(temperature=0.0), max_new_tokens=n)
    return tokenizer.decode(made.tokens[0])
