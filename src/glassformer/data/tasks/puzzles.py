"""Tasks with symbols of their own: copy, reverse, modular addition, recall, needle, brackets.

See `task` for what rows, weights and lengths mean.
"""

import dataclasses
from functools import cache

import torch
from torch import Tensor

from glassformer.arguments import Count, Kinds
from glassformer.config import require
from glassformer.data.batch import Split, is_heldout
from glassformer.data.tasks.repeats import numbered
from glassformer.data.tasks.task import Alphabet, Rows, TaskConfig, check_shape, last_position
from glassformer.errors import DataError

_BOS, _EOS, _EQUALS = 0, 1, 2
_LARGEST_MODULUS = 1 << 12


@dataclasses.dataclass(frozen=True)
class Copy(TaskConfig, kind="copy"):
    """`<bos> x1 … xm = x1 … xm <eos>` with m random: what follows = is determined.

    Args:
        n_symbols: Different symbols to copy.
    """

    batch_size: int = 16
    length: int = 32
    seed: int = 0
    n_symbols: Kinds = 16

    def __post_init__(self) -> None:
        _check_payload(self, self.n_symbols)

    def symbols(self) -> list[str]:
        return ["<bos>", "<eos>", "=", *(f"x{i}" for i in range(self.n_symbols))]

    def rows(self, alphabet: Alphabet, split: Split, random: torch.Generator) -> Rows:
        return _payload_rows(self, self.n_symbols, random, backwards=False)


@dataclasses.dataclass(frozen=True)
class Reverse(TaskConfig, kind="reverse"):
    """`<bos> x1 … xm = xm … x1 <eos>` with m random: what follows = is determined.

    Args:
        n_symbols: Different symbols to reverse.
    """

    batch_size: int = 16
    length: int = 32
    seed: int = 0
    n_symbols: Kinds = 16

    def __post_init__(self) -> None:
        _check_payload(self, self.n_symbols)

    def symbols(self) -> list[str]:
        return ["<bos>", "<eos>", "=", *(f"x{i}" for i in range(self.n_symbols))]

    def rows(self, alphabet: Alphabet, split: Split, random: torch.Generator) -> Rows:
        return _payload_rows(self, self.n_symbols, random, backwards=True)


