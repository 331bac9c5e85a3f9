"""Where a head may look, and from where: masks over queries and keys by position, identity and class of the token.

    weight[query, target, key] = 1 where the key is one of the target's, from this query
    share of a head = mean over queries that have such a key of what its row of the pattern has there

Roles (`roles.ROLES`) are the first targets. Others are known from the field: the token two back and a window, as of
positional heads; classes of tokens, such as line breaks and punctuation, where heads rest; and places that the text's
structure names: the last line break, the first token of the line, the innermost open bracket, the beginning of the
word. A class of queries narrows a share to queries of that class. Keys of targets that are classes lie before the
query; in a stack that reads both ways anywhere but at the query.

Source: Clark et al. 2019, "What Does BERT Look At?" (next, previous, punctuation); Voita et al. 2019, "Analyzing
Multi-Head Self-Attention" (positional and syntactic heads); Olsson et al. 2022 (roles).
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.analysis.heads.roles import ROLES, role_masks
from glassformer.data.tokenizer import Tokenizer
from glassformer.words import Sentence, sentence

WINDOW = 8  # tokens before the query that are recent
EVERY = "every_token"
# of the tokens of a vocabulary; each is of one class, or special and of none
CLASSES = (
    "line_break", "blank", "word", "number", "opening_bracket", "closing_bracket", "quote", "punctuation",
)  # fmt: skip
FROM = (EVERY, "line_first", "inside_word", *CLASSES)
STRUCTURE = ("last_line_break", "line_start", "open_bracket", "word_start")
_OPENING, _CLOSING, _QUOTES = "([{<", ")]}>", "\"'`"

SAID: dict[str, Sentence] = {
    "previous_token": sentence("the previous token"),
    "induction": sentence("what followed earlier copies of the token"),
    "duplicate_token": sentence("earlier copies of the token"),
    "first_token": sentence("the first token of the passage"),
    "current_token": sentence("the token itself"),
    "next_token": sentence("the next token"),
    "two_back": sentence("the token two back"),
    "recent": sentence("the eight tokens before"),
    "line_break": sentence("line breaks"),
    "blank": sentence("blanks"),
    "word": sentence("words"),
    "number": sentence("numbers"),
    "opening_bracket": sentence("opening brackets"),
    "closing_bracket": sentence("closing brackets"),
    "quote": sentence("quotation marks"),
    "punctuation": sentence("punctuation"),
    "last_line_break": sentence("the last line break"),
    "line_start": sentence("the first token of the line"),
    "open_bracket": sentence("the innermost open bracket"),
    "word_start": sentence("the beginning of the word"),
    "line_first": sentence("a line's first token"),
    "inside_word": sentence("tokens inside a word"),
}


class TokenKinds(NamedTuple):
    """What is known of each token by its text.

    Args:
        classes: Whether it is of each class of `CLASSES`.
        continues: Whether it goes on with a word that began before it.
        closes: Brackets that it closes, and that it did not open itself.
        opens: Brackets that it leaves open.
    """

    classes: Bool[Tensor, "token_class token"]
    continues: Bool[Tensor, " token"]
    closes: list[int]
    opens: list[int]

    @classmethod
    def of(cls, tokenizer: Tokenizer | None, size: int) -> "TokenKinds | None":
        """Read a vocabulary of so many tokens; None without a tokenizer."""
        if tokenizer is None:
            return None
        known, specials = tokenizer.vocab_size, tokenizer.specials
        texts = ["" if i in specials or i >= known else tokenizer.token(i) for i in range(size)]
        # where pieces are marked that go on, the others begin words, though no space stands in front of them
        marked = any(text.startswith("##") for text in texts)
        found = [class_of(text.removeprefix("##") if marked else text) for text in texts]
        brackets = [_brackets(text) for text in texts]
        return cls(
            classes=torch.tensor([[one == name for one in found] for name in CLASSES]),
            continues=torch.tensor(
                [
                    one == "word" and (text.startswith("##") if marked else text[0].isalnum())
                    for one, text in zip(found, texts)
                ]
            ),
            closes=[closed for closed, _ in brackets],
            opens=[opened for _, opened in brackets],
        )


def class_of(text: str) -> str:
    """Return the class of a token by its text; empty for a token without text."""
    bare = text.strip()
    if "\n" in text:
        return "line_break"
    if not bare:
        return "blank" if text else ""
    if any(c.isalpha() or c == "_" for c in bare):
        return "word"
    if any(c.isdigit() for c in bare):
        return "number"
    closed, opened = _brackets(bare)
    if closed or opened:
        return "opening_bracket" if opened else "closing_bracket"
    return "quote" if any(c in _QUOTES for c in bare) else "punctuation"


@functools.cache
def _brackets(text: str) -> tuple[int, int]:
    """Return how many brackets a token closes that it did not open, and how many it leaves open.

    Angles are brackets only where they stand alone: they compare numbers too.
    """
    opening, closing = (_OPENING, _CLOSING) if text.strip() in ("<", ">") else (_OPENING[:-1], _CLOSING[:-1])
    closed = opened = 0
    for c in text:
        if c in opening:
            opened += 1
        elif c in closing:
            closed, opened = (closed, opened - 1) if opened else (closed + 1, 0)
    return closed, opened


def targets_of(has_classes: bool, ahead: bool) -> tuple[str, ...]:
    """Return the targets of a stack: those that need classes of tokens only with them, and no induction ahead."""
    ordinary = tuple(role for role in ROLES if not (ahead and role == "induction"))
    by_position = ("next_token",) if ahead else ()
    return (*ordinary, *by_position, "two_back", "recent", *((*CLASSES, *STRUCTURE) if has_classes else ()))


class Looks(NamedTuple):
    """Masks of a batch of passages.

    Args:
        weight: 1 where a key is one of a target's from a query, and the distance of the key, as the last one.
        defined: Whether a query has a key of a target.
        even: Share of each target in a row that is even over all keys that the query may see.
        visible: How many those are; 0 of queries that do not count.
        queries: Which queries are of each class, with the class of all in front.
    """

    weight: Float[Tensor, "batch query look key"]
    defined: Bool[Tensor, "batch query target"]
    even: Float[Tensor, "batch query target"]
    visible: Int[Tensor, "batch query"]
    queries: Float[Tensor, "from batch query"]


def looks_of(
    ids: Int[Tensor, "batch pos"], lengths: Int[Tensor, " batch"], vocabulary: TokenKinds | None, ahead: bool
) -> Looks:
    """Return where each query of some passages could look, and of which classes it is.

    The first position counts as no query, since it can see itself alone; in a stack that reads ahead likewise, so that
    scores are those of `head_roles`.

    Args:
        ids: Tokens; padding, on the right, is whatever it is.
        lengths: How many are real.
        vocabulary: What is known of tokens by their texts.
        ahead: Whether the stack reads both ways.
    """
    (batch, n), place = ids.shape, ids.device
    at = torch.arange(n, device=place)
    q, k = at[:, None], at[None]
    real = at < lengths.to(place)[:, None]
    counted = real & (at > 0)
    before = (k != q) if ahead else (k < q)
    roles = role_masks(ids)
    masks = {role: roles[i] for i, role in enumerate(ROLES)}
    masks |= {"next_token": k == q + 1, "two_back": k == q - 2, "recent": (k < q) & (k >= q - WINDOW)}
    queries = [counted]
    if vocabulary is not None:
        classes = vocabulary.classes.to(place)[:, ids]
        masks |= {name: of_class[:, None] & before for name, of_class in zip(CLASSES, classes)}
        continues, first = _continuing(ids, vocabulary), _line_first(classes)
        masks |= {name: k == key[..., None] for name, key in _structure(ids, classes, continues, first, vocabulary)}
        queries += [one & counted for one in (first, continues, *classes)]
    names = targets_of(vocabulary is not None, ahead)
    weight = torch.zeros(batch, n, len(names) + 1, n, device=place)
    for t, name in enumerate(names):
        weight[:, :, t] = masks[name]
    weight[:, :, -1] = (q - k).abs()
    weight *= (counted[:, :, None] & real[:, None])[:, :, None]
    keys = weight[:, :, :-1].sum(-1)
    visible = torch.where(counted, lengths.to(place)[:, None] if ahead else at + 1, 0)
    even = keys / visible.clamp_min(1)[..., None]
    return Looks(weight, keys > 0, even, visible, torch.stack(queries).float())


def _last(there: Bool[Tensor, "batch pos"]) -> Int[Tensor, "batch pos"]:
    """Return where something was last, before each position; -1 where nowhere."""
    at = torch.arange(there.shape[1], device=there.device)
    upto = torch.where(there, at, -1).cummax(1).values
    return torch.cat((torch.full_like(upto[:, :1], -1), upto[:, :-1]), 1)


def _line_first(classes: Bool[Tensor, "token_class batch pos"]) -> Bool[Tensor, "batch pos"]:
    """Return which tokens are the first of a line that are not blank, of lines that begin behind a line break."""
    breaks, filled = classes[CLASSES.index("line_break")], classes[CLASSES.index("word") :].any(0)
    return filled & (_last(breaks) > _last(filled))


def _continuing(ids: Int[Tensor, "batch pos"], vocabulary: TokenKinds) -> Bool[Tensor, "batch pos"]:
    """Return which tokens go on with the word of the token before."""
    words = vocabulary.classes.to(ids.device)[CLASSES.index("word")][ids]
    behind = torch.cat((torch.zeros_like(words[:, :1]), words[:, :-1]), 1)
    return vocabulary.continues.to(ids.device)[ids] & behind


def _structure(
    ids: Int[Tensor, "batch pos"],
    classes: Bool[Tensor, "token_class batch pos"],
    continues: Bool[Tensor, "batch pos"],
    first: Bool[Tensor, "batch pos"],
    vocabulary: TokenKinds,
) -> list[tuple[str, Int[Tensor, "batch pos"]]]:
    """Return for each name of `STRUCTURE` which key it is from each query; -1 where there is none."""
    last_break = _last(classes[CLASSES.index("line_break")])
    line = _last(first)
    begun = torch.where(continues, _last(~continues), -1)
    opened = torch.tensor([_open_brackets(row, vocabulary) for row in ids.tolist()], device=ids.device)
    return list(zip(STRUCTURE, (last_break, torch.where(line > last_break, line, -1), opened, begun)))


def _open_brackets(row: Sequence[int], vocabulary: TokenKinds) -> list[int]:
    """Return which token holds the innermost bracket that is open before each position; -1 where none is."""
    found, held = list[int](), list[int]()
    for position, token in enumerate(row):
        found.append(held[-1] if held else -1)
        if closed := vocabulary.closes[token]:
            del held[-closed:]
        held += [position] * vocabulary.opens[token]
    return found
