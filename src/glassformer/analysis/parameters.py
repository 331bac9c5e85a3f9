"""Parameters of analyses: what each means wherever an analysis of its kind has it.

`question` describes them by these tables; an analysis for which one means more describes it itself.
"""

from collections.abc import Mapping

from glassformer.analysis.cards import Card, Of
from glassformer.docstrings import PARAMETERS

_EVERYWHERE: Mapping[str, str] = {
    "against": "Token (text or id) whose logit is subtracted.",
    "answer": "Token (text or id) in question; the likeliest next token by default.",
    "heads": "Labels; all heads for which it is defined by default.",
    "metric": "A metric of the logits, or a function of logits `world batch pos vocab`; by default what the "
    "answers of the pairs are for.",
    "model": "A decoder or an encoder-decoder.",
    "pairs": "The base, and where what is copied comes from: `(clean, corrupt)`, a `Contrast`, or `Pairs`.",
    "position": "Position whose next token is in question; negative ones count from the end of the row's text.",
    "row": "Row of the batch.",
    "stack": "`encoder` or `decoder` of a model that has two; the decoder by default.",
    "target": "Text or ids of the decoder, for an encoder-decoder.",
    "tokens": "Ids that count; all by default (leave out rare ones, see `frequent_tokens`).",
}
_OF_A_KIND: Mapping[Of, Mapping[str, str]] = {
    "one pass": {
        "run": "A forward pass that read `[{name}]`, or a model.",
        "text": "What the model reads, if it is a model: a text, ids or a batch.",
        "target": "Text or ids of its decoder, if it has an encoder.",
    },
    "weights": {"model": "A model, whose weights are folded first; or weights, taken as they are."},
}


def parameters_of(card: Card) -> dict[str, str]:
    """What parameters of an analysis mean, by name, unless its docstring says more."""
    described = {**PARAMETERS, **_EVERYWHERE, **_OF_A_KIND.get(card.of, {})}
    return {name: meaning.format(name=card.name) for name, meaning in described.items()}