@dataclasses.dataclass(frozen=True)
class ModularAddition(TaskConfig, kind="modular-addition"):
    """`<bos> a + b = c a + b = c …` with c = (a + b) mod modulus: each c is determined.

    Args:
        length: A multiple of 5; 5 is one sum per row.
        heldout: Share of the pairs {a, b} that training never sees, chosen by hash.
    """

    batch_size: int = 16
    length: int = 5
    seed: int = 0
    modulus: Count = 97
    heldout: float = 0.3

    def __post_init__(self) -> None:
        check_shape(self, least=5)
        require(self.length % 5 == 0, f"length={self.length} is not a multiple of 5, the length of one sum.")
        _check_modulus(self.modulus)
        require(0 <= self.heldout < 1, f"heldout={self.heldout} is not in [0, 1).")

    def symbols(self) -> list[str]:
        return ["<bos>", "+", "=", *map(str, range(self.modulus))]

    def rows(self, alphabet: Alphabet, split: Split, random: torch.Generator) -> Rows:
        pairs = _sums(self.modulus, self.heldout, split)
        a, b = pairs[torch.randint(len(pairs), (self.batch_size, self.length // 5), generator=random)].unbind(-1)
        plus, equals, number = torch.ones_like(a), torch.full_like(a, 2), 3
        sums = torch.stack([a + number, plus, b + number, equals, (a + b) % self.modulus + number], -1).flatten(1)
        weight = (torch.arange(self.length) % 5 == 4).repeat(self.batch_size, 1)
        return Rows(torch.cat([torch.full((self.batch_size, 1), _BOS), sums], 1), weight)


@dataclasses.dataclass(frozen=True)
class ModularSum(TaskConfig, kind="modular-sum"):
    """`a b =`, and at = the answer (a + b) mod modulus, one of `modulus` outputs: answers are no tokens of the text.

    The model for it has `vocab_size=modulus + 1`, `output_vocab_size=modulus` and `tied=False`.

    Args:
        heldout: As in `ModularAddition`.

    Source: Nanda et al. 2023, "Progress measures for grokking via mechanistic interpretability".
    """

    batch_size: int = 64
    length: int = 3
    seed: int = 0
    modulus: Count = 97
    heldout: float = 0.3

    def __post_init__(self) -> None:
        check_shape(self, least=3)
        require(self.length == 3, f"length={self.length}, and a sum is 3 tokens long: a b =.")
        _check_modulus(self.modulus)
        require(0 <= self.heldout < 1, f"heldout={self.heldout} is not in [0, 1).")

    def symbols(self) -> list[str]:
        return [*self.outputs(), "="]

    def outputs(self) -> list[str]:
        return [str(number) for number in range(self.modulus)]

    def rows(self, alphabet: Alphabet, split: Split, random: torch.Generator) -> Rows:
        pairs = _sums(self.modulus, self.heldout, split)
        a, b = pairs[torch.randint(len(pairs), (self.batch_size,), generator=random)].unbind(-1)
        tokens = torch.stack([a, b, torch.full_like(a, self.modulus)], -1)
        # only the last position is asked
        answers = torch.nn.functional.pad(((a + b) % self.modulus)[:, None], (2, 0))
        return Rows(tokens, last_position(self), targets=answers)


@dataclasses.dataclass(frozen=True)
class Recall(TaskConfig, kind="recall"):
    """`<bos> k v k v … k v k v …`: after `n_pairs` pairs of different keys, known keys come again with their values.

    Args:
        length: Even; what remains after the pairs is filled with queries.
        numbered: Call symbols t1, t2, … as `Repeat` does, so that tasks of a mixture are about the same symbols.

    Source: Arora et al. 2023, "Zoology" (multi-query associative recall), with queries right after the pairs.
    """

    batch_size: int = 16
    length: int = 64
    seed: int = 0
    n_pairs: Count = 8
    n_keys: Kinds = 32
    n_values: Kinds = 32
    numbered: bool = False

    def __post_init__(self) -> None:
        check_shape(self)
        require(1 <= self.n_pairs <= self.n_keys, f"n_pairs={self.n_pairs} exceeds n_keys={self.n_keys}.")
        require(self.n_values >= 1, "n_values must be at least 1.")
        require(
            self.length % 2 == 0 and self.length >= 2 * self.n_pairs + 2,
            f"length={self.length} must be even and at least 2 n_pairs + 2 = {2 * self.n_pairs + 2}.",
        )

    def symbols(self) -> list[str]:
        if self.numbered:
            return numbered(1 + self.n_keys + self.n_values)
        return ["<bos>", *(f"k{i}" for i in range(self.n_keys)), *(f"v{i}" for i in range(self.n_values))]

    def rows(self, alphabet: Alphabet, split: Split, random: torch.Generator) -> Rows:
        size = self.batch_size
        keys = 1 + torch.rand(size, self.n_keys, generator=random).argsort(1)[:, : self.n_pairs]
        values = 1 + self.n_keys + torch.randint(self.n_values, (size, self.n_pairs), generator=random)
        asked = torch.randint(self.n_pairs, (size, self.length // 2 - self.n_pairs), generator=random)
        order = torch.cat([torch.arange(self.n_pairs).expand(size, -1), asked], 1)
        pairs = torch.stack([keys.gather(1, order), values.gather(1, order)], -1).flatten(1)
        place = torch.arange(self.length)
        weight = ((place % 2 == 1) & (place > 2 * self.n_pairs)).repeat(size, 1)
        return Rows(torch.cat([torch.full((size, 1), _BOS), pairs], 1), weight)


@dataclasses.dataclass(frozen=True)
class Needle(TaskConfig, kind="needle"):
    """`<bos> noise needle v noise needle` -> v: one fact in a long stretch of noise, or several.

    Of several, each has a needle and a value of its own, and the question names one: `<bos> noise needle3 v noise
    needle1 w noise needle3` -> v. Which value is asked for is known by comparison alone.

    Args:
        depth: Where the fact asked for stands, 0 at the beginning and 1 at the end; None for anywhere.
        n_needles: Facts in a row.
        n_names: Needles there are.
        numbered: Call symbols t1, t2, … as `Repeat` does, so that tasks of a mixture are about the same symbols.
    """

    batch_size: int = 16
    length: int = 128
    seed: int = 0
    depth: float | None = None
    n_values: Kinds = 16
    n_noise: Kinds = 32
    n_needles: Count = 1
    n_names: Kinds = 1
    numbered: bool = False

    def __post_init__(self) -> None:
        check_shape(self, least=4)
        require(self.depth is None or 0 <= self.depth <= 1, f"depth={self.depth} is not in [0, 1].")
        require(self.n_noise >= 1, "n_noise must be at least 1.")
        room = min(self.n_names, self.n_values, (self.length - 2) // 2)
        require(
            1 <= self.n_needles <= room,
            f"n_needles={self.n_needles}, but n_names={self.n_names}, n_values={self.n_values} and "
            f"length={self.length} suffice for {room}, and one is needed.",
        )

    def symbols(self) -> list[str]:
        if self.numbered:
            return numbered(1 + self.n_names + self.n_values + self.n_noise)
        needles = ["needle"] if self.n_names == 1 else [f"needle{i}" for i in range(self.n_names)]
        noise = (f"n{i}" for i in range(self.n_noise))
        return ["<bos>", *needles, *(f"v{i}" for i in range(self.n_values)), *noise]

    def rows(self, alphabet: Alphabet, split: Split, random: torch.Generator) -> Rows:
        size, others = self.batch_size, self.n_needles - 1
        first_value = 1 + self.n_names
        first_noise = first_value + self.n_values
        sequence = first_noise + torch.randint(self.n_noise, (size, self.length + 1), generator=random)
        value = torch.randint(self.n_values, (size, 1), generator=random)
        # between <bos> and the question stand facts and single noise
        stands = self.length - 2 - self.n_needles
        stand = torch.randint(stands, (size, 1), generator=random)
        if self.depth is not None:
            stand = torch.full_like(stand, round(self.depth * (stands - 1)))
        free = torch.rand(size, stands, generator=random).scatter(1, stand, 1.0).argsort(1)[:, :others]
        stand = torch.cat((stand, free), 1)
        # a fact is two tokens long
        place = 1 + stand + (stand[:, :, None] > stand[:, None]).sum(-1)
        needle = 1 + torch.rand(size, self.n_names, generator=random).argsort(1)[:, : self.n_needles]
        apart = 1 + torch.rand(size, self.n_values - 1, generator=random).argsort(1)[:, :others]
        value = first_value + torch.cat((value, (value + apart) % self.n_values), 1)
        sequence[:, 0], sequence[:, -2], sequence[:, -1] = _BOS, needle[:, 0], value[:, 0]
        sequence.scatter_(1, place, needle).scatter_(1, place + 1, value)
        return Rows(sequence, last_position(self))


@dataclasses.dataclass(frozen=True)
class Brackets(TaskConfig, kind="brackets"):
    """`<bos> ( [ ] ) = yes`: is the string balanced?

    Half of them are; the others have one bracket changed, or are shuffled (which may leave them balanced), so that
    counting alone does not decide.

    Args:
        n_kinds: Kinds of brackets, 1 to 4.
    """

    batch_size: int = 16
    length: int = 32
    seed: int = 0
    n_kinds: Count = 2

    def __post_init__(self) -> None:
        check_shape(self, least=4)
        require(1 <= self.n_kinds <= 4, f"n_kinds={self.n_kinds} is not in 1 to 4.")

    def symbols(self) -> list[str]:
        return ["<bos>", "<eos>", "=", "no", "yes", *"([{<"[: self.n_kinds], *")]}>"[: self.n_kinds]]

    def rows(self, alphabet: Alphabet, split: Split, random: torch.Generator) -> Rows:
        sequence = torch.full((self.batch_size, self.length + 1), _EOS)
        lengths = torch.empty(self.batch_size, dtype=torch.int64)
        for row in range(self.batch_size):
            string = self._string(random)
            answer = 4 if is_balanced(string, self.n_kinds) else 3
            written = torch.tensor([_BOS, *(5 + s for s in string), _EQUALS, answer])
            sequence[row, : len(written)] = written
            lengths[row] = len(written) - 1
        weight = torch.arange(self.length)[None, :] == lengths[:, None] - 1
        return Rows(sequence, weight, lengths)

    def _string(self, random: torch.Generator) -> list[int]:
        """Return a balanced string or a spoilt one; below n_kinds are the opening brackets."""
        size = int(torch.randint(1, (self.length - 2) // 2 + 1, (), generator=random))
        string = self._balanced(size, random)
        spoilt = int(torch.randint(4, (), generator=random))
        if spoilt == 0:
            string = [string[i] for i in torch.randperm(len(string), generator=random)]
        elif spoilt == 1:
            place = int(torch.randint(len(string), (), generator=random))
            shift = int(torch.randint(1, 2 * self.n_kinds, (), generator=random))
            string[place] = (string[place] + shift) % (2 * self.n_kinds)
        return string

    def _balanced(self, size: int, random: torch.Generator) -> list[int]:
        # cycle lemma: of the rotations of size ups and size + 1 downs, exactly one stays at or above 0 until its end
        steps = torch.tensor([1] * size + [-1] * (size + 1))[torch.randperm(2 * size + 1, generator=random)]
        steps = steps.roll(-int(steps.cumsum(0).argmin()) - 1).tolist()[:-1]
        kinds = torch.randint(self.n_kinds, (2 * size,), generator=random).tolist()
        string, open_kinds = [], []
        for step, kind in zip(steps, kinds, strict=True):
            if step > 0:
                open_kinds.append(kind)
            string.append(kind if step > 0 else self.n_kinds + open_kinds.pop())
        return string


def is_balanced(string: list[int], n_kinds: int) -> bool:
    """Return whether every bracket is closed by its own kind; `i` opens and `n_kinds + i` closes kind i."""
    open_kinds: list[int] = []
    for symbol in string:
        if symbol < n_kinds:
            open_kinds.append(symbol)
        elif not open_kinds or open_kinds.pop() != symbol - n_kinds:
            return False
    return not open_kinds


def _check_modulus(modulus: int) -> None:
    # all pairs of numbers are listed
    require(2 <= modulus <= _LARGEST_MODULUS, f"modulus={modulus} is not in 2 to {_LARGEST_MODULUS:,}.")


def _check_payload(config: Copy | Reverse, n_symbols: int) -> None:
    check_shape(config, least=4)
    require(n_symbols >= 1, "n_symbols must be at least 1.")


def _payload_rows(config: Copy | Reverse, n_symbols: int, random: torch.Generator, *, backwards: bool) -> Rows:
    rows, width = config.batch_size, config.length + 1
    longest = (config.length - 2) // 2
    size = torch.randint(1, longest + 1, (rows, 1), generator=random)
    payload = 3 + torch.randint(n_symbols, (rows, longest), generator=random)
    place = torch.arange(width)[None, :]
    first, second = place - 1, place - size - 2
    again = (size - 1 - second) if backwards else second
    sequence = torch.full((rows, width), _EOS)
    for source, inside in ((first, first < size), (again, (second >= 0) & (second < size))):
        read = payload.gather(1, source.clamp(0, longest - 1).expand(rows, -1))
        sequence = torch.where(inside & (place > 0), read, sequence)
    sequence[:, 0] = _BOS
    sequence.scatter_(1, size + 1, _EQUALS)
    lengths = 2 * size + 2
    at = place[:, :-1]
    return Rows(sequence, (at > size) & (at < lengths), lengths[:, 0])


@cache
def _sums(modulus: int, heldout: float, split: Split) -> Tensor:
    """Return the pairs of a split; a + b and b + a fall on the same side."""
    pairs = [
        (a, b)
        for a in range(modulus)
        for b in range(modulus)
        if is_heldout(heldout, "sum", modulus, min(a, b), max(a, b)) == (split == "heldout")
    ]
    if not pairs:
        raise DataError(f'the "{split}" split of modular addition is empty: modulus={modulus}, heldout={heldout}.')
    return torch.tensor(pairs)
