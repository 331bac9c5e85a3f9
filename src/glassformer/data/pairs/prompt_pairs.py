"""Prompt pairs: a clean prompt, a corrupt one that differs where it matters, the answer, and a wrong answer.

Patching moves what happens inside a model from one prompt of a pair to the other, position by position. So both have
equally many tokens and each answer is one token; whether that is so depends on the tokenizer, and is checked there.

A pair may know the roles of its words (`subject`, …): as characters of the clean prompt, or as positions if prompts are
token ids. Text gets the specials that its tokenizer puts in front, and none behind, where the answer follows; ids are
taken as they are. Axes: `batch pos`.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, overload

import torch
from torch import Tensor

from glassformer.data.marks import lost_words, marks
from glassformer.data.pairs.contrast import SIDES, Contrast
from glassformer.data.tokenizer import Tokenizer
from glassformer.errors import DataError

# the role of the words in which two prompts differ, where a pair names none
CHANGED = "changed"
Prompt = str | tuple[int, ...]
Token = str | int
Span = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two prompts and two answers.

    Args:
        clean: The prompt whose answer is `answer`.
        corrupt: The prompt for which `answer` is no better than `wrong`.
        answer: What follows the clean prompt: text of one token, with the space before it if there is one; or an id.
        wrong: What to compare it with.
        roles: Where words of the clean prompt lie, as (first, behind the last). Without any, `encode` calls `changed`
            what differs in the corrupt prompt.
    """

    clean: Prompt
    corrupt: Prompt
    answer: Token
    wrong: Token
    roles: Mapping[str, Span] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("clean", "corrupt", "answer", "wrong"):
            value = getattr(self, name)
            if value == "" or value == ():
                raise DataError(f'a pair needs "{name}", which is empty.')
        if isinstance(self.clean, str) != isinstance(self.corrupt, str):
            raise DataError("of a pair, one prompt is text and the other token ids; give both as text or both as ids.")
        if self.answer == self.wrong:
            raise DataError(f"answer and wrong answer are both {self.answer!r}; they must differ.")
        if self.clean == self.corrupt:
            raise DataError(f"clean and corrupt prompt are the same: {self.clean!r}. They must differ.")
        size = len(self.clean)
        for role, (start, stop) in self.roles.items():
            if not 0 <= start < stop <= size:
                raise DataError(f'role "{role}" is at {start} to {stop}, but the clean prompt has 0 to {size}.')


class Misfit(NamedTuple):
    """A pair that cannot be used with a tokenizer: its place in the set, and why."""

    pair: int
    why: str


@dataclasses.dataclass(frozen=True)
class Pairs(Sequence[Pair]):
    """A set of pairs.

    Args:
        pairs: The pairs.
        name: Of the set.
    """

    pairs: tuple[Pair, ...]
    name: str = "pairs"

    def __len__(self) -> int:
        return len(self.pairs)

    @overload
    def __getitem__(self, index: int) -> Pair: ...
    @overload
    def __getitem__(self, index: slice) -> "Pairs": ...
    def __getitem__(self, index: int | slice) -> "Pair | Pairs":
        return Pairs(self.pairs[index], self.name) if isinstance(index, slice) else self.pairs[index]

    def __iter__(self) -> Iterator[Pair]:
        return iter(self.pairs)

    def misfits(self, model: Any) -> list[Misfit]:
        """The pairs that cannot be used with a model (or tokenizer), each with the reason."""
        read = _Reader(model)
        return [Misfit(i, found) for i, pair in enumerate(self) if isinstance(found := read(pair), str)]

    def fitting(self, model: Any) -> "Pairs":
        """The pairs that can be used with a model (or tokenizer)."""
        bad = {misfit.pair for misfit in self.misfits(model)}
        return Pairs(tuple(pair for i, pair in enumerate(self) if i not in bad), self.name)

    def groups(self, model: Any, *, by_role: bool = False) -> "list[Pairs]":
        """Sets whose prompts have one length each, shortest first.

        Args:
            model: A model (or tokenizer) that they fit.
            by_role: Words of one role must also lie at the same positions, as averages over pairs by position need.

        Raises:
            DataError: A pair does not fit.
        """
        read, found = _Reader(model), dict[Any, list[Pair]]()
        for i, pair in enumerate(self):
            row = read.whole(pair, i)
            key = len(row.clean), tuple(sorted(row.roles.items())) if by_role else ()
            found.setdefault(key, []).append(pair)
        return [Pairs(tuple(found[key]), self.name) for key in sorted(found)]

    def encode(self, model: Any, pad: Literal["left", "right"] | None = None) -> Contrast:
        """The pairs as one contrast of token ids, with a name for every position.

        A position is called by its number, with the role or the token there if all pairs share it.

        Args:
            model: A decoder of ours with a tokenizer (prompts of ids need none).
            pad: Fill shorter prompts up on this side; without it all pairs must have one length.

        Raises:
            DataError: There are no pairs; a pair does not fit the tokenizer, which is explained; pairs have different
                lengths and none is padded; the model is an encoder-decoder.
        """
        if not self.pairs:
            raise DataError(f'there are no pairs in "{self.name}" to encode.')
        if "encoder" in getattr(model, "stacks", {}):
            raise DataError("pairs are prompts that a decoder goes on from; this model reads a source and a target.")
        read = _Reader(model)
        rows = [read.whole(pair, i) for i, pair in enumerate(self)]
        sizes = [len(row.clean) for row in rows]
        longest = max(sizes)
        if pad is None and min(sizes) < longest:
            found = ", ".join(f"{sizes.count(size)} of {size} tokens" for size in sorted(set(sizes)))
            raise DataError(
                f'the pairs in "{self.name}" have different lengths: {found}. Take .groups(model) one by one, or '
                'encode(model, pad="right").'
            )
        device = model.unembed.stored.device if hasattr(model, "unembed") else None

        def tensor(values: Any) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        def filled(ids: Sequence[int]) -> list[int]:
            # any token will do: nothing looks at padding
            fill = [ids[0]] * (longest - len(ids))
            return [*fill, *ids] if pad == "left" else [*ids, *fill]

        offsets = [longest - size if pad == "left" else 0 for size in sizes]
        names = dict.fromkeys(role for row in rows for role in row.roles)
        roles = {
            name: tuple(tuple(p + start for p in row.roles.get(name, ())) for row, start in zip(rows, offsets))
            for name in names
        }
        padded = min(sizes) < longest
        clean, corrupt = ([filled(getattr(row, side)) for row in rows] for side in SIDES)
        return Contrast(
            tensor(clean), tensor(corrupt), tensor([row.answer for row in rows]), tensor([row.wrong for row in rows]),
            labels=_labels(clean, corrupt, roles, read.tokenizer if not padded else None), roles=roles,
            lengths=tensor(sizes) if padded else None, padding=pad if padded and pad is not None else "none",
        )  # fmt: skip


