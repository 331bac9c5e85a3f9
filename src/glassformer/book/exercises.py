"""The exercises of the course, one for each chapter; `check("softmax", yours)` says whether an answer is right."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from glassformer.arguments import checked
from glassformer.book.exercise import Answer, Checked, Exercise, Mistake
from glassformer.errors import WrongArgument, nearest
from glassformer.words import Language, sentence, speaking, spoken


def _drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _hidden(scores: Tensor) -> Tensor:
    """Scores in which what is later than the query is minus infinity."""
    return scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)


def _numbered(text: str, order: Sequence[str]) -> list[int]:
    return [order.index(character) for character in text]


def _earlier(tokens: Sequence[int]) -> list[int]:
    """Places before the last where the last token stands, in order."""
    return [i for i, token in enumerate(tokens[:-1]) if token == tokens[-1]]


def _likeliest(probabilities: Sequence[float], p: float, *, reached: bool = True, least: bool = False) -> list[int]:
    """Tokens from the likeliest on (or the least likely), until their sum has reached p, or just before it would."""
    chosen, total = [], 0.0
    for token in sorted(range(len(probabilities)), key=lambda t: probabilities[t], reverse=not least):
        if total >= p or (not reached and total + probabilities[token] >= p):
            break
        chosen.append(token)
        total += probabilities[token]
    return sorted(chosen)


IDS = Exercise(
    sentence(
        "Write a function of a text. It returns a list: the number of each character, where the different characters "
        "of the text are numbered from 0 in alphabetical order."
    ),
    (("banana",), ("to be",)),
    lambda text: _numbered(text, sorted(set(text))),
    (
        Mistake(
            lambda text: [1 + n for n in _numbered(text, sorted(set(text)))],
            sentence("you number from 1; the first of the alphabet is 0."),
        ),
        Mistake(
            lambda text: _numbered(text, [*dict.fromkeys(text)]),
            sentence("you number characters by where they stand first; sort them."),
        ),
        Mistake(
            lambda text: [*map(ord, text)],
            sentence("these are code points, as ord() gives them; number the characters of this text alone."),
        ),
    ),
)

EMBEDDING = Exercise(
    sentence(
        "Write a function of ids, a table with a vector for each id, and a table with a vector for each place. It "
        "returns the vector of each token: that of its id plus that of its place."
    ),
    ((torch.tensor([2, 0, 2]), _drawn(3, 4), _drawn(5, 4, seed=1)),),
    lambda ids, table, places: table[ids] + places[: len(ids)],
    (
        Mistake(
            lambda ids, table, places: table[ids],
            sentence("places are missing: the same character has the same vector wherever it stands."),
        ),
        Mistake(
            lambda ids, table, places: table[ids] + places[ids],
            sentence("you look places up by id; the first token is at place 0, whatever it is."),
        ),
        Mistake(
            lambda ids, table, places: torch.cat([table[ids], places[: len(ids)]], -1),
            sentence("you put both vectors side by side; add them."),
        ),
    ),
)

SOFTMAX = Exercise(
    sentence(
        "Write a function of a tensor of scores, of the width d of queries and keys, and of a temperature. It returns "
        "the weights: the softmax of the scores divided by the root of d and by the temperature."
    ),
    ((torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]), 16, 2.0), (torch.tensor([3.0, 0.5, 1.0]), 4, 0.5)),
    lambda scores, d, temperature: (scores / (d**0.5 * temperature)).softmax(-1),
    (
        Mistake(
            lambda scores, d, temperature: (scores / (d * temperature)).softmax(-1),
            sentence("you divide by d; divide by its root."),
        ),
        Mistake(
            lambda scores, d, temperature: (scores * temperature / d**0.5).softmax(-1),
            sentence("you multiply by the temperature; a higher one must make weights more even."),
        ),
        Mistake(
            lambda scores, d, temperature: scores / scores.sum(),
            sentence("you divide scores by their sum; take the exponential first."),
        ),
    ),
)

ATTENTION = Exercise(
    sentence(
        "Write a function of queries, keys and values, a row for each token. It returns what each token mixes: the "
        "values weighted by the softmax of q · k over the root of d, where no token sees a later one."
    ),
    ((_drawn(4, 2), _drawn(4, 2, seed=1), _drawn(4, 2, seed=2)),),
    lambda q, k, v: _hidden(q @ k.T / q.shape[-1] ** 0.5).softmax(-1) @ v,
    (
        Mistake(
            lambda q, k, v: (q @ k.T / q.shape[-1] ** 0.5).softmax(-1) @ v,
            sentence("tokens see later ones; hide what lies above the diagonal."),
        ),
        Mistake(
            lambda q, k, v: (q @ k.T / q.shape[-1] ** 0.5).softmax(-1).tril() @ v,
            sentence("you set weights to zero behind softmax, so rows sum to less than one; hide scores before it."),
        ),
        Mistake(
            lambda q, k, v: _hidden(q @ k.T / q.shape[-1] ** 0.5).softmax(-2) @ v,
            sentence("softmax runs down the columns; the weights of a query are a row."),
        ),
    ),
)

LOOK_UP = Exercise(
    sentence(
        "Write a function of a query, of keys and values with a row each, and of a sharpness. It returns a soft look-"
        "up: the values weighted by the softmax of sharpness times key · query."
    ),
    ((_drawn(2), _drawn(3, 2, seed=1), _drawn(3, 2, seed=2), 2.0),),
    lambda query, keys, values, sharpness: (sharpness * keys @ query).softmax(-1) @ values,
    (
        Mistake(
            lambda query, keys, values, sharpness: values[(keys @ query).argmax()],
            sentence("you take the value of the best key alone; weigh all values."),
        ),
        Mistake(
            lambda query, keys, values, sharpness: (sharpness * keys @ query).softmax(-1) @ keys,
            sentence("you mix keys; keys are for finding, values for taking."),
        ),
        Mistake(
            lambda query, keys, values, sharpness: sharpness * keys @ query @ values,
            sentence("you weigh by the scores themselves; put them through softmax first."),
        ),
    ),
)

PARAMETERS = Exercise(
    sentence(
        "Write a function of d_model, d_head, the number of heads of a layer and the number of layers. It returns how "
        "many numbers all W_Q, W_K, W_V and W_O have."
    ),
    ((12_288, 128, 96, 96), (8, 2, 3, 5)),
    lambda d_model, d_head, heads, layers: 4 * d_model * d_head * heads * layers,
    (
        Mistake(
            lambda d_model, d_head, heads, layers: 3 * d_model * d_head * heads * layers,
            sentence("one of four is missing; W_O, which leads back up, counts too."),
        ),
        Mistake(lambda d_model, d_head, heads, layers: 4 * d_model * d_head * heads, sentence("this is one layer.")),
        Mistake(
            lambda d_model, d_head, heads, layers: (2 * d_head + d_model) * d_model * heads * layers,
            sentence(
                "you count a head's values as one matrix of d_model by d_model; they are two narrow ones, down and up."
            ),
        ),
    ),
)

PAIRS = Exercise(
    sentence(
        "Write a function of n. A model writes n tokens, one after the other, and keeps the keys of all. Each new "
        "token is compared with every key so far, its own too. The function returns how many comparisons that makes."
    ),
    ((1,), (4,), (10,)),
    lambda n: n * (n + 1) // 2,
    (
        Mistake(
            lambda n: n * n,
            sentence("every token with every other: you also compare with later ones, which are not there yet."),
        ),
        Mistake(lambda n: n * (n - 1) // 2, sentence("a token is also compared with its own key.")),
        Mistake(
            lambda n: n * (n + 1) * (n + 2) // 6,
            sentence("you begin anew at each token, as a model without a state has to."),
        ),
    ),
)

CONTRIBUTIONS = Exercise(
    sentence(
        "Write a function of what each part writes to the stream, a row for each, and of the direction of a token. It "
        "returns what each part adds to the logit of the token."
    ),
    ((_drawn(5, 3), _drawn(3, seed=1)),),
    lambda writes, direction: writes @ direction,
    (
        Mistake(
            lambda writes, direction: writes.cumsum(0) @ direction,
            sentence("these are the logits after each part; say what each one adds."),
        ),
        Mistake(
            lambda writes, direction: writes @ direction / (writes @ direction).sum(),
            sentence("these are shares of the whole; logits are wanted."),
        ),
        Mistake(
            lambda writes, direction: writes.norm(dim=-1),
            sentence("you measure how long each row is; only what lies along the direction counts."),
        ),
    ),
)

CIRCUITS = Exercise(
    sentence(
        "Write a function of two vectors of the stream, of the token that asks and of the one that is asked, and of "
        "the four matrices of a head. It returns the score between both, times what the head would write."
    ),
    ((_drawn(4), _drawn(4, seed=1), *(_drawn(4, 2, seed=s) for s in (2, 3, 4)), _drawn(2, 4, seed=5)),),
    lambda asks, asked, W_Q, W_K, W_V, W_O: (asks @ W_Q @ W_K.T @ asked) * (asked @ W_V @ W_O),
    (
        Mistake(
            lambda asks, asked, W_Q, W_K, W_V, W_O: (asked @ W_Q @ W_K.T @ asks) * (asked @ W_V @ W_O),
            sentence("you let the wrong token ask: its vector goes through W_Q, the other's through W_K."),
        ),
        Mistake(
            lambda asks, asked, W_Q, W_K, W_V, W_O: (asks @ W_Q @ W_K.T @ asked) * (asks @ W_V @ W_O),
            sentence("you write what the asking token has; values come from the one that is asked."),
        ),
        Mistake(
            lambda asks, asked, W_Q, W_K, W_V, W_O: (asks @ W_Q @ W_K.T @ asked) * (asked @ W_V),
            sentence("W_O is missing: a value is not yet as wide as the stream."),
        ),
    ),
)

SKIP_TRIGRAM = Exercise(
    sentence(
        "Write a function of a table of scores (row: who asks, column: who is asked), a table of effects (row: who is "
        "asked, column: the next token) and a list of tokens. It returns the logits behind the last token of one head."
    ),
    ((_drawn(4, 4), _drawn(4, 4, seed=1), [0, 2, 1, 3]), (_drawn(4, 4), _drawn(4, 4, seed=1), [3, 3, 2])),
    lambda scores, effects, tokens: scores[tokens[-1], tokens].softmax(-1) @ effects[tokens],
    (
        Mistake(
            lambda scores, effects, tokens: scores[tokens[-1], tokens] @ effects[tokens],
            sentence("weights are missing: scores go through softmax first."),
        ),
        Mistake(
            lambda scores, effects, tokens: effects[tokens[-1]],
            sentence("this is the effect of the last token; it comes from those that it looks at."),
        ),
        Mistake(
            lambda scores, effects, tokens: scores[tokens, tokens[-1]].softmax(-1) @ effects[tokens],
            sentence("you let the tokens ask the last one; rows of the scores are who asks."),
        ),
    ),
)

INDUCTION = Exercise(
    sentence(
        "Write a function of a list of tokens, whose last one stands earlier too. It returns what followed the last "
        "time."
    ),
    (([1, 2, 3, 1, 5, 1],), ([7, 8, 9, 8, 4, 8],)),
    lambda tokens: tokens[_earlier(tokens)[-1] + 1],
    (
        Mistake(lambda tokens: tokens[_earlier(tokens)[0] + 1], sentence("this is the first time; take the last one.")),
        Mistake(
            lambda tokens: tokens[_earlier(tokens)[-1]],
            sentence("you found it again; the answer is the token behind it."),
        ),
        Mistake(
            lambda tokens: tokens[_earlier(tokens)[-1] - 1],
            sentence("this is the token in front of it; the answer is the one behind."),
        ),
    ),
)

SAMPLING = Exercise(
    sentence(
        "Write a function of a list of probabilities and of p. It returns, in order, the numbers of the tokens that "
        "are kept: the likeliest ones, as few as are needed for their probabilities to sum to p or more."
    ),
    (([0.1, 0.5, 0.25, 0.15], 0.7), ([0.4, 0.3, 0.2, 0.1], 0.8)),
    lambda probabilities, p: _likeliest(probabilities, p),
    (
        Mistake(
            lambda probabilities, p: _likeliest(probabilities, p, reached=False),
            sentence("the sum of yours is still below p; the token that takes it there belongs to them."),
        ),
        Mistake(
            lambda probabilities, p: [token for token, one in enumerate(probabilities) if one >= p],
            sentence("you keep tokens that have p each; it is their sum that counts."),
        ),
        Mistake(
            lambda probabilities, p: _likeliest(probabilities, p, least=True),
            sentence("you begin with the least likely."),
        ),
    ),
)

EXERCISES: Mapping[str, Exercise] = {
    "ids": IDS,
    "embedding": EMBEDDING,
    "softmax": SOFTMAX,
    "attention": ATTENTION,
    "look_up": LOOK_UP,
    "parameters": PARAMETERS,
    "pairs": PAIRS,
    "contributions": CONTRIBUTIONS,
    "circuits": CIRCUITS,
    "skip_trigram": SKIP_TRIGRAM,
    "induction": INDUCTION,
    "sampling": SAMPLING,
}


@checked
def exercise(name: str, *, lang: Language = "en") -> Exercise:
    """An exercise of the course by its name.

    Args:
        name: Of the exercise.
        lang: Language of its task: `en`, `zh`.

    Raises:
        WrongArgument: There is none of this name.
    """
    if name not in EXERCISES:
        raise WrongArgument(f'no exercise "{name}".{nearest(name, EXERCISES)} There are {", ".join(EXERCISES)}.')
    found = EXERCISES[name]
    with speaking(lang):
        return replace(found, task=spoken(found.task))


@checked
def check(name: str, answer: Answer, *, lang: Language = "en") -> Checked:
    """Whether an answer to an exercise is right, and which mistake it makes if it is a known one.

    Args:
        name: Of the exercise.
        answer: A function of the arguments that its task names.
        lang: Language of what is said of it: `en`, `zh`.

    Raises:
        WrongArgument: There is no exercise of this name.

    Example:
        >>> str(check("pairs", lambda n: n * (n + 1) // 2))
        'Right.'
    """
    with speaking(lang):
        return exercise(name).check(answer)
