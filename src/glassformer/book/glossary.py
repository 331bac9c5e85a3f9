"""Words of the course, each with what it means and the chapter that explains it."""

from typing import NamedTuple

from glassformer.arguments import checked
from glassformer.errors import WrongArgument, nearest
from glassformer.words import Language, Sentence, sentence, speaking, spoken


class Term(NamedTuple):
    """A word of the course.

    Args:
        name: The word.
        meaning: What it means, in a sentence.
        chapter: The name of the chapter's page.
    """

    name: Sentence
    meaning: Sentence
    chapter: str


GLOSSARY: tuple[Term, ...] = (
    Term(
        sentence("token"),
        sentence("A piece of text that a model knows by number: a character, a part of a word, a word."),
        "characters",
    ),
    Term(sentence("id"), sentence("The number of a token."), "characters"),
    Term(sentence("vector"), sentence("A list of numbers."), "embedding"),
    Term(
        sentence("embedding"),
        sentence("Looking up the vector of an id in a table that is learned in training."),
        "embedding",
    ),
    Term(
        sentence("scores"),
        sentence("Numbers of any size, of which softmax makes weights; in attention, products of queries and keys."),
        "softmax",
    ),
    Term(
        sentence("weights"),
        sentence("Numbers that are not negative and sum to one: the shares of a mixture."),
        "softmax",
    ),
    Term(
        sentence("temperature"),
        sentence("What scores are divided by: below 1 the best one gets nearly all, above 1 weights become alike."),
        "softmax",
    ),
    Term(sentence("query"), sentence("What a token looks for: its vector times W_Q."), "attention"),
    Term(sentence("key"), sentence("What a token can be found by: its vector times W_K."), "attention"),
    Term(sentence("values"), sentence("What is taken from tokens: their vectors times W_V."), "attention"),
    Term(
        sentence("attention"),
        sentence("Each token becomes a mixture of values; softmax makes the weights of queries and keys."),
        "attention",
    ),
    Term(
        sentence("sharpness"),
        sentence("What scores are multiplied by: the larger, the closer to a hard look-up."),
        "look-up",
    ),
    Term(
        sentence("head"),
        sentence("One of several attentions side by side in a layer, with four matrices of its own."),
        "heads",
    ),
    Term(
        sentence("MLP"),
        sentence(
            "The layer of neurons in a block. It works at each position alone: it reads the stream, multiplies, bends "
            "by its activation, and writes back."
        ),
        "heads",
    ),
    Term(sentence("mask"), sentence("What hides later tokens."), "state"),
    Term(sentence("state"), sentence("What a model keeps of earlier tokens while it writes."), "state"),
    Term(sentence("mechanism"), sentence("A kind of attention: how tokens are mixed, and what is kept."), "state"),
    Term(
        sentence("residual stream"),
        sentence("The vector each position carries through the model; every part reads it and adds to it."),
        "stream",
    ),
    Term(
        sentence("logit"),
        sentence("A number for each token of the vocabulary, of which softmax makes probabilities."),
        "stream",
    ),
    Term(sentence("vocabulary"), sentence("All tokens that a model knows."), "stream"),
    Term(
        sentence("cosine"),
        sentence("How alike two directions are: 1 if they are the same, 0 if they have nothing in common."),
        "stream",
    ),
    Term(sentence("QK circuit"), sentence("The product of W_Q and W_K: where a head looks."), "circuits"),
    Term(sentence("OV circuit"), sentence("The product of W_V and W_O: what a head moves."), "circuits"),
    Term(
        sentence("skip-trigram"),
        sentence("A rule of three tokens, with anything between the first two."),
        "skip-trigrams",
    ),
    Term(
        sentence("induction head"),
        sentence("A head that looks at what followed the current token the last time."),
        "induction",
    ),
    Term(sentence("distribution"), sentence("A probability for each token, one together."), "sampling"),
    Term(sentence("greedy"), sentence("Always taking the likeliest token."), "sampling"),
)


@checked
def glossary(chapter: str, *, lang: Language = "en") -> str:
    """The words that a chapter of the course explains, as a list in Markdown.

    Args:
        chapter: The name of its page.
        lang: Language of the list: `en`, `zh`; with the English word beside the Chinese one.

    Raises:
        WrongArgument: There is no chapter of this name.

    Example:
        >>> print(glossary("circuits"))
        - **QK circuit**: The product of W_Q and W_K: where a head looks.
        - **OV circuit**: The product of W_V and W_O: what a head moves.
    """
    found = [term for term in GLOSSARY if term.chapter == chapter]
    if not found:
        chapters = [*dict.fromkeys(term.chapter for term in GLOSSARY)]
        raise WrongArgument(f'no chapter "{chapter}".{nearest(chapter, chapters)} There are {", ".join(chapters)}.')
    with speaking(lang):
        return "\n".join(_line(term) for term in found)


def _line(term: Term) -> str:
    said = spoken(term.name)
    name = f"**{said}**" if said == term.name else f"**{said}** {term.name}"
    return "- " + spoken("{name}: {value}", name=name, value=term.meaning)