class _EncodedPair(NamedTuple):
    clean: list[int]
    corrupt: list[int]
    answer: int
    wrong: int
    roles: dict[str, tuple[int, ...]]


class _Reader:
    """Reads single pairs with a tokenizer, or says why that cannot be done."""

    def __init__(self, model: Any) -> None:
        self.tokenizer: Tokenizer | None = model if isinstance(model, Tokenizer) else getattr(model, "tokenizer", None)
        config = getattr(model, "config", None)
        self.max_len: int | None = getattr(config, "max_len", None)
        known = None if self.tokenizer is None else self.tokenizer.vocab_size
        self.vocab_size: int | None = getattr(config, "vocab_size", known)
        # answers are of what logits are of
        self.answers: Tokenizer | None = getattr(model, "output_tokenizer", self.tokenizer)
        self.n_answers: int | None = getattr(config, "n_outputs", self.vocab_size)

    def whole(self, pair: Pair, index: int) -> _EncodedPair:
        row = self(pair)
        if isinstance(row, str):
            raise DataError(f"pair {index}: {row}\n    .fitting(model) keeps the pairs that can be used.")
        return row

    def __call__(self, pair: Pair) -> _EncodedPair | str:
        texts = [value for value in (pair.clean, pair.corrupt, pair.answer, pair.wrong) if isinstance(value, str)]
        if texts and self.tokenizer is None:
            return "it is text, and the model has no tokenizer. Set model.tokenizer, or give token ids."
        if any(isinstance(token, str) for token in (pair.answer, pair.wrong)) and self.answers is None:
            return "its answers are text, and the model's outputs have no names. Set output_tokenizer, or give ids."
        prompts = [self._prompt(prompt) for prompt in (pair.clean, pair.corrupt)]
        answers = [self._answer(token) for token in (pair.answer, pair.wrong)]
        why = next((found for found in (*prompts, *answers) if isinstance(found, str)), None)
        if why is not None:
            return why
        (clean, corrupt), (answer, wrong) = prompts, answers
        assert isinstance(clean, list) and isinstance(corrupt, list), "a string was returned above"
        assert isinstance(answer, int) and isinstance(wrong, int), "a string was returned above"
        if len(clean) != len(corrupt):
            return self._unequal(clean, corrupt)
        if answer == wrong:
            return f"answer {pair.answer!r} and wrong answer {pair.wrong!r} are one token."
        if clean == corrupt:
            return f"clean and corrupt prompt are the same tokens: {self._shown(clean)}."
        changed = tuple(p for p, (one, other) in enumerate(zip(clean, corrupt)) if one != other)
        roles = self._roles(pair, clean) or {CHANGED: changed}
        return self._seams(pair) or _EncodedPair(clean, corrupt, answer, wrong, roles)

    def _prompt(self, prompt: Prompt) -> list[int] | str:
        if isinstance(prompt, str):
            tokenizer = self._with_tokenizer()
            ids = tokenizer.encode(prompt)
            if not ids:
                return f"{prompt!r} holds no token."
            begin = tokenizer.around("opening")[0]
            if not tokenizer.allows_unknown and (why := _unlearnt(tokenizer, ids, prompt, len(begin))):
                return why
            ids = [*begin, *ids]
        else:
            ids = list(prompt)
            outside = [id for id in ids if id < 0 or (self.vocab_size is not None and id >= self.vocab_size)]
            if outside:
                return f"token id {outside[0]} is outside the vocabulary of {self.vocab_size}."
        if self.max_len is not None and len(ids) > self.max_len:
            return f"the prompt has {len(ids)} tokens, and the context of the model is {self.max_len}."
        return ids

    def _answer(self, token: Token) -> int | str:
        if isinstance(token, str):
            assert self.answers is not None, "text was refused before"
            ids = self.answers.continuing(token)
            if len(ids) != 1:
                shown = "|".join(self.answers.tokens(ids))
                return f"the answer {token!r} is {len(ids)} tokens ({shown}); it has to be one."
            if ids[0] == self.answers.unk:
                return f"the answer {token!r} is not in the vocabulary."
            return ids[0]
        if token < 0 or (self.n_answers is not None and token >= self.n_answers):
            return f"the answer's id {token} is outside the vocabulary of {self.n_answers}."
        return token

    def _seams(self, pair: Pair) -> str | None:
        """Say why an answer would be split otherwise behind the prompt than alone: the model never saw it so."""
        if self.answers is not self.tokenizer:
            return None
        for prompt in (pair.clean, pair.corrupt):
            for token in (pair.answer, pair.wrong):
                if not isinstance(prompt, str) or not isinstance(token, str):
                    continue
                tokenizer = self._with_tokenizer()
                together = tokenizer.encode(prompt + token)
                if together != [*tokenizer.encode(prompt), *tokenizer.continuing(token)]:
                    end = prompt if len(prompt) < 60 else f"…{prompt[-40:]}"
                    return (
                        f"{token!r} is no token of its own behind the prompt: {end + token!r} ends in "
                        f"{self._shown(together[-3:])}. A space belongs to the answer, not to the end of the prompt."
                    )
        return None

    def _roles(self, pair: Pair, clean: list[int]) -> dict[str, tuple[int, ...]]:
        if not isinstance(pair.clean, str):
            return {role: tuple(range(*span)) for role, span in pair.roles.items()}
        if not pair.roles:
            return {}
        spans = self._with_tokenizer().spans(pair.clean)
        first = len(clean) - len(spans)
        return {
            role: tuple(first + i for i, (a, b) in enumerate(spans) if a < stop and b > start)
            for role, (start, stop) in pair.roles.items()
        }

    def _unequal(self, clean: list[int], corrupt: list[int]) -> str:
        same = next((i for i, (a, b) in enumerate(zip(clean, corrupt)) if a != b), min(len(clean), len(corrupt)))
        left = min(len(clean), len(corrupt)) - same
        tail = next((i for i, (a, b) in enumerate(zip(clean[::-1], corrupt[::-1])) if a != b), left)
        parts = [self._shown(ids[max(same - 1, 0) : len(ids) - min(tail, left)]) for ids in (clean, corrupt)]
        return (
            f"clean has {len(clean)} tokens and corrupt {len(corrupt)}; position by position they do not align. "
            f"They part at position {same}:\n    clean:   {parts[0]}\n    corrupt: {parts[1]}"
        )

    def _shown(self, ids: Sequence[int]) -> str:
        return "|".join(map(str, ids) if self.tokenizer is None else self.tokenizer.tokens(ids))

    def _with_tokenizer(self) -> Tokenizer:
        assert self.tokenizer is not None, "text was refused before"
        return self.tokenizer


def _unlearnt(tokenizer: Tokenizer, ids: list[int], prompt: str, behind: int) -> str:
    """Return what the vocabulary lacks to read a prompt behind so many tokens; empty if that is nothing."""
    if lost := lost_words(tokenizer, [ids], {0: prompt}, behind):
        return f"{prompt!r} holds what is not in the vocabulary: {', '.join(lost)}."
    texts = tokenizer.tokens(ids)
    found = marks(tokenizer, ids, texts)
    if found.mostly_bytes:
        return (
            f"{found.byte_tokens} of {found.words} tokens of {prompt!r} are single bytes of characters: "
            f"{'|'.join(texts)}."
        )
    return ""


def _labels(
    clean: list[list[int]],
    corrupt: list[list[int]],
    roles: Mapping[str, tuple[tuple[int, ...], ...]],
    tokenizer: Tokenizer | None,
) -> tuple[str, ...]:
    """Name positions by the role or the token that all pairs have there."""
    labels = []
    for p in range(len(clean[0])):
        name = next((role for role, where in roles.items() if all(p in positions for positions in where)), None)
        if name is None and p == len(clean[0]) - 1:
            name = "last"
        tokens = {row[p] for row in (*clean, *corrupt)}
        if name is None and len(tokens) == 1 and tokenizer is not None:
            (token,) = tokens
            name = tokenizer.token(token) if token < tokenizer.vocab_size else None
        labels.append(str(p) if name is None else f"{p}:{name}")
    return tuple(labels)
